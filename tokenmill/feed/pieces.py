"""The pieces of a row, for display: each is a span of one document.

With offsets 0 4 9, a span of 5 tokens from token 2 has 2 tokens of document 0, from its token 2,
and 3 tokens of document 1.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tokenmill.feed.conversations import Padding, mask_of
from tokenmill.store.shards import Shard


@dataclass(frozen=True)
class Piece:
    """The part of a document in a row: `length` tokens of it from its token `start` on."""

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
        """Which of its tokens are in the loss in a chat set, an inserted BOS included.

        None in a set of text.
        """
        if self.shard.mask_bytes is None or self.is_padding:
            return None
        mask = mask_of(self.shard, self._begin, self._begin + self.length)
        return np.concatenate([[False], mask]) if self.bos else mask

    def tokens(self, bos_id: int) -> np.ndarray:
        """The tokens as in the row, including an inserted BOS: (length,) or (length + 1,)."""
        tokens = self.shard.read(self._begin, self._begin + self.length)
        return np.concatenate([[bos_id], tokens]).astype(tokens.dtype) if self.bos else tokens

    @property
    def _begin(self) -> int:
        """Its first token in the shard."""
        return int(self.shard.offsets[self.document]) + self.start


def pieces_of(
    shard: Shard, begin: int, length: int, bos: bool = False, filler: bool = False
) -> list[Piece]:
    """The pieces of a span of a shard's tokens, which may cover several documents."""
    pieces: list[Piece] = []
    for document, start, tokens in cut_at_documents(shard.offsets, begin, length):
        pieces.append(Piece(shard, document, start, tokens, bos and not pieces, filler))
    return pieces


def cut_at_documents(offsets: np.ndarray, begin: int, length: int) -> list[tuple[int, int, int]]:
    """Cuts a span of a token stream at documents: (document, its first token here, tokens)."""
    end = begin + length
    # same dtype, so that offsets are not converted
    places = np.array([begin, end - 1], offsets.dtype)
    first, last = (np.searchsorted(offsets, places, side="right") - 1).tolist()
    bounds = [begin, *offsets[first + 1 : last + 1].tolist(), end]
    starts = [begin - int(offsets[first]), *[0] * (last - first)]
    lengths = [stop - start for start, stop in pairwise(bounds)]
    return list(zip(range(first, last + 1), starts, lengths, strict=True))
