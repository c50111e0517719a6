"""Parquet: parts are consecutive row groups, planned from the footer alone and streamed a MiB at a time.

With row groups of 90, 90, 90 and 30 MiB of text and shards of 256 MiB:

    train-00.parquet -> train-00.000 (row groups 0 1), train-00.001 (2 3)

The text lies in a column (`text`), in a field of one (`doc.text`), or in several, which are joined by a blank line
(`title,text`); stored as text, or as bytes of UTF-8.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
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
BATCH_ROWS_BYTES = 32 << 20  # of rows as they are read
HELD = 128  # such decodings, at most, that are handed on together
MOST_ID = 1 << 16  # bytes of a document's id
DENSE = 100  # bytes of text are packed into one by no publisher
MOST_DENSE = 128 << 20  # bytes of text that are unpacked where they are
DICTIONARY_DOCUMENTS = 4096  # whose numbers in a dictionary are read at a time
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
        columns = sorted({".".join(path) for path in [*texts, *([id_path] if id_path else [])]})
        share_of = part.text_bytes / max(1, sum(sizes[i] for i in groups_of(part, parquet)))
        for row_group in groups_of(part, parquet):
            bytes_a_row = sizes[row_group] / max(1, parquet.metadata.row_group(row_group).num_rows)
            batches = _batches(part.file, raw, parquet, row_group, columns, how)
            for gathered in _gathered(_bounded(batches, texts, id_path, how.max_document_bytes)):
                share = round(gathered.rows * bytes_a_row * share_of)
                column, repaired = _joined(gathered.texts)
                more = {"repaired_documents": repaired, "oversized_documents": gathered.oversized}
                yield as_documents(column, share, gathered.ids, row_group=row_group, **more)


def _batches(
    file: SourceFile, raw: pa.NativeFile, parquet: pq.ParquetFile, row_group: int, columns: list[str], how: Reading
) -> Iterator[pa.RecordBatch]:
    """The documents of a row group, a few at a time; one where they may be far longer than it tells.

    A dictionary says how long its texts are before they are copied a thousand times, so it is asked for where the row
    group is packed as no text is.
    """
    chunks = _text_chunks(file, parquet, row_group, how)
    size, rows = sum(chunk.total_uncompressed_size for chunk in chunks), parquet.metadata.row_group(row_group).num_rows
    count = max(1, min(BATCH_DOCUMENTS, int(BATCH_BYTES / max(1, size / max(1, rows)))))
    # DELTA_BYTE_ARRAY has a text as the one before it and what is new
    if any(_is_dense(chunk) or "DELTA_BYTE_ARRAY" in chunk.encodings for chunk in chunks):
        count = 1
    as_dictionaries = [chunk.path_in_schema for chunk in chunks if _is_of_a_dictionary(chunk)]
    if as_dictionaries:
        count = DICTIONARY_DOCUMENTS if len(as_dictionaries) == len(chunks) else count
        parquet = pq.ParquetFile(raw, metadata=parquet.metadata, read_dictionary=as_dictionaries, **STREAMING)
    yield from _growing(parquet, count, {"row_groups": [row_group], "columns": columns, "use_threads": False})


def _growing(parquet: pq.ParquetFile, most: int, asked: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    """Batches of one row, two, four ... `most`; fewer where rows are long: a footer need not tell how long they are."""
    batches, count = parquet.iter_batches(1, **asked), 1
    for batch in batches:
        yield batch
        count = min(2 * count, most, max(1, BATCH_ROWS_BYTES * len(batch) // max(1, batch.nbytes)))
        parquet.reader.set_batch_size(count)


def _is_of_a_dictionary(chunk: pq.ColumnChunkMetaData) -> bool:
    is_read_so = chunk.has_dictionary_page and not any("DELTA" in encoding for encoding in chunk.encodings)
    return is_read_so and _is_dense(chunk)


class _Decoded(NamedTuple):
    """Some documents of a row group."""

    texts: list[pa.Array]  # one a column that is asked for
    ids: pa.Array | None
    bytes: int
    rows: int  # that they were made of, with those that are left out
    oversized: int


def _bounded(
    batches: Iterator[pa.RecordBatch], texts: list[list[str]], id_path: list[str], most: int
) -> Iterator[_Decoded]:
    """Batches as documents, some MB of text at a time, without those of more than `most` bytes."""
    for batch in batches:
        columns = [_field(batch, path) for path in texts]
        ids = _ids(_field(batch, id_path)) if id_path else None
        sizes = np.sum([_sizes(column) for column in columns], axis=0)
        fits = sizes <= most
        oversized = len(batch) - int(np.count_nonzero(fits))
        if oversized:
            columns, sizes = [column.filter(pa.array(fits)) for column in columns], sizes[fits]
            ids = None if ids is None else ids.filter(pa.array(fits))
        begin, ends = 0, np.cumsum(sizes)
        while begin < len(sizes) or oversized:
            before = int(ends[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, before + BATCH_BYTES, "right")))
            some = [_decoded(column.slice(begin, end - begin)) for column in columns]
            few_ids = None if ids is None else ids.slice(begin, end - begin)
            yield _Decoded(some, few_ids, int(sizes[begin:end].sum()), len(some[0]) + oversized, oversized)
            begin, oversized = end, 0


def _ids(column: pa.Array) -> pa.Array:
    """Ids, mended where they are not UTF-8. ValueError for one that is as long as a text."""
    value = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not any(is_text(value) for is_text in _TEXTS):
        return _decoded(column)
    if (longest := int(_sizes(column).max(initial=0))) > MOST_ID:
        raise ValueError(f"an id has {longest:,} bytes; name another column by --keep-ids")
    return _decoded(column) if pa.types.is_binary(value) else valid_utf8(as_text(column))[0]


def _sizes(column: pa.Array) -> np.ndarray:
    """Bytes of each text, 0 of a null: (num_texts,) int64; without copying those that a dictionary has once."""
    if pa.types.is_dictionary(column.type):
        lengths = np.append(_sizes(column.dictionary), 0)
        return lengths[np.asarray(pc.fill_null(column.indices, len(lengths) - 1))]
    if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        column = column.cast(pa.large_binary())
    return np.asarray(pc.fill_null(pc.binary_length(column), 0), np.int64)


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _gathered(decoded: Iterator[_Decoded]) -> Iterator[_Decoded]:
    """Documents, some MB together."""
    held: list[_Decoded] = []
    for some in decoded:
        held.append(some)
        if sum(one.bytes for one in held) > BATCH_BYTES // 2 or len(held) == HELD:
            yield _together(held)
            held = []
    if held:
        yield _together(held)


def _together(held: list[_Decoded]) -> _Decoded:
    texts, ids, *counts = zip(*held, strict=True)
    columns = [pa.concat_arrays(some) for some in zip(*texts, strict=True)]
    return _Decoded(columns, None if ids[0] is None else pa.concat_arrays(ids), *map(sum, counts))


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
    id_type = _type_of(parquet.schema_arrow, _path(how.id_column, parquet.schema_arrow)) if how.id_column else None
    if id_type is not None and pa.types.is_nested(id_type):
        raise ValueError(
            f"{file.path}: expected ids in column {how.id_column!r}, found {id_type}; name one of its fields"
        )
    if how.id_column and id_type is None:
        raise ValueError(
            f"{file.path}: expected an id column {how.id_column!r}, found columns "
            f"{', '.join(parquet.schema_arrow.names)}; name the one with the ids by --keep-ids"
        )
    groups = [_text_chunks(file, parquet, group, how) for group in range(parquet.metadata.num_row_groups)]
    for number, chunks in enumerate(groups):
        _require_unpackable(file, number, chunks)
    return [sum(chunk.total_uncompressed_size for chunk in chunks) for chunks in groups]


def _require_unpackable(file: SourceFile, group: int, chunks: list[pq.ColumnChunkMetaData]) -> None:
    """ValueError where a row group would fill the memory: a page of parquet is in memory as a whole, or not at all."""
    for chunk in filter(_is_dense, chunks):
        if chunk.total_uncompressed_size > MOST_DENSE:
            raise ValueError(
                f"{file.path}: row group {group} unpacks {chunk.total_compressed_size:,} bytes to "
                f"{chunk.total_uncompressed_size:,} of column {chunk.path_in_schema}, as no text does; "
                "write it anew with smaller row groups, or take it out of the source"
            )


def _is_dense(chunk: pq.ColumnChunkMetaData) -> bool:
    return bool(chunk.total_uncompressed_size > DENSE * chunk.total_compressed_size)


def _text_chunks(file: SourceFile, parquet: pq.ParquetFile, group: int, how: Reading) -> list[pq.ColumnChunkMetaData]:
    """What the footer says of the columns with text in a row group."""
    paths = {".".join(path) for path in _columns(file, parquet.schema_arrow, how.text_column)}
    numbers = [i for i in range(len(parquet.schema)) if parquet.schema.column(i).path in paths]
    return [parquet.metadata.row_group(group).column(i) for i in numbers]


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
    if schema.names.count(path[0]) > 1:
        raise ValueError(f"column {path[0]!r} is there {schema.names.count(path[0])} times; name each otherwise")
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
