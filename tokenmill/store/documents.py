"""The documents of shards in order, for what goes over all tokens and not by rows.

    for some in documents_of(token_set, token_set.split("train")):      a shard each; of a view: its first copies of all
        for block in some.in_blocks(1 << 20): ...                       documents, then all second copies ...

documents that begin with BOS     B w w w | B w w        as they lie in the shards
documents that end with EOS       w w w E | w w E        `ended`: as many tokens, at the same offsets
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np

from tokenmill.store.shards import Shard, ShardEntry
from tokenmill.store.token_sets import TokenSet


class ShardDocuments:
    """All documents of a shard, or those with the numbers `documents`, in this order, as one stream of tokens.

    `lengths` are their tokens, (num_documents,), and `offsets` where each begins in the stream, (num_documents + 1,).
    """

    def __init__(self, shard: Shard, documents: np.ndarray | None = None):
        self.shard, self._eos_id = shard, None  # type: Shard, int | None
        self._begins: np.ndarray | None = (
            None  # where each begins in the shard, unless these are all
        )
        if documents is None:
            self.lengths = shard.lengths
        else:
            self._begins, self.lengths = shard.spans_of(documents)
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths)])

    @property
    def tokens(self) -> int:
        """How many tokens they have together."""
        return int(self.offsets[-1])

    def ended(self, eos_id: int) -> Self:
        """The same documents, ending with EOS where they began with BOS."""
        other = copy.copy(self)
        other._eos_id = eos_id
        return other

    def read(self, first: int, last: int) -> np.ndarray:
        """Tokens `first` to before `last` of the stream."""
        last = min(last, self.tokens)
        if self._eos_id is None:
            return self._read(first, last)
        bos_id = self._read(0, 1)  # which is nowhere else in a document
        found = np.concatenate(
            [self._read(first + 1, last + 1), bos_id[: first < last == self.tokens]]
        )
        found[np.isin(found, bos_id)] = self._eos_id
        return found

    def _read(self, first: int, last: int) -> np.ndarray:
        last = min(last, self.tokens)
        if self._begins is None:
            return self.shard.read(first, last)
        parts = [self.shard.read(0, 0)]
        if first < last:
            begin, end = (
                np.searchsorted(self.offsets, [first, last - 1], side="right") - 1
            ).tolist()
            for begins, offset, length in zip(
                self._begins[begin : end + 1].tolist(),
                self.offsets[begin : end + 1].tolist(),
                self.lengths[begin : end + 1].tolist(),
                strict=True,
            ):
                parts.append(
                    self.shard.read(
                        begins + max(first - offset, 0), begins + min(last - offset, length)
                    )
                )
        return np.concatenate(parts)

    def in_blocks(self, size: int) -> Iterator[np.ndarray]:
        """The tokens, `size` at a time."""
        for first in range(0, self.tokens, size):
            yield self.read(first, first + size)

    def mask(self) -> np.ndarray | None:
        """Which tokens are in the loss, of a chat set: (tokens,) uint8. None of text, and of documents that end with
        EOS, whose tokens have moved.
        """
        if self._eos_id is not None or (packed := self.shard.mask_bytes) is None:
            return None
        bits = np.unpackbits(
            np.frombuffer(packed, np.uint8), bitorder="little", count=self.shard.entry.tokens
        )
        if self._begins is None:
            return bits
        spans = zip(self._begins.tolist(), self.lengths.tolist(), strict=True)
        return np.concatenate(
            [bits[:0], *(bits[begin : begin + length] for begin, length in spans)]
        )


def documents_of(token_set: TokenSet, entries: Sequence[ShardEntry]) -> list[ShardDocuments]:
    """The documents of these shards, or those that the set's view keeps: all first copies, then all second ones ..."""
    view = token_set.view
    if view is None:
        return [ShardDocuments(token_set.open(entry)) for entry in entries]
    most = max((int(view.counts_of(entry).max(initial=0)) for entry in entries), default=0)
    kept = [
        (entry, np.flatnonzero(view.counts_of(entry) > copy))
        for copy in range(most)
        for entry in entries
    ]
    return [
        ShardDocuments(token_set.open(entry), documents)
        for entry, documents in kept
        if len(documents)
    ]
