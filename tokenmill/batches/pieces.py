"""What a row is made of, for people to look at: pieces, stretches of one document each.

offsets 0 4 9, a stretch of 5 tokens from token 2 on    document 0 from its token 2, length 2; document 1, length 3
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tokenmill.store.shards import Shard


@dataclass(frozen=True)
class Piece:
    """What of a document lies in a row: `length` tokens of a shard's document from its token `start` on."""

    shard: Shard
    document: int  # of the shard
    start: int
    length: int
    bos: bool = False  # a BOS is inserted before them
    filler: bool = False  # a copy that closes the row

    def tokens(self, bos_id: int) -> np.ndarray:
        """As they lie in the row, an inserted BOS before them: (length,) or (length + 1,)."""
        begin = int(self.shard.offsets[self.document]) + self.start
        found = self.shard.read(begin, begin + self.length)
        return np.concatenate([[bos_id], found]).astype(found.dtype) if self.bos else found


def pieces_of(shard: Shard, begin: int, length: int, bos: bool = False, filler: bool = False) -> list[Piece]:
    """The pieces of a stretch of a shard's tokens, which may go over several documents."""
    parts = cut_at_documents(shard.offsets, begin, length)
    return [Piece(shard, *part, bos and not index, filler) for index, part in enumerate(parts)]


def cut_at_documents(offsets: np.ndarray, begin: int, length: int) -> list[tuple[int, int, int]]:
    """What a stretch of a token stream has of each document: (document, its first token there, tokens)."""
    ends = np.array([begin, begin + length - 1], offsets.dtype)  # of one type, or all offsets are converted
    first, last = (np.searchsorted(offsets, ends, side="right") - 1).tolist()
    bounds = [begin, *offsets[first + 1 : last + 1].tolist(), begin + length]
    starts = [begin - int(offsets[first]), *[0] * (last - first)]
    lengths = [stop - start for start, stop in pairwise(bounds)]
    return list(zip(range(first, last + 1), starts, lengths, strict=True))
