"""Fills the gaps at the ends of rows: with cut pieces where filler would be much, else with copies.

If all documents are a little longer than half a row, each row has room for one, and nearly half of
every row would be filler. Then a few rows, the donors, are given up. Their pieces are laid end to
end into the gaps of other rows, and cut where a gap is full; what follows a cut begins with an
inserted BOS. With row_len 10 and pieces of 6 tokens:

    rows      6 + 4 free | 6 + 4 free | 6 + 4 free      40% filler
    donor     the last row
    rows      6 4        | 6 _2 + 1 free                 _ is the inserted BOS

This happens only if filler would be more than MOST_FILLER, and in the rows with the largest gaps.
What is still free is filled with copies of documents' beginnings, which are also in other rows in
full. In a RowPlan, `filler` is these copies, and the padding of rows whose documents stay whole.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tokenmill.rows.groups import offsets_of
from tokenmill.rows.order import random_bits, stable_order

MOST_FILLER = 3  # percent


def choose_rows(free: np.ndarray, row_len: int) -> tuple[np.ndarray, np.ndarray]:
    """Chooses (donors, receivers) among rows that have `free` tokens left; none if filler is low.

    As few rows are donors as are needed, or as many as fit into the others' gaps.
    """
    num_rows = len(free)
    order = stable_order(row_len - free)  # the largest gaps first
    nobody = order[:0]
    gaps = free[order].astype(np.int64)
    if not _is_too_much(gaps.sum(), num_rows, row_len):
        return nobody, nobody
    candidates = _candidates(gaps, row_len)
    if not len(candidates.num_donors):
        return nobody, nobody
    is_good = ~_is_too_much(candidates.filler, num_rows - candidates.num_donors, row_len)
    choice = np.argmax(is_good) if is_good.any() else -1
    num_donors = candidates.num_donors[choice]
    return order[:num_donors], order[num_donors : candidates.end[choice]]


class _Candidates(NamedTuple):
    """The choices of donors whose pieces the rows after them have room for. Each (count,)."""

    num_donors: np.ndarray  # the rows before this number
    end: np.ndarray  # of the receivers, which follow the donors
    filler: np.ndarray  # tokens that would then be filler


def _candidates(gaps: np.ndarray, row_len: int) -> _Candidates:
    """All choices among rows with these gaps, the largest first."""
    free_before = offsets_of(gaps)
    room_before = offsets_of(np.maximum(gaps - 1, 0))  # a token of each gap is kept for BOS
    num_donors = np.arange(1, len(gaps))
    donated = num_donors * row_len - free_before[num_donors]
    needed = room_before[num_donors] + donated
    end = np.searchsorted(room_before, needed)
    fits = end <= len(gaps)
    end = end[fits]
    unused_room = room_before[end] - needed[fits]
    filler = free_before[-1] - free_before[end] + unused_room
    return _Candidates(num_donors[fits], end, filler)


def _is_too_much(filler: np.ndarray, num_rows: np.ndarray | int, row_len: int) -> np.ndarray:
    limit = np.asarray(num_rows, np.int64) * row_len * MOST_FILLER
    return np.asarray(np.asarray(filler) * 100 > limit)


class Parts(NamedTuple):
    """Parts of pieces: `size` tokens of `piece` from its token `begin` on, in `row`. Each (count,).

    The piece's inserted BOS counts.
    """

    row: np.ndarray
    piece: np.ndarray
    begin: np.ndarray
    size: np.ndarray


def lay_into_gaps(
    row: np.ndarray, size: np.ndarray, free: np.ndarray, donors: np.ndarray, receivers: np.ndarray
) -> Parts:
    """Lays the pieces of the donors into the gaps of the receivers. `row` and `size`: each piece's.

    The rows that remain keep their order and are numbered from 0. The parts are in their order.
    """
    is_donor = np.zeros(len(free), bool)
    is_donor[donors] = True
    new_number = np.cumsum(~is_donor) - 1
    is_moved = is_donor[row]
    moved = np.flatnonzero(is_moved)
    kept = np.flatnonzero(~is_moved)
    # positions in the moved pieces, laid end to end
    piece_ends = np.cumsum(size[moved], dtype=np.int64)
    piece_begins = piece_ends - size[moved]
    gap_ends = np.cumsum(free[receivers].astype(np.int64) - 1)
    bounds = np.unique(np.concatenate([[0], piece_ends, gap_ends[gap_ends < piece_ends[-1]]]))
    begin = bounds[:-1]
    piece = np.searchsorted(piece_ends, begin, side="right")
    gap = np.searchsorted(gap_ends, begin, side="right")
    parts = Parts(
        np.concatenate([new_number[row[kept]], new_number[receivers[gap]]]),
        np.concatenate([kept, moved[piece]]),
        np.concatenate([np.zeros(len(kept), np.int64), begin - piece_begins[piece]]),
        np.concatenate([size[kept], np.diff(bounds)]),
    )
    order = stable_order(parts.row)
    return Parts._make(column[order] for column in parts)


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
    drawn_of_row = np.full(len(free), -1)
    drawn_of_row[rows] = drawn
    holds_drawn = np.zeros(len(free), bool)
    is_drawn = document == drawn_of_row[row]
    holds_drawn[row[is_drawn]] = True
    is_filled = (first < len(order)) & ~holds_drawn[rows]
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


def _searched(
    documents: _ByLength, gaps: _Gaps, numbers: np.ndarray, row: np.ndarray, document: np.ndarray
) -> Filler:
    """Fills the gaps of these numbers, one by one. `row` and `document`: each piece's."""
    searched: list[tuple[int, int, int]] = []
    for number in numbers.tolist():
        this_row, gap, first, bits = (int(column[number]) for column in gaps)
        begin, end = np.searchsorted(row, [this_row, this_row + 1])
        in_row = set(document[begin:end].tolist())
        for chosen, length in _search(documents, gap, first, in_row, bits):
            searched.append((this_row, chosen, length))
    return Filler(*np.array(searched, dtype=document.dtype).reshape(-1, 3).T)


def _search(
    documents: _ByLength, gap: int, first: int, in_row: set[int], bits: int
) -> Iterator[tuple[int, int]]:
    """Documents that fill a gap, with the tokens of each: one as long as the gap, or the longest.

    Those from the number `first` on are long enough.
    """
    num_candidates = len(documents.document) - first
    for step in range(min(num_candidates, len(in_row) + 1)):
        document = int(documents.document[first + (bits + step) % num_candidates])
        if document not in in_row:
            yield document, gap
            return
    while True:
        for place in range(len(documents.document) - 1, -1, -1):  # from the longest on
            document = int(documents.document[place])
            if document in in_row:
                continue
            length = min(gap, int(documents.length[place]))
            yield document, length
            gap -= length
            if not gap:
                return
        in_row = set()
