"""Fills the gaps at the ends of rows: with cut pieces where filler would be much, with copies of documents elsewhere.

If all documents are a little longer than half a row, each row has room for one, and nearly half of every row would be
filler. Then some rows, the donors, are given up. Their pieces are laid end to end into the gaps of other rows, and cut
where a gap is full; what follows a cut begins with an inserted BOS. With row_len 10 and pieces of 6 tokens:

    rows      6 + 4 free | 6 + 4 free | 6 + 4 free      40% filler
    donor     the last row
    rows      6 4        | 6 _2 + 1 free                 _ is the inserted BOS; the free token becomes filler

This happens only if filler would be more than MOST_FILLER, and in the rows with the largest gaps. What is still free is
filled with copies of documents' beginnings, which are also in other rows in full.
"""

from collections.abc import Iterator

import numpy as np

from tokenmill.rows.order import random_bits, stable_order

MOST_FILLER = 3  # percent


def choose_rows(free: np.ndarray, row_len: int) -> tuple[np.ndarray, np.ndarray]:
    """Chooses (donors, receivers) among rows that have `free` tokens left, (num_rows,); none if filler is low. As few
    rows are donors as are needed, or as many as fit into the others' gaps.
    """
    rows = len(free)
    order = stable_order(row_len - free)  # the largest gaps first
    gaps = free[order].astype(np.int64)
    if not _is_too_much(gaps.sum(), rows, row_len):
        return order[:0], order[:0]
    room = np.concatenate(
        [[0], np.cumsum(np.maximum(gaps - 1, 0))]
    )  # a token of each gap is kept for BOS
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
    return np.asarray(np.asarray(filler) * 100 > np.asarray(rows, np.int64) * row_len * MOST_FILLER)


def lay_into_gaps(
    row: np.ndarray, size: np.ndarray, free: np.ndarray, donors: np.ndarray, receivers: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Lays the pieces of the donors into the gaps of the receivers. `row` and `size` are those of each piece.

    Returns parts of pieces in the order of the rows: (row, piece, begin, size), `size` tokens of `piece` from its token
    `begin` on; the piece's inserted BOS counts. The rows that remain keep their order and are numbered from 0.
    """
    given = np.zeros(len(free), bool)
    given[donors] = True
    new_number = np.cumsum(~given) - 1
    moved, kept = np.flatnonzero(given[row]), np.flatnonzero(~given[row])
    ends = np.cumsum(size[moved], dtype=np.int64)  # of the pieces, laid end to end
    room = np.cumsum(free[receivers].astype(np.int64) - 1)  # of the gaps
    bounds = np.unique(np.concatenate([[0], ends, room[room < ends[-1]]]))
    begin, end = bounds[:-1], bounds[1:]
    which, gap = (
        np.searchsorted(ends, begin, side="right"),
        np.searchsorted(room, begin, side="right"),
    )
    of_row = np.concatenate([new_number[row[kept]], new_number[receivers[gap]]])
    piece = np.concatenate([kept, moved[which]])
    first = np.concatenate([np.zeros(len(kept), np.int64), begin - (ends - size[moved])[which]])
    order = stable_order(of_row)
    return tuple(
        column[order]
        for column in (of_row, piece, first, np.concatenate([size[kept], end - begin]))
    )


def fill_gaps(
    lengths: np.ndarray,
    row: np.ndarray,
    document: np.ndarray,
    free: np.ndarray,
    seed: tuple[int, ...],
) -> tuple[np.ndarray, ...]:
    """Fills the rows that have `free` tokens left: (row, document, tokens of its beginning) of each filler.

    `row` and `document` are those of each piece; `row` ascends. The filler is the beginning of a random document that
    is at least as long as the gap and not in the row. If there is none, the longest documents that are not in the row
    are used. Only a row that holds every document repeats one.
    """
    rows = np.flatnonzero(free)
    by_length = stable_order(lengths)
    ascending = lengths[by_length]
    long_enough = np.searchsorted(
        ascending, free[rows]
    )  # of each gap: how many documents are shorter
    bits, candidates = random_bits(len(rows), "filler", *seed), len(by_length) - long_enough
    drawn = long_enough + (bits % np.maximum(candidates, 1).astype(np.uint64)).astype(np.int64)
    others = by_length[np.minimum(drawn, len(by_length) - 1)]
    usable, gap = (
        candidates > 0,
        np.full(row.max(initial=-1) + 1, -1),
    )  # gap: which of `rows` each row is
    gap[rows] = np.arange(len(rows))
    pieces = np.flatnonzero(gap[row] >= 0)  # the pieces in these rows
    gap_of = gap[row[pieces]]
    usable[gap_of[document[pieces] == others[gap_of]]] = False
    first, last = np.searchsorted(row, rows, "left"), np.searchsorted(row, rows, "right")
    searched: list[tuple[int, int, int]] = []
    for i in np.flatnonzero(~usable).tolist():
        inside = set(document[first[i] : last[i]].tolist())
        wanted = int(free[rows[i]]), int(long_enough[i]), inside, int(bits[i])
        searched += [
            (int(rows[i]), other, taken) for other, taken in _search(by_length, ascending, *wanted)
        ]
    found = np.stack([rows, others, free[rows]])[:, usable].astype(document.dtype)
    return tuple(
        np.concatenate([found, np.array(searched, dtype=document.dtype).reshape(-1, 3).T], axis=1)
    )


def _search(
    by_length: np.ndarray,
    ascending: np.ndarray,
    gap: int,
    long_enough: int,
    inside: set[int],
    bits: int,
) -> Iterator[tuple[int, int]]:
    """Documents that fill a gap, with the tokens taken of each: one as long as the gap, or else the longest ones."""
    candidates = len(by_length) - long_enough
    for step in range(min(candidates, len(inside) + 1)):
        other = int(by_length[long_enough + (bits + step) % candidates])
        if other not in inside:
            yield other, gap
            return
    while True:
        for place in range(len(by_length) - 1, -1, -1):  # from the longest on
            other, length = int(by_length[place]), int(ascending[place])
            if other not in inside:
                yield other, min(gap, length)
                gap -= min(gap, length)
                if not gap:
                    return
        inside = set()
