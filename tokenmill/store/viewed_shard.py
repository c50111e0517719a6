"""The documents of a shard that a view keeps, as a shard: for what goes over all tokens in order, and not by rows.

    shards_of(token_set, entries)      of a view: all first copies of its documents, then all second ones ...

Tokens are copied from the shard when a block is asked for.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tokenmill.store.shards import Shard, ShardEntry, in_blocks
from tokenmill.store.token_sets import TokenSet


class _Entry(NamedTuple):
    """What stands in place of a shard's entry in the manifest."""

    name: str
    tokens: int
    documents: int


class ViewedShard:
    """Some `documents` of a shard, in order, with what writers ask of a shard."""

    def __init__(self, shard: Shard, documents: np.ndarray):
        self._shard = shard
        self._begins, self.lengths = shard.places_of(documents)
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths)])
        self.entry = _Entry(shard.entry.name, int(self.offsets[-1]), len(documents))
        self.path = shard.path

    @property
    def tokens(self) -> "ViewedShard":
        return self

    def __len__(self) -> int:
        return self.entry.tokens

    def __getitem__(self, part: slice) -> np.ndarray:
        return self.read(*part.indices(len(self))[:2])

    def read(self, first: int, last: int) -> np.ndarray:
        """Tokens `first` to before `last`."""
        last = min(last, len(self))
        parts = [self._shard.read(begin, end) for begin, end in self._stretches(first, last)]
        return np.concatenate(parts) if parts else self._shard.read(0, 0)

    def in_blocks(self, size: int) -> Iterator[np.ndarray]:
        return in_blocks(self, size)  # type: ignore[arg-type]

    @property
    def mask_bytes(self) -> memoryview | None:
        """The loss mask of these documents, a bit a token; None for text."""
        whole = self._shard.mask_bytes
        if whole is None:
            return None
        bits = np.unpackbits(np.frombuffer(whole, np.uint8), bitorder="little")
        parts = [bits[begin:end] for begin, end in self._stretches(0, len(self))]
        return np.packbits(np.concatenate([bits[:0], *parts]), bitorder="little").data

    def _stretches(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Where in the shard tokens `first` to before `last` lie."""
        if first >= last:
            return
        begin, end = np.searchsorted(self.offsets, [first, last - 1], side="right") - 1
        for document in range(int(begin), int(end) + 1):
            offset = int(self.offsets[document])
            start, stop = max(first - offset, 0), min(last - offset, int(self.lengths[document]))
            yield int(self._begins[document]) + start, int(self._begins[document]) + stop


def shards_of(token_set: TokenSet, entries: Sequence[ShardEntry]) -> Sequence[Any]:
    """These shards, or, with a view, the documents of them that it has: all first copies, then all second ones ..."""
    view = token_set.view
    if view is None:
        return [token_set.open(entry) for entry in entries]
    most = max((int(view.counts_of(entry).max(initial=0)) for entry in entries), default=0)
    found = []
    for copy in range(most):
        for entry in entries:
            documents = np.flatnonzero(view.counts_of(entry) > copy)
            if len(documents):
                found.append(ViewedShard(token_set.open(entry), documents))
    return found
