"""Columns that are tables: the parquet of a shard's metadata, written and read.

    merged([table, table])       one table; a column that has several types is text, or the wider of two numbers
    parquet_of(table)            its bytes, the same for the same table

Only preparing and looking need tables, so nothing that trains imports this module, or pyarrow.
"""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.store.columns import META
from tokenmill.store.shards import ShardEntry
from tokenmill.store.token_sets import TokenSet
from tokenmill.text_arrays import text_array

ROWS = 1 << 17  # in a row group


def merged(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables one below the other. A column that has several types is text, or the wider one of two numbers."""
    names = dict.fromkeys(name for table in tables for name in table.column_names)
    columns = [[t.column(name) if name in t.column_names else pa.nulls(len(t)) for t in tables] for name in names]
    return pa.table(dict(zip(names, map(_joined, columns), strict=True)))


def _joined(parts: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    tables = [pa.table({"it": part}) for part in parts]
    try:
        return pa.concat_tables(tables, promote_options="permissive").unify_dictionaries().column("it")
    except pa.ArrowException:  # types that do not fit, or a number that does not fit into the wider one
        return pa.chunked_array(
            [text_array([None if cell is None else as_text(cell) for cell in part.to_pylist()]) for part in parts]
        )


def kind_of(kind: pa.DataType) -> str:
    """What a column has: number, text, or another type's name; columns of one kind fit together over shards."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_nested(kind):
        return str(kind).partition("<")[0].removeprefix("large_")
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    return "text" if "string" in str(kind) else str(kind)


def as_text(cell: Any) -> str:
    """A text itself, and any other value as JSON."""
    return cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False, default=str)


def parquet_of(table: pa.Table) -> memoryview:
    """The table as a parquet file. ValueError for a type that parquet cannot hold."""
    data = io.BytesIO()
    try:
        pq.write_table(table, data, compression="zstd", row_group_size=ROWS)
    except pa.ArrowException as error:
        raise ValueError(f"the columns to keep cannot be written as parquet ({error}); keep others") from error
    return data.getbuffer()


def read_schema(path: Path) -> pa.Schema:
    """The columns of a shard's table. ValueError if it is damaged."""
    return _read(pq.read_schema, path)


def metadata_of(token_set: TokenSet, entry: ShardEntry, columns: Sequence[str] | None = None) -> pa.Table:
    """The metadata of a shard's documents, a row each, or some columns of it; one that the shard lacks is left out.

    Raises ValueError if the shard has none, or if it is damaged.
    """
    path = token_set.column_path(entry, META.suffix)
    there = read_schema(path).names
    names = there if columns is None else [name for name in columns if name in there]
    table = _read(pq.read_table, path, columns=names, partitioning=None)
    if table.num_rows != entry.documents:
        raise ValueError(
            f"{path}: expected the metadata of {entry.documents:,} documents, found {table.num_rows:,}; delete it, and "
            "prepare again with --keep-columns"
        )
    return table


def _read(read: Callable[..., Any], path: Path, **how: Any) -> Any:
    try:
        return read(path, **how)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: expected the metadata of a shard as parquet, found damage ({error})") from error
