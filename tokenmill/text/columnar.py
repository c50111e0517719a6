"""parquet and Arrow: files of columns. A range of a file is k of n row groups, or record batches.

With 10 row groups, range 1 of 3 is row groups 3, 4 and 5: from 1 * 10 // 3 to 2 * 10 // 3. How many
there are is known when a worker opens the file, so a range of a file with few row groups may have
none.

The text is in a column (`text`), in a field of a struct (`doc.text`), or in several columns
(`title,text`). Rows with conversations become JSON.
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
# by default pyarrow fetches a whole row group
STREAMING = {"buffer_size": 1 << 20, "pre_buffer": False}
TEXTS = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
CONVERSATIONS = 1024  # turned into JSON at a time, at most
NO_END = 1 << 62
FREE = ("arguments", "tools")  # of a conversation, in which any field may be missing

Path = list[str]  # the names of a column, and of a field in it


def read_parquet(file: SourceFile, k: int, n: int, options: ReadOptions) -> Iterator[Rows]:
    """Streams row groups k G / n to (k + 1) G / n."""
    with file.open() as raw, pq.ParquetFile(raw, **STREAMING) as parquet:
        columns = Columns(file, parquet.schema_arrow, options)
        footer = parquet.metadata
        groups = _range_of(footer.num_row_groups, k, n)
        num_rows = sum(footer.row_group(group).num_rows for group in groups)
        bytes_per_row = file.bytes / n / max(1, num_rows)
        for group in groups:
            facts = footer.row_group(group)
            batches = parquet.iter_batches(
                columns.batch_size(facts.num_rows, facts.total_byte_size),
                row_groups=[group],
                columns=columns.leaves,
                use_threads=False,
            )
            first = 0
            for batch in batches:
                yield columns.rows(batch, round(len(batch) * bytes_per_row), first, group)
                first += len(batch)


def read_arrow(file: SourceFile, k: int, n: int, options: ReadOptions) -> Iterator[Rows]:
    """Streams record batches k B / n to (k + 1) B / n, as `save_to_disk` of `datasets` writes them.

    A local file is memory-mapped, so batches of other ranges are not read.
    """
    is_mapped = file.is_local and file.bytes > 0
    with pa.memory_map(file.path) if is_mapped else pa.PythonFile(file.open(), "r") as raw:
        is_stream = raw.read(len(MAGIC)) != MAGIC
        raw.seek(0)
        if is_stream:
            reader = batches = pa.ipc.open_stream(raw)
        else:
            reader = pa.ipc.open_file(raw)
            batches = map(reader.get_batch, range(reader.num_record_batches))
        chosen = range(NO_END)
        if n > 1:
            batches = list(batches)  # mapped, so they take no memory
            chosen = _range_of(len(batches), k, n)
        columns = Columns(file, reader.schema, options)
        first = 0
        for number, batch in enumerate(batches):
            size = columns.batch_size(len(batch), batch.nbytes)
            begins = range(0, len(batch), size) if number in chosen else ()
            for begin in begins:
                rows = batch.slice(begin, size)
                yield columns.rows(rows, rows.nbytes, first + begin)
            first += len(batch)
        raw.seek(max(0, raw.size() - len(END_OF_STREAM)))
        if is_stream and raw.read(len(END_OF_STREAM)) != END_OF_STREAM:
            raise pa.ArrowInvalid("the stream has no end mark, so its last batches may be missing")


def _range_of(count: int, k: int, n: int) -> range:
    return range(k * count // n, (k + 1) * count // n)


class Columns:
    """The columns of a schema that are read.

    ValueError if the file has no such text, or lacks a column to keep.
    """

    def __init__(self, file: SourceFile, schema: pa.Schema, options: ReadOptions):
        twice = [name for name in schema.names if schema.names.count(name) > 1]
        if twice:
            raise ValueError(
                f"{file.shown}: has {twice[0]!r} as the name of two columns; rename one of them"
            )
        self._conversations = options.conversations
        if options.conversations:
            self._texts = [[name] for name in _conversation_columns(file, schema, options)]
        else:
            self._texts = [_path(schema, name) for name in options.text_columns(schema.names)]
            for path in self._texts:
                _require_text(file, schema, path)
        for name in (options.text_column, *options.kept):
            fields = name.split(".")
            if len(fields) > 1 and name in schema.names and _type_at(schema, fields) is not None:
                raise ValueError(
                    f"{file.shown}: {name!r} is a column, and a field of column {fields[0]!r} too; "
                    "rename one of them"
                )
        self._kept = {name: _path(schema, name) for name in options.kept}
        for name in options.required:
            if _type_at(schema, self._kept[name]) is None:
                raise ValueError(
                    f"{file.shown}: expected a column {name!r} to keep, found columns "
                    f"{', '.join(schema.names)}; name another by --keep-columns, or write {name}? "
                    "if files may lack it"
                )
        kept = [path for path in self._kept.values() if _type_at(schema, path) is not None]
        self.leaves = _leaves([*self._texts, *kept])

    def batch_size(self, num_rows: int, num_bytes: int) -> int:
        """How many rows to read at a time, where so many rows have so many bytes."""
        size = min(num_rows, BATCH_BYTES * num_rows // max(1, num_bytes))
        if self._conversations:
            size = min(size, CONVERSATIONS)
        return max(1, size)

    def rows(
        self, batch: pa.RecordBatch, bytes_read: int, first: int, row_group: int | None = None
    ) -> Rows:
        """Some rows, of which the first is row `first` of the row group, or of the file."""
        of = "" if row_group is None else f" of row group {row_group}"

        def place(number: int) -> str:
            row = first + number
            return f"row {row:,}{of}"

        kept = {name: _column_at(batch, path) for name, path in self._kept.items()}
        if self._conversations:
            texts = [_as_json(batch.select([column for column, *_ in self._texts]))]
        else:
            texts = [_column_at(batch, path) for path in self._texts]
        return Rows(texts, kept, bytes_read, row_group, place=place)


def _leaves(paths: list[Path]) -> list[str]:
    """What pyarrow reads for these paths: without those below another one."""
    names = sorted({".".join(path) for path in paths})
    leaves = []
    for name in names:
        if not any(name.startswith(f"{above}.") for above in names):
            leaves.append(name)
    return leaves


def _conversation_columns(file: SourceFile, schema: pa.Schema, options: ReadOptions) -> list[str]:
    wanted = options.conversation_columns
    columns = [name for name in schema.names if name in wanted]
    if not columns or options.messages_column not in (None, *columns):
        raise ValueError(
            f"{file.shown}: expected conversations under {wanted[0]}, found columns "
            f"{', '.join(schema.names)}; name the one with the messages by --messages-column"
        )
    return columns


def _require_text(file: SourceFile, schema: pa.Schema, path: Path) -> None:
    kind = _type_at(schema, path)
    there = f"{kind} there"
    if kind is None:
        there = f"columns {', '.join(schema.names)}"
    elif str(kind.value_type if pa.types.is_dictionary(kind) else kind) in TEXTS:
        return
    raise ValueError(
        f"{file.shown}: expected text in column {'.'.join(path)!r}, found {there}; name the column "
        "with the text by --text-column (a field of a struct as column.field)"
    )


def _path(schema: pa.Schema, name: str) -> Path:
    return [name] if name in schema.names else name.split(".")


def _type_at(schema: pa.Schema, path: Path) -> pa.DataType | None:
    """The type of a column, or of a field of a struct; None if there is none."""
    column, *fields = path
    if column not in schema.names:
        return None
    kind = schema.field(column).type
    for name in fields:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(name).type
    return kind


def _column_at(batch: pa.RecordBatch, path: Path) -> pa.Array:
    if _type_at(batch.schema, path) is None:
        return pa.nulls(len(batch))
    name, *fields = path
    column = batch.column(name)
    if fields:
        column = pc.struct_field(column, fields)
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


# ---------------------------------------------------------------------------- conversations


def _as_json(batch: pa.RecordBatch) -> pa.LargeBinaryArray:
    """Each row as JSON; of a row that JSON cannot hold as it is, the reason under UNREADABLE."""
    kind = pa.struct(list(batch.schema))
    lines = []
    for row in batch.to_pylist():
        try:
            line = json.dumps(_plain(row, kind), ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, TypeError) as error:
            line = json.dumps({UNREADABLE: str(error)}).encode()
        lines.append(line)
    return pa.array(lines, pa.large_binary())


def _plain(value: Any, kind: pa.DataType, is_free: bool = False) -> Any:
    """A value as JSON has it, less fields that are null.

    ValueError for such a field where any may be missing, and for a map with a key twice.
    """
    if value is None:
        return None
    if isinstance(kind, pa.JsonType):
        return json.loads(value)
    if pa.types.is_struct(kind):
        if is_free and None in value.values():
            raise ValueError(
                "a field of arguments or tools is null, or is missing: in Arrow, store them as "
                "JSON text"
            )
        fields = {}
        for field in kind:
            item = value[field.name]
            if item is not None:
                fields[field.name] = _plain(item, field.type, is_free or field.name in FREE)
        return fields
    if pa.types.is_map(kind):
        items = {key: _plain(item, kind.item_type, is_free) for key, item in value}
        if len(items) < len(value):
            raise ValueError("a map has a key twice")
        return items
    if isinstance(value, list):
        return [_plain(item, kind.value_type, is_free) for item in value]
    return value.decode() if isinstance(value, bytes) else value
