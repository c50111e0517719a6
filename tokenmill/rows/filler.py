"""Fills the ends of rows with copies of documents' beginnings, which other rows have in full.

A gap of 4 tokens takes the first 4 of a random document that has so many and is not in the row. In
a RowPlan, `filler` is these copies, and the padding of rows whose documents stay whole.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tokenmill.rows.order import random_bits, stable_order


class Filler(NamedTuple):
    """What fills rows: the first `length` tokens of `document` in `row`. Each (count,)."""

    row: np.ndarray
    document: np.ndarray
    length: np.ndarray


class _ByLength(NamedTuple):
    """Documents, the shortest first."""

    document: np.ndarray
    length: np.ndarray


class _Gaps(NamedTuple):
    """The gaps of rows. Each (count,)."""

    row: np.ndarray
    size: np.ndarray  # tokens
    first: np.ndarray  # the number of the first document that is long enough
    bits: np.ndarray  # random


class _Gap(NamedTuple):
    """One of them."""

    row: int
    size: int
    first: int
    bits: int


def fill_gaps(
    lengths: np.ndarray,
    row: np.ndarray,
    document: np.ndarray,
    free: np.ndarray,
    seed: tuple[int, ...],
) -> Filler:
    """Fills the rows that have `free` tokens left. `row`, ascending, and `document`: each piece's.

    The filler is the beginning of a random document that is at least as long as the gap and not in
    the row. If there is none, the longest documents that are not in the row are used. Only a row
    that holds every document repeats one.
    """
    order = stable_order(lengths)
    documents = _ByLength(order, lengths[order])
    rows = np.flatnonzero(free)
    sizes = free[rows]
    first = np.searchsorted(documents.length, sizes)
    gaps = _Gaps(rows, sizes, first, random_bits(len(rows), "filler", *seed))
    drawn = _drawn(documents, gaps)
    is_long_enough = gaps.first < len(order)
    is_filled = is_long_enough & ~_are_in_rows(drawn, gaps, row, document, len(free))
    filled = Filler(rows[is_filled], drawn[is_filled], sizes[is_filled])
    searched = _searched(documents, gaps, np.flatnonzero(~is_filled), row, document)
    columns = zip(filled, searched, strict=True)
    return Filler._make(np.concatenate(column).astype(document.dtype) for column in columns)


def _drawn(documents: _ByLength, gaps: _Gaps) -> np.ndarray:
    """A random document for each gap that is long enough; the longest one if none is."""
    num_documents = len(documents.document)
    num_candidates = np.maximum(num_documents - gaps.first, 1)
    draw = (gaps.bits % num_candidates.astype(np.uint64)).astype(np.int64)
    drawn: np.ndarray = documents.document[np.minimum(gaps.first + draw, num_documents - 1)]
    return drawn


def _are_in_rows(
    drawn: np.ndarray, gaps: _Gaps, row: np.ndarray, document: np.ndarray, num_rows: int
) -> np.ndarray:
    """Whether each gap's row already holds the document that was drawn for it: (count,) bool."""
    drawn_of_row = np.full(num_rows, -1)
    drawn_of_row[gaps.row] = drawn
    is_drawn = document == drawn_of_row[row]
    holds_drawn = np.zeros(num_rows, bool)
    holds_drawn[row[is_drawn]] = True
    return np.asarray(holds_drawn[gaps.row])


def _searched(
    documents: _ByLength, gaps: _Gaps, numbers: np.ndarray, row: np.ndarray, document: np.ndarray
) -> Filler:
    """Fills the gaps of these numbers, one by one. `row` and `document`: each piece's."""
    filler: list[tuple[int, int, int]] = []
    columns = (column[numbers].tolist() for column in gaps)
    for gap in map(_Gap, *columns):
        begin, end = np.searchsorted(row, [gap.row, gap.row + 1])
        in_row = set(document[begin:end].tolist())
        long_enough = _long_enough(documents, gap, in_row)
        if long_enough is not None:
            filler.append((gap.row, long_enough, gap.size))
            continue
        for chosen, length in _longest(documents, gap.size, in_row):
            filler.append((gap.row, chosen, length))
    return Filler(*np.array(filler, dtype=document.dtype).reshape(-1, 3).T)


def _long_enough(documents: _ByLength, gap: _Gap, in_row: set[int]) -> int | None:
    """A random document that is as long as a gap and not in its row."""
    num_candidates = len(documents.document) - gap.first
    for step in range(min(num_candidates, len(in_row) + 1)):
        place = gap.first + (gap.bits + step) % num_candidates
        document = int(documents.document[place])
        if document not in in_row:
            return document
    return None


def _longest(documents: _ByLength, size: int, in_row: set[int]) -> Iterator[tuple[int, int]]:
    """The longest documents that are not in a row, until `size` tokens are full: each with how many
    of its tokens. After these, all documents again and again.
    """
    while True:
        for place in range(len(documents.document) - 1, -1, -1):
            document = int(documents.document[place])
            if document in in_row:
                continue
            length = min(size, int(documents.length[place]))
            yield document, length
            size -= length
            if not size:
                return
        in_row = set()
