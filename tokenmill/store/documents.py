"""The documents of shards in order, for what goes over all tokens and not by rows.

    for documents in documents_of(token_set, token_set.split("train")):    a shard each
        for block in documents.in_blocks(1 << 20): ...

Of a view, all first copies of documents come first, then all second copies, and so on.

documents that begin with BOS     B w w w | B w w       as they lie in the shards
documents that end with EOS       w w w E | w w E       `ended`: as many tokens, at the same offsets
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np

from tokenmill.store.shards import Shard, ShardEntry
from tokenmill.store.token_sets import TokenSet


class ShardDocuments:
    """All documents of a shard, or those with these numbers, in this order, as one stream of
    tokens.

    `lengths` are their tokens, (num_documents,), and `offsets` where each begins in the stream,
    (num_documents + 1,).
    """

    def __init__(self, shard: Shard, documents: np.ndarray | None = None):
        self.shard = shard
        self._eos_id: int | None = None
        self._begins: np.ndarray | None = None  # in the shard, unless these are all documents
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
        documents = copy.copy(self)
        documents._eos_id = eos_id
        return documents

    def read(self, first: int, last: int) -> np.ndarray:
        """Tokens `first` to before `last` of the stream."""
        last = min(last, self.tokens)
        if self._eos_id is None:
            return self._read(first, last)
        bos = self._read(0, 1)  # which is nowhere else in a document
        parts = [self._read(first + 1, last + 1)]
        has_last_token = first < last and last == self.tokens
        if has_last_token:
            parts.append(bos)  # the last document's EOS
        tokens = np.concatenate(parts)
        tokens[np.isin(tokens, bos)] = self._eos_id
        return tokens

    def _read(self, first: int, last: int) -> np.ndarray:
        last = min(last, self.tokens)
        if self._begins is None:
            return self.shard.read(first, last)
        if first >= last:
            return self.shard.read(0, 0)
        places = np.searchsorted(self.offsets, [first, last - 1], side="right") - 1
        touched = slice(places[0], places[1] + 1)
        documents = zip(
            self._begins[touched].tolist(),
            self.offsets[touched].tolist(),
            self.lengths[touched].tolist(),
            strict=True,
        )
        parts = []
        for begin, offset, length in documents:
            skipped = max(first - offset, 0)
            stop = min(last - offset, length)
            parts.append(self.shard.read(begin + skipped, begin + stop))
        return np.concatenate(parts)

    def in_blocks(self, size: int) -> Iterator[np.ndarray]:
        """The tokens, `size` at a time."""
        for first in range(0, self.tokens, size):
            yield self.read(first, first + size)

    def mask(self) -> np.ndarray | None:
        """Which tokens are in the loss, of a chat set: (tokens,) uint8.

        None of text, and of documents that end with EOS, whose tokens have moved.
        """
        if self._eos_id is not None:
            return None
        packed = self.shard.mask_bytes
        if packed is None:
            return None
        stored = np.frombuffer(packed, np.uint8)
        bits = np.unpackbits(stored, bitorder="little", count=self.shard.entry.tokens)
        if self._begins is None:
            return bits
        parts = [bits[:0]]
        for begin, length in zip(self._begins.tolist(), self.lengths.tolist(), strict=True):
            parts.append(bits[begin : begin + length])
        return np.concatenate(parts)


def documents_of(token_set: TokenSet, entries: Sequence[ShardEntry]) -> list[ShardDocuments]:
    """The documents of these shards, or those that the set's view keeps: all first copies, then
    all second ones ...
    """
    view = token_set.view
    if view is None:
        return [ShardDocuments(token_set.open(entry)) for entry in entries]
    repeats = [view.repeats_of(entry) for entry in entries]
    most = max((int(array.max(initial=0)) for array in repeats), default=0)
    streams = []
    for copy_number in range(most):
        for entry, array in zip(entries, repeats, strict=True):
            documents = np.flatnonzero(array > copy_number)
            if len(documents):
                streams.append(ShardDocuments(token_set.open(entry), documents))
    return streams
