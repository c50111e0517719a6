"""The rows of one window: from a plan and the shards' tokens to filled arrays.

Whatever the packing, a row is a few stretches of shards' token streams, some with a BOS before them.
Document 1 of offsets 0 4 9 in shard 2, cut at its token 3, is `shard 2, begin 7, length 2, BOS before`.
Copying them is all that is left to do at training time, so it is done with memoryview slices: a
slice of an ndarray makes a new object each time and costs a third more.
The stretches stay in arrays, 18 bytes each, and become Python numbers a batch at a time.
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
    """`num_rows` rows of `row_len` tokens each, to be copied from the tokens of shards.

    `stretches` are (place in shards, begin, end): of these pieces are.
    """

    def __init__(
        self,
        shards: list[Shard],
        stretches: list[tuple[int, int, int]],
        plan: RowPlan,
        shard: np.ndarray,  # of each piece, its place in shards
        begin: np.ndarray,  # of each piece, its first token in the shard
        bos_id: int,
        begins_with_bos: bool,
    ):
        self.shards, self.row_len, self.num_rows = shards, plan.row_len, plan.num_rows
        self._stretches, self._bos_id, self._begins_with_bos = stretches, bos_id, begins_with_bos
        self._row_offsets, self._shard, self._begin = plan.row_offsets, shard.astype(np.int32), begin
        self._length, self._bos, self._filler = plan.length.astype(np.int32), plan.bos, plan.filler
        self._any_bos = bool(plan.bos.any())
        self._unchanged, self._tokens = Unchanged(), [shard.tokens.data for shard in shards]

    def fill(self, out: np.ndarray, numbers: range) -> None:
        """Copies the rows of these numbers into out, (len(numbers), row_len) of the tokens' dtype, contiguous.

        ValueError where a shard changed on disk, or where a packed row does not begin with BOS.
        """
        self._unchanged.require(self.shards)
        pieces = slice(self._row_offsets[numbers.start], self._row_offsets[numbers.stop])
        target, tokens, at = out.reshape(-1).data, self._tokens, 0
        columns = (self._shard[pieces].tolist(), self._begin[pieces].tolist(), self._length[pieces].tolist())
        if self._any_bos:
            for shard, begin, length, bos in zip(*columns, self._bos[pieces].tolist(), strict=True):
                if bos:
                    target[at] = self._bos_id
                    at += 1
                target[at : at + length] = tokens[shard][begin : begin + length]
                at += length
        else:
            for shard, begin, length in zip(*columns, strict=True):
                target[at : at + length] = tokens[shard][begin : begin + length]
                at += length
        assert at == len(target), "the rows of a plan hold exactly row_len tokens"
        if self._begins_with_bos and (out[:, 0] != self._bos_id).any():
            self._raise_not_bos(out, numbers)

    def read_ahead(self) -> None:
        """Has the kernel begin to read what the rows are made of."""
        for shard, begin, end in self._stretches:
            read_ahead(self.shards[shard].tokens[begin:end], wait=False)

    def reading(self) -> Iterator[None]:
        """Has the kernel read it, slice by slice, until all of it is there."""
        for shard, begin, end in self._stretches:
            read_ahead(self.shards[shard].tokens[begin:end], wait=True)
            yield

    def pieces(self, number: int) -> list[Piece]:
        """What a row is made of, for people to look at."""
        some = slice(self._row_offsets[number], self._row_offsets[number + 1])
        columns = (self._shard, self._begin, self._length, self._bos, self._filler)
        facts = zip(*(column[some].tolist() for column in columns), strict=True)
        return [piece for shard, *told in facts for piece in pieces_of(self.shards[shard], *told)]

    def rows_with(self, shard: str, begin: int, end: int) -> Iterator[tuple[int, bool]]:
        """The rows that hold some of the tokens `begin` to `end` of a shard, and whether as filler alone."""
        (place,) = [i for i, one in enumerate(self.shards) if one.entry.name == shard]
        found = (self._shard == place) & (self._begin < end) & (self._begin + self._length > begin)
        pieces = np.flatnonzero(found)
        rows = np.searchsorted(self._row_offsets, pieces, side="right") - 1
        for row in np.unique(rows).tolist():
            yield row, bool(self._filler[pieces[rows == row]].all())

    def _raise_not_bos(self, out: np.ndarray, numbers: range) -> None:
        row = int(np.flatnonzero(out[:, 0] != self._bos_id)[0])
        shard = self.shards[self._shard[self._row_offsets[numbers[row]]]]
        raise not_bos(int(out[row, 0]), self._bos_id, shard)


def not_bos(found: int, bos_id: int, shard: Shard) -> ValueError:
    """The error for a document of a shard that begins with `found`."""
    return ValueError(
        f"{shard.path}: expected a document to begin with BOS ({bos_id}), found {found}: "
        "the offsets do not match the tokens; delete its .json record and prepare again"
    )
