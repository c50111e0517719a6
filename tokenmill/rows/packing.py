"""From document lengths to rows. Pure: numbers in, numbers out, and no token is touched.

A row is `row_len = seq_len + 1` tokens and begins with BOS. `plan_rows` packs the documents of one window (windows.py)
best-fit and drops nothing. With row_len 8 and documents of 11, 5, 3, 3 and 2 tokens, including BOS:

    11 is longer than a row: its first 8 tokens fill a row, and the other 3 join the pool
       behind an inserted BOS, as a piece of 4
    the pool holds 5 4 3 3 2; each row takes the longest that fits, again and again:
       8 | 5 3 | 4 3 + 1 free | 2 + 6 free
    free space is filled with copies of documents' beginnings (gaps.py)

The rule is first-fit decreasing over all pieces (D. S. Johnson, "Near-optimal bin packing algorithms", 1973; for
training rows Ding et al., "Fewer truncations improve language modeling", 2024). It runs on sizes: it keeps a count per
size, and a sorted list of the remaining sizes for binary search. Afterwards the k-th pick of a size is the k-th piece
of that size, in an order that depends on the seed. Rows, and the pieces within each row, are shuffled at the end.

So that other pieces meet in the next epoch, most short pieces are first joined at random (bundles.py). And if there are
few pieces of each size, a row's second pick is drawn from about the CLOSE longest pieces that fit. If much of the rows
would be filler, pieces are cut to fill the gaps.

With `whole`, as for chat sets, no document is cut, and the end of a row is padding: a piece of a document that does not
exist, whose number is the number of documents.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from tokenmill.rows.bundles import Bundles, all_alone, bundle_short
from tokenmill.rows.gaps import choose_rows, fill_gaps, lay_into_gaps
from tokenmill.rows.order import permutation, random_bits, random_digits, stable_order

Lengths = Sequence[int] | np.ndarray
Seed = tuple[int, ...]
LongDocuments = Literal["split", "crop", "drop"]  # "drop" is for whole documents alone
LONG_DOCUMENTS = get_args(LongDocuments)
CLOSE = 24  # about how many pieces a row's second pick is drawn from


class Spans(NamedTuple):
    """Spans of documents: `length` tokens of `document` from its token `start` on. Each (count,), of one dtype."""

    document: np.ndarray
    start: np.ndarray
    length: np.ndarray


class RowPlan(NamedTuple):
    """Which piece of which document is where in some rows.

    Row r holds the pieces row_offsets[r] : row_offsets[r + 1]. Piece p is `length[p]` tokens of document `document[p]`
    from its token `start[p]` on. If `bos[p]`, a BOS is inserted before them, which `length` does not count.
    """

    row_len: int
    row_offsets: np.ndarray  # (num_rows + 1,) int64
    document: np.ndarray  # (num_pieces,) int32 or int64, as the next two
    start: np.ndarray
    length: np.ndarray
    bos: np.ndarray  # (num_pieces,) bool
    filler: np.ndarray  # (num_pieces,) bool: a copy that fills the end of a row, or padding

    @property
    def num_rows(self) -> int:
        return len(self.row_offsets) - 1

    def kept_from(self, row: int) -> np.ndarray:
        """Which pieces the rows from this one on hold, without filler: (num_pieces,) bool."""
        return np.asarray((np.arange(len(self.filler)) >= self.row_offsets[row]) & ~self.filler)


def plan_rows(
    lengths: Lengths,
    row_len: int,
    *,
    long_documents: LongDocuments = "split",
    seed: Seed,
    left: Spans | None = None,
    whole: bool = False,
) -> RowPlan:
    """Packs documents of `lengths` tokens (including BOS) into rows of exactly `row_len` tokens.

    A document that is longer than a row is cut into pieces that fill rows and a last one for the pool ("split", so that
    every token is in exactly one piece that is not filler), or its first `row_len` tokens are kept ("crop"). One that
    fits is cut only if filler would otherwise be more than gaps.MOST_FILLER percent. If `left` is given, these spans
    are packed instead of whole documents; filler still comes from whole documents. With `whole`, "drop" leaves out
    documents that are longer than a row, and "split" is a ValueError for them.

    Raises ValueError for a row_len under 2, lengths under 1, or an unknown `long_documents`.
    """
    lengths = _narrow(lengths)
    pieces, size = _pieces(lengths, row_len, long_documents, left, whole)
    bundles, picks, row_offsets = _pick(size, row_len, seed, whole)

    drawn = stable_order(
        bundles.size, among=stable_order(random_digits(len(bundles.size), "pieces", *seed))
    )
    chosen = np.empty(len(picks), dtype=np.int32)  # the k-th pick of a size: its k-th bundle
    chosen[stable_order(picks)] = drawn
    piece, count = bundles.pieces_of(chosen)

    row = np.repeat(
        np.repeat(np.arange(len(row_offsets) - 1, dtype=np.int32), np.diff(row_offsets)), count
    )
    free, kept = _free(picks, row_offsets, row_len), Spans(*(column[piece] for column in pieces))
    if whole:
        (padded,) = np.nonzero(free)
        gap_row, gap_length = padded.astype(np.int32), free[padded].astype(kept.length.dtype)
        gap_document = np.full_like(gap_length, len(lengths))
    else:
        row, kept, free = _cut_into_gaps(row, kept, free, row_len)
        gap_row, gap_document, gap_length = fill_gaps(lengths, row, kept.document, free, seed)

    filler = np.arange(len(row) + len(gap_row)) >= len(row)
    order, row_offsets = shuffle_rows(np.concatenate([row, gap_row]), filler, len(free), seed)
    gaps = (gap_document, np.zeros_like(gap_length), gap_length)
    document, start, length = (np.concatenate(pair)[order] for pair in zip(kept, gaps, strict=True))
    return RowPlan(row_len, row_offsets, document, start, length, start > 0, filler[order])


def count_rows(
    lengths: Lengths,
    row_len: int,
    *,
    long_documents: LongDocuments = "split",
    seed: Seed,
    left: Spans | None = None,
    whole: bool = False,
) -> int:
    """The number of rows that `plan_rows` plans, at a third of its cost."""
    _, size = _pieces(_narrow(lengths), row_len, long_documents, left, whole)
    _, picks, row_offsets = _pick(size, row_len, seed, whole)
    donors = 0 if whole else len(choose_rows(_free(picks, row_offsets, row_len), row_len)[0])
    return len(row_offsets) - 1 - donors


def _pick(
    size: np.ndarray, row_len: int, seed: Seed, whole: bool
) -> tuple[Bundles, np.ndarray, np.ndarray]:
    """The pieces in bundles, and the picks of these with their row_offsets.

    Where documents stay whole, few short ones are needed alone to fill gaps, so what gives fewer rows is taken.
    """
    tried = [bundle_short(size, row_len, seed), *([all_alone(size)] if whole else [])]
    found = [(bundles, *pick_sizes(bundles.size, row_len, seed)) for bundles in tried]
    return min(found, key=lambda one: len(one[2]))


def _free(picks: np.ndarray, row_offsets: np.ndarray, row_len: int) -> np.ndarray:
    """The tokens that each row has left: (num_rows,)."""
    return row_len - np.add.reduceat(picks, row_offsets[:-1]) if len(picks) else picks


def _cut_into_gaps(
    row: np.ndarray, pieces: Spans, free: np.ndarray, row_len: int
) -> tuple[Any, Spans, np.ndarray]:
    """(row, pieces, free) after gaps were filled with cut pieces, if much would be filler. `row` is each piece's."""
    donors, receivers = choose_rows(free, row_len)
    if not len(donors):
        return row, pieces, free
    inserted = pieces.start > 0
    row, piece, begin, size = lay_into_gaps(row, pieces.length + inserted, free, donors, receivers)
    document, start, has_bos = pieces.document[piece], pieces.start[piece], inserted[piece]
    is_first = begin == 0  # this part has the piece's inserted BOS; later ones get one of their own
    start = start + np.where(is_first, 0, begin - has_bos)
    length = size - (is_first & has_bos)
    some = length > 0  # a part may be no more than an inserted BOS
    cut = Spans(*(column[some].astype(pieces.length.dtype) for column in (document, start, length)))
    taken = np.bincount(
        row[some], weights=cut.length + (cut.start > 0), minlength=len(free) - len(donors)
    )
    return row[some].astype(np.int32), cut, row_len - taken.astype(free.dtype)


def whole_documents(lengths: np.ndarray) -> Spans:
    """Every document as one span."""
    return Spans(np.arange(len(lengths), dtype=lengths.dtype), np.zeros_like(lengths), lengths)


def _narrow(lengths: Lengths) -> np.ndarray:
    """Lengths as int32 if all tokens fit, as those of a window do: half the memory, and faster."""
    wide = np.asarray(lengths, dtype=np.int64)
    return wide.astype(np.int32) if wide.sum() < 1 << 31 else wide


def _pieces(
    lengths: np.ndarray,
    row_len: int,
    long_documents: LongDocuments,
    left: Spans | None,
    whole: bool,
) -> tuple[Spans, np.ndarray]:
    """The pieces to pack, and the size of each in a row: its tokens plus an inserted BOS."""
    if row_len < 2:
        raise ValueError(f"row_len must be at least 2 (one input, one target), not {row_len}")
    if long_documents not in (known := LONG_DOCUMENTS if whole else LONG_DOCUMENTS[:2]):
        raise ValueError(f"long_documents must be one of {known}, not {long_documents!r}")
    if lengths.ndim != 1 or (len(lengths) and lengths.min() < 1):
        raise ValueError(
            "lengths must be one-dimensional and at least 1: a document begins with BOS"
        )
    pieces = whole_documents(lengths) if left is None else left
    if whole and long_documents == "drop":
        fits = pieces.length <= row_len
        pieces = Spans(*(column[fits] for column in pieces))
    elif (
        whole and long_documents == "split" and (longest := pieces.length.max(initial=0)) > row_len
    ):
        raise ValueError(
            f"a document of {longest:,} tokens is longer than a row, {row_len - 1:,} + 1: --long-documents crop or drop"
        )
    pieces = _cut(pieces, row_len, long_documents)
    return pieces, pieces.length + (pieces.start > 0)


def _cut(spans: Spans, row_len: int, long_documents: LongDocuments) -> Spans:
    """The spans cut into pieces of at most a row, with room for BOS if a piece begins inside a document."""
    document, start, length = spans
    body = row_len - 1  # most tokens of a piece after an inserted BOS
    first = (row_len - (start > 0)).astype(length.dtype)  # most tokens of a span's first piece
    rest = np.maximum(length - first, 0)
    if long_documents == "crop" or not rest.any():
        return Spans(document, start, np.minimum(length, first))
    more = -(-rest // body)  # pieces after the first
    of = np.repeat(np.arange(len(more), dtype=np.int32), 1 + more)
    begins = (np.cumsum(1 + more) - 1 - more).astype(length.dtype)
    number = np.arange(len(of), dtype=length.dtype) - begins[of]  # 0, 1, 2 ... within a span
    done = np.where(number == 0, 0, first[of] + (number - 1) * body)
    taken = np.minimum(length[of] - done, np.where(number == 0, first[of], body))
    return Spans(document[of], start[of] + done, taken)


def pick_sizes(size: np.ndarray, row_len: int, seed: Seed) -> tuple[np.ndarray, np.ndarray]:
    """First-fit decreasing on sizes: (picks, row_offsets), the sizes picked, row after row.

    As long as none of a row's sizes runs out, the next row is the same, so sizes are picked once for many rows. If
    there are few pieces of a size, the second pick is drawn, and each row is picked separately.
    """
    numbers = np.bincount(size, minlength=row_len + 1)
    full = int(numbers[row_len])  # a piece that fills a row needs no search
    sizes = np.flatnonzero(numbers[:row_len]).tolist()  # the sizes that are left, ascending
    counts, left, draws = numbers.tolist(), len(size) - full, _draws(seed)
    picks, in_row = (
        array("i", [row_len]) * full,
        array("i", [1]) * full,
    )  # the sizes, and how many each row has
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


def _drawn_row(
    sizes: list[int], counts: list[int], row_len: int, close: int, draw: int
) -> list[int]:
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


def _draws(seed: Seed) -> Iterator[int]:
    """An endless stream of random numbers, generated in batches."""
    for part in count():
        yield from random_bits(4096, "close", part, *seed).tolist()


def shuffle_rows(
    row: np.ndarray, filler: np.ndarray, num_rows: int, seed: Seed
) -> tuple[np.ndarray, np.ndarray]:
    """Shuffles rows, and pieces within a row with fillers last: (order of the pieces, row_offsets)."""
    place = np.empty(num_rows, dtype=np.int32)  # where each row goes
    place[permutation(num_rows, "rows", *seed)] = np.arange(num_rows, dtype=np.int32)
    new_row = place[row]
    places = random_digits(len(row), "places", *seed) >> np.uint16(1) | filler.astype(
        np.uint16
    ) << np.uint16(15)
    order = stable_order(new_row, among=stable_order(places))
    return order, np.concatenate([[0], np.cumsum(np.bincount(new_row, minlength=num_rows))])
