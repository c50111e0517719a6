"""The rows of other loaders.

`concat` and `random` are cut from a token stream without regard to documents. `concat`, with rows of 4 + 1 of a shard
of 14 tokens: tokens 0-4, 4-8 and 8-12; the rest is less than a row. A row belongs to the slice in which it begins
(windows.py), and may end in the next one. `random` has as many rows of each slice, which begin anywhere in it.

nanochat's BOS best-fit rule is followed pick for pick, from document lengths alone (nanochat, `dataloader.py`). Before
each pick, a buffer is refilled while it has fewer than 1,000 documents. A row of `row_len` takes the longest buffered
document that fits, the first of equals, again and again. When none fits, the beginning of the shortest document fills
the row, and the rest of that document is dropped. nanochat scans its buffer for each pick. Here it is a sorted list of
keys length << 64 | (2**64 - 1 - place), where `place` grows from document to document: of documents of one length, the
first to arrive is the last in the list.
"""

from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from tokenmill.rows.order import permutation, random_bits
from tokenmill.rows.packing import RowPlan, Spans
from tokenmill.rows.windows import Window


def count_concat(window: Window, shard_tokens: np.ndarray, row_len: int) -> np.ndarray:
    """The number of rows that begin in each slice of a window, with shards of `shard_tokens`: (num_slices,) int64."""
    first, body = -(-window.begin // (row_len - 1)), row_len - 1  # the row that begins first
    last = np.minimum(window.end - 1, shard_tokens[window.shard] - row_len) // body
    return np.asarray(np.maximum(0, last - first + 1))


def plan_concat(
    window: Window, shard_tokens: np.ndarray, row_len: int, seed: tuple[int, ...] | None
) -> RowPlan:
    """Consecutive rows of each shard, each from the last token of the one before on; shuffled if there is a seed."""
    counts, first = count_concat(window, shard_tokens, row_len), -(-window.begin // (row_len - 1))
    slice_of = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(slice_of)) - np.repeat(np.cumsum(counts) - counts, counts)
    start = (first[slice_of] + number) * (row_len - 1) - window.begin[slice_of]
    order = np.arange(len(slice_of)) if seed is None else permutation(len(slice_of), "rows", *seed)
    return _rows_of_one_piece(slice_of[order], start[order], row_len)


def plan_random(
    window: Window, shard_tokens: np.ndarray, row_len: int, seed: tuple[int, ...]
) -> RowPlan:
    """As many rows of each slice as in `plan_concat`, at random places in it, in random order."""
    counts = count_concat(window, shard_tokens, row_len)
    room = np.minimum(window.end, shard_tokens[window.shard] - row_len + 1) - window.begin
    slice_of = np.repeat(np.arange(len(counts)), counts)[
        permutation(int(counts.sum()), "rows", *seed)
    ]
    start = (
        random_bits(len(slice_of), "places", *seed)
        % np.maximum(room, 1).astype(np.uint64)[slice_of]
    )
    return _rows_of_one_piece(slice_of, start.astype(np.int64), row_len)


def lay_pieces(left: Spans, row_len: int, seed: tuple[int, ...]) -> tuple[RowPlan, Spans]:
    """Lays spans one after the other and cuts where a row is full.

    A piece that begins inside a document gets a BOS. Returns the full rows, and the spans of the last one, which is not
    full. If the rest of a row has no room for a BOS and a token, the first token of the next document fills it.
    """
    order = permutation(len(left.document), "laid", *seed)
    columns = (column[order].tolist() for column in left)
    pieces: list[tuple[int, int, int, bool]] = []
    row_offsets, room = [0], row_len
    for document, start, length in zip(*columns, strict=True):
        while length:
            bos = start > 0
            if room <= bos:
                pieces.append((document, 0, 1, True))
                room -= 1
            else:
                taken = min(length, room - bos)
                pieces.append((document, start, taken, False))
                start, length, room = start + taken, length - taken, room - taken - bos
            if not room:
                row_offsets.append(len(pieces))
                room = row_len
    full = row_offsets[-1]
    found = np.array(pieces, dtype=np.int64).reshape(-1, 4)
    document, start, length, filler = found[:full].T
    plan = RowPlan(
        row_len,
        np.array(row_offsets),
        document,
        start,
        length,
        (start > 0) & (filler == 0),
        filler > 0,
    )
    return plan, Spans(*found[full:, :3].T)


def shuffled(plans: list[RowPlan], seed: tuple[int, ...]) -> RowPlan:
    """The rows of several plans, shuffled together with a seed."""
    firsts = np.cumsum([0, *(plan.row_offsets[-1] for plan in plans[:-1])]).tolist()
    before = np.concatenate(
        [plan.row_offsets[:-1] + first for plan, first in zip(plans, firsts, strict=True)]
    )
    counts = np.concatenate([np.diff(plan.row_offsets) for plan in plans])
    order = permutation(len(counts), "together", *seed)
    before, counts = before[order], counts[order]
    row_offsets = np.concatenate([[0], np.cumsum(counts)])
    pieces = np.arange(row_offsets[-1]) + np.repeat(before - row_offsets[:-1], counts)
    columns = (
        np.concatenate(parts)[pieces] for parts in zip(*(plan[2:] for plan in plans), strict=True)
    )
    return RowPlan(plans[0].row_len, row_offsets, *columns)


def _rows_of_one_piece(document: np.ndarray, start: np.ndarray, row_len: int) -> RowPlan:
    rows = len(document)
    no = np.zeros(rows, dtype=bool)
    return RowPlan(row_len, np.arange(rows + 1), document, start, np.full(rows, row_len), no, no)


BUFFER_DOCUMENTS, REFILL_DOCUMENTS = 1000, 128
LENGTH = 64  # bits of a key below the length
PLACE = (1 << LENGTH) - 1


class BestFitBuffer:
    """Picks documents for rows. `refills` are lists of (length, place), with increasing places."""

    def __init__(self, refills: Iterator[list[tuple[int, int]]], row_len: int):
        self.refills, self.row_len = refills, row_len
        self._keys: list[int] = []  # ascending

    def next_row(self) -> list[tuple[int, int]]:
        """The next row: (place, tokens taken from its beginning) of each document."""
        keys, row, room = self._keys, [], self.row_len
        while room:
            while len(keys) < BUFFER_DOCUMENTS:
                keys += [length << LENGTH | PLACE - place for length, place in next(self.refills)]
                keys.sort()  # two ascending stretches and a short one: close to a merge
            fit = bisect_left(keys, room + 1 << LENGTH)
            if not fit:
                fit = bisect_left(
                    keys, (keys[0] >> LENGTH) + 1 << LENGTH
                )  # the first of the shortest
            key = keys.pop(fit - 1)
            taken = min(key >> LENGTH, room)
            row.append((PLACE - (key & PLACE), taken))
            room -= taken
        return row
