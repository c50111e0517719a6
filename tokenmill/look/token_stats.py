"""Statistics of a token set: the lengths of its documents, and how often each token is used.

    look(token_set, "train")      all shards, or for a large set evenly spaced ones with about a billion tokens,
                                  or 8 million documents

Every figure of `Statistics` is counted in the shards that were read, and the statistics say how many these were.
"""

from dataclasses import dataclass

import numpy as np

from tokenmill.store.documents import ShardDocuments, documents_of
from tokenmill.store.shards import ShardEntry
from tokenmill.store.token_sets import TokenSet

SAMPLE_TOKENS, SAMPLE_DOCUMENTS = 1 << 30, 1 << 23
BLOCK_TOKENS = 1 << 20
BINS_AN_OCTAVE = 4


@dataclass(frozen=True)
class Bin:
    """The documents of `first` to `last` tokens, including BOS."""

    first: int
    last: int
    documents: int
    tokens: int
    targets: int = 0  # of the tokens, those that bear loss; counted in chat sets only


@dataclass(frozen=True)
class Statistics:
    """Counts over a split's shards: all that have documents, or a sample of a large set."""

    shards: int  # how many shards were read
    all_shards: int  # how many shards have documents
    lengths: list[np.ndarray]  # by shard: the lengths of its documents, including BOS
    uses: np.ndarray  # (vocab_size,) int64: how often each id occurs

    @property
    def all_lengths(self) -> np.ndarray:
        return np.concatenate(self.lengths)


def look(token_set: TokenSet, split: str, progress=lambda tokens: None) -> Statistics:
    """Reads a split's shards. Raises ValueError if it has no documents, or if the tokens are invalid.

    `progress` is called with the number of tokens that were read since the last call.
    """
    entries = sample(token_set, split)
    if not entries:
        raise ValueError(f"{token_set.display_name}: split {split!r} has no documents, so there is nothing to report")
    shards = documents_of(token_set, entries)
    if not shards:
        raise ValueError(f"{token_set.display_name}: split {split!r} has no documents in this view to report on")
    uses = np.zeros(token_set.tokenizer["vocab_size"], dtype=np.int64)
    for shard in shards:
        before = int(uses[token_set.bos_id])
        for block in shard.in_blocks(BLOCK_TOKENS):
            found = np.bincount(block, minlength=len(uses))
            _require_ids(shard, found, len(uses))
            uses += found
            progress(len(block))
        _require_bos(shard, int(uses[token_set.bos_id]) - before)
    return Statistics(len(entries), len(_with_documents(token_set, split)), [shard.lengths for shard in shards], uses)


def sample(token_set: TokenSet, split: str) -> list[ShardEntry]:
    """All shards with documents, or evenly spaced ones with about SAMPLE_TOKENS tokens or SAMPLE_DOCUMENTS documents.

    It is at least one shard.
    """
    entries = _with_documents(token_set, split)
    tokens, documents = sum(entry.tokens for entry in entries), sum(entry.documents for entry in entries)
    share = min(1, SAMPLE_TOKENS / max(1, tokens), SAMPLE_DOCUMENTS / max(1, documents))
    count = max(1, round(len(entries) * share))
    return [entries[i * len(entries) // count] for i in range(min(count, len(entries)))]


def _with_documents(token_set: TokenSet, split: str) -> list[ShardEntry]:
    return [entry for entry in token_set.split(split) if entry.tokens]


def histogram(lengths: np.ndarray, targets: np.ndarray | None = None) -> list[Bin]:
    """Documents by length, with four bins an octave, from the shortest to the longest: 1, 2, 3, 4, 5, 6-7, 8-9 ...

    `targets` is how many tokens of each bear loss.
    """
    octaves = int(np.log2(lengths.max())) + 1
    edges = np.unique(np.floor(2 ** (np.arange(octaves * BINS_AN_OCTAVE + 1) / BINS_AN_OCTAVE) + 1e-9).astype(np.int64))
    number = np.searchsorted(edges, lengths, side="right") - 1
    documents = np.bincount(number, minlength=len(edges))
    tokens, bear_loss = (
        np.bincount(number, weights=of_each, minlength=len(edges)).astype(np.int64)
        for of_each in (lengths, np.zeros_like(lengths) if targets is None else targets)
    )
    used = np.flatnonzero(documents)
    return [
        Bin(int(edges[i]), int(edges[i + 1]) - 1, int(documents[i]), int(tokens[i]), int(bear_loss[i]))
        for i in range(used[0], used[-1] + 1)
    ]


def quantile_ids(uses: np.ndarray, share: float) -> int:
    """How many of the most frequent ids make up this share of all tokens."""
    most = np.cumsum(np.sort(uses)[::-1])
    return int(np.searchsorted(most, share * most[-1])) + 1


def _require_ids(shard: ShardDocuments, found: np.ndarray, vocab_size: int) -> None:
    if len(found) > vocab_size:
        raise ValueError(
            f"{shard.shard.path}: expected ids below {vocab_size:,}, found {len(found) - 1:,}: the shard is damaged; "
            "run `tokenmill verify` to find the place"
        )


def _require_bos(shard: ShardDocuments, found: int) -> None:
    if found != len(shard.lengths):
        raise ValueError(
            f"{shard.shard.path}: expected one BOS for each of {len(shard.lengths):,} documents, found {found:,}: "
            "the shard is damaged; run `tokenmill verify` to find the place"
        )
