"""What a chat set's rows keep of its conversations, and what of them is in the loss.

No conversation is cut in two. One that is longer than a row is an error with
`long_documents="split"`, the default; "crop" keeps its first row, and "drop" leaves it out. One
that has no target in what is kept is left out too. Padding closes a row.
"""

import warnings
from collections.abc import Sequence
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


def require_conversations(
    token_set: TokenSet, split: str, row_len: int, long_documents: LongDocuments
) -> int:
    """The tokens of a chat set's conversations that are in rows.

    ValueError if one is longer than a row and "split"; a warning if any are left out.
    """
    crops = long_documents == "crop"
    lengths, targets, first = _read_conversations(token_set, split, row_len if crops else None)
    is_long = lengths > row_len
    if long_documents == "split" and is_long.any():
        share = int(targets[is_long].sum()) / max(1, int(targets.sum()))
        raise ValueError(
            f"{token_set.display_name}: {is_long.sum():,} of {len(lengths):,} conversations are "
            f"{_longer(row_len)}, the longest with {lengths.max():,}; they have {share:.1%} of the "
            "tokens that are in the loss. Use a larger seq_len, or long_documents='crop' (keeps "
            "the beginning) or 'drop'"
        )
    is_dropped = is_long & (not crops)
    is_late = (first >= row_len) & ~is_dropped
    reasons = _left_out_in_words(row_len, int(is_dropped.sum()), int(is_late.sum()))
    if reasons:
        warnings.warn(
            f"{token_set.display_name}: of {len(lengths):,} conversations, {reasons}; these are "
            "left out. A larger seq_len keeps more of them",
            stacklevel=2,
        )
    is_kept = ~is_dropped & ~is_late
    return int(np.minimum(lengths, row_len)[is_kept].sum())


def _longer(row_len: int) -> str:
    return f"longer than a row of {row_len - 1:,} + 1 tokens"


def _left_out_in_words(row_len: int, num_dropped: int, num_late: int) -> str:
    """Why conversations are left out; nothing if none are."""
    reasons = []
    if num_dropped:
        reasons.append(f"{num_dropped:,} are {_longer(row_len)}")
    if num_late:
        reasons.append(f"{num_late:,} have no target in their first {row_len:,} tokens")
    return " and ".join(reasons)


def _read_conversations(
    token_set: TokenSet, split: str, row_len: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The length, the targets, and the first target (`first_targets`) of each conversation."""
    entries = token_set.split(split)
    token_set.fetch(entries)
    columns = [np.zeros((3, 0), np.int64)]
    for entry in entries:
        shard = token_set.open(entry)
        in_view = token_set.repeats_of(entry) > 0
        lengths = shard.lengths[in_view]
        begin = shard.offsets[:-1][in_view].astype(np.int64)
        one_shard = np.zeros(len(begin), np.int64)
        first = first_targets([shard], one_shard, begin, lengths, row_len)
        columns.append(np.stack([lengths, shard.target_counts[in_view], first]).astype(np.int64))
    lengths, targets, first = np.concatenate(columns, axis=1)
    return lengths, targets, first
