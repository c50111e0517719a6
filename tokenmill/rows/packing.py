"""Document lengths -> rows. Pure: numbers in, numbers out, no token is touched.

A row is `row_len = seq_len + 1` tokens and begins with BOS. `plan_rows` packs the documents
of one shard best-fit and drops nothing. With row_len 8 and documents of 11, 5, 3, 3 and 2
tokens (BOS counted):

    11 is longer than a row: its first 8 tokens fill one, the other 3 join the pool
       behind an inserted BOS, as a piece of 4
    the pool holds 5 4 3 3 2; each row takes the longest that fits, again and again:
       8 | 5 3 | 4 3 + 1 free | 2 + 6 free
    free space is filled with beginnings of documents that also stand whole elsewhere

The rule is first-fit decreasing over the whole shard (D. S. Johnson, "Near-optimal bin packing
algorithms", 1973; for training rows Ding et al., "Fewer truncations improve language modeling",
2024). It runs on sizes, not on documents: a count per size, and a sorted list of the sizes that
are left, bisected. Which document each pick was is found afterwards with two stable argsorts:
the k-th pick of a size is the k-th piece of that size. As picks go from long to short, rows come
out sorted by length, so they are shuffled at the end, and the pieces within each row too.

`plan_windows` is the rivals' way: windows of the token stream that ignore documents.

Random orders (order.py) are drawn from (seed, epoch, shard).
"""

import sys
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from tokenmill.rows.order import permutation, random_bits, stable_order

Lengths = Sequence[int] | np.ndarray
LongDocuments = Literal["split", "crop"]
LONG_DOCUMENTS = get_args(LongDocuments)


@dataclass(frozen=True)
class RowPlan:
    """Which piece of which document lies where in the rows of one shard.

    Row r holds the pieces row_offsets[r] : row_offsets[r + 1]. Piece p is
    `length[p]` tokens of document `document[p]` from its token `start[p]` on; where start is not 0,
    a BOS is inserted before them and not counted in `length`.
    """

    row_len: int
    row_offsets: np.ndarray  # (num_rows + 1,) int64
    document: np.ndarray  # (num_pieces,) int64
    start: np.ndarray  # (num_pieces,) int64
    length: np.ndarray  # (num_pieces,) int64
    filler: np.ndarray  # (num_pieces,) bool: a copy that closes a row

    @property
    def num_rows(self) -> int:
        return len(self.row_offsets) - 1


def plan_rows(
    lengths: Lengths, row_len: int, *, long_documents: LongDocuments = "split", seed: int | tuple[int, ...]
) -> RowPlan:
    """Packs documents of `lengths` tokens (BOS counted) into rows of exactly `row_len` tokens.

    `long_documents` says what becomes of a document longer than a row: "split" cuts it into
    pieces that fill rows and a last one for the pool, so that every token of every document
    stands in exactly one piece that is not filler; "crop" keeps its first `row_len` tokens.
    No document that fits a row is ever cut. `seed` is an int or a tuple of ints.

    Raises ValueError for a row_len under 2, lengths under 1, or an unknown `long_documents`.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    seed = seed if isinstance(seed, tuple) else (seed,)
    _check(lengths, row_len, long_documents)

    order = permutation(len(lengths), "documents", *seed)
    document, start, length = _cut(lengths, row_len, long_documents, order)
    size = length + (start > 0)  # what a piece takes in a row: its tokens and an inserted BOS

    picks, row_offsets = _pick_sizes(np.bincount(size, minlength=row_len + 1), row_len)
    chosen = np.empty(len(picks), dtype=np.int64)  # the k-th pick of a size: its k-th piece
    chosen[stable_order(picks)] = stable_order(size)

    row = np.repeat(np.arange(len(row_offsets) - 1), np.diff(row_offsets))
    free = row_len - np.add.reduceat(picks, row_offsets[:-1]) if len(picks) else picks
    fill_row, fill_document, fill_length = _fill(lengths, row, document[chosen], free, seed)

    row = np.concatenate([row, fill_row])
    filler = np.arange(len(row)) >= len(chosen)
    order, row_offsets = _shuffle(row, filler, len(free), seed)
    return RowPlan(
        row_len,
        row_offsets,
        np.concatenate([document[chosen], fill_document])[order],
        np.concatenate([start[chosen], np.zeros_like(fill_row)])[order],
        np.concatenate([length[chosen], fill_length])[order],
        filler[order],
    )


def count_rows(lengths: Lengths, row_len: int, *, long_documents: LongDocuments = "split") -> int:
    """The rows that `plan_rows` plans, under every seed, at a third of its cost."""
    lengths = np.asarray(lengths, dtype=np.int64)
    _check(lengths, row_len, long_documents)
    _, start, length = _cut(lengths, row_len, long_documents, np.arange(len(lengths)))
    return len(_pick_sizes(np.bincount(length + (start > 0), minlength=row_len + 1), row_len)[1]) - 1


def plan_windows(num_tokens: int, row_len: int, *, seed: tuple[int, ...] | None = None) -> np.ndarray:
    """The first token of each row when rows are windows of a stream: (num_rows,) int64.

    Without a seed ("concat"), consecutive windows, each starting on the last token of the one
    before; fewer than `row_len - 1` tokens at the stream's end are in no window. With a seed
    ("random"), as many windows at random positions. No window at all if num_tokens < row_len.
    """
    num_rows = count_windows(num_tokens, row_len)
    if seed is None:
        return np.arange(num_rows, dtype=np.int64) * (row_len - 1)
    positions = random_bits(num_rows, "windows", *seed) % np.uint64(max(1, num_tokens - row_len + 1))
    return positions.astype(np.int64)


def count_windows(num_tokens: int, row_len: int) -> int:
    """The rows that `plan_windows` plans."""
    return max(0, (num_tokens - 1) // (row_len - 1))


def _check(lengths: np.ndarray, row_len: int, long_documents: LongDocuments) -> None:
    if row_len < 2:
        raise ValueError(f"row_len must be at least 2 (one input, one target), not {row_len}")
    if long_documents not in LONG_DOCUMENTS:
        raise ValueError(f"long_documents must be one of {LONG_DOCUMENTS}, not {long_documents!r}")
    if lengths.ndim != 1 or (len(lengths) and lengths.min() < 1):
        raise ValueError("lengths must be one-dimensional and at least 1: a document begins with BOS")


def _cut(
    lengths: np.ndarray, row_len: int, long_documents: LongDocuments, order: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pieces of the documents, taken in `order`: (document, start, length), each (num_pieces,)."""
    lengths = lengths[order]
    body = row_len - 1  # tokens of a later piece, whose first place goes to the inserted BOS
    rest = np.maximum(lengths - row_len, 0) if long_documents == "split" else np.zeros_like(lengths)
    pieces = 1 + -(-rest // body)
    first = np.cumsum(pieces) - pieces
    number = np.arange(pieces.sum()) - np.repeat(first, pieces)  # 0, 1, 2 ... within a document
    start = np.where(number == 0, 0, row_len + (number - 1) * body)
    room = np.where(number == 0, row_len, body)
    return np.repeat(order, pieces), start, np.minimum(np.repeat(lengths, pieces) - start, room)


def _pick_sizes(counts: np.ndarray, row_len: int) -> tuple[np.ndarray, np.ndarray]:
    """First-fit decreasing on sizes: (picks, row_offsets), the sizes picked, row after row.

    A row's sizes are picked once for as many rows as there are pieces for: while none of its sizes
    runs out, the next row is the same.
    """
    full = int(counts[row_len])  # a piece that fills a row needs no search
    sizes = np.flatnonzero(counts[:row_len]).tolist()  # the sizes that are left, ascending
    counts = counts.tolist()
    picks, row_ends = [row_len] * full, list(range(1, full + 1))
    while sizes:
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
        row_ends += range(len(picks) + len(row), len(picks) + len(row) * rows + 1, len(row))
        picks += row * rows
    return np.array(picks, dtype=np.int64), np.array([0, *row_ends], dtype=np.int64)


def _fill(
    lengths: np.ndarray, row: np.ndarray, document: np.ndarray, free: np.ndarray, seed: tuple[int, ...]
) -> np.ndarray:
    """Closes the rows that have `free` tokens left: (row, document, length) of the fillers.

    Takes the beginning of a random document that is at least as long as the gap and not in the
    row. Where there is none, the longest that is not in the row, and so on for what is left of
    the gap; only a row that holds every document of the shard repeats one.
    """
    rows = np.flatnonzero(free)
    by_length = np.argsort(lengths, kind="stable")
    ascending = lengths[by_length]
    luck = random_bits(len(rows), "filler", *seed)
    others, lucky = _lucky_documents(by_length, ascending, free[rows], luck, rows, row, document)
    fillers = [np.stack([rows, others, free[rows]])[:, lucky]]

    first, last = np.searchsorted(row, rows, "left"), np.searchsorted(row, rows, "right")
    for i in np.flatnonzero(~lucky).tolist():
        gap, inside = int(free[rows[i]]), set(document[first[i] : last[i]].tolist())
        while gap:
            if len(inside) == len(lengths):
                inside = set()
            other = _other_document(by_length, ascending, gap, inside, int(luck[i]))
            taken = min(gap, int(lengths[other]))
            fillers.append(np.array([[rows[i]], [other], [taken]]))
            inside.add(other)
            gap -= taken
    return np.concatenate(fillers, axis=1)


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
    lucky[gap[row[beside[document[beside] == others[gap[row[beside]]]]]]] = False
    return others, lucky


def _other_document(by_length: np.ndarray, ascending: np.ndarray, gap: int, inside: set[int], bits: int) -> int:
    """A document not `inside`: a random one of at least `gap` tokens, else the longest."""
    long_enough = int(np.searchsorted(ascending, gap))
    candidates = len(by_length) - long_enough
    for step in range(min(candidates, len(inside) + 1)):
        other = int(by_length[long_enough + (bits + step) % candidates])
        if other not in inside:
            return other
    return next(int(d) for d in by_length[:long_enough][::-1] if int(d) not in inside)


def _shuffle(
    row: np.ndarray, filler: np.ndarray, num_rows: int, seed: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Shuffles rows, and pieces within a row, fillers last: (order of the pieces, row_offsets)."""
    shuffled = permutation(len(row), "pieces", *seed)
    shuffled = shuffled[np.argsort(filler[shuffled], kind="stable")]
    place = np.empty(num_rows, dtype=np.int64)  # where each row goes
    place[permutation(num_rows, "rows", *seed)] = np.arange(num_rows)
    new_row = place[row]
    order = shuffled[stable_order(new_row[shuffled])]
    return order, np.concatenate([[0], np.cumsum(np.bincount(new_row, minlength=num_rows))])
