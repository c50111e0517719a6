"""Statistics of a split's documents, of all shards, or, of a large set, of evenly spaced ones.

They are lengths, and for chats how many tokens are in the loss, and how many of these a choice of
`long_documents` loses.

    entries = sample(token_set, "train")
    lengths = lengths_of(token_set, entries)      by shard, BOS counted; of a view each copy
    statistics = look_at_loss(token_set, entries, seq_lens=(2048, 8192))
    statistics.lost["crop"][2048]                 0.031: the share of targets beyond the first row
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

SAMPLE_TOKENS = 1 << 30
SAMPLE_DOCUMENTS = 1 << 23
BINS_AN_OCTAVE = 4


def sample(token_set: TokenSet, split: str) -> list[ShardEntry]:
    """All shards with documents, or evenly spaced ones; at least one.

    Of a large set they have about SAMPLE_TOKENS tokens or SAMPLE_DOCUMENTS documents. ValueError if
    the split has no documents.
    """
    entries = [entry for entry in token_set.split(split) if entry.tokens]
    if not entries:
        raise ValueError(
            f"{token_set.display_name}: split {split!r} has no documents, so there is nothing to "
            "report"
        )
    tokens = sum(entry.tokens for entry in entries)
    documents = sum(entry.documents for entry in entries)
    share = min(1, SAMPLE_TOKENS / tokens, SAMPLE_DOCUMENTS / documents)
    count = max(1, round(len(entries) * share))
    return [entries[i * len(entries) // count] for i in range(count)]


def lengths_of(token_set: TokenSet, entries: list[ShardEntry]) -> list[np.ndarray]:
    """The lengths of the documents of each shard.

    ValueError if a view keeps none of them, or a shard is damaged.
    """
    lengths = [shard.lengths for shard in documents_of(token_set, entries)]
    if not lengths:
        raise ValueError(
            f"{token_set.display_name}: the view has no training documents to report on"
        )
    return lengths


class Bin(NamedTuple):
    """The documents of `first` to `last` tokens."""

    first: int
    last: int
    documents: int
    tokens: int
    targets: int  # of the tokens, those that are in the loss


def histogram(lengths: np.ndarray, targets: np.ndarray | None = None) -> list[Bin]:
    """Documents by length, in four bins an octave, from the shortest: 1, 2, 3, 4, 5, 6-7, 8-9 ...

    `targets` is how many tokens of each are in the loss.
    """
    octaves = int(np.log2(lengths.max())) + 1
    exponents = np.arange(octaves * BINS_AN_OCTAVE + 1) / BINS_AN_OCTAVE
    edges = np.unique(np.floor(2**exponents + 1e-9).astype(np.int64))
    number = np.searchsorted(edges, lengths, side="right") - 1
    if targets is None:
        targets = np.zeros_like(lengths)
    documents = np.bincount(number, minlength=len(edges))
    sums = [np.bincount(number, weights, len(edges)) for weights in (lengths, targets)]
    columns = np.stack([documents, *sums], axis=1).astype(np.int64).tolist()
    first = edges.tolist()
    used = range(number.min(), number.max() + 1)
    return [Bin(first[i], first[i + 1] - 1, *columns[i]) for i in used]


MOST_SPANS = 16  # a chart counts conversations of this many and more together


@dataclass(frozen=True)
class LossStatistics:
    """Counts over the shards that were read."""

    targets: np.ndarray  # (documents,) int64: how many tokens of each conversation are in the loss
    # (documents,) int64: in how many spans; in most templates, one for each turn in the loss
    spans: np.ndarray
    # by long_documents and seq_len: the share of the targets that are in no row
    lost: dict[str, dict[int, float]]
    # of each shard: the place of each conversation's first target, NONE if it has none
    first: list[np.ndarray]

    @property
    def by_spans(self) -> np.ndarray:
        """Conversations with 0, 1, 2 ... spans: (most + 1,) int64.

        The last may count those with more, too.
        """
        return np.bincount(np.minimum(self.spans, MOST_SPANS))


def look_at_loss(
    token_set: TokenSet, entries: Sequence[ShardEntry], seq_lens: Sequence[int]
) -> LossStatistics:
    """Reads the loss masks of a chat set.

    Raises ValueError or FileNotFoundError if a shard is damaged or missing.
    """
    targets = []
    spans = []
    first_targets = []
    kept = {label: dict.fromkeys(seq_lens, 0) for label in variants(chat=True)}
    for shard in documents_of(token_set, entries):
        mask = shard.mask()
        assert mask is not None, "only chat sets have a mask"
        begins = shard.offsets[:-1]
        ends = shard.offsets[1:]
        bits = np.append(mask, np.uint8(0))
        is_first = np.zeros_like(bits)  # of a span; a conversation begins with BOS, outside
        is_first[1:] = bits[1:] > bits[:-1]
        of_shard = _sums(bits, begins, ends)
        targets.append(of_shard)
        spans.append(_sums(is_first, begins, ends))
        first_targets.append(_first_targets(bits, begins, ends))
        for seq_len in seq_lens:
            row_ends = np.minimum(ends, begins + seq_len + 1)
            fits = shard.lengths <= seq_len + 1
            kept["crop"][seq_len] += int(_sums(bits, begins, row_ends).sum())
            kept["drop"][seq_len] += int(of_shard[fits].sum())
    all_targets = np.concatenate(targets)
    total = max(1, int(all_targets.sum()))
    lost: dict[str, dict[int, float]] = {}
    for label, counts in kept.items():
        lost[label] = {seq_len: 1 - count / total for seq_len, count in counts.items()}
    return LossStatistics(all_targets, np.concatenate(spans), lost, first_targets)


def _first_targets(bits: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The place of each conversation's first target, NONE if it has none."""
    places = np.append(np.flatnonzero(bits), NONE)
    next_target = places[np.searchsorted(places, begins)]
    return np.where(next_target < ends, next_target - begins, NONE)


def _sums(bits: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The sums of bits between `begins` and `ends`, which ascend: (documents,) int64."""
    edges = np.stack([begins, ends], axis=1).reshape(-1)
    sums: np.ndarray = np.add.reduceat(bits, edges, dtype=np.int64)
    return sums[::2]
