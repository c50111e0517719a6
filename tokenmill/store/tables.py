"""Columns that are tables: the parquet of a shard's metadata, written and read.

    merged([table, table])       one table; a column has one type, or the wider of two numbers
    parquet_of(table)            its bytes, the same for the same table

Only preparing and looking need tables, so nothing that trains imports this module, or pyarrow.
"""

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


def merged(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables one below the other. ValueError if a column has several types that are not numbers."""
    names: dict[str, None] = {}  # in the order in which they first come
    for table in tables:
        names |= dict.fromkeys(table.column_names)
    return pa.table({name: _joined([_column(table, name) for table in tables]) for name in names})


def _column(table: pa.Table, name: str) -> Any:
    """A column, or nulls if the table lacks it."""
    return table.column(name) if name in table.column_names else pa.nulls(len(table))


def _joined(parts: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    tables = [pa.table({"it": part}) for part in parts]
    try:
        joined = pa.concat_tables(tables, promote_options="permissive")
        return joined.unify_dictionaries().column("it")
    except pa.ArrowException as error:  # types, or a number, that do not fit into the wider one
        raise ValueError(
            f"a column to keep has several types ({error}); make it one type, or do not keep it"
        ) from error


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
