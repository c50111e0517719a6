"""Conversations that are longer than a row: refused, or left out with a word.

`long_documents` says what happens to a conversation that is longer than a row: "split", the default, is an error,
"crop" keeps its first row, "drop" leaves it out. One that has no target in what is kept is left out too.
"""

import warnings
from collections.abc import Sequence

import numpy as np

from tokenmill.feed.pieces import mask_of
from tokenmill.rows.packing import LongDocuments
from tokenmill.store.shards import Shard
from tokenmill.store.token_sets import TokenSet

NONE = 1 << 62  # the place of the first target of a conversation that has none


def first_targets(
    shards: Sequence[Shard], shard: np.ndarray, begin: np.ndarray, length: np.ndarray, row_len: int | None
) -> np.ndarray:
    """The place of the first target of each document if it is longer than a row, else 0; NONE if it has none:
    (documents,) int64. `shard` and `begin` are its number in `shards` and its first token there. None as `row_len`
    says that documents are not cropped.
    """
    found = np.zeros(len(length), np.int64)
    for number, one in enumerate(shards):
        own = np.flatnonzero(shard == number)
        document = np.searchsorted(one.offsets, begin[own].astype(one.offsets.dtype), side="right") - 1
        has_none = one.target_counts[document] == 0
        found[own[has_none]] = NONE
        long = own[(length[own] > row_len) & ~has_none] if row_len is not None else own[:0]
        for place in long.tolist():
            found[place] = mask_of(one, int(begin[place]), int(begin[place] + length[place])).argmax()
    return found


def require_conversations(token_set: TokenSet, split: str, row_len: int, long_documents: LongDocuments) -> int:
    """The tokens of a chat set's conversations that are in rows. ValueError if one is longer than a row and "split"; a
    warning if some are left out.
    """
    entries = token_set.split(split)
    token_set.bring(entries)
    total = many = longest = lost = targets = late = kept = 0
    for entry in entries:
        shard, in_view = token_set.open(entry), token_set.times_of(entry) > 0
        own, lengths = shard.target_counts[in_view].astype(np.int64), shard.lengths[in_view]
        is_long = lengths > row_len
        total, many, longest = total + len(own), many + int(is_long.sum()), max(longest, int(lengths.max(initial=0)))
        lost, targets = lost + int(own[is_long].sum()), targets + int(own.sum())
        begin, one_shard = shard.offsets[:-1][in_view].astype(np.int64), np.zeros(len(own), np.int64)
        first = first_targets([shard], one_shard, begin, lengths, row_len if long_documents == "crop" else None)
        is_late = (first >= row_len) & ~(is_long & (long_documents != "crop"))
        late += int(is_late.sum())
        kept += int(np.minimum(lengths, row_len)[~is_late & ~(is_long & (long_documents == "drop"))].sum())
    if many and long_documents == "split":
        raise ValueError(
            f"{token_set.display_name}: {many:,} of {total:,} conversations are longer than a row of {row_len - 1:,} + "
            f"1 tokens, the longest with {longest:,}; they have {lost / max(1, targets):.1%} of the tokens that are in "
            "the loss. Use a larger seq_len, or long_documents='crop' (keeps the beginning) or 'drop'"
        )
    is_dropped = many > 0 and long_documents == "drop"
    left_out = [f"{many:,} are longer than a row of {row_len - 1:,} + 1 tokens"] * is_dropped
    left_out += [f"{late:,} have no target in their first {row_len:,} tokens"] * bool(late)
    if left_out:
        warnings.warn(
            f"{token_set.display_name}: of {total:,} conversations, {' and '.join(left_out)}; these are left out. A "
            "larger seq_len keeps more of them",
            stacklevel=5,
        )
    return kept
