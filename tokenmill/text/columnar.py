"""parquet and Arrow: files of columns. A part of a file is k of n row groups, or of n record batches.

With 10 row groups, part 1 of 3 is row groups 3, 4 and 5: from 1 * 10 // 3 to 2 * 10 // 3. How many there are is known
when a worker opens the file, so a part of a file with fewer row groups than parts may have none.

The text is in a column (`text`), in a field of a struct (`doc.text`), or in several columns (`title,text`).
"""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokenmill.text.formats import BATCH_BYTES, UNREADABLE, ReadOptions, Rows
from tokenmill.text.source_file import SourceFile

MAGIC = b"ARROW1"  # begins an Arrow file with a footer; the other kind is a stream of messages
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
STREAMING = {
    "buffer_size": 1 << 20,
    "pre_buffer": False,
}  # by default pyarrow fetches a whole row group
TEXTS = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
CONVERSATIONS = 1024  # turned into JSON at a time, at most
FREE = ("arguments", "tools")  # of a conversation, in which any field may be missing


def read_parquet(file: SourceFile, k: int, n: int, options: ReadOptions) -> Iterator[Rows]:
    """Streams row groups k G / n to (k + 1) G / n."""
    with file.open() as raw, pq.ParquetFile(raw, **STREAMING) as parquet:
        columns = Columns(file, parquet.schema_arrow, options)
        footer = parquet.metadata
        groups = range(k * footer.num_row_groups // n, (k + 1) * footer.num_row_groups // n)
        share = file.bytes / n / max(1, sum(footer.row_group(group).num_rows for group in groups))
        for group in groups:
            rows, size = footer.row_group(group).num_rows, footer.row_group(group).total_byte_size
            some = max(1, min(rows, columns.most, BATCH_BYTES * rows // max(1, size)))
            what: dict[str, Any] = {
                "row_groups": [group],
                "columns": columns.leaves,
                "use_threads": False,
            }
            first = 0
            for batch in parquet.iter_batches(some, **what):
                yield columns.rows(batch, round(len(batch) * share), first, group)
                first += len(batch)


def read_arrow(file: SourceFile, k: int, n: int, options: ReadOptions) -> Iterator[Rows]:
    """Streams record batches k B / n to (k + 1) B / n, as `save_to_disk` of Hugging Face's `datasets` writes them.

    A local file is memory-mapped, so batches of other parts are not read.
    """
    is_mapped = file.is_local and file.bytes > 0
    with pa.memory_map(file.path) if is_mapped else pa.PythonFile(file.open(), "r") as raw:
        is_stream = raw.read(len(MAGIC)) != MAGIC
        raw.seek(0)
        reader = pa.ipc.open_stream(raw) if is_stream else pa.ipc.open_file(raw)
        batches = reader if is_stream else map(reader.get_batch, range(reader.num_record_batches))
        chosen = range(0, 1 << 62)
        if n > 1:
            batches = list(batches)  # mapped, so they take no memory
            chosen = range(k * len(batches) // n, (k + 1) * len(batches) // n)
        columns, first = Columns(file, reader.schema, options), 0
        for number, batch in enumerate(batches):
            some = max(
                1, min(len(batch), columns.most, BATCH_BYTES * len(batch) // max(1, batch.nbytes))
            )
            if number in chosen:
                for begin in range(0, len(batch), some):
                    rows = batch.slice(begin, some)
                    yield columns.rows(rows, rows.nbytes, first + begin)
            first += len(batch)
        raw.seek(max(0, raw.size() - len(END_OF_STREAM)))
        if is_stream and raw.read(len(END_OF_STREAM)) != END_OF_STREAM:
            raise pa.ArrowInvalid("the stream has no end mark, so its last batches may be missing")


class Columns:
    """The columns of a schema that are read. ValueError if the file has no such text, or lacks a column to keep."""

    def __init__(self, file: SourceFile, schema: pa.Schema, options: ReadOptions):
        self._options, self.most = options, CONVERSATIONS if options.conversations else 1 << 62
        if twice := [name for name in schema.names if schema.names.count(name) > 1]:
            raise ValueError(
                f"{file.shown}: has {twice[0]!r} as the name of two columns; rename one of them"
            )
        if options.conversations:
            self.texts = [[name] for name in _conversation_columns(file, schema, options)]
        else:
            self.texts = [_path(schema, name) for name in options.text_columns(schema.names)]
            for path in self.texts:
                _require_text(file, schema, path)
        self._kept = {name: _path(schema, name) for name in options.kept}
        for name in options.required:
            if _type_at(schema, self._kept[name]) is None:
                raise ValueError(
                    f"{file.shown}: expected a column {name!r} to keep, found columns {', '.join(schema.names)}; name "
                    f"another by --keep-columns, or write {name}? if files may lack it"
                )
        paths = [
            *self.texts,
            *(path for path in self._kept.values() if _type_at(schema, path) is not None),
        ]
        leaves = sorted({".".join(path) for path in paths})
        self.leaves = [
            one for one in leaves if not any(one.startswith(f"{other}.") for other in leaves)
        ]

    def rows(
        self, batch: pa.RecordBatch, bytes_read: int, first: int, row_group: int | None = None
    ) -> Rows:
        """Some rows of the file, of which the first is row `first` of the row group, or of the file."""
        of = "" if row_group is None else f" of row group {row_group}"
        kept = {name: _column_at(batch, path) for name, path in self._kept.items()}
        if self._options.conversations:
            texts = [_as_json(batch.select([path[0] for path in self.texts]))]
        else:
            texts = [_column_at(batch, path) for path in self.texts]
        return Rows(
            texts, kept, bytes_read, row_group, place=lambda number: f"row {first + number:,}{of}"
        )


def _conversation_columns(file: SourceFile, schema: pa.Schema, options: ReadOptions) -> list[str]:
    wanted = options.conversation_columns
    found = [name for name in schema.names if name in wanted]
    if not found or (options.messages_column is not None and options.messages_column not in found):
        raise ValueError(
            f"{file.shown}: expected conversations under {wanted[0]}, found columns {', '.join(schema.names)}; "
            "name the one with the messages by --messages-column"
        )
    return found


def _require_text(file: SourceFile, schema: pa.Schema, path: list[str]) -> None:
    kind = _type_at(schema, path)
    if kind is None or str(kind.value_type if pa.types.is_dictionary(kind) else kind) not in TEXTS:
        found = f"columns {', '.join(schema.names)}" if kind is None else f"{kind} there"
        raise ValueError(
            f"{file.shown}: expected text in column {'.'.join(path)!r}, found {found}; name the column with the text "
            "by --text-column (a field of a struct as column.field)"
        )


def _path(schema: pa.Schema, name: str) -> list[str]:
    return [name] if name in schema.names else name.split(".")


def _type_at(schema: pa.Schema, path: list[str]) -> pa.DataType | None:
    """The type of a column, or of a field of a struct; None if there is none."""
    kind = schema.field(path[0]).type if path[0] in schema.names else None
    for name in path[1:]:
        is_there = kind is not None and pa.types.is_struct(kind) and kind.get_field_index(name) >= 0
        kind = kind.field(name).type if kind is not None and is_there else None
    return kind


def _column_at(batch: pa.RecordBatch, path: list[str]) -> pa.Array:
    if _type_at(batch.schema, path) is None:
        return pa.nulls(len(batch))
    column = batch.column(path[0])
    column = pc.struct_field(column, path[1:]) if path[1:] else column
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _as_json(batch: pa.RecordBatch) -> pa.LargeBinaryArray:
    """Each row as JSON; of a row that JSON cannot hold as it is, the reason under UNREADABLE."""
    found, kind = [], pa.struct(list(batch.schema))
    for row in batch.to_pylist(maps_as_pydicts="strict"):
        try:
            found.append(
                json.dumps(_plain(row, kind), ensure_ascii=False, allow_nan=False).encode()
            )
        except (ValueError, TypeError) as error:
            found.append(json.dumps({UNREADABLE: str(error)}).encode())
    return pa.array(found, pa.large_binary())


def _plain(value: Any, kind: pa.DataType, is_free: bool = False) -> Any:
    """A value as JSON has it, less fields that are null. ValueError for such a field where any may be missing."""
    if value is None:
        return None
    if isinstance(kind, pa.JsonType):
        return json.loads(value)
    if pa.types.is_struct(kind):
        if is_free and None in value.values():
            raise ValueError(
                "a field of arguments or tools is null, or is missing: in Arrow, store them as JSON text"
            )
        fields = [field for field in kind if value[field.name] is not None]
        return {
            one.name: _plain(value[one.name], one.type, is_free or one.name in FREE)
            for one in fields
        }
    if pa.types.is_map(kind):
        return {key: _plain(one, kind.item_type, is_free) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one, kind.value_type, is_free) for one in value]
    return value.decode() if isinstance(value, bytes) else value
