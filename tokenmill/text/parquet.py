"""Parquet: parts are consecutive row groups, planned from the footer alone and streamed a MiB at a time.

With row groups of 90, 90, 90 and 30 MiB of text and shards of 256 MiB:

    train-00.parquet -> train-00.000 (row groups 0 1), train-00.001 (2 3)

The text lies in a column (`text`), in a field of one (`doc.text`), or in several, which are joined by a blank line
(`title,text`); stored as text, or as bytes of UTF-8.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokenmill.text.formats import Reading
from tokenmill.text.units import (
    BATCH_BYTES,
    Documents,
    Part,
    SourceFile,
    as_documents,
    as_text,
    reading,
    sha256,
    valid_utf8,
)

BATCH_DOCUMENTS = 32  # that are decoded at a time, at most: a few long ones may follow each other among short ones
HELD = 128  # such decodings, at most, that are handed on together
JOINED_BY = "\n\n"
# by default pyarrow fetches all of a row group before the first batch
STREAMING = {"buffer_size": 1 << 20, "pre_buffer": False}


def plan_row_groups(file: SourceFile, how: Reading, shard_text_bytes: int) -> list[Part]:
    """Cuts the file into parts. ValueError where it is damaged or has no such text column."""
    with reading(file), file.open() as raw, pq.ParquetFile(raw) as parquet:
        sizes = _text_sizes(file, parquet, how)
        facts = facts_of_footer(file, raw) | how.facts("parquet")
    cuts = _cut(sizes, shard_text_bytes)
    return [
        Part(file, how, groups, sum(sizes[i] for i in groups), facts | {"row_groups": list(groups)}) for groups in cuts
    ]


def read_row_groups(part: Part) -> Iterator[Documents]:
    """Streams the part's documents in order, a few MB at a time. ValueError where damaged."""
    how = part.reading
    with reading(part.file), part.file.open() as raw, pq.ParquetFile(raw, **STREAMING) as parquet:
        sizes = _text_sizes(part.file, parquet, how)
        texts = _columns(part.file, parquet.schema_arrow, how.text_column)
        id_path = _path(how.id_column, parquet.schema_arrow) if how.id_column else []
        columns = sorted({name for name, *_ in [*texts, *([id_path] if id_path else [])]})
        share_of = part.text_bytes / max(1, sum(sizes[i] for i in groups_of(part, parquet)))
        for row_group in groups_of(part, parquet):
            bytes_a_row = sizes[row_group] / max(1, parquet.metadata.row_group(row_group).num_rows)
            for batch in _batches(parquet, row_group, columns, bytes_a_row):
                share = round(len(batch) * bytes_a_row * share_of)
                ids = _field(batch, id_path) if id_path else None
                column, repaired = _joined([_field(batch, path) for path in texts])
                yield as_documents(column, share, ids, row_group=row_group, repaired_documents=repaired)


def _batches(parquet: pq.ParquetFile, row_group: int, columns: list[str], bytes_a_row: float) -> Iterator:
    """The documents of a row group, decoded a few at a time, so that long ones among short ones cost no memory; and
    gathered until they are some MB.
    """
    count = max(1, min(BATCH_DOCUMENTS, int(BATCH_BYTES / max(1, bytes_a_row))))
    held: list[pa.RecordBatch] = []
    for batch in parquet.iter_batches(count, row_groups=[row_group], columns=columns, use_threads=False):
        held.append(batch)
        if sum(one.nbytes for one in held) > BATCH_BYTES // 2 or len(held) == HELD:
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()
            held = []
    if held:
        yield from pa.Table.from_batches(held).combine_chunks().to_batches()


def groups_of(part: Part, parquet: pq.ParquetFile) -> tuple[int, ...]:
    """The row groups of a part."""
    return tuple(range(parquet.metadata.num_row_groups)) if part.span is None else part.span


def facts_of_footer(file: SourceFile, raw: pa.NativeFile) -> dict:
    """What tells a file from another: its size, and the SHA-256 of its footer, which has every column chunk's place,
    size and statistics.
    """
    size = raw.size()
    length = int.from_bytes(raw.read_at(4, max(0, size - 8)), "little")
    if length + 8 > size:
        raise pa.ArrowInvalid("Parquet magic bytes not found in footer")
    return {"file": file.name, "bytes": size, "footer_sha256": sha256(raw.read_at(length, size - 8 - length))}


def _cut(sizes: list[int], limit: int) -> list[tuple[int, ...]]:
    """Consecutive numbers whose sizes add up to at most limit, or one number alone; at least one cut."""
    cuts: list[list[int]] = [[]]
    total = 0
    for number, size in enumerate(sizes):
        if cuts[-1] and total + size > limit:
            cuts.append([])
            total = 0
        cuts[-1].append(number)
        total += size
    return [tuple(cut) for cut in cuts]


# ---------------------------------------------------------------------------- columns


def _text_sizes(file: SourceFile, parquet: pq.ParquetFile, how: Reading) -> list[int]:
    """Bytes of text in each row group. ValueError where there is no such column, or no text in it."""
    paths = {".".join(path) for path in _columns(file, parquet.schema_arrow, how.text_column)}
    if how.id_column and _type_of(parquet.schema_arrow, _path(how.id_column, parquet.schema_arrow)) is None:
        raise ValueError(
            f"{file.path}: expected an id column {how.id_column!r}, found columns "
            f"{', '.join(parquet.schema_arrow.names)}; name the one with the ids by --keep-ids"
        )
    numbers = [i for i in range(len(parquet.schema)) if parquet.schema.column(i).path in paths]
    groups = [parquet.metadata.row_group(i) for i in range(parquet.metadata.num_row_groups)]
    return [sum(group.column(i).total_uncompressed_size for i in numbers) for group in groups]


def _columns(file: SourceFile, schema: pa.Schema, named: str) -> list[list[str]]:
    """Paths of the columns with text: of `doc.text,title` [["doc", "text"], ["title"]]. ValueError for none."""
    names = [named] if named in schema.names else named.split(",")
    paths = [_path(name, schema) for name in names]
    for name, path in zip(names, paths, strict=True):
        kind = _type_of(schema, path)
        if kind is None:
            raise ValueError(
                f"{file.path}: expected a text column {name!r}, found columns {', '.join(schema.names)}; "
                "name the one with the text by --text-column"
            )
        value = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not any(is_text(value) for is_text in _TEXTS):
            raise ValueError(
                f"{file.path}: expected text in column {name!r}, found {kind}; "
                "name the one with the text by --text-column (a field of a struct as column.field)"
            )
    return paths


def _path(name: str, schema: pa.Schema) -> list[str]:
    """Of a column of this name, or of a field of one."""
    return [name] if name in schema.names else name.split(".")


_TEXTS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
)


def _type_of(schema: pa.Schema, path: list[str]) -> pa.DataType | None:
    if path[0] not in schema.names:
        return None
    kind = schema.field(path[0]).type
    for name in path[1:]:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(name).type
    return kind


def _field(batch: pa.RecordBatch, path: list[str]) -> pa.Array:
    column = batch.column(path[0])
    return pc.struct_field(column, path[1:]) if path[1:] else column


def _joined(columns: list[pa.Array]) -> tuple[pa.Array, int]:
    """Several texts a row as one, those that are not null or empty, a blank line between them; how many were mended."""
    if len(columns) == 1:
        return columns[0], 0
    texts, repaired = zip(*(valid_utf8(as_text(column)) for column in columns), strict=True)
    rows = zip(*(text.to_pylist() for text in texts), strict=True)  # Arrow's own join loses rows that are all null
    joined = [None if all(t is None for t in row) else JOINED_BY.join(filter(None, row)) for row in rows]
    return pa.array(joined, pa.large_string()), sum(repaired)
