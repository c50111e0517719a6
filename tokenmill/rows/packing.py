"""From document lengths to rows. Pure: numbers in, numbers out, and no token is touched.

A row is `row_len = seq_len + 1` tokens and begins with BOS. `plan_rows` packs the documents of one
window (windows.py) best-fit and drops nothing. With row_len 8 and documents of 11, 5, 3, 3 and 2
tokens, including BOS:

    11 is longer than a row: its first 8 tokens fill a row, and the other 3 join the pool
       behind an inserted BOS, as a piece of 4
    the pool holds 5 4 3 3 2; each row takes the longest that fits, again and again:
       8 | 5 3 | 4 3 + 1 free | 2 + 6 free
    free space is filled with copies of documents' beginnings (filler.py)

This is first-fit decreasing over all pieces (for training rows Ding et al., "Fewer truncations
improve language modeling", 2024). It runs on sizes (picks.py). Afterwards the k-th pick of a size
is the k-th piece of that size, in an order that depends on the seed. Rows, and the pieces within
each row, are shuffled at the end.

So that other pieces meet in the next epoch, most short pieces are first joined at random
(bundles.py). If much of the rows would be filler, pieces are cut to fill the gaps
(donors.py).

With `keep_whole`, as for chat sets, no document is cut, and the end of a row is padding: a piece of
a document that does not exist, whose number is the number of documents.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from tokenmill.rows.bundles import Bundles, all_alone, bundle_short
from tokenmill.rows.donors import choose_rows, lay_into_gaps
from tokenmill.rows.filler import Filler, fill_gaps
from tokenmill.rows.groups import offsets_of
from tokenmill.rows.order import permutation, random_digits, stable_order
from tokenmill.rows.picks import Picks, pick_sizes
from tokenmill.rows.spans import Spans, cut, whole_documents

Lengths = Sequence[int] | np.ndarray
Seed = tuple[int, ...]
LongDocuments = Literal["split", "crop", "drop"]  # "drop" is for whole documents alone
LONG_DOCUMENTS = get_args(LongDocuments)


class RowPlan(NamedTuple):
    """Which piece of which document is where in rows.

    Row r holds the pieces row_offsets[r] : row_offsets[r + 1]. Piece p is `length[p]` tokens of
    document `document[p]` from its token `start[p]` on. If `bos[p]`, a BOS is inserted before them,
    which `length` does not count.
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

    @property
    def spans(self) -> Spans:
        return Spans(self.document, self.start, self.length)

    def is_before(self, row: int) -> np.ndarray:
        """Which pieces are in the rows before this one: (num_pieces,) bool."""
        return np.asarray(np.arange(len(self.filler)) < self.row_offsets[row])


class _Packed(NamedTuple):
    """Pieces in rows, before these are filled up and shuffled."""

    row: np.ndarray  # of each piece, ascending
    pieces: Spans
    free: np.ndarray  # the tokens that each row has left


def plan_rows(
    lengths: Lengths,
    row_len: int,
    *,
    long_documents: LongDocuments = "split",
    seed: Seed,
    spans: Spans | None = None,
    keep_whole: bool = False,
) -> RowPlan:
    """Packs documents of `lengths` tokens (including BOS) into rows of exactly `row_len` tokens.

    A document that is longer than a row is cut into pieces that fill rows and a last one for the
    pool ("split", so that every token is in exactly one piece that is not filler), or its first
    `row_len` tokens are kept ("crop"). One that fits is cut only if filler would otherwise be more
    than donors.MOST_FILLER percent. If `spans` is given, these are packed instead of whole
    documents; filler still comes from whole documents. With `keep_whole`, "drop" leaves out
    documents that are longer than a row, and "split" is a ValueError for them.

    Raises ValueError for a row_len under 2, lengths under 1, or an unknown `long_documents`.
    """
    lengths = _narrow(lengths)
    pieces = _pieces(lengths, row_len, long_documents, spans, keep_whole)
    bundles, picks = _pick(pieces.sizes, row_len, seed, keep_whole)
    packed = _lay(pieces, bundles, picks, row_len, seed)
    if keep_whole:
        filler = _padding(packed, len(lengths))
    else:
        packed = _cut_into_gaps(packed, row_len)
        filler = fill_gaps(lengths, packed.row, packed.pieces.document, packed.free, seed)
    return _shuffled(packed, filler, row_len, seed)


def count_rows(
    lengths: Lengths,
    row_len: int,
    *,
    long_documents: LongDocuments = "split",
    seed: Seed,
    spans: Spans | None = None,
    keep_whole: bool = False,
) -> int:
    """The number of rows that `plan_rows` plans, at a third of its cost."""
    pieces = _pieces(_narrow(lengths), row_len, long_documents, spans, keep_whole)
    _, picks = _pick(pieces.sizes, row_len, seed, keep_whole)
    if keep_whole:
        return picks.num_rows
    chosen = choose_rows(picks.free(row_len), row_len)
    return picks.num_rows - len(chosen.donors)


def _narrow(lengths: Lengths) -> np.ndarray:
    """Lengths as int32 if all tokens fit, as those of a window do: half the memory, and faster."""
    wide = np.asarray(lengths, dtype=np.int64)
    return wide.astype(np.int32) if wide.sum() < 1 << 31 else wide


def _pieces(
    lengths: np.ndarray,
    row_len: int,
    long_documents: LongDocuments,
    spans: Spans | None,
    keep_whole: bool,
) -> Spans:
    """The pieces to pack."""
    if row_len < 2:
        raise ValueError(f"row_len must be at least 2 (one input, one target), not {row_len}")
    choices = LONG_DOCUMENTS if keep_whole else LONG_DOCUMENTS[:2]
    if long_documents not in choices:
        raise ValueError(f"long_documents must be one of {choices}, not {long_documents!r}")
    if lengths.ndim != 1 or lengths.min(initial=1) < 1:
        raise ValueError(
            "lengths must be one-dimensional and at least 1: a document begins with BOS"
        )
    pieces = whole_documents(lengths) if spans is None else spans
    if keep_whole and long_documents == "drop":
        pieces = pieces.take(pieces.length <= row_len)
    if keep_whole and long_documents == "split":
        _require_fits(pieces.length.max(initial=0), row_len)
    return cut(pieces, row_len, crop=long_documents == "crop")


def _require_fits(longest: int, row_len: int) -> None:
    seq_len = row_len - 1
    if longest > row_len:
        raise ValueError(
            f"a document of {longest:,} tokens is longer than a row, {seq_len:,} + 1: "
            "--long-documents crop or drop"
        )


def _pick(size: np.ndarray, row_len: int, seed: Seed, keep_whole: bool) -> tuple[Bundles, Picks]:
    """Pieces of these sizes in bundles, and the picks of bundles for rows.

    Where documents stay whole, few short ones are needed alone to fill gaps, so what gives fewer
    rows is taken.
    """
    bundles = bundle_short(size, row_len, seed)
    picks = pick_sizes(bundles.size, row_len, seed)
    if keep_whole:
        alone = all_alone(size)
        picks_alone = pick_sizes(alone.size, row_len, seed)
        if picks_alone.num_rows < picks.num_rows:
            return alone, picks_alone
    return bundles, picks


def _lay(pieces: Spans, bundles: Bundles, picks: Picks, row_len: int, seed: Seed) -> _Packed:
    """Pieces in rows: the k-th pick of a size is the k-th bundle of that size, in random order."""
    shuffled = stable_order(random_digits(len(bundles.size), "pieces", *seed))
    chosen = np.empty(len(picks.size), dtype=np.int32)
    chosen[stable_order(picks.size)] = stable_order(bundles.size, among=shuffled)
    piece, num_pieces = bundles.pieces_of(chosen)
    row_of_bundle = np.repeat(np.arange(picks.num_rows, dtype=np.int32), np.diff(picks.row_offsets))
    row = np.repeat(row_of_bundle, num_pieces)
    return _Packed(row, pieces.take(piece), picks.free(row_len))


def _padding(packed: _Packed, no_document: int) -> Filler:
    """A piece of a document that does not exist at the end of each row."""
    (rows,) = np.nonzero(packed.free)
    length = packed.free[rows].astype(packed.pieces.length.dtype)
    return Filler(rows.astype(np.int32), np.full_like(length, no_document), length)


def _cut_into_gaps(packed: _Packed, row_len: int) -> _Packed:
    """The rows after gaps were filled with cut pieces, if much would be filler."""
    pieces = packed.pieces
    chosen = choose_rows(packed.free, row_len)
    if not len(chosen.donors):
        return packed
    parts = lay_into_gaps(packed.row, pieces.sizes, packed.free, chosen)
    document, start, _ = pieces.take(parts.piece)
    # the first part has the piece's inserted BOS; later ones get one of their own
    has_bos = start > 0
    is_first = parts.begin == 0
    start = start + np.where(is_first, 0, parts.begin - has_bos)
    length = parts.size - (is_first & has_bos)
    has_text = length > 0  # a part may be no more than an inserted BOS
    dtype = pieces.length.dtype
    columns = (document, start, length)
    cut_pieces = Spans._make(column[has_text].astype(dtype) for column in columns)
    row = parts.row[has_text]
    num_rows = len(packed.free) - len(chosen.donors)
    used = np.bincount(row, weights=cut_pieces.sizes, minlength=num_rows)
    free = row_len - used.astype(packed.free.dtype)
    return _Packed(row.astype(np.int32), cut_pieces, free)


def _shuffled(packed: _Packed, filler: Filler, row_len: int, seed: Seed) -> RowPlan:
    """Rows in random order, and the pieces of each row too, with its filler last."""
    num_rows = len(packed.free)
    row = np.concatenate([packed.row, filler.row])
    is_filler = np.arange(len(row)) >= len(packed.row)
    new_number = np.empty(num_rows, dtype=np.int32)
    new_number[permutation(num_rows, "rows", *seed)] = np.arange(num_rows, dtype=np.int32)
    new_row = new_number[row]
    places = random_digits(len(row), "places", *seed) >> np.uint16(1)
    places |= is_filler.astype(np.uint16) << np.uint16(15)
    order = stable_order(new_row, among=stable_order(places))
    document, start, length = packed.pieces
    starts = np.concatenate([start, np.zeros_like(filler.length)])[order]
    return RowPlan(
        row_len,
        offsets_of(np.bincount(new_row, minlength=num_rows)),
        np.concatenate([document, filler.document])[order],
        starts,
        np.concatenate([length, filler.length])[order],
        starts > 0,
        is_filler[order],
    )
