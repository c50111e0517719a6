"""The pieces of a row, for display: each is a span of one document.

With offsets 0 4 9, a span of 5 tokens from token 2 has 2 tokens of document 0, from its token 2, and 3 tokens of
document 1.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.store.shards import Shard, ShardEntry


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
    bits = np.unpackbits(np.frombuffer(shard.mask_bytes[begin >> 3 : (end + 7) >> 3], np.uint8), bitorder="little")
    return bits[begin & 7 :][: end - begin].view(bool)


def pieces_of(shard: Shard, begin: int, length: int, bos: bool = False, filler: bool = False) -> list[Piece]:
    """The pieces of a span of a shard's tokens, which may cover several documents."""
    parts = cut_at_documents(shard.offsets, begin, length)
    return [Piece(shard, *part, bos and not index, filler) for index, part in enumerate(parts)]


def cut_at_documents(offsets: np.ndarray, begin: int, length: int) -> list[tuple[int, int, int]]:
    """Cuts a span of a token stream at documents: (document, its first token here, tokens) of each part."""
    ends = np.array([begin, begin + length - 1], offsets.dtype)  # same dtype, so that offsets are not converted
    first, last = (np.searchsorted(offsets, ends, side="right") - 1).tolist()
    bounds = [begin, *offsets[first + 1 : last + 1].tolist(), begin + length]
    starts = [begin - int(offsets[first]), *[0] * (last - first)]
    lengths = [stop - start for start, stop in pairwise(bounds)]
    return list(zip(range(first, last + 1), starts, lengths, strict=True))
