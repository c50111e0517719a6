"""Which tokens of rows bear loss: bits of the mask column of a chat set, or rules for text.

    chat set       the bits that preparing stored, but not for tokens that another row has as its own (context)
    text, "all"    every token
    text, "once"   every token but BOS and filler, so that each token of the text is a target exactly once an epoch

Padding bears no loss. A stretch of a row is a stretch of the mask's bits, too. Bytes of the mask are joined as the
tokens are, unpacked all at once, and the bits before and after each stretch are left out:

    stretch of tokens 5 to 12     bytes 0 and 1 of the mask: bits 5 to 12 of 16
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenmill.store.shards import Shard

LOSSES = ("all", "once")
FIRST_BYTES = np.int64(3)  # a bit number shifted by it is the number of its byte


class LossMask:
    """The loss mask of stretches of these shards. `loss` says which tokens of text bear loss."""

    def __init__(self, shards: Sequence[Any], loss: str, row_len: int, bos_id: int):
        self._bos_id, self._once = bos_id, loss == "once"
        masks = [shard.mask_bytes for shard in shards]
        self._is_text = np.array([mask is None for mask in masks])
        self._has_text, self._has_chats = bool(self._is_text.any()), not self._is_text.all()
        ones = memoryview(b"\xff" * (row_len // 8 + 2))
        self._bytes = [ones if mask is None else mask for mask in masks]

    def of_rows(
        self,
        rows: np.ndarray,
        source: np.ndarray,
        begin: np.ndarray,
        length: np.ndarray,
        quiet: np.ndarray | None,
    ) -> np.ndarray:
        """Which tokens of `rows`, (n, row_len), bear loss: (n, row_len) bool.

        The rows are these stretches, each `length` tokens of the shard `source` from its token `begin` on. The first
        `quiet` tokens of a stretch bear none; None if there are no such stretches.
        """
        mask = self._bits(source, begin, length) if self._has_chats else np.ones(rows.size, bool)
        if self._once and self._has_text:
            mask &= rows.reshape(-1) != self._bos_id  # in a chat set, preparing has seen to that
        if quiet is not None:
            firsts = np.cumsum(length) - length
            for stretch in np.flatnonzero(quiet).tolist():
                mask[firsts[stretch] : firsts[stretch] + quiet[stretch]] = False
        return mask.reshape(rows.shape)

    def _bits(self, source: np.ndarray, begin: np.ndarray, length: np.ndarray) -> np.ndarray:
        """The bits of stretches, one after the other: (tokens,) bool."""
        if self._has_text:
            begin = np.where(self._is_text[source], 0, begin)  # whose mask is one row of ones
        first, last = begin >> FIRST_BYTES, (begin + length + 7) >> FIRST_BYTES
        masks, places = self._bytes, zip(source.tolist(), first.tolist(), last.tolist(), strict=True)
        joined = bytearray().join([masks[shard][a:b] for shard, a, b in places])
        bits = np.unpackbits(np.frombuffer(joined, np.uint8), bitorder="little").data
        at = np.cumsum(last - first)
        at -= last - first
        at <<= FIRST_BYTES
        at += begin & 7
        parts = zip(at.tolist(), (at + length).tolist(), strict=True)
        return np.frombuffer(bytearray().join([bits[a:b] for a, b in parts]), bool)


def count_targets(shard: Shard, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """How many tokens `begin` to `end` of a chat set's shard bear loss: (number of stretches,) int64."""
    mask = shard.mask_bytes
    assert mask is not None, "only chat sets have a mask"
    found = np.zeros(len(begin), np.int64)
    for number, (first, last) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        bits = np.unpackbits(np.frombuffer(mask[first >> 3 : (last + 7) >> 3], np.uint8), bitorder="little")
        found[number] = np.count_nonzero(bits[first & 7 : (first & 7) + last - first])
    return found
