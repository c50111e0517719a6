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
    free_before = offsets_of(gaps)
    room_before = offsets_of(np.maximum(gaps - 1, 0))  # a token of each gap is kept for BOS
    num_donors = np.arange(1, num_rows)
    donated = num_donors * row_len - free_before[num_donors]
    needed = room_before[num_donors] + donated
    end = np.searchsorted(room_before, needed)  # one after the last receiver
    fits = end <= num_rows
    if not fits.any():
        return nobody, nobody
    num_donors = num_donors[fits]
    end = end[fits]
    unused_room = room_before[end] - needed[fits]
    filler = free_before[-1] - free_before[end] + unused_room
    is_good = ~_is_too_much(filler, num_rows - num_donors, row_len)
    choice = np.argmax(is_good) if is_good.any() else -1
    return order[: num_donors[choice]], order[num_donors[choice] : end[choice]]


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
    rows = np.flatnonzero(free)
    gaps = free[rows]
    order = stable_order(lengths)
    documents = _ByLength(order, lengths[order])
    first = np.searchsorted(documents.length, gaps)  # of those that are long enough
    num_candidates = len(order) - first
    bits = random_bits(len(rows), "filler", *seed)
    draw = (bits % np.maximum(num_candidates, 1).astype(np.uint64)).astype(np.int64)
    drawn = order[np.minimum(first + draw, len(order) - 1)]

    drawn_of_row = np.full(len(free), -1)
    drawn_of_row[rows] = drawn
    is_filled = np.zeros(len(free), bool)
    is_filled[rows] = num_candidates > 0
    is_filled[row[document == drawn_of_row[row]]] = False

    is_filled = is_filled[rows]
    filled = np.stack([rows, drawn, gaps])[:, is_filled]
    searched: list[tuple[int, int, int]] = []
    for number in np.flatnonzero(~is_filled).tolist():
        this_row = int(rows[number])
        begin, end = np.searchsorted(row, [this_row, this_row + 1])
        in_row = set(document[begin:end].tolist())
        fitting = _search(
            documents, int(gaps[number]), int(first[number]), in_row, int(bits[number])
        )
        searched += [(this_row, chosen, length) for chosen, length in fitting]
    by_search = np.array(searched, dtype=document.dtype).reshape(-1, 3).T
    return Filler(*np.concatenate([filled.astype(document.dtype), by_search], axis=1))


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
