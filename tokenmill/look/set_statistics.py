"""Statistics of a split's documents, of all shards, or, of a large set, of evenly spaced ones: their lengths, and for
chats how many tokens bear loss, and how many of these a choice of `long_documents` loses.

    entries = sample(token_set, "train")
    lengths = lengths_of(token_set, entries)      by shard, BOS counted; of a view each copy
    statistics = look_at_loss(token_set, entries, seq_lens=(2048, 8192))
    statistics.lost["crop"][2048]                 0.031: of the tokens that bear loss, the share beyond the first row
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tokenmill.feed.conversations import NONE
from tokenmill.look.packing_stats import variants
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
        raise ValueError(
            f"{token_set.display_name}: split {split!r} has no documents, so there is nothing to report"
        )
    tokens, documents = (
        sum(entry.tokens for entry in entries),
        sum(entry.documents for entry in entries),
    )
    share = min(1, SAMPLE_TOKENS / tokens, SAMPLE_DOCUMENTS / documents)
    count = max(1, round(len(entries) * share))
    return [entries[i * len(entries) // count] for i in range(count)]


def lengths_of(token_set: TokenSet, entries: list[ShardEntry]) -> list[np.ndarray]:
    """The lengths of the documents of each shard. ValueError if a view keeps none of them, or a shard is damaged."""
    found = [shard.lengths for shard in documents_of(token_set, entries)]
    if not found:
        raise ValueError(
            f"{token_set.display_name}: the view has no training documents to report on"
        )
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
    edges = np.unique(
        np.floor(2 ** (np.arange(octaves * BINS_AN_OCTAVE + 1) / BINS_AN_OCTAVE) + 1e-9).astype(
            np.int64
        )
    )
    number = np.searchsorted(edges, lengths, side="right") - 1
    weights = (None, lengths, np.zeros_like(lengths) if targets is None else targets)
    sums = np.stack(
        [np.bincount(number, of_each, len(edges)).astype(np.int64) for of_each in weights], axis=1
    )
    used = range(number.min(), number.max() + 1)
    return [Bin(int(edges[i]), int(edges[i + 1]) - 1, *sums[i].tolist()) for i in used]


MOST_STRETCHES = 16  # a chart counts conversations of this many and more together


@dataclass(frozen=True)
class LossStatistics:
    """Counts over the shards that were read."""

    targets: np.ndarray  # (documents,) int64: how many tokens of each conversation bear loss
    stretches: (
        np.ndarray
    )  # (documents,) int64: in how many stretches; in most templates, one for each learned turn
    # by long_documents and seq_len: the share of the targets that are in no row
    lost: dict[str, dict[int, float]]
    # of each shard: the place of each conversation's first target, NONE if it has none
    first: list[np.ndarray]

    @property
    def by_stretches(self) -> np.ndarray:
        """Conversations with 0, 1, 2 ... stretches: (most + 1,) int64. The last may count those with more, too."""
        return np.bincount(np.minimum(self.stretches, MOST_STRETCHES))


def look_at_loss(
    token_set: TokenSet, entries: Sequence[ShardEntry], seq_lens: Sequence[int]
) -> LossStatistics:
    """Reads the loss masks of a chat set. Raises ValueError or FileNotFoundError if a shard is damaged or missing."""
    shards = documents_of(token_set, entries)
    targets, stretches, first = [], [], []
    kept = {label: dict.fromkeys(seq_lens, 0) for label in variants(chat=True)}
    for shard in shards:
        mask, offsets = shard.mask(), shard.offsets
        assert mask is not None, "only chat sets have a mask"
        bits = np.append(mask, np.uint8(0))
        begins = np.zeros_like(bits)
        begins[1:] = bits[1:] > bits[:-1]  # a conversation begins with BOS, which bears no loss
        targets.append(_sums(bits, offsets[:-1], offsets[1:]))
        stretches.append(_sums(begins, offsets[:-1], offsets[1:]))
        places = np.append(np.flatnonzero(bits), NONE)
        found_first = places[np.searchsorted(places, offsets[:-1])]
        first.append(np.where(found_first < offsets[1:], found_first - offsets[:-1], NONE))
        for seq_len in seq_lens:
            fits = shard.lengths <= seq_len + 1
            heads = _sums(bits, offsets[:-1], np.minimum(offsets[1:], offsets[:-1] + seq_len + 1))
            of_these = {"crop": heads, "drop": targets[-1][fits]}
            for label, counts in kept.items():
                counts[seq_len] += int(of_these[label].sum())
    found = np.concatenate(targets)
    total = max(1, int(found.sum()))
    lost = {
        label: {seq_len: 1 - count / total for seq_len, count in counts.items()}
        for label, counts in kept.items()
    }
    return LossStatistics(found, np.concatenate(stretches), lost, first)


def _sums(bits: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The sums of bits from `begin` to before `end`, which are ascending and never equal: (documents,) int64."""
    found: np.ndarray = np.add.reduceat(
        bits, np.stack([begin, end], axis=1).reshape(-1), dtype=np.int64
    )[::2]
    return found
