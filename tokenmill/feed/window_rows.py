"""WindowRows: the rows of one window, what they consist of, and reading them ahead."""

import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from tokenmill.feed.loss_mask import count_targets
from tokenmill.feed.padding import Padding
from tokenmill.feed.pieces import Piece, pieces_of
from tokenmill.feed.row_table import RowTable
from tokenmill.remote.cache import Need
from tokenmill.remote.fetcher import fetcher
from tokenmill.rows.packing import RowPlan
from tokenmill.store.shards import Shard

CHECK_SECONDS = 1.0  # between two checks of whether files have changed


class ChangeCheck:
    """Checks now and then that shards are still the files that were opened."""

    def __init__(self) -> None:
        self._due = 0.0

    def require(self, shards: Iterable[Shard]) -> None:
        """Raises ValueError if a shard changed on disk. Checks at most once a second and for at most 1% of the time."""
        started = time.monotonic()
        if started < self._due:
            return
        for shard in shards:
            shard.require_unchanged()
        now = time.monotonic()
        self._due = now + max(CHECK_SECONDS, 100 * (now - started))


class WindowRows:
    """`num_rows` rows of `row_len` tokens each, joined from the tokens of shards when they are read.

    `stretches` are the (number in shards, begin, end) that the pieces come from: (num_stretches, 3). `shard` and
    `begin` are each piece's number in shards and its first token there.
    """

    def __init__(
        self,
        shards: list[Shard],
        stretches: np.ndarray,
        plan: RowPlan,
        shard: np.ndarray,
        begin: np.ndarray,
        bos_id: int,
        begins_with_bos: bool,
        loss: str = "all",
    ):
        self.shards, self.row_len, self.num_rows = shards, plan.row_len, plan.num_rows
        self._stretches, self._filler, self._change_check = stretches, plan.filler, ChangeCheck()
        self._needs: list[Need] = []
        for one in shards:
            one.expect_random_reads()
        size = shards[0].tokens.dtype.itemsize
        self.table = RowTable(
            shards,
            plan.row_len,
            bos_id,
            begins_with_bos,
            offsets=plan.row_offsets.astype(np.int32),
            source=shard.astype(np.int32),
            begin=(begin - plan.bos) * size,
            size=(plan.length + plan.bos).astype(np.int32) * np.int32(size),
            bos=plan.bos,
            pieces=plan.count_by_row(~plan.filler),
            filler=plan.count_by_row(np.where(plan.filler, plan.length, 0)),
            targets=_targets(shards, plan, shard, begin, loss),
            quiet=_quiet(plan, loss),
            loss=loss,
        )

    def loss_mask(self, numbers: range, rows: np.ndarray) -> np.ndarray:
        """Which tokens of these rows bear loss: (len(numbers), row_len) bool."""
        return self.table.loss_mask(numbers, rows)

    def read(self, numbers: range) -> np.ndarray:
        """The rows with these numbers: (len(numbers), row_len) in the tokens' dtype.

        Raises ValueError if a shard changed on disk, or if a piece that must begin with BOS does not.
        """
        self._change_check.require(self.shards)
        return self.table.read(numbers)

    def request_blocks(self, due: Callable[[], int]) -> None:
        """Has remote blocks fetched in the order of the rows, needed in `due()` windows, until `release_blocks`."""
        for cache, blocks in self.table.blocks if not self._needs else ():
            self._needs.append(need := Need(blocks, due))
            fetcher().expect(cache, need)

    def release_blocks(self) -> None:
        """Says that the remote blocks are no longer needed."""
        self._needs = []

    def read_ahead(self) -> None:
        """Asks the kernel to start reading the stretches of shards on this disk."""
        for shard, begin, end in self._local_stretches():
            self.shards[shard].read_ahead(begin, end, wait=False)

    def reading(self) -> Iterator[None]:
        """Has the kernel read these stretches one by one, and yields after each."""
        for shard, begin, end in self._local_stretches():
            self.shards[shard].read_ahead(begin, end, wait=True)
            yield

    def _local_stretches(self) -> Iterator[tuple[int, int, int]]:
        """The stretches whose bytes are all on this disk."""
        for shard, begin, end in self._stretches.tolist():
            if self.shards[shard].is_there(begin, end):
                yield shard, begin, end

    def pieces(self, number: int) -> list[Piece]:
        """The pieces of a row, for display."""
        table, size = self.table, self.table.dtype.itemsize
        stretches = slice(table.offsets[number], table.offsets[number + 1])
        bos = table.bos[stretches]
        begin, length = table.begin[stretches] // size + bos, table.size[stretches] // size - bos
        context = np.where(self._filler[stretches], 0, np.maximum(table.quiet[stretches] - bos, 0))
        columns = (table.source[stretches], begin, length, bos, self._filler[stretches], context)
        facts = zip(*(column.tolist() for column in columns), strict=True)
        return [piece for source, *stretch in facts for piece in pieces_of(self.shards[source], *stretch)]

    def rows_with(self, shard: str, begin: int, end: int) -> Iterator[tuple[int, bool]]:
        """The rows that hold any of the tokens `begin` to `end` of a shard, each with whether they are only filler."""
        (source,) = [i for i, one in enumerate(self.shards) if one.entry.name == shard]
        table, size = self.table, self.table.dtype.itemsize
        first, last = table.begin // size + table.bos, (table.begin + table.size) // size
        pieces = np.flatnonzero((table.source == source) & (first < end) & (last > begin))
        rows = np.searchsorted(table.offsets, pieces, side="right") - 1
        for row in np.unique(rows).tolist():
            yield row, bool(self._filler[pieces[rows == row]].all())


def _quiet(plan: RowPlan, loss: str) -> np.ndarray:
    """How many of each piece's first tokens, an inserted BOS included, bear no loss: (num_pieces,) int32.

    Those of its context, and with loss="once" all of filler. Padding has a loss mask of its own.
    """
    if plan.context is not None:
        return np.where(plan.context > 0, plan.context + plan.bos, 0).astype(np.int32)
    return np.where(plan.filler & (loss == "once"), plan.length, 0).astype(np.int32)


def _targets(shards: list[Shard], plan: RowPlan, shard: np.ndarray, begin: np.ndarray, loss: str) -> np.ndarray:
    """How many targets of each row bear loss: (num_rows,) int32. `begin` is each piece's first token in its shard."""
    if plan.context is None:
        if loss == "all":
            return np.full(plan.num_rows, plan.row_len - 1, np.int32)
        return plan.count_by_row(np.where(plan.filler, 0, plan.length + plan.bos - 1))  # all but BOS
    counts = np.zeros(len(plan.length), np.int64)
    for number, one in enumerate(shards):
        if isinstance(one, Padding):
            continue
        own = np.flatnonzero(shard == number)
        first, last = begin[own] + plan.context[own], begin[own] + plan.length[own]
        document = np.searchsorted(one.offsets, first.astype(one.offsets.dtype))
        document = np.minimum(document, len(one.offsets) - 2)
        whole = (one.offsets[document] == first) & (one.offsets[document + 1] == last)
        counts[own[whole]] = one.target_counts[document[whole]]
        counts[own[~whole]] = count_targets(one, first[~whole], last[~whole])
    return plan.count_by_row(counts)
