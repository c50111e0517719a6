"""Columns that are kept: as a table, in plain types, so that what holds the same is of one type.

    as_table({"meta.lang": dictionary, "score": float32})     meta: struct<lang: string>
                                                              score: double

Text is string, however a file stores it; whole numbers are int64, fractions double, bytes binary,
and every list is list<item>.
"""

from typing import Any

import pyarrow as pa

from tokenmill.text.text_arrays import as_text, valid_utf8

MOST_DIGITS = 38  # of a decimal, in Arrow's 128 bits and in DuckDB
TEXT_TYPES = ("string", "large_string", "string_view")


def as_table(columns: dict[str, Any], shown: str) -> pa.Table:
    """The columns to keep; of "meta.lang" and "meta.date" a struct, as SQL knows it.

    ValueError, with the file that is `shown`, for a type that cannot be kept.
    """
    by_head: dict[str, dict[str, Any]] = {}
    for name, column in columns.items():
        head, _, field = name.partition(".")
        by_head.setdefault(head, {})[field] = column
    table = {}
    for head, fields in by_head.items():
        if "" in fields:
            table[head] = _plain(shown, head, fields[""])
        else:
            table[head] = as_table(fields, shown).to_struct_array()
    return pa.table(table)


def _plain(shown: str, name: str, column: pa.Array) -> pa.Array:
    """A column in its plain type, with bad UTF-8 replaced."""
    if str(column.type) in TEXT_TYPES:
        texts, _ = valid_utf8(as_text(column))
        return texts.cast(pa.string())
    kind = plain_type(column.type)
    try:
        if "list_view" in str(column.type):
            raise pa.ArrowNotImplementedError("Arrow casts views of lists to wrong lists")
        return column.cast(kind)
    except pa.ArrowException as error:
        raise ValueError(
            f"{shown}: column {name!r} to keep is {column.type}, which cannot be kept as {kind} "
            f"({error}); write it as another type, or leave it out of --keep-columns"
        ) from error


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The one type for all that hold what this one holds."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, plain_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_nested(kind) and hasattr(kind, "value_type"):
        return pa.list_(plain_type(kind.value_type))
    if str(kind) in TEXT_TYPES:
        return pa.string()
    if "binary" in str(kind):
        return pa.binary()
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return pa.int64()
    if pa.types.is_decimal(kind):
        return pa.decimal128(min(kind.precision, MOST_DIGITS), kind.scale)
    return pa.float64() if pa.types.is_floating(kind) else kind
