"""The lengths of a split's documents: of all shards, or, of a large set, of evenly spaced ones.

entries = sample(token_set, "train")
lengths = lengths_of(token_set, entries)      by shard, BOS counted; of a view each copy
"""

from typing import NamedTuple

import numpy as np

from tokenmill.store.documents import documents_of
from tokenmill.store.shards import ShardEntry
from tokenmill.store.token_sets import TokenSet

SAMPLE_TOKENS, SAMPLE_DOCUMENTS = 1 << 30, 1 << 23
BINS_AN_OCTAVE = 4


def sample(token_set: TokenSet, split: str) -> list[ShardEntry]:
    """All shards with documents, or evenly spaced ones with about SAMPLE_TOKENS tokens or SAMPLE_DOCUMENTS documents;
    at least one. ValueError if the split has no documents.
    """
    entries = [entry for entry in token_set.split(split) if entry.tokens]
    if not entries:
        raise ValueError(f"{token_set.display_name}: split {split!r} has no documents, so there is nothing to report")
    tokens, documents = sum(entry.tokens for entry in entries), sum(entry.documents for entry in entries)
    share = min(1, SAMPLE_TOKENS / tokens, SAMPLE_DOCUMENTS / documents)
    count = max(1, round(len(entries) * share))
    return [entries[i * len(entries) // count] for i in range(count)]


def lengths_of(token_set: TokenSet, entries: list[ShardEntry]) -> list[np.ndarray]:
    """The lengths of the documents of each shard. ValueError if a view keeps none of them, or a shard is damaged."""
    found = [shard.lengths for shard in documents_of(token_set, entries)]
    if not found:
        raise ValueError(f"{token_set.display_name}: the view has no training documents to report on")
    return found


class Bin(NamedTuple):
    """The documents of `first` to `last` tokens."""

    first: int
    last: int
    documents: int
    tokens: int
    targets: int  # of the tokens, those that bear loss


def histogram(lengths: np.ndarray, targets: np.ndarray | None = None) -> list[Bin]:
    """Documents by length, with four bins an octave, from the shortest to the longest: 1, 2, 3, 4, 5, 6-7, 8-9 ...

    `targets` is how many tokens of each bear loss.
    """
    octaves = int(np.log2(lengths.max())) + 1
    edges = np.unique(np.floor(2 ** (np.arange(octaves * BINS_AN_OCTAVE + 1) / BINS_AN_OCTAVE) + 1e-9).astype(np.int64))
    number = np.searchsorted(edges, lengths, side="right") - 1
    weights = (None, lengths, np.zeros_like(lengths) if targets is None else targets)
    sums = np.stack([np.bincount(number, of_each, len(edges)).astype(np.int64) for of_each in weights], axis=1)
    used = range(number.min(), number.max() + 1)
    return [Bin(int(edges[i]), int(edges[i + 1]) - 1, *sums[i].tolist()) for i in used]
