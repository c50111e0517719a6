"""The rows of other loaders.

`concat` and `random` are cut from a token stream without regard to documents. `concat`, with rows
of 4 + 1 of a shard of 14 tokens: tokens 0-4, 4-8 and 8-12; what follows is less than a row. A row
belongs to the slice in which it begins (windows.py), and may end in the next one. `random` has as
many rows of each slice, which begin anywhere in it.

nanochat's BOS best-fit rule is followed pick for pick, from document lengths alone (nanochat,
`dataloader.py`). Before each pick, a buffer is refilled while it has fewer than 1,000 documents. A
row of `row_len` takes the longest buffered document that fits, the first of equals, again and
again. When none fits, the beginning of the shortest document fills the row, and the rest of that
document is dropped. nanochat scans its buffer for each pick. Here it is a sorted list of keys
length << 64 | (2**64 - 1 - place), where `place` grows from document to document: of documents of
one length, the first to arrive is the last in the list.
"""

from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from tokenmill.rows.groups import offsets_of, within_groups
from tokenmill.rows.order import permutation, random_bits
from tokenmill.rows.packing import RowPlan
from tokenmill.rows.spans import Spans
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


def lay_pieces(spans: Spans, row_len: int, seed: tuple[int, ...]) -> tuple[RowPlan, Spans]:
    """Lays spans one after the other and cuts where a row is full.

    A piece that begins inside a document gets a BOS. Returns the full rows, and the spans of the
    last one, which is not full. If the end of a row has no room for a BOS and a token, the first
    token of the next document fills it.
    """
    order = permutation(len(spans.document), "laid", *seed)
    columns = (column.tolist() for column in spans.take(order))
    pieces: list[tuple[int, int, int, bool]] = []
    row_offsets = [0]
    room = row_len
    for document, start, length in zip(*columns, strict=True):
        while length:
            bos = start > 0
            if room <= bos:
                pieces.append((document, 0, 1, True))
                room -= 1
            else:
                taken = min(length, room - bos)
                pieces.append((document, start, taken, False))
                start += taken
                length -= taken
                room -= taken + bos
            if not room:
                row_offsets.append(len(pieces))
                room = row_len
    num_full = row_offsets[-1]
    document, start, length, filler = np.array(pieces, dtype=np.int64).reshape(-1, 4).T
    laid = Spans(document, start, length)
    full = laid.take(slice(num_full))
    is_filler = filler[:num_full] > 0
    bos = (full.start > 0) & ~is_filler
    plan = RowPlan(row_len, np.array(row_offsets), *full, bos, is_filler)
    return plan, laid.take(slice(num_full, None))


def shuffled(plans: list[RowPlan], seed: tuple[int, ...]) -> RowPlan:
    """The rows of several plans, shuffled together with a seed."""
    counts = np.concatenate([np.diff(plan.row_offsets) for plan in plans])
    begin = offsets_of(counts)[:-1]
    order = permutation(len(counts), "together", *seed)
    counts = counts[order]
    pieces = np.repeat(begin[order], counts) + within_groups(counts)
    columns = zip(*(plan[2:] for plan in plans), strict=True)
    joined = (np.concatenate(column)[pieces] for column in columns)
    return RowPlan(plans[0].row_len, offsets_of(counts), *joined)


def _rows_of_one_piece(document: np.ndarray, start: np.ndarray, row_len: int) -> RowPlan:
    num_rows = len(document)
    nothing = np.zeros(num_rows, dtype=bool)
    length = np.full(num_rows, row_len)
    return RowPlan(row_len, np.arange(num_rows + 1), document, start, length, nothing, nothing)


BUFFER_DOCUMENTS = 1000
REFILL_DOCUMENTS = 128
LENGTH = 64  # bits of a key below the length
PLACE = (1 << LENGTH) - 1


class BestFitBuffer:
    """Picks documents for rows. `refills` are lists of (length, place), with increasing places."""

    def __init__(self, refills: Iterator[list[tuple[int, int]]], row_len: int):
        self.refills = refills
        self.row_len = row_len
        self._keys: list[int] = []  # ascending

    def next_row(self) -> list[tuple[int, int]]:
        """The next row: (place, tokens taken from its beginning) of each document."""
        keys = self._keys
        row = []
        room = self.row_len
        while room:
            if len(keys) < BUFFER_DOCUMENTS:
                self._refill()
            fit = bisect_left(keys, room + 1 << LENGTH)
            if not fit:
                shortest = keys[0] >> LENGTH
                fit = bisect_left(keys, shortest + 1 << LENGTH)  # the first of the shortest
            key = keys.pop(fit - 1)
            taken = key >> LENGTH
            if taken > room:
                taken = room
            place = PLACE - (key & PLACE)
            row.append((place, taken))
            room -= taken
        return row

    def _refill(self) -> None:
        keys = self._keys
        while len(keys) < BUFFER_DOCUMENTS:
            keys += [length << LENGTH | PLACE - place for length, place in next(self.refills)]
        keys.sort()  # two ascending runs and a short one: close to a merge
