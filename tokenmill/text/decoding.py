"""Turns what is read of a row group into documents: a few MB of text at a time, however long they are.

A dictionary has each of its texts once, and says how long they are. So texts that are too long are left out before they
are decoded, and the others are decoded a few at a time.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.text.kept_columns import MOST_VALUE
from tokenmill.text.units import BATCH_BYTES, as_text, valid_utf8
from tokenmill.text_arrays import mask_array

HELD = 128  # decoded batches, at most, that are yielded together
JOINED_BY = "\n\n"  # between the texts of several columns
TEXTS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
)


class Decoded(NamedTuple):
    """Some documents of a row group."""

    texts: list[pa.Array]  # one per requested column
    kept: pa.Table | None  # columns that are kept beside the text
    bytes: int
    rows: int  # they were made of, with those that are left out
    oversized: int


def bounded(batches: Iterator[tuple[list[pa.Array], pa.Table | None]], most: int) -> Iterator[Decoded]:
    """Columns of texts, and others that are kept, as documents, a few MB at a time, without those of more than `most`
    bytes.
    """
    for columns, kept in batches:
        kept, columns = None if kept is None else checked(kept), list(map(_without_views, columns))
        sizes = np.sum([bytes_of_texts(column) for column in columns], axis=0)
        fits = sizes <= most
        oversized = len(sizes) - int(np.count_nonzero(fits))
        if oversized:
            columns, sizes = [column.filter(mask_array(fits)) for column in columns], sizes[fits]
            kept = None if kept is None else kept.filter(mask_array(fits))
        begin, ends = 0, np.cumsum(sizes)
        while begin < len(sizes) or oversized:
            before = int(ends[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, before + BATCH_BYTES, "right")))
            some = [_decoded(column.slice(begin, end - begin)) for column in columns]
            few = None if kept is None else kept.slice(begin, end - begin)
            yield Decoded(some, few, int(sizes[begin:end].sum()), len(some[0]) + oversized, oversized)
            begin, oversized = end, 0


def checked(kept: pa.Table) -> pa.Table:
    """Columns that are kept, with invalid UTF-8 replaced. ValueError for a value that is as long as a text."""
    for place, name in enumerate(kept.column_names):
        column = kept.column(name)
        value = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if not any(is_text(value) for is_text in TEXTS):
            continue
        chunks = column.chunks
        if (longest := max((int(bytes_of_texts(chunk).max(initial=0)) for chunk in chunks), default=0)) > MOST_VALUE:
            raise ValueError(
                f"a value of column {name!r} has {longest:,} bytes, as a text and no metadata has; name another column "
                "by --keep-columns or --keep-ids"
            )
        if not (pa.types.is_binary(value) or pa.types.is_large_binary(value) or pa.types.is_binary_view(value)):
            kept = kept.set_column(place, name, pa.chunked_array(list(map(_mended, chunks)), column.type))
    return kept


def _mended(column: pa.Array) -> pa.Array:
    """Texts in their own type, with invalid UTF-8 replaced."""
    try:
        column.validate(full=True)
        return column
    except pa.ArrowInvalid:
        return valid_utf8(as_text(column))[0].cast(column.type)


def bytes_of_texts(column: pa.Array) -> np.ndarray:
    """Bytes of each text, 0 for a null: (num_texts,) int64. Texts of a dictionary are not copied."""
    if pa.types.is_dictionary(column.type):
        lengths = np.append(bytes_of_texts(column.dictionary), 0)
        return lengths[np.asarray(pc.fill_null(column.indices.cast(pa.int64()), len(lengths) - 1))]
    if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        column = column.cast(pa.large_binary())
    return np.asarray(pc.fill_null(pc.binary_length(column), 0), np.int64)


def _without_views(column: pa.Array) -> pa.Array:
    """The column in a type that Arrow can filter."""
    if pa.types.is_string_view(column.type):
        return column.cast(pa.large_string())
    return column.cast(pa.large_binary()) if pa.types.is_binary_view(column.type) else column


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def gathered(decoded: Iterator[Decoded]) -> Iterator[Decoded]:
    """Documents, a few MB together."""
    held: list[Decoded] = []
    for some in decoded:
        held.append(some)
        if sum(one.bytes for one in held) > BATCH_BYTES // 2 or len(held) == HELD:
            yield _together(held)
            held = []
    if held:
        yield _together(held)


def _together(held: list[Decoded]) -> Decoded:
    texts, kept, *counts = zip(*held, strict=True)
    columns = [pa.concat_arrays(some) for some in zip(*texts, strict=True)]
    return Decoded(columns, None if kept[0] is None else pa.concat_tables(kept), *map(sum, counts))
