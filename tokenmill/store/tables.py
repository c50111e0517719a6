"""Columns that are tables: the parquet of a shard's metadata, written and read.

    merged([table, table])       one table; a column has the type that holds both, as Arrow unifies
    parquet_of(table)            its bytes, the same for the same table

Only preparing and looking need tables, so nothing that trains imports this module, or pyarrow.
"""

import base64
import functools
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.store.columns import META
from tokenmill.store.shards import ShardEntry
from tokenmill.store.token_sets import TokenSet

ROWS = 1 << 17  # in a row group


def unified(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """The type that holds the values of both. pa.ArrowException if there is none."""
    if first == second or pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    schemas = [pa.schema({"": kind}) for kind in (first, second)]
    kind = pa.unify_schemas(schemas, promote_options="permissive").field("").type
    if not any(map(pa.types.is_decimal, (first, second))):
        return kind
    if pa.types.is_floating(kind):
        raise pa.ArrowTypeError("a decimal would lose digits as a double")
    if not pa.types.is_decimal128(kind):
        raise pa.ArrowTypeError("a decimal has at most 38 digits")
    return pa.decimal128(38, kind.scale)  # of fewer digits, Arrow refuses to make them of integers


def merged(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables one below the other. ValueError if a column has types that do not go together."""
    names: dict[str, None] = {}  # in the order in which they first come
    for table in tables:
        names |= dict.fromkeys(table.column_names)
    return pa.table(
        {name: _joined(name, [_column(table, name) for table in tables]) for name in names}
    )


def _column(table: pa.Table, name: str) -> Any:
    """A column, or nulls if the table lacks it."""
    return table.column(name) if name in table.column_names else pa.nulls(len(table))


def _joined(name: str, parts: Sequence[Any]) -> pa.ChunkedArray:
    try:
        kind = functools.reduce(unified, [part.type for part in parts])
        table = pa.concat_tables([pa.table({"it": part.cast(kind)}) for part in parts])
    except pa.ArrowException as error:  # types, or a number, that do not fit into the wider one
        raise ValueError(
            f"column {name!r} to keep has several types ({error}); make it one type, or leave it "
            "out of --keep-columns"
        ) from error
    return table.unify_dictionaries().column("it")


def text_of_schema(schema: pa.Schema) -> str:
    """Names and types of columns as text, for a record or a manifest."""
    return base64.b64encode(schema.serialize()).decode()


def schema_of_text(text: str) -> pa.Schema:
    """The columns that `text_of_schema` wrote. ValueError for other text."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (pa.ArrowException, ValueError, OSError, EOFError) as error:
        raise ValueError(
            f"expected the types of the columns that are kept, found {text[:40]!r}; prepare again"
        ) from error


def kept_schema(token_set: TokenSet) -> pa.Schema:
    """The columns that a set was prepared with, and their types in the whole set."""
    text = token_set.manifest.get("prepared", {}).get("metadata")
    return schema_of_text(text) if text else pa.schema([])


def parquet_of(table: pa.Table) -> memoryview:
    """The table as a parquet file. ValueError for a type that parquet cannot hold."""
    data = io.BytesIO()
    try:
        pq.write_table(table, data, compression="zstd", row_group_size=ROWS)
    except pa.ArrowException as error:
        raise ValueError(
            f"the columns to keep cannot be written as parquet ({error}); keep others"
        ) from error
    return data.getbuffer()


def read_schema(path: Path) -> pa.Schema:
    """The columns of a shard's table. ValueError if it is damaged."""
    return _read(pq.read_schema, path)


def metadata_of(
    token_set: TokenSet, entry: ShardEntry, columns: Sequence[str] | None = None
) -> pa.Table:
    """The metadata of a shard's documents, a row each, or some columns of it.

    A column that the shard lacks is left out. Raises ValueError if the shard has none, or if it is
    damaged.
    """
    path = token_set.column_path(entry, META.suffix)
    there = read_schema(path).names
    names = there if columns is None else [name for name in columns if name in there]
    table = _read(pq.read_table, path, columns=names, partitioning=None)
    if table.num_rows != entry.documents:
        raise ValueError(
            f"{path}: expected the metadata of {entry.documents:,} documents, found "
            f"{table.num_rows:,}; delete it, and prepare again with --keep-columns"
        )
    return table


def _read(read: Callable[..., Any], path: Path, **how: Any) -> Any:
    try:
        return read(path, **how)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{path}: expected the metadata of a shard as parquet, found damage ({error})"
        ) from error
