"""Cuts the pieces of a few rows into the gaps of other rows, where filler would be much.

If all documents are a little longer than half a row, each row has room for one, and nearly half of
every row would be filler. Then a few rows, the donors, are given up. Their pieces are laid end to
end into the gaps of other rows, the receivers, and cut where a gap is full; what follows a cut
begins with an inserted BOS. With row_len 10 and pieces of 6 tokens:

    rows      6 + 4 free | 6 + 4 free | 6 + 4 free      40% filler
    donor     one of them: a gap of 4 has room for 3, as a token is kept for BOS
    rows      6 3 + 1 free | 6 _3                        _ is the inserted BOS

This happens only if filler would be more than MOST_FILLER, and in the rows with the largest gaps.
"""

from typing import NamedTuple

import numpy as np

from tokenmill.rows.groups import offsets_of
from tokenmill.rows.order import stable_order

MOST_FILLER = 3  # percent


class DonorsAndReceivers(NamedTuple):
    """Rows to give up, and the rows that take their pieces. Each (count,)."""

    donors: np.ndarray
    receivers: np.ndarray


def choose_rows(free: np.ndarray, row_len: int) -> DonorsAndReceivers:
    """Chooses among rows that have `free` tokens left; none if filler is low.

    As few rows are donors as are needed, or as many as fit into the others' gaps.
    """
    num_rows = len(free)
    by_gap = stable_order(row_len - free)  # the largest gaps first
    nobody = DonorsAndReceivers(by_gap[:0], by_gap[:0])
    gaps = free[by_gap].astype(np.int64)
    if not _is_too_much(gaps.sum(), num_rows, row_len):
        return nobody
    choices = _choices(gaps, row_len)
    if not len(choices.num_donors):
        return nobody
    is_enough = ~_is_too_much(choices.filler, num_rows - choices.num_donors, row_len)
    choice = len(is_enough) - 1  # the most donors
    if is_enough.any():
        choice = int(np.argmax(is_enough))  # the fewest that are enough
    num_donors = choices.num_donors[choice]
    end = choices.end[choice]
    return DonorsAndReceivers(by_gap[:num_donors], by_gap[num_donors:end])


class _Choices(NamedTuple):
    """Numbers of donors whose pieces the rows after them have room for. Each (count,)."""

    num_donors: np.ndarray  # the rows before this number
    end: np.ndarray  # of the receivers, which follow the donors
    filler: np.ndarray  # tokens that would then be filler


def _choices(gaps: np.ndarray, row_len: int) -> _Choices:
    """All choices among rows with these gaps, the largest first."""
    free_before = offsets_of(gaps)
    room_before = offsets_of(np.maximum(gaps - 1, 0))  # a token of each gap is kept for BOS
    num_donors = np.arange(1, len(gaps))  # rows before this number give, rows up to `end` receive
    donated = num_donors * row_len - free_before[num_donors]
    room_through_last = room_before[num_donors] + donated
    end = np.searchsorted(room_before, room_through_last)
    fits = end <= len(gaps)
    num_donors = num_donors[fits]
    end = end[fits]
    room_unused = room_before[end] - room_through_last[fits]
    free_after = free_before[-1] - free_before[end]
    return _Choices(num_donors, end, free_after + room_unused)


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
    row: np.ndarray, size: np.ndarray, free: np.ndarray, chosen: DonorsAndReceivers
) -> Parts:
    """Lays the pieces of the donors into the gaps of the receivers. `row` and `size`: each piece's.

    The rows that remain keep their order and are numbered from 0. The parts are in their order.
    """
    is_donor = np.zeros(len(free), bool)
    is_donor[chosen.donors] = True
    new_number = np.cumsum(~is_donor) - 1  # of each row that remains
    is_moved = is_donor[row]
    kept_pieces = np.flatnonzero(~is_moved)
    kept = Parts(
        row=new_number[row[kept_pieces]],
        piece=kept_pieces,
        begin=np.zeros(len(kept_pieces), np.int64),
        size=size[kept_pieces],
    )
    moved_pieces = np.flatnonzero(is_moved)
    room = free[chosen.receivers].astype(np.int64) - 1  # of each gap, after BOS
    moved = _cut_by_room(size[moved_pieces], room)
    moved = moved._replace(
        row=new_number[chosen.receivers[moved.row]], piece=moved_pieces[moved.piece]
    )
    parts = Parts._make(np.concatenate(column) for column in zip(kept, moved, strict=True))
    order = stable_order(parts.row)
    return Parts._make(column[order] for column in parts)


def _cut_by_room(sizes: np.ndarray, room: np.ndarray) -> Parts:
    """Pieces of these sizes, laid end to end and cut where the room of a gap ends.

    `row` is the number of the gap, and `piece` that among these pieces.
    """
    piece_ends = np.cumsum(sizes, dtype=np.int64)
    piece_begins = piece_ends - sizes
    gap_ends = np.cumsum(room)
    cuts = gap_ends[gap_ends < piece_ends[-1]]
    bounds = np.unique(np.concatenate([[0], piece_ends, cuts]))
    begins = bounds[:-1]
    piece = np.searchsorted(piece_ends, begins, side="right")
    gap = np.searchsorted(gap_ends, begins, side="right")
    return Parts(gap, piece, begins - piece_begins[piece], np.diff(bounds))
