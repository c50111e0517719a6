"""Spans of documents: what packing lays into rows. Cutting them, choosing among them, joining them.

With rows of 8 tokens, a document of 21 is cut into a piece that fills a row, and pieces that begin
behind an inserted BOS, so that they have room for 7:

    document 0, from token 0, 8 tokens | from 8, 7 | from 15, 6
"""

from typing import NamedTuple

import numpy as np


class Spans(NamedTuple):
    """`length` tokens of `document` from its token `start` on. Each (count,), of one dtype."""

    document: np.ndarray
    start: np.ndarray
    length: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """The tokens that each takes in a row, with the BOS that a piece begins with."""
        return np.asarray(self.length + (self.start > 0))

    def take(self, which: np.ndarray | slice) -> "Spans":
        """The spans with these numbers, or where a mask is true."""
        return Spans(self.document[which], self.start[which], self.length[which])

    def are_whole(self, lengths: np.ndarray) -> np.ndarray:
        """Which spans are whole documents, of these lengths: (count,) bool."""
        return np.asarray((self.start == 0) & (self.length == lengths[self.document]))


def whole_documents(lengths: np.ndarray) -> Spans:
    """Every document as one span."""
    return Spans(np.arange(len(lengths), dtype=lengths.dtype), np.zeros_like(lengths), lengths)


def cut(spans: Spans, row_len: int, crop: bool) -> Spans:
    """The spans cut into pieces of at most a row. With `crop`, the first piece of each."""
    document, start, length = spans
    body = row_len - 1  # most tokens of a piece after an inserted BOS
    first = (row_len - (start > 0)).astype(length.dtype)  # most tokens of a span's first piece
    tokens_left = np.maximum(length - first, 0)
    if crop or not tokens_left.any():
        return Spans(document, start, np.minimum(length, first))
    num_pieces = 1 + -(-tokens_left // body)
    span = np.repeat(np.arange(len(num_pieces), dtype=np.int32), num_pieces)
    first_piece = (np.cumsum(num_pieces) - num_pieces).astype(length.dtype)
    number = np.arange(len(span), dtype=length.dtype) - first_piece[span]  # 0, 1, 2 ... in a span
    is_first = number == 0
    first = first[span]
    done = np.where(is_first, 0, first + (number - 1) * body)
    size = np.minimum(length[span] - done, np.where(is_first, first, body))
    return Spans(document[span], start[span] + done, size)


def joined(spans: Spans) -> Spans:
    """Spans in the order of the documents, with those that touch joined."""
    document, start, length = spans.take(np.lexsort((spans.start, spans.document)))
    begins = np.ones(len(start), dtype=bool)
    begins[1:] = (document[1:] != document[:-1]) | (start[1:] != start[:-1] + length[:-1])
    first = np.flatnonzero(begins)
    if len(first):
        length = np.add.reduceat(length, first)
    return Spans(document[first], start[first], length)
