"""The columns of a source that are kept beside the tokens: each document's score, language, date, id ...

    columns_of_batch(batch, [["score"], ["meta", "lang"]])      of parquet: a table of score, and of meta with lang
    columns_of_rows(rows, columns)                              of jsonl: the same of objects

Types stay as they are. In jsonl, whose lines may differ, values of several types in one column become text.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.store.tables import as_text
from tokenmill.text.formats import KeptColumn
from tokenmill.text_arrays import text_array

MISSING = object()
MOST_VALUE = 1 << 16  # bytes of a text that is kept, as more is no metadata
SURROGATE = re.compile("[\ud800-\udfff]")  # one without its other half, which JSON can spell and UTF-8 cannot


def columns_of_batch(batch: pa.RecordBatch, paths: Sequence[Sequence[str]]) -> pa.Table:
    """Columns of a batch, and fields of structs, as a table with a column for each first part of a path. A path that
    the batch lacks is null.
    """
    by_head: dict[str, list[Sequence[str]]] = {}
    for path in paths:
        by_head.setdefault(path[0], []).append(path[1:])
    return pa.table({head: _nested(_column(batch, head), rests) for head, rests in by_head.items()})


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name not in batch.schema.names:
        return pa.nulls(len(batch))
    column = batch.column(name)
    has_null_value = pa.types.is_dictionary(column.type) and column.dictionary.null_count
    return column.dictionary_decode() if has_null_value else column  # which parquet cannot hold


def _nested(column: pa.Array, rests: list[Sequence[str]]) -> pa.Array:
    """A column, or a struct with only these of its fields."""
    if any(not rest for rest in rests):
        return column
    heads: dict[str, list[Sequence[str]]] = {}
    for rest in rests:
        heads.setdefault(rest[0], []).append(rest[1:])
    fields = {}
    for head, below in heads.items():
        is_there = pa.types.is_struct(column.type) and column.type.get_field_index(head) >= 0
        fields[head] = _nested(pc.struct_field(column, head) if is_there else pa.nulls(len(column)), below)
    return pa.StructArray.from_arrays(list(fields.values()), names=list(fields))


def columns_of_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[KeptColumn]) -> tuple[pa.Table, set[str]]:
    """Keys of objects as a table, as `columns_of_batch` makes it; and the names of the columns that a row had."""
    values: dict[str, list[Any]] = {}
    found = set[str]()
    for column in columns:
        path = column.name.split(".")  # a key with a dot in its name is kept in the same place
        cells = [row[column.name] if column.name in row else _at(row, path) for row in rows]
        if any(cell is not MISSING for cell in cells):
            found.add(column.name)
        cells = [None if cell is MISSING else cell for cell in cells]
        into = values.setdefault(path[0], [None] * len(rows))
        for number, cell in enumerate(cells):
            into[number] = cell if len(path) == 1 else _with_field(into[number], path[1:], cell)
    return pa.table({name: _array(cells) for name, cells in values.items()}), found


def _at(row: Any, path: Sequence[str]) -> Any:
    for key in path:
        if not isinstance(row, Mapping) or key not in row:
            return MISSING
        row = row[key]
    return row


def _with_field(value: Any, path: Sequence[str], cell: Any) -> Any:
    """A nested object with one more field, or a whole column that is kept anyway."""
    found = dict(value) if isinstance(value, Mapping) else {}
    found[path[0]] = cell if len(path) == 1 else _with_field(found.get(path[0]), path[1:], cell)
    return found


def _array(cells: list[Any]) -> pa.Array:
    """Values of one type, or as text."""
    if len({isinstance(cell, bool) for cell in cells if cell is not None}) > 1:
        return text_array([None if cell is None else SURROGATE.sub("\ufffd", as_text(cell)) for cell in cells])
    try:
        return pa.array(cells)
    except (pa.ArrowException, UnicodeEncodeError, OverflowError, TypeError, ValueError):
        return text_array([None if cell is None else SURROGATE.sub("\ufffd", as_text(cell)) for cell in cells])


def nulls(names: Sequence[str], rows: int) -> pa.Table:
    """A table of these columns without values."""
    return pa.table({name: pa.nulls(rows) for name in names})
