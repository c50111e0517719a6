"""Cuts pieces to fill gaps where rows would otherwise hold much filler.

If all documents are a little longer than half a row, each row has room for one, and nearly half of every row would be
filler. Then some rows, the donors, are given up. Their pieces are laid end to end into the gaps of other rows, and cut
where a gap is full; what follows a cut begins with an inserted BOS. With row_len 10 and pieces of 6 tokens:

    rows      6 + 4 free | 6 + 4 free | 6 + 4 free      40% filler
    donor     the last row
    rows      6 4        | 6 _2 + 1 free                 _ is the inserted BOS; the free token becomes filler

This happens only if filler would be more than MOST_FILLER of all tokens. The rows with the largest gaps are filled, so
few pieces are cut. Every token stays in exactly one piece.
"""

from typing import NamedTuple

import numpy as np

from tokenmill.rows.order import stable_order

MOST_FILLER = 3  # percent


class Parts(NamedTuple):
    """Parts of pieces in rows: `size` tokens of `piece` from its token `begin`; the piece's inserted BOS counts."""

    row: np.ndarray
    piece: np.ndarray
    begin: np.ndarray
    size: np.ndarray


def choose_rows(free: np.ndarray, row_len: int) -> tuple[np.ndarray, np.ndarray]:
    """Chooses (donors, receivers) among rows that have `free` tokens left, (num_rows,).

    Both are empty if filler is low. As few rows are donors as are needed. If the gaps of all other rows are too small
    for that, as many as fit.
    """
    rows = len(free)
    order = stable_order(row_len - free)  # the largest gaps first
    gaps = free[order].astype(np.int64)
    if not _is_too_much(gaps.sum(), rows, row_len):
        return order[:0], order[:0]
    room = np.concatenate([[0], np.cumsum(np.maximum(gaps - 1, 0))])  # a token of each gap is kept for BOS
    total = np.concatenate([[0], np.cumsum(gaps)])
    donors = np.arange(1, rows)
    needed = room[donors] + donors * row_len - total[donors]
    last = np.searchsorted(room, needed)  # one after the last receiver
    fits = last <= rows
    if not fits.any():
        return order[:0], order[:0]
    filler = total[-1] - total[np.minimum(last, rows)] + room[np.minimum(last, rows)] - needed
    good = np.flatnonzero(fits & ~_is_too_much(filler, rows - donors, row_len))
    index = good[0] if len(good) else np.flatnonzero(fits)[-1]
    return order[: donors[index]], order[donors[index] : last[index]]


def _is_too_much(filler: np.ndarray, rows: np.ndarray | int, row_len: int) -> np.ndarray:
    found: np.ndarray = np.asarray(filler) * 100 > np.asarray(rows, np.int64) * row_len * MOST_FILLER
    return found


def lay_into_gaps(
    row: np.ndarray, size: np.ndarray, free: np.ndarray, donors: np.ndarray, receivers: np.ndarray
) -> Parts:
    """Lays the pieces of the donors into the gaps of the receivers. `row` and `size` are those of each piece.

    The rows that remain keep their order and are numbered from 0. Parts come in the order of the rows.
    """
    given = np.zeros(len(free), bool)
    given[donors] = True
    new_number = np.cumsum(~given) - 1
    moved, kept = np.flatnonzero(given[row]), np.flatnonzero(~given[row])
    ends = np.cumsum(size[moved], dtype=np.int64)  # of the pieces, laid end to end
    room = np.cumsum(free[receivers].astype(np.int64) - 1)  # of the gaps
    bounds = np.unique(np.concatenate([[0], ends, room[room < ends[-1]]]))
    begin, end = bounds[:-1], bounds[1:]
    which = np.searchsorted(ends, begin, side="right")
    gap = np.searchsorted(room, begin, side="right")
    parts = Parts(
        np.concatenate([new_number[row[kept]], new_number[receivers[gap]]]),
        np.concatenate([kept, moved[which]]),
        np.concatenate([np.zeros(len(kept), np.int64), begin - (ends - size[moved])[which]]),
        np.concatenate([size[kept], end - begin]),
    )
    return Parts(*(column[stable_order(parts.row)] for column in parts))
