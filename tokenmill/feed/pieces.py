"""The pieces of a row, for display: each is a stretch of one document.

With offsets 0 4 9, a stretch of 5 tokens from token 2 has 2 tokens of document 0, from its token 2, and 3 tokens of
document 1.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tokenmill.feed.padding import Padding
from tokenmill.store.shards import Shard


@dataclass(frozen=True)
class Piece:
    """The part of a document in a row: `length` tokens of a shard's document from its token `start` on."""

    shard: Shard
    document: int  # its number in the shard
    start: int
    length: int
    bos: bool = False  # whether a BOS is inserted before these tokens
    filler: bool = False  # whether this is a copy that fills the end of the row, or padding
    context: int = 0  # its first tokens that another row has as its own

    @property
    def is_padding(self) -> bool:
        """Whether this closes a row of whole documents."""
        return isinstance(self.shard, Padding)

    def bears_loss(self) -> np.ndarray | None:
        """Which of its tokens bear loss in a chat set, an inserted BOS included; None in a set of text."""
        if self.shard.mask_bytes is None or self.is_padding:
            return None
        begin = int(self.shard.offsets[self.document]) + self.start
        mask = np.frombuffer(self.shard.mask_bytes[begin >> 3 : (begin + self.length + 7) >> 3], np.uint8)
        found = np.unpackbits(mask, bitorder="little")[begin & 7 :][: self.length].astype(bool)
        found[: self.context] = False
        return np.concatenate([[False], found]) if self.bos else found

    def tokens(self, bos_id: int) -> np.ndarray:
        """The tokens as in the row, including an inserted BOS: (length,) or (length + 1,)."""
        begin = int(self.shard.offsets[self.document]) + self.start
        tokens = self.shard.read(begin, begin + self.length)
        return np.concatenate([[bos_id], tokens]).astype(tokens.dtype) if self.bos else tokens


def pieces_of(
    shard: Shard, begin: int, length: int, bos: bool = False, filler: bool = False, context: int = 0
) -> list[Piece]:
    """The pieces of a stretch of a shard's tokens, which may cover several documents."""
    parts = cut_at_documents(shard.offsets, begin, length)
    return [Piece(shard, *part, bos and not index, filler, context) for index, part in enumerate(parts)]


def cut_at_documents(offsets: np.ndarray, begin: int, length: int) -> list[tuple[int, int, int]]:
    """Cuts a stretch of a token stream at documents: (document, its first token here, tokens) of each part."""
    ends = np.array([begin, begin + length - 1], offsets.dtype)  # same dtype, so that offsets are not converted
    first, last = (np.searchsorted(offsets, ends, side="right") - 1).tolist()
    bounds = [begin, *offsets[first + 1 : last + 1].tolist(), begin + length]
    starts = [begin - int(offsets[first]), *[0] * (last - first)]
    lengths = [stop - start for start, stop in pairwise(bounds)]
    return list(zip(range(first, last + 1), starts, lengths, strict=True))
