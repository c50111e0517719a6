"""The rows of one shard: from a plan and the shard's tokens to filled arrays.

Whatever the packing, a row is a few stretches of the shard's token stream, some with a BOS before them.
Document 1 of offsets 0 4 9, cut at its token 3, is `begin 7, length 2, BOS before`.
Copying them is all that is left to do at training time, so it is done with memoryview slices: a
slice of an ndarray makes a new object each time and costs a third more, of an np.memmap three times.
The stretches stay in arrays, 18 bytes each, and become Python numbers a batch at a time.
"""

import numpy as np

from tokenmill.batches.pieces import Piece, pieces_of
from tokenmill.rows.packing import RowPlan
from tokenmill.store.shards import Shard


class ShardRows:
    """`num_rows` rows of `row_len` tokens each, to be copied from a shard's tokens."""

    def __init__(self, shard: Shard, row_len: int, bos_id: int, row_offsets, begin, length, bos=None, filler=None):
        self.shard, self.row_len, self.num_rows = shard, row_len, len(row_offsets) - 1
        self._bos_id, self._row_offsets = bos_id, row_offsets
        self._begin, self._length, self._bos, self._filler = begin, length, bos, filler

    @classmethod
    def packed(cls, shard: Shard, plan: RowPlan, bos_id: int) -> "ShardRows":
        """Rows of pieces of documents, as `plan_rows` planned them from the shard's lengths."""
        begin = shard.offsets[plan.document].astype(np.int64) + plan.start
        return cls(shard, plan.row_len, bos_id, plan.row_offsets, begin, plan.length, plan.start > 0, plan.filler)

    @classmethod
    def windows(cls, shard: Shard, starts: np.ndarray, row_len: int, bos_id: int) -> "ShardRows":
        """Rows of one stretch each, as `plan_windows` planned them; they may begin with any token."""
        return cls(shard, row_len, bos_id, np.arange(len(starts) + 1), starts, np.full(len(starts), row_len))

    def fill(self, out: np.ndarray, numbers: range) -> None:
        """Copies the rows of these numbers into out, (len(numbers), row_len) of the tokens' dtype, contiguous.

        ValueError where the shard changed on disk, or where a packed row does not begin with BOS.
        """
        self.shard.require_unchanged()
        pieces = self._pieces(numbers)
        target, source = out.reshape(-1).data, self.shard.tokens.data
        begins, lengths = self._begin[pieces].tolist(), self._length[pieces].tolist()
        inserted = [False] * len(begins) if self._bos is None else self._bos[pieces].tolist()
        at = 0
        for begin, length, bos in zip(begins, lengths, inserted, strict=True):
            if bos:
                target[at] = self._bos_id
                at += 1
            target[at : at + length] = source[begin : begin + length]
            at += length
        assert at == len(target), "the rows of a plan hold exactly row_len tokens"
        if self._bos is not None and (out[:, 0] != self._bos_id).any():
            raise not_bos(out[out[:, 0] != self._bos_id][0, 0], self._bos_id, self.shard)

    def pieces(self, number: int) -> list[Piece]:
        """What a row is made of, for people to look at."""
        stretches = self._pieces(range(number, number + 1))
        columns = [self._begin, self._length] + ([] if self._bos is None else [self._bos, self._filler])
        facts = zip(*(column[stretches].tolist() for column in columns), strict=True)
        return [piece for fact in facts for piece in pieces_of(self.shard, *fact)]

    def _pieces(self, numbers: range) -> np.ndarray | slice:
        """Which pieces these rows are made of, one row after the other."""
        first = self._row_offsets[numbers.start : numbers.stop : numbers.step]
        last = self._row_offsets[numbers.start + 1 : numbers.stop + 1 : numbers.step]
        if numbers.step == 1:
            return slice(first[0], last[-1])
        counts = last - first
        return np.arange(counts.sum()) + np.repeat(first - np.cumsum(counts) + counts, counts)


def not_bos(found: int, bos_id: int, shard: Shard) -> ValueError:
    """The error for a document of a shard that begins with `found`."""
    return ValueError(
        f"{shard.path}: expected a document to begin with BOS ({bos_id}), found {found}: "
        "the offsets do not match the tokens; delete its .json record and prepare again"
    )
