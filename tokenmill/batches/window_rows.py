"""The rows of one window: what they are made of, whether their files are what they were, and reading ahead."""

import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from tokenmill.batches.pieces import Piece, pieces_of
from tokenmill.batches.table import Table
from tokenmill.remote.cache import Need
from tokenmill.remote.fetcher import fetcher
from tokenmill.rows.packing import RowPlan
from tokenmill.store.maps import read_ahead, read_here_and_there
from tokenmill.store.shards import Shard

CHECK_SECONDS = 1.0  # between looks at whether the files are what they were


class Unchanged:
    """Sees to it that shards are still the files that were opened, at once and then now and again."""

    def __init__(self) -> None:
        self._due = 0.0

    def require(self, shards: Iterable[Shard]) -> None:
        """ValueError where a shard changed on disk; looks at most once a second, and for 1% of the time."""
        began = time.monotonic()
        if began < self._due:
            return
        for shard in shards:
            shard.require_unchanged()
        now = time.monotonic()
        self._due = now + max(CHECK_SECONDS, 100 * (now - began))


class WindowRows:
    """`num_rows` rows of `row_len` tokens each, to be joined from the tokens of shards.

    `slices` are (place in shards, begin, end), of which the pieces are; `shard` and `begin` each piece's place in
    shards, and its first token there.
    """

    def __init__(
        self,
        shards: list[Shard],
        slices: list[tuple[int, int, int]],
        plan: RowPlan,
        shard: np.ndarray,
        begin: np.ndarray,
        bos_id: int,
        begins_with_bos: bool,
    ):
        self.shards, self.row_len, self.num_rows = shards, plan.row_len, plan.num_rows
        self._slices, self._filler, self._unchanged = slices, plan.filler, Unchanged()
        self._needs: list[Need] = []
        for one in shards:
            read_here_and_there(one.tokens)
        size = shards[0].tokens.dtype.itemsize
        self.table = Table(
            shards,
            plan.row_len,
            bos_id,
            begins_with_bos,
            offsets=plan.row_offsets.astype(np.int32),
            source=shard.astype(np.int32),
            begin=(begin - plan.bos) * size,
            size=(plan.length + plan.bos).astype(np.int32) * np.int32(size),
            bos=plan.bos,
        )

    def read(self, numbers: range) -> np.ndarray:
        """The rows of these numbers: (len(numbers), row_len) of the tokens' dtype.

        ValueError where a shard changed on disk, or where a packed row does not begin with BOS.
        """
        self._unchanged.require(self.shards)
        return self.table.read(numbers)

    def need(self, due: Callable[[], int]) -> None:
        """Has what lies elsewhere fetched, in the order of the rows, needed in `due()` windows; until `let_go`."""
        for cache, blocks in self.table.blocks if not self._needs else ():
            self._needs.append(need := Need(blocks, due))
            fetcher().expect(cache, need)

    def let_go(self) -> None:
        """What lies elsewhere is needed no longer."""
        self._needs = []

    def read_ahead(self) -> None:
        """Has the kernel begin to read what the rows are made of, of the shards on this disk."""
        for shard, begin, end in self._on_this_disk():
            read_ahead(self.shards[shard].tokens[begin:end], wait=False)

    def reading(self) -> Iterator[None]:
        """Has the kernel read it, slice by slice, until all of it is there."""
        for shard, begin, end in self._on_this_disk():
            read_ahead(self.shards[shard].tokens[begin:end], wait=True)
            yield

    def _on_this_disk(self) -> Iterator[tuple[int, int, int]]:
        """The slices, but for those with holes."""
        for shard, begin, end in self._slices:
            if self.shards[shard].is_there(begin, end):
                yield shard, begin, end

    def pieces(self, number: int) -> list[Piece]:
        """What a row is made of, for people to look at."""
        table, size = self.table, self.table.dtype.itemsize
        some = slice(table.offsets[number], table.offsets[number + 1])
        bos = table.bos[some]
        begin, length = table.begin[some] // size + bos, table.size[some] // size - bos
        columns = (table.source[some], begin, length, bos, self._filler[some])
        facts = zip(*(column.tolist() for column in columns), strict=True)
        return [piece for source, *told in facts for piece in pieces_of(self.shards[source], *told)]

    def rows_with(self, shard: str, begin: int, end: int) -> Iterator[tuple[int, bool]]:
        """The rows that hold some of the tokens `begin` to `end` of a shard, and whether as filler alone."""
        (source,) = [i for i, one in enumerate(self.shards) if one.entry.name == shard]
        table, size = self.table, self.table.dtype.itemsize
        first, last = table.begin // size + table.bos, (table.begin + table.size) // size
        pieces = np.flatnonzero((table.source == source) & (first < end) & (last > begin))
        rows = np.searchsorted(table.offsets, pieces, side="right") - 1
        for row in np.unique(rows).tolist():
            yield row, bool(self._filler[pieces[rows == row]].all())
