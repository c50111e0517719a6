"""First-fit decreasing on sizes: each row takes the longest size that fits, again and again.

It keeps a count per size, and a sorted list of the sizes that remain for binary search. With rows
of 8 and the sizes 5 4 3 3 2:

    5 3 | 4 3 | 2

The rule is first-fit decreasing (D. S. Johnson, "Near-optimal bin packing algorithms", 1973). If
there are few pieces of each size, a row's second pick is drawn from about the CLOSE longest pieces
that fit, so that other pieces meet in the next epoch.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import numpy as np

from tokenmill.rows.groups import offsets_of
from tokenmill.rows.order import random_bits

CLOSE = 24  # about how many pieces a row's second pick is drawn from


class Picks(NamedTuple):
    """The sizes of rows: row r has size[row_offsets[r] : row_offsets[r + 1]]."""

    size: np.ndarray  # (num_picks,) int32
    row_offsets: np.ndarray  # (num_rows + 1,) int64

    @property
    def num_rows(self) -> int:
        return len(self.row_offsets) - 1

    def free(self, row_len: int) -> np.ndarray:
        """The tokens that each row has left: (num_rows,)."""
        if not len(self.size):
            return self.size
        return np.asarray(row_len - np.add.reduceat(self.size, self.row_offsets[:-1]))


def pick_sizes(size: np.ndarray, row_len: int, seed: tuple[int, ...]) -> Picks:
    """Picks pieces of these sizes, (num_pieces,), for rows.

    As long as none of a row's sizes runs out, the next row is the same, so sizes are picked once
    for many rows. If the second pick is drawn, each row is picked separately.
    """
    numbers = np.bincount(size, minlength=row_len + 1)
    num_full = int(numbers[row_len])  # a piece that fills a row needs no search
    num_left = len(size) - num_full
    sizes = np.flatnonzero(numbers[:row_len]).tolist()  # those that are left, ascending
    counts = numbers.tolist()
    draws = _draws(seed)
    picked = array("i", [row_len]) * num_full
    in_row = array("i", [1]) * num_full  # how many sizes each row has
    while sizes:
        close = CLOSE * len(sizes) // num_left  # this many sizes have about CLOSE pieces
        if close > 1:
            row = _drawn_row(sizes, counts, row_len, close, next(draws))
            num_rows = 1
        else:
            row, num_rows = _equal_rows(sizes, counts, row_len)
        picked.extend(array("i", row) * num_rows)
        in_row.extend(array("i", [len(row)]) * num_rows)
        num_left -= len(row) * num_rows
    return Picks(np.array(picked, np.int32), offsets_of(np.array(in_row)))


def _equal_rows(sizes: list[int], counts: list[int], row_len: int) -> tuple[list[int], int]:
    """The sizes of the next row, always the longest that fits, and how many rows have the same."""
    free = row_len
    fit = len(sizes)
    num_rows = sys.maxsize
    row: list[int] = []
    used = []
    while fit := bisect_right(sizes, free, 0, fit):
        fit -= 1
        size = sizes[fit]
        times = min(free // size, counts[size])
        row += [size] * times
        free -= size * times
        num_rows = min(num_rows, counts[size] // times)
        used.append((fit, size, times))
    for index, size, times in used:  # from the largest on, so that the other indices stay right
        counts[size] -= num_rows * times
        if not counts[size]:
            del sizes[index]
    return row, num_rows


def _drawn_row(
    sizes: list[int], counts: list[int], row_len: int, close: int, draw: int
) -> list[int]:
    """The sizes of the next row: first the longest, then one of the `close` longest that fit.

    The random number `draw` says which one.
    """
    row = []
    index = len(sizes) - 1
    free = row_len
    while index >= 0:
        size = sizes[index]
        row.append(size)
        free -= size
        counts[size] -= 1
        if not counts[size]:
            del sizes[index]
        index = bisect_right(sizes, free) - 1
        if close and index >= 0:
            index = max(0, index - draw % close)
            close = 0  # only once
    return row


def _draws(seed: tuple[int, ...]) -> Iterator[int]:
    """An endless stream of random numbers, generated in batches."""
    for part in count():
        yield from random_bits(4096, "close", part, *seed).tolist()
