"""From document lengths to rows. Pure: numbers in, numbers out, and no token is touched.

A row is `row_len = seq_len + 1` tokens and begins with BOS. `plan_rows` packs the documents of one window (windows.py)
best-fit and drops nothing. With row_len 8 and documents of 11, 5, 3, 3 and 2 tokens, including BOS:

    11 is longer than a row: its first 8 tokens fill a row, and the other 3 join the pool
       behind an inserted BOS, as a piece of 4
    the pool holds 5 4 3 3 2; each row takes the longest that fits, again and again:
       8 | 5 3 | 4 3 + 1 free | 2 + 6 free
    free space is filled with copies of documents' beginnings (filler.py)

The rule is first-fit decreasing over all pieces (D. S. Johnson, "Near-optimal bin packing algorithms", 1973; for
training rows Ding et al., "Fewer truncations improve language modeling", 2024). It runs on sizes, not on documents: it
keeps a count per size, and a sorted list of the remaining sizes for binary search. Afterwards, picks are assigned to
documents: the k-th pick of a size is the k-th piece of that size, in an order that depends on the seed. Picks go from
long to short, so rows come out sorted by length. They are therefore shuffled at the end, and so are the pieces within
each row.

The same pieces would often meet again in the next epoch. Therefore most short pieces are first joined at random
(bundles.py). And if there are few pieces of each size, a row's second pick is drawn from about the CLOSE longest pieces
that fit, and later picks fill the gap that this leaves. If much of the rows would be filler, pieces are cut to fill the
gaps (gap_cuts.py).

Order version 1 is that of tokenmill 0.3.0, without bundles and cuts.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal, NamedTuple, get_args

import numpy as np

from tokenmill.rows.bundles import Bundles, all_alone, bundle_short
from tokenmill.rows.filler import fill_gaps
from tokenmill.rows.gap_cuts import choose_rows, lay_into_gaps
from tokenmill.rows.order import ORDER_VERSION, permutation, random_bits, random_digits, stable_order

Lengths = Sequence[int] | np.ndarray
LongDocuments = Literal["split", "crop", "drop", "window"]  # the last two of whole documents alone
LONG_DOCUMENTS = get_args(LongDocuments)
CUTS = ("split", "crop")  # those that `plan_rows` knows
CLOSE = 24  # about how many pieces a row's second pick is drawn from


class Stretches(NamedTuple):
    """Stretches of documents: `length` tokens of `document` from its token `start` on. Each (count,), of one dtype."""

    document: np.ndarray
    start: np.ndarray
    length: np.ndarray


@dataclass(frozen=True)
class RowPlan:
    """Which piece of which document is where in some rows.

    Row r holds the pieces row_offsets[r] : row_offsets[r + 1]. Piece p is `length[p]` tokens of document `document[p]`
    from its token `start[p]` on. If `bos[p]`, a BOS is inserted before them, which `length` does not count.
    """

    row_len: int
    row_offsets: np.ndarray  # (num_rows + 1,) int64
    document: np.ndarray  # (num_pieces,) int32 or int64
    start: np.ndarray  # (num_pieces,) int32 or int64
    length: np.ndarray  # (num_pieces,) int32 or int64
    bos: np.ndarray  # (num_pieces,) bool
    filler: np.ndarray  # (num_pieces,) bool: a copy that fills the end of a row, or padding
    context: np.ndarray | None = None  # (num_pieces,) int64: first tokens that another row has as its own; None: none

    @property
    def num_rows(self) -> int:
        return len(self.row_offsets) - 1

    def count_by_row(self, numbers: np.ndarray) -> np.ndarray:
        """The sum of a number of each piece over the pieces of each row: (num_rows,) int32."""
        done = np.concatenate([[0], np.cumsum(numbers, dtype=np.int64)])
        found: np.ndarray = np.diff(done[self.row_offsets]).astype(np.int32)
        return found

    def kept_in(self, rows: np.ndarray) -> np.ndarray:
        """Which pieces these rows hold, without filler: (num_pieces,) bool."""
        chosen = np.zeros(self.num_rows, dtype=bool)
        chosen[rows] = True
        return np.asarray(np.repeat(chosen, np.diff(self.row_offsets)) & ~self.filler)


def plan_rows(
    lengths: Lengths,
    row_len: int,
    *,
    long_documents: LongDocuments = "split",
    seed: int | tuple[int, ...],
    left: Stretches | None = None,
    order_version: int = ORDER_VERSION,
) -> RowPlan:
    """Packs documents of `lengths` tokens (including BOS) into rows of exactly `row_len` tokens.

    `long_documents` decides about a document that is longer than a row. "split" cuts it into pieces that fill rows and
    a last one for the pool, so that every token of every document is in exactly one piece that is not filler. "crop"
    keeps its first `row_len` tokens. A document that fits into a row is cut only if filler would otherwise be more than
    gap_cuts.MOST_FILLER percent. `seed` is an int or a tuple of ints.
    If `left` is given, these stretches are packed instead of whole documents; filler still comes from whole documents.

    Raises ValueError for a row_len under 2, lengths under 1, or an unknown `long_documents`.
    """
    lengths, seed = _narrow(lengths), seed if isinstance(seed, tuple) else (seed,)
    pieces, size = _pieces(lengths, row_len, long_documents, left)
    bundles = _bundle(size, row_len, seed, order_version)
    picks, row_offsets = pick_sizes(bundles.size, row_len, seed)

    drawn = stable_order(bundles.size, among=stable_order(random_digits(len(bundles.size), "pieces", *seed)))
    chosen = np.empty(len(picks), dtype=np.int32)  # the k-th pick of a size: its k-th bundle
    chosen[stable_order(picks)] = drawn
    piece, count = bundles.pieces_of(chosen)

    row = np.repeat(np.repeat(np.arange(len(row_offsets) - 1, dtype=np.int32), np.diff(row_offsets)), count)
    free = _free(picks, row_offsets, row_len)
    row, kept, free = _cut_into_gaps(
        row, Stretches(*(column[piece] for column in pieces)), free, row_len, order_version
    )
    gaps = fill_gaps(lengths, row, kept.document, free, seed)

    filler = np.arange(len(row) + len(gaps.row)) >= len(row)
    order, row_offsets = shuffle_rows(np.concatenate([row, gaps.row]), filler, len(free), seed)
    start = np.concatenate([kept.start, np.zeros_like(gaps.row)])[order]
    return RowPlan(
        row_len,
        row_offsets,
        np.concatenate([kept.document, gaps.document])[order],
        start,
        np.concatenate([kept.length, gaps.length])[order],
        start > 0,
        filler[order],
    )


def count_rows(
    lengths: Lengths,
    row_len: int,
    *,
    long_documents: LongDocuments = "split",
    seed: int | tuple[int, ...],
    left: Stretches | None = None,
    order_version: int = ORDER_VERSION,
) -> int:
    """The number of rows that `plan_rows` plans, at a third of its cost."""
    seed = seed if isinstance(seed, tuple) else (seed,)
    _, size = _pieces(_narrow(lengths), row_len, long_documents, left)
    picks, row_offsets = pick_sizes(_bundle(size, row_len, seed, order_version).size, row_len, seed)
    rows = len(row_offsets) - 1
    return rows if order_version < 2 else rows - len(choose_rows(_free(picks, row_offsets, row_len), row_len)[0])


def _bundle(size: np.ndarray, row_len: int, seed: tuple[int, ...], order_version: int) -> Bundles:
    return all_alone(size) if order_version < 2 else bundle_short(size, row_len, seed)


def _free(picks: np.ndarray, row_offsets: np.ndarray, row_len: int) -> np.ndarray:
    """The tokens that each row has left: (num_rows,)."""
    return row_len - np.add.reduceat(picks, row_offsets[:-1]) if len(picks) else picks


def _cut_into_gaps(
    row: np.ndarray, pieces: Stretches, free: np.ndarray, row_len: int, order_version: int
) -> tuple[np.ndarray, Stretches, np.ndarray]:
    """(row, pieces, free) after gaps were filled with cut pieces, if much would be filler. `row` is each piece's."""
    donors, receivers = choose_rows(free, row_len) if order_version > 1 else (row[:0], row[:0])
    if not len(donors):
        return row, pieces, free
    inserted = pieces.start > 0
    parts = lay_into_gaps(row, pieces.length + inserted, free, donors, receivers)
    document, start, has_bos = pieces.document[parts.piece], pieces.start[parts.piece], inserted[parts.piece]
    is_first = parts.begin == 0  # this part has the piece's inserted BOS; later ones get one of their own
    start = start + np.where(is_first, 0, parts.begin - has_bos)
    length = parts.size - (is_first & has_bos)
    some = length > 0  # a part may be no more than an inserted BOS
    cut = Stretches(*(column[some].astype(pieces.length.dtype) for column in (document, start, length)))
    taken = np.bincount(parts.row[some], weights=cut.length + (cut.start > 0), minlength=len(free) - len(donors))
    return parts.row[some].astype(np.int32), cut, row_len - taken.astype(free.dtype)


def whole_documents(lengths: np.ndarray) -> Stretches:
    """Every document as one stretch."""
    return Stretches(np.arange(len(lengths), dtype=lengths.dtype), np.zeros_like(lengths), lengths)


def _narrow(lengths: Lengths) -> np.ndarray:
    """Lengths as int32 if all tokens fit, as those of a window do: half the memory, and faster."""
    wide = np.asarray(lengths, dtype=np.int64)
    return wide.astype(np.int32) if wide.sum() < 1 << 31 else wide


def _pieces(
    lengths: np.ndarray, row_len: int, long_documents: LongDocuments, left: Stretches | None
) -> tuple[Stretches, np.ndarray]:
    """The pieces to pack, and the size of each in a row: its tokens plus an inserted BOS."""
    _check(lengths, row_len, long_documents)
    pieces = _cut(whole_documents(lengths) if left is None else left, row_len, long_documents)
    return pieces, pieces.length + (pieces.start > 0)


def _check(lengths: np.ndarray, row_len: int, long_documents: LongDocuments) -> None:
    if row_len < 2:
        raise ValueError(f"row_len must be at least 2 (one input, one target), not {row_len}")
    if long_documents not in CUTS:
        raise ValueError(f"long_documents must be one of {CUTS}, not {long_documents!r}")
    if lengths.ndim != 1 or (len(lengths) and lengths.min() < 1):
        raise ValueError("lengths must be one-dimensional and at least 1: a document begins with BOS")


def _cut(stretches: Stretches, row_len: int, long_documents: LongDocuments) -> Stretches:
    """The stretches cut into pieces of at most a row, with room for BOS if a piece begins inside a document."""
    document, start, length = stretches
    body = row_len - 1  # most tokens of a piece after an inserted BOS
    first = (row_len - (start > 0)).astype(length.dtype)  # most tokens of a stretch's first piece
    rest = np.maximum(length - first, 0)
    if long_documents == "crop" or not rest.any():
        return Stretches(document, start, np.minimum(length, first))
    more = -(-rest // body)  # pieces after the first
    of = np.repeat(np.arange(len(more), dtype=np.int32), 1 + more)
    begins = (np.cumsum(1 + more) - 1 - more).astype(length.dtype)
    number = np.arange(len(of), dtype=length.dtype) - begins[of]  # 0, 1, 2 ... within a stretch
    done = np.where(number == 0, 0, first[of] + (number - 1) * body)
    taken = np.minimum(length[of] - done, np.where(number == 0, first[of], body))
    return Stretches(document[of], start[of] + done, taken)


def pick_sizes(size: np.ndarray, row_len: int, seed: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """First-fit decreasing on sizes: (picks, row_offsets), the sizes picked, row after row.

    A row's sizes are picked once for as many rows as there are pieces for: as long as none of its sizes runs out, the
    next row is the same. If there are few pieces of a size, the second pick is drawn, and each row is picked
    separately.
    """
    numbers = np.bincount(size, minlength=row_len + 1)
    full = int(numbers[row_len])  # a piece that fills a row needs no search
    sizes = np.flatnonzero(numbers[:row_len]).tolist()  # the sizes that are left, ascending
    counts, left, draws = numbers.tolist(), len(size) - full, _draws(seed)
    picks, in_row = array("i", [row_len]) * full, array("i", [1]) * full  # the sizes, and how many each row has
    while sizes:
        close = CLOSE * len(sizes) // left  # this many sizes have about CLOSE pieces
        if close > 1:
            row, rows = _drawn_row(sizes, counts, row_len, close, next(draws)), 1
        else:
            row, rows = _equal_rows(sizes, counts, row_len)
        picks.extend(array("i", row) * rows)
        in_row.extend(array("i", [len(row)]) * rows)
        left -= len(row) * rows
    return np.array(picks, np.int32), np.concatenate([[0], np.cumsum(in_row, dtype=np.int64)])


def _equal_rows(sizes: list[int], counts: list[int], row_len: int) -> tuple[list[int], int]:
    """The sizes of the next row, always the longest that fits, and how many rows have the same sizes."""
    free, fit, row, rows, used = row_len, len(sizes), [], sys.maxsize, []
    while fit := bisect_right(sizes, free, 0, fit):
        fit -= 1
        size = sizes[fit]
        times = min(free // size, counts[size])
        row += [size] * times
        free -= size * times
        rows = min(rows, counts[size] // times)
        used.append((fit, size, times))
    for index, size, times in used:  # from the largest on, so that the other indices stay right
        counts[size] -= rows * times
        if not counts[size]:
            del sizes[index]
    return row, rows


def _drawn_row(sizes: list[int], counts: list[int], row_len: int, close: int, draw: int) -> list[int]:
    """The sizes of the next row; the random number `draw` picks the second one among the `close` longest that fit."""
    row, at, free = [], len(sizes) - 1, row_len
    while at >= 0:
        size = sizes[at]
        row.append(size)
        free -= size
        if counts[size] > 1:
            counts[size] -= 1
        else:
            counts[size] = 0
            del sizes[at]
        at = bisect_right(sizes, free) - 1
        if close and at >= 0:
            at, close = max(0, at - draw % close), 0  # only once
    return row


def _draws(seed: tuple[int, ...]) -> Iterator[int]:
    """An endless stream of random numbers, generated in batches."""
    for part in count():
        yield from random_bits(4096, "close", part, *seed).tolist()


def shuffle_rows(
    row: np.ndarray, filler: np.ndarray, num_rows: int, seed: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Shuffles rows, and pieces within a row with fillers last: (order of the pieces, row_offsets)."""
    place = np.empty(num_rows, dtype=np.int32)  # where each row goes
    place[permutation(num_rows, "rows", *seed)] = np.arange(num_rows, dtype=np.int32)
    new_row = place[row]
    shuffled = stable_order(
        random_digits(len(row), "places", *seed) >> np.uint16(1) | filler.astype(np.uint16) << np.uint16(15)
    )
    order = stable_order(new_row, among=shuffled)
    return order, np.concatenate([[0], np.cumsum(np.bincount(new_row, minlength=num_rows))])
