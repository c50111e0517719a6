"""The rows of one shard: from a plan and the shard's tokens to filled arrays.

Whatever the packing, a row is a few stretches of the shard's token stream, some with a BOS before them.
Document 1 of offsets 0 4 9, cut at its token 3, is `begin 7, length 2, BOS before`.
Copying them is all that is left to do at training time, so it is done with memoryview slices: a
slice of an ndarray makes a new object each time and costs a third more, of an np.memmap three times.
"""

import numpy as np

from tokenmill.packing import RowPlan


class ShardRows:
    """`num_rows` rows of `row_len` tokens each, to be copied from a shard's tokens."""

    def __init__(self, tokens: np.ndarray, row_len: int, bos_id: int, row_offsets, begin, length, bos):
        self.num_rows, self.row_len = len(row_offsets) - 1, row_len
        self._tokens, self._bos_id = tokens, bos_id
        # lists: the loop in `fill` reads them one by one
        self._first, self._begin, self._length = row_offsets.tolist(), begin.tolist(), length.tolist()
        self._bos = bos.tolist()

    @classmethod
    def packed(cls, tokens: np.ndarray, offsets: np.ndarray, plan: RowPlan, bos_id: int) -> "ShardRows":
        """Rows of pieces of documents, as `plan_rows` planned them from the lengths of these offsets."""
        begin = offsets[plan.document].astype(np.int64) + plan.start
        return cls(tokens, plan.row_len, bos_id, plan.row_offsets, begin, plan.length, plan.start > 0)

    @classmethod
    def windows(cls, tokens: np.ndarray, starts: np.ndarray, row_len: int, bos_id: int) -> "ShardRows":
        """Rows of one stretch each, as `plan_windows` planned them."""
        one = np.arange(len(starts) + 1)
        return cls(tokens, row_len, bos_id, one, starts, np.full(len(starts), row_len), np.zeros(len(starts), bool))

    def fill(self, out: np.ndarray, numbers: range) -> None:
        """Copies the rows of these numbers into out, (len(numbers), row_len) of the tokens' dtype, contiguous."""
        target, source = out.reshape(-1).data, self._tokens.data
        at = 0
        for number in numbers:
            for piece in range(self._first[number], self._first[number + 1]):
                if self._bos[piece]:
                    target[at] = self._bos_id
                    at += 1
                begin, length = self._begin[piece], self._length[piece]
                target[at : at + length] = source[begin : begin + length]
                at += length
        assert at == len(target), "the rows of a plan hold exactly row_len tokens"
