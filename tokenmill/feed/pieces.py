"""The pieces of a row, for display: each is a span of one document.

With offsets 0 4 9, a span of 5 tokens from token 2 has 2 tokens of document 0, from its token 2, and 3 tokens of
document 1.

A conversation that is longer than a row is an error with `long_documents="split"`, the default; "crop" keeps its first
row, and "drop" leaves it out. One that has no target in what is kept is left out too.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.rows.packing import LongDocuments
from tokenmill.store.shards import Shard, ShardEntry
from tokenmill.store.token_sets import TokenSet


class Padding(Shard):
    """What closes a row of whole documents: `row_len` tokens in memory, none of which is in the loss.

    It begins with BOS, so that attention does not reach from it into a conversation.
    """

    def __init__(self, row_len: int, bos_id: int, dtype: np.dtype[Any]):
        self.entry = ShardEntry("padding", "train", (), 1, row_len, 0, ())
        self.path, self.dtype = Path("padding"), dtype
        self.tokens = np.full(row_len, 1 if bos_id != 1 else 2, dtype)  # any id but BOS
        self.tokens[0] = bos_id
        self.offsets = np.array([0, row_len], np.uint64)
        self.mask_bytes = memoryview(bytes(-(-row_len // 8)))

    def require_unchanged(self) -> None:
        """Does nothing: padding is no file."""


@dataclass(frozen=True)
class Piece:
    """The part of a document in a row: `length` tokens of a shard's document from its token `start` on."""

    shard: Shard
    document: int  # its number in the shard
    start: int
    length: int
    bos: bool = False  # whether a BOS is inserted before these tokens
    filler: bool = False  # whether this is a copy that fills the end of the row, or padding

    @property
    def is_padding(self) -> bool:
        """Whether this closes a row of whole documents."""
        return isinstance(self.shard, Padding)

    def in_loss(self) -> np.ndarray | None:
        """Which of its tokens are in the loss in a chat set, an inserted BOS included; None in a set of text."""
        if self.shard.mask_bytes is None or self.is_padding:
            return None
        begin = int(self.shard.offsets[self.document]) + self.start
        found = mask_of(self.shard, begin, begin + self.length)
        return np.concatenate([[False], found]) if self.bos else found

    def tokens(self, bos_id: int) -> np.ndarray:
        """The tokens as in the row, including an inserted BOS: (length,) or (length + 1,)."""
        begin = int(self.shard.offsets[self.document]) + self.start
        tokens = self.shard.read(begin, begin + self.length)
        return np.concatenate([[bos_id], tokens]).astype(tokens.dtype) if self.bos else tokens


def mask_of(shard: Shard, begin: int, end: int) -> np.ndarray:
    """Which of tokens `begin` to `end` of a chat set's shard are in the loss: (end - begin,) bool."""
    assert shard.mask_bytes is not None, "only chat sets have a mask"
    bits = np.unpackbits(
        np.frombuffer(shard.mask_bytes[begin >> 3 : (end + 7) >> 3], np.uint8), bitorder="little"
    )
    return bits[begin & 7 :][: end - begin].view(bool)


def pieces_of(
    shard: Shard, begin: int, length: int, bos: bool = False, filler: bool = False
) -> list[Piece]:
    """The pieces of a span of a shard's tokens, which may cover several documents."""
    parts = cut_at_documents(shard.offsets, begin, length)
    return [Piece(shard, *part, bos and not index, filler) for index, part in enumerate(parts)]


def cut_at_documents(offsets: np.ndarray, begin: int, length: int) -> list[tuple[int, int, int]]:
    """Cuts a span of a token stream at documents: (document, its first token here, tokens) of each part."""
    ends = np.array(
        [begin, begin + length - 1], offsets.dtype
    )  # same dtype, so that offsets are not converted
    first, last = (np.searchsorted(offsets, ends, side="right") - 1).tolist()
    bounds = [begin, *offsets[first + 1 : last + 1].tolist(), begin + length]
    starts = [begin - int(offsets[first]), *[0] * (last - first)]
    lengths = [stop - start for start, stop in pairwise(bounds)]
    return list(zip(range(first, last + 1), starts, lengths, strict=True))


NONE = 1 << 62  # the place of the first target of a conversation that has none


def first_targets(
    shards: Sequence[Shard],
    shard: np.ndarray,
    begin: np.ndarray,
    length: np.ndarray,
    row_len: int | None,
) -> np.ndarray:
    """The place of the first target of each document if it is longer than a row, else 0; NONE if it has none:
    (documents,) int64. `shard` and `begin` are its number in `shards` and its first token there. None as `row_len`
    says that documents are not cropped.
    """
    found = np.zeros(len(length), np.int64)
    for number, one in enumerate(shards):
        own = np.flatnonzero(shard == number)
        document = (
            np.searchsorted(one.offsets, begin[own].astype(one.offsets.dtype), side="right") - 1
        )
        has_none = one.target_counts[document] == 0
        found[own[has_none]] = NONE
        long = own[(length[own] > row_len) & ~has_none] if row_len is not None else own[:0]
        for place in long.tolist():
            found[place] = mask_of(
                one, int(begin[place]), int(begin[place] + length[place])
            ).argmax()
    return found


def require_conversations(
    token_set: TokenSet, split: str, row_len: int, long_documents: LongDocuments
) -> int:
    """The tokens of a chat set's conversations that are in rows. ValueError if one is longer than a row and "split"; a
    warning if some are left out.
    """
    entries = token_set.split(split)
    token_set.fetch(entries)
    total = many = longest = lost = targets = late = kept = 0
    for entry in entries:
        shard, in_view = token_set.open(entry), token_set.repeats_of(entry) > 0
        own, lengths = shard.target_counts[in_view].astype(np.int64), shard.lengths[in_view]
        is_long = lengths > row_len
        total, many, longest = (
            total + len(own),
            many + int(is_long.sum()),
            max(longest, int(lengths.max(initial=0))),
        )
        lost, targets = lost + int(own[is_long].sum()), targets + int(own.sum())
        begin, one_shard = (
            shard.offsets[:-1][in_view].astype(np.int64),
            np.zeros(len(own), np.int64),
        )
        first = first_targets(
            [shard], one_shard, begin, lengths, row_len if long_documents == "crop" else None
        )
        is_late = (first >= row_len) & ~(is_long & (long_documents != "crop"))
        late += int(is_late.sum())
        kept += int(
            np.minimum(lengths, row_len)[~is_late & ~(is_long & (long_documents == "drop"))].sum()
        )
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
