"""The rows of one window: from a plan and the shards' tokens to arrays.

Whatever the packing, a row is a few stretches of shards' token streams. One that begins inside a document has a BOS
inserted before it: the token before it is taken along, and written over. Document 1 of offsets 0 4 9 in shard 2, cut at
its token 3, in bytes of uint16:

    shard 2, bytes 12 to 18, and a BOS for the first token

Joining them is all that is left to do at training time. `bytearray.join` of memoryview slices does it in two thirds of
the time that copying each into an array takes. The stretches stay in arrays, 18 bytes each, and become Python numbers a
batch at a time.
"""

import time
from collections.abc import Iterable, Iterator

import numpy as np

from tokenmill.batches.pieces import Piece, pieces_of
from tokenmill.rows.packing import RowPlan
from tokenmill.store.maps import read_ahead
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
        self._slices, self._bos_id, self._begins_with_bos = slices, bos_id, begins_with_bos
        self._unchanged = Unchanged()
        self._sources, self._dtype = [shard.tokens.data.cast("B") for shard in shards], shards[0].tokens.dtype
        self._bos, self._filler, self._offsets = plan.bos, plan.filler, plan.row_offsets.astype(np.int32)
        size, taken = self._dtype.itemsize, (plan.length + plan.bos).astype(np.int32)
        self._source, self._begin, self._size = shard.astype(np.int32), (begin - plan.bos) * size, taken * size
        self._inserted = (np.cumsum(taken) - taken)[plan.bos]  # of the tokens of all rows, those that become BOS
        before = np.concatenate([[0], np.cumsum(plan.bos)]).astype(np.int32)
        self._inserted_before = before[plan.row_offsets] if self._inserted.size else None  # how many before each row

    def read(self, numbers: range) -> np.ndarray:
        """The rows of these numbers: (len(numbers), row_len) of the tokens' dtype.

        ValueError where a shard changed on disk, or where a packed row does not begin with BOS.
        """
        self._unchanged.require(self.shards)
        first, last = numbers.start, numbers.stop
        some, sources = slice(self._offsets[first], self._offsets[last]), self._sources
        begins = self._begin[some]
        ends = (begins + self._size[some]).tolist()
        stretches = zip(self._source[some].tolist(), begins.tolist(), ends, strict=True)
        joined = bytearray().join([sources[source][begin:end] for source, begin, end in stretches])
        tokens = np.frombuffer(joined, self._dtype)
        if self._inserted_before is not None:
            inserted = self._inserted[self._inserted_before[first] : self._inserted_before[last]]
            tokens[inserted - first * self.row_len] = self._bos_id
        rows = tokens.reshape(len(numbers), self.row_len)
        if self._begins_with_bos and (rows[:, 0] != self._bos_id).any():
            self._raise_not_bos(rows, numbers)
        return rows

    def read_ahead(self) -> None:
        """Has the kernel begin to read what the rows are made of."""
        for shard, begin, end in self._slices:
            read_ahead(self.shards[shard].tokens[begin:end], wait=False)

    def reading(self) -> Iterator[None]:
        """Has the kernel read it, slice by slice, until all of it is there."""
        for shard, begin, end in self._slices:
            read_ahead(self.shards[shard].tokens[begin:end], wait=True)
            yield

    def pieces(self, number: int) -> list[Piece]:
        """What a row is made of, for people to look at."""
        some, size = slice(self._offsets[number], self._offsets[number + 1]), self._dtype.itemsize
        bos = self._bos[some]
        begin, length = self._begin[some] // size + bos, self._size[some] // size - bos
        columns = (self._source[some], begin, length, bos, self._filler[some])
        facts = zip(*(column.tolist() for column in columns), strict=True)
        return [piece for source, *told in facts for piece in pieces_of(self.shards[source], *told)]

    def rows_with(self, shard: str, begin: int, end: int) -> Iterator[tuple[int, bool]]:
        """The rows that hold some of the tokens `begin` to `end` of a shard, and whether as filler alone."""
        (source,) = [i for i, one in enumerate(self.shards) if one.entry.name == shard]
        size = self._dtype.itemsize
        first, last = self._begin // size + self._bos, (self._begin + self._size) // size
        pieces = np.flatnonzero((self._source == source) & (first < end) & (last > begin))
        rows = np.searchsorted(self._offsets, pieces, side="right") - 1
        for row in np.unique(rows).tolist():
            yield row, bool(self._filler[pieces[rows == row]].all())

    def _raise_not_bos(self, rows: np.ndarray, numbers: range) -> None:
        row = int(np.flatnonzero(rows[:, 0] != self._bos_id)[0])
        shard = self.shards[self._source[self._offsets[numbers[row]]]]
        raise not_bos(int(rows[row, 0]), self._bos_id, shard)


def not_bos(found: int, bos_id: int, shard: Shard) -> ValueError:
    """The error for a document of a shard that begins with `found`."""
    return ValueError(
        f"{shard.path}: expected a document to begin with BOS ({bos_id}), found {found}: "
        "the offsets do not match the tokens; delete its .json record and prepare again"
    )
