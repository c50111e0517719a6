"""Columns of an Arrow schema: the text, the conversations, and what is kept beside them. Formats with columns share it.

text_paths(file, schema, "doc.text,title")      [["doc", "text"], ["title"]]
joined([titles, texts])                         each title and its text, with a blank line between them
"""

from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.text.decoding import JOINED_BY, TEXTS, checked
from tokenmill.text.formats import CONVERSATION_COLUMNS, KeptColumn, ReadOptions
from tokenmill.text.kept_columns import columns_of_batch
from tokenmill.text.units import SourceFile, as_text, valid_utf8
from tokenmill.text_arrays import text_array


def row_columns(file: SourceFile, schema: pa.Schema, options: ReadOptions) -> list[str]:
    """The columns that a conversation is made of. ValueError for none."""
    wanted = CONVERSATION_COLUMNS if options.messages_column is None else (options.messages_column, "tools")
    found = [name for name in schema.names if name in wanted]
    if not found or (options.messages_column is not None and options.messages_column not in found):
        raise ValueError(
            f"{file.shown}: expected conversations in column {' or '.join(wanted)}, found columns "
            f"{', '.join(schema.names)}; name the one with the messages by --messages-column"
        )
    return found


class Conversations(NamedTuple):
    """Rows with conversations, each as JSON, without those that are too long."""

    texts: list[bytes]
    kept: pa.Table | None  # columns that are kept beside them
    rows: list[int]  # of the batch, that they are


def conversations_of(
    batch: pa.RecordBatch, names: list[str], kept_by_name: dict[str, list[str]], options: ReadOptions
) -> Conversations:
    """The conversations in a batch, whose columns `names` they are made of."""
    texts = [orjson.dumps(_without_nulls(row), default=str) for row in batch.select(names).to_pylist()]
    rows = [i for i, text in enumerate(texts) if len(text) <= options.max_document_bytes]
    kept = kept_of(batch, options, kept_by_name)
    kept = None if kept is None else checked(kept).take(pa.array(rows, pa.int64()))
    return Conversations([texts[i] for i in rows], kept, rows)


def _without_nulls(value: Any) -> Any:
    """A row without fields that are null, as a struct has all that others have. Contents of messages may be null."""
    if isinstance(value, dict):
        some = {key: one for key, one in value.items() if one is not None or (key == "content" and "role" in value)}
        return {key: _without_nulls(one) for key, one in some.items()}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def text_paths(file: SourceFile, schema: pa.Schema, named: str) -> list[list[str]]:
    """Paths of the columns with text: of `doc.text,title` [["doc", "text"], ["title"]]. ValueError for none."""
    names = [named] if named in schema.names else named.split(",")
    paths = [_path(name, schema) for name in names]
    for name, path in zip(names, paths, strict=True):
        kind = _type_of(schema, path)
        if kind is None:
            raise ValueError(
                f"{file.shown}: expected a text column {name!r}, found columns {', '.join(schema.names)}; "
                "name the one with the text by --text-column"
            )
        value = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not any(is_text(value) for is_text in TEXTS):
            raise ValueError(
                f"{file.shown}: expected text in column {name!r}, found {kind}; "
                "name the one with the text by --text-column (a field of a struct as column.field)"
            )
    return paths


def kept_paths(schema: pa.Schema, options: ReadOptions) -> dict[str, list[str]]:
    """The paths of the columns to keep that the file has, by name."""
    columns = list(map(KeptColumn.parse, options.kept))
    paths = {column.name: column.path(schema.names) for column in columns}
    return {name: path for name, path in paths.items() if _type_of(schema, path) is not None}


def kept_of(batch: pa.RecordBatch, options: ReadOptions, paths: dict[str, list[str]]) -> pa.Table | None:
    """The columns to keep, those null that the file lacks; None if none were asked for."""
    if not options.kept:
        return None
    names = [KeptColumn.parse(name).name for name in options.kept]
    return columns_of_batch(batch, [paths.get(name, name.split(".")) for name in names])


def require_kept(file: SourceFile, schema: pa.Schema, options: ReadOptions) -> None:
    """ValueError if the file lacks a column that is to be kept, or ids to keep."""
    there = kept_paths(schema, options)
    for column in map(KeptColumn.parse, options.keep_columns):
        if column.name not in there and not column.optional:
            raise ValueError(
                f"{file.shown}: expected a column {column.name!r} to keep, found columns {', '.join(schema.names)}; "
                f"name another by --keep-columns, or write {column.name}? if files may lack it"
            )
    id_type = _type_of(schema, _path(options.id_column, schema)) if options.id_column else None
    if id_type is not None and pa.types.is_nested(id_type):
        raise ValueError(
            f"{file.shown}: expected ids in column {options.id_column!r}, found {id_type}; name one of its fields"
        )
    if options.id_column and id_type is None:
        raise ValueError(
            f"{file.shown}: expected an id column {options.id_column!r}, found columns "
            f"{', '.join(schema.names)}; name the one with the ids by --keep-ids"
        )


def _path(name: str, schema: pa.Schema) -> list[str]:
    """Of a column of this name, or of a field of one."""
    return [name] if name in schema.names else name.split(".")


def _type_of(schema: pa.Schema, path: list[str]) -> pa.DataType | None:
    if path[0] not in schema.names:
        return None
    if schema.names.count(path[0]) > 1:
        raise ValueError(f"column {path[0]!r} is there {schema.names.count(path[0])} times; rename all but one")
    kind = schema.field(path[0]).type
    for name in path[1:]:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(name).type
    return kind


def field_of(batch: pa.RecordBatch, path: list[str]) -> pa.Array:
    column = batch.column(path[0])
    return pc.struct_field(column, path[1:]) if path[1:] else column


def joined(columns: list[pa.Array]) -> tuple[pa.Array, int]:
    """The texts of a row joined by blank lines, without null and empty ones; and how many were repaired."""
    if len(columns) == 1:
        return columns[0], 0
    texts, repaired = zip(*(valid_utf8(as_text(column)) for column in columns), strict=True)
    rows = zip(*(text.to_pylist() for text in texts), strict=True)  # Arrow's own join loses rows that are all null
    joined = [None if all(t is None for t in row) else JOINED_BY.join(filter(None, row)) for row in rows]
    return text_array(joined), sum(repaired)
