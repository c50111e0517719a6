"""concat and random: rows that are cut from a token stream without regard to documents.

`concat`, with rows of 4 + 1 of a shard of 14 tokens: tokens 0-4, 4-8 and 8-12; what follows is less
than a row. A row belongs to the slice in which it begins (windows.py), and may end in the next one.
`random` has as many rows of each slice, which begin anywhere in it.
"""

import numpy as np

from tokenmill.rows.groups import within_groups
from tokenmill.rows.order import permutation, random_bits
from tokenmill.rows.packing import RowPlan
from tokenmill.rows.windows import Window


def count_concat(window: Window, shard_tokens: np.ndarray, row_len: int) -> np.ndarray:
    """How many rows begin in each slice, with shards of `shard_tokens`: (num_slices,) int64."""
    body = row_len - 1
    last = np.minimum(window.end - 1, shard_tokens[window.shard] - row_len) // body
    return np.asarray(np.maximum(0, last - _first_row(window, row_len) + 1))


def _first_row(window: Window, row_len: int) -> np.ndarray:
    """The number, in its shard, of the row that begins first in each slice."""
    return np.asarray(-(-window.begin // (row_len - 1)))


def plan_concat(
    window: Window, shard_tokens: np.ndarray, row_len: int, seed: tuple[int, ...] | None
) -> RowPlan:
    """Consecutive rows of each shard, each from the last token of the one before on.

    Shuffled if there is a seed.
    """
    counts = count_concat(window, shard_tokens, row_len)
    slice_of = np.repeat(np.arange(len(counts)), counts)
    number = _first_row(window, row_len)[slice_of] + within_groups(counts)
    start = number * (row_len - 1) - window.begin[slice_of]
    if seed is not None:
        order = permutation(len(slice_of), "rows", *seed)
        slice_of = slice_of[order]
        start = start[order]
    return _rows_of_one_piece(slice_of, start, row_len)


def plan_random(
    window: Window, shard_tokens: np.ndarray, row_len: int, seed: tuple[int, ...]
) -> RowPlan:
    """As many rows of each slice as in `plan_concat`, at random places in it, in random order."""
    counts = count_concat(window, shard_tokens, row_len)
    room = np.minimum(window.end, shard_tokens[window.shard] - row_len + 1) - window.begin
    order = permutation(int(counts.sum()), "rows", *seed)
    slice_of = np.repeat(np.arange(len(counts)), counts)[order]
    bits = random_bits(len(slice_of), "places", *seed)
    start = bits % np.maximum(room, 1).astype(np.uint64)[slice_of]
    return _rows_of_one_piece(slice_of, start.astype(np.int64), row_len)


def _rows_of_one_piece(document: np.ndarray, start: np.ndarray, row_len: int) -> RowPlan:
    num_rows = len(document)
    nothing = np.zeros(num_rows, dtype=bool)
    length = np.full(num_rows, row_len)
    return RowPlan(row_len, np.arange(num_rows + 1), document, start, length, nothing, nothing)
