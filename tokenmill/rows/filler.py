"""What closes the rows that a packing leaves open: beginnings of documents that also stand whole elsewhere.

A gap of 6 tokens, documents of 9 and 2 that are not in the row: the first 6 tokens of the one of 9. Where all others
are shorter than the gap: the longest that is not in the row, then the next, until it is closed.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tokenmill.rows.order import random_bits, stable_order


class Fillers(NamedTuple):
    """The first `length` tokens of `document` at the end of `row`: each (count,) int64."""

    row: np.ndarray
    document: np.ndarray
    length: np.ndarray


def fill_gaps(
    lengths: np.ndarray, row: np.ndarray, document: np.ndarray, free: np.ndarray, seed: tuple[int, ...]
) -> Fillers:
    """Closes the rows that have `free` tokens left; `row` and `document` are of each piece, rows ascending.

    Takes the beginning of a random document of at least as many tokens as the gap that is not in the row. Where there
    is none, the longest that are not; only a row that holds every document repeats one.
    """
    rows = np.flatnonzero(free)
    by_length = stable_order(lengths)
    ascending = lengths[by_length]
    luck = random_bits(len(rows), "filler", *seed)
    others, lucky = _lucky_documents(by_length, ascending, free[rows], luck, rows, row, document)
    first, last = np.searchsorted(row, rows, "left"), np.searchsorted(row, rows, "right")
    searched: list[tuple[int, int, int]] = []
    for i in np.flatnonzero(~lucky).tolist():
        inside = set(document[first[i] : last[i]].tolist())
        gap = int(free[rows[i]])
        for other, taken in _search(by_length, ascending, gap, inside, int(luck[i])):
            searched.append((int(rows[i]), other, taken))
    found = np.stack([rows, others, free[rows]])[:, lucky].astype(document.dtype)
    more = np.array(searched, dtype=document.dtype).reshape(-1, 3).T
    return Fillers(*np.concatenate([found, more], axis=1))


def _lucky_documents(
    by_length: np.ndarray,
    ascending: np.ndarray,
    gaps: np.ndarray,
    luck: np.ndarray,
    rows: np.ndarray,
    row: np.ndarray,
    document: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The random document of at least the gap's tokens for each of `rows`, and whether it is not in the row already."""
    long_enough = np.searchsorted(ascending, gaps)
    candidates = len(by_length) - long_enough
    drawn = (luck % np.maximum(candidates, 1).astype(np.uint64)).astype(np.int64)
    others = by_length[np.minimum(long_enough + drawn, len(by_length) - 1)]
    lucky = candidates > 0
    gap = np.full(row.max(initial=-1) + 1, -1)  # which of `rows` each row is
    gap[rows] = np.arange(len(rows))
    beside = np.flatnonzero(gap[row] >= 0)  # the pieces in these rows
    gap_of = gap[row[beside]]  # which of `rows` each of them lies in
    lucky[gap_of[document[beside] == others[gap_of]]] = False
    return others, lucky


def _search(
    by_length: np.ndarray, ascending: np.ndarray, gap: int, inside: set[int], bits: int
) -> Iterator[tuple[int, int]]:
    """Documents that close a gap, and the tokens taken of each: one of at least `gap` tokens, else the longest."""
    long_enough = int(np.searchsorted(ascending, gap))
    candidates = len(by_length) - long_enough
    for step in range(min(candidates, len(inside) + 1)):
        other = int(by_length[long_enough + (bits + step) % candidates])
        if other not in inside:
            yield other, gap
            return
    while gap:
        for place in range(len(by_length) - 1, -1, -1):  # each is looked at once
            other, length = int(by_length[place]), int(ascending[place])
            if other in inside:
                continue
            yield other, min(gap, length)
            gap -= min(gap, length)
            if not gap:
                return
        inside = set()
