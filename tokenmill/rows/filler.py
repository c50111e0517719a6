"""Fills the gaps at the ends of rows with copies of documents' beginnings, which are also in other rows in full.

With a gap of 6 tokens, and documents of 9 and 2 tokens that are not in the row, the filler is the first 6 tokens of the
document of 9. If all other documents are shorter than the gap, it is the longest that is not in the row, then the next
one, until the gap is filled.
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
    """Fills the rows that have `free` tokens left. `row` and `document` are those of each piece; `row` ascends.

    The filler is the beginning of a random document that is at least as long as the gap and not in the row. If there is
    none, the longest documents that are not in the row are used. Only a row that holds every document repeats one.
    """
    rows = np.flatnonzero(free)
    by_length = stable_order(lengths)
    ascending = lengths[by_length]
    long_enough = np.searchsorted(ascending, free[rows])  # once: a search for one number would copy all lengths
    bits = random_bits(len(rows), "filler", *seed)
    others, usable = _drawn_documents(by_length, long_enough, bits, rows, row, document)
    first, last = np.searchsorted(row, rows, "left"), np.searchsorted(row, rows, "right")
    searched: list[tuple[int, int, int]] = []
    for i in np.flatnonzero(~usable).tolist():
        inside = set(document[first[i] : last[i]].tolist())
        gap = int(free[rows[i]])
        for other, taken in _search(by_length, ascending, gap, int(long_enough[i]), inside, int(bits[i])):
            searched.append((int(rows[i]), other, taken))
    found = np.stack([rows, others, free[rows]])[:, usable].astype(document.dtype)
    more = np.array(searched, dtype=document.dtype).reshape(-1, 3).T
    return Fillers(*np.concatenate([found, more], axis=1))


def _drawn_documents(
    by_length: np.ndarray,
    long_enough: np.ndarray,
    bits: np.ndarray,
    rows: np.ndarray,
    row: np.ndarray,
    document: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """A random document, at least as long as the gap, for each of `rows`, and whether it is not in the row yet.

    `long_enough` is the number of documents that are shorter than each gap: those behind them in `by_length` fill it.
    """
    candidates = len(by_length) - long_enough
    drawn = (bits % np.maximum(candidates, 1).astype(np.uint64)).astype(np.int64)
    others = by_length[np.minimum(long_enough + drawn, len(by_length) - 1)]
    usable = candidates > 0
    gap = np.full(row.max(initial=-1) + 1, -1)  # which of `rows` each row is
    gap[rows] = np.arange(len(rows))
    pieces = np.flatnonzero(gap[row] >= 0)  # the pieces in these rows
    gap_of = gap[row[pieces]]  # which of `rows` each of them is in
    usable[gap_of[document[pieces] == others[gap_of]]] = False
    return others, usable


def _search(
    by_length: np.ndarray, ascending: np.ndarray, gap: int, long_enough: int, inside: set[int], bits: int
) -> Iterator[tuple[int, int]]:
    """Documents that fill a gap, with the tokens taken of each: one as long as the gap, or else the longest ones."""
    candidates = len(by_length) - long_enough
    for step in range(min(candidates, len(inside) + 1)):
        other = int(by_length[long_enough + (bits + step) % candidates])
        if other not in inside:
            yield other, gap
            return
    while gap:
        for place in range(len(by_length) - 1, -1, -1):  # from the longest on
            other, length = int(by_length[place]), int(ascending[place])
            if other in inside:
                continue
            yield other, min(gap, length)
            gap -= min(gap, length)
            if not gap:
                return
        inside = set()
