"""What a chat set's rows keep of its conversations, and what of them is in the loss.

No conversation is cut in two. One that is longer than a row is an error with
`long_documents="split"`, the default; "crop" keeps its first row, and "drop" leaves it out. One
that has no target in what is kept is left out too. Padding closes a row.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.rows.packing import LongDocuments
from tokenmill.store.shards import Shard, ShardEntry
from tokenmill.store.token_sets import TokenSet

NONE = 1 << 62  # the place of the first target of a conversation that has none


class Padding(Shard):
    """What closes a row of whole documents: `row_len` tokens in memory, none of them in the loss.

    It begins with BOS, so that attention does not reach from it into a conversation.
    """

    def __init__(self, row_len: int, bos_id: int, dtype: np.dtype[Any]):
        self.entry = ShardEntry("padding", "train", (), 1, row_len, 0, ())
        self.path = Path("padding")
        self.dtype = dtype
        self.tokens = np.full(row_len, 1 if bos_id != 1 else 2, dtype)  # any id but BOS
        self.tokens[0] = bos_id
        self.offsets = np.array([0, row_len], np.uint64)
        self.mask_bytes = memoryview(bytes(-(-row_len // 8)))

    def require_unchanged(self) -> None:
        """Does nothing: padding is no file."""


def documents_at(shard: Shard, places: np.ndarray) -> np.ndarray:
    """The number of the document that is at each of these tokens of a shard."""
    offsets = shard.offsets
    # same dtype, so that offsets are not converted
    after = np.searchsorted(offsets, places.astype(offsets.dtype), side="right")
    return np.asarray(after - 1)


def mask_of(shard: Shard, begin: int, end: int) -> np.ndarray:
    """Which of tokens `begin` to `end` of a chat set's shard are in the loss: (end - begin,)."""
    assert shard.mask_bytes is not None, "only chat sets have a mask"
    packed = np.frombuffer(shard.mask_bytes[begin >> 3 : (end + 7) >> 3], np.uint8)
    bits = np.unpackbits(packed, bitorder="little")
    return bits[begin & 7 :][: end - begin].view(bool)


def first_targets(
    shards: Sequence[Shard],
    shard: np.ndarray,
    begin: np.ndarray,
    length: np.ndarray,
    row_len: int | None,
) -> np.ndarray:
    """The place of the first target of each document that is longer than a row, else 0: int64.

    NONE if it has none. `shard` and `begin` are its number in `shards` and its first token there.
    None as `row_len` says that documents are not cropped.
    """
    places = np.zeros(len(length), np.int64)
    for number, opened in enumerate(shards):
        members = np.flatnonzero(shard == number)
        documents = documents_at(opened, begin[members])
        has_none = opened.target_counts[documents] == 0
        places[members[has_none]] = NONE
        if row_len is None:
            continue
        is_cropped = ~has_none & (length[members] > row_len)
        for member in members[is_cropped].tolist():
            first = int(begin[member])
            places[member] = mask_of(opened, first, first + int(length[member])).argmax()
    return places


@dataclass
class _Counts:
    """What a split's conversations are, shard after shard."""

    total: int = 0
    num_long: int = 0  # those that are longer than a row
    num_late: int = 0  # those without a target in what would be kept of them
    longest: int = 0
    targets: int = 0
    targets_of_long: int = 0
    tokens_kept: int = 0

    def add(self, lengths: np.ndarray, targets: np.ndarray, row_len: int) -> np.ndarray:
        """Adds conversations, and returns which of them are long."""
        is_long = lengths > row_len
        self.total += len(lengths)
        self.num_long += int(is_long.sum())
        self.longest = max(self.longest, int(lengths.max(initial=0)))
        self.targets += int(targets.sum())
        self.targets_of_long += int(targets[is_long].sum())
        return np.asarray(is_long)


def require_conversations(
    token_set: TokenSet, split: str, row_len: int, long_documents: LongDocuments, stacklevel: int
) -> int:
    """The tokens of a chat set's conversations that are in rows.

    ValueError if one is longer than a row and "split"; a warning if any are left out.
    """
    counts = _Counts()
    entries = token_set.split(split)
    token_set.bring(entries)
    crops = long_documents == "crop"
    for entry in entries:
        shard = token_set.open(entry)
        in_view = token_set.times_of(entry) > 0
        lengths = shard.lengths[in_view]
        is_long = counts.add(lengths, shard.target_counts[in_view].astype(np.int64), row_len)
        begin = shard.offsets[:-1][in_view].astype(np.int64)
        one_shard = np.zeros(len(begin), np.int64)
        first = first_targets([shard], one_shard, begin, lengths, row_len if crops else None)
        is_late = first >= row_len
        if not crops:
            is_late &= ~is_long
        is_kept = ~is_late
        if long_documents == "drop":
            is_kept &= ~is_long
        counts.num_late += int(is_late.sum())
        counts.tokens_kept += int(np.minimum(lengths, row_len)[is_kept].sum())
    if counts.num_long and long_documents == "split":
        raise ValueError(f"{token_set.display_name}: {_too_long(counts, row_len)}")
    _warn_of_left_out(token_set, counts, row_len, long_documents, stacklevel + 1)
    return counts.tokens_kept


def _too_long(counts: _Counts, row_len: int) -> str:
    seq_len = row_len - 1
    share = counts.targets_of_long / max(1, counts.targets)
    return (
        f"{counts.num_long:,} of {counts.total:,} conversations are longer than a row of "
        f"{seq_len:,} + 1 tokens, the longest with {counts.longest:,}; they have {share:.1%} of "
        "the tokens that are in the loss. Use a larger seq_len, or long_documents='crop' (keeps "
        "the beginning) or 'drop'"
    )


def _warn_of_left_out(
    token_set: TokenSet, counts: _Counts, row_len: int, long_documents: str, stacklevel: int
) -> None:
    seq_len = row_len - 1
    left_out = []
    if counts.num_long and long_documents == "drop":
        left_out.append(f"{counts.num_long:,} are longer than a row of {seq_len:,} + 1 tokens")
    if counts.num_late:
        left_out.append(f"{counts.num_late:,} have no target in their first {row_len:,} tokens")
    if left_out:
        reasons = " and ".join(left_out)
        warnings.warn(
            f"{token_set.display_name}: of {counts.total:,} conversations, {reasons}; these are "
            "left out. A larger seq_len keeps more of them",
            stacklevel=stacklevel,
        )
