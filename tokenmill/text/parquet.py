"""Parquet: shards take consecutive row groups, planned from the footer alone and streamed a MiB at a time.

With row groups of 90, 90, 90 and 30 MiB of text and shards of 256 MiB:

    train-00.parquet -> train-00.000 (row groups 0 1), train-00.001 (2 3)

The text is in a column (`text`), in a field of a struct (`doc.text`), or in several columns, which are joined by a
blank line (`title,text`). It is stored as text, or as bytes of UTF-8.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.text.arrow_columns import (
    conversations_of,
    field_of,
    joined,
    kept_of,
    kept_paths,
    require_kept,
    row_columns,
    text_paths,
)
from tokenmill.text.decoding import bounded, gathered
from tokenmill.text.formats import ReadOptions
from tokenmill.text.units import Cut, Documents, FilePart, SourceFile, as_documents, cut_by_size, sha256
from tokenmill.text_arrays import unchecked_array

BATCH_CONVERSATIONS = 1024  # decoded at a time, at most
BATCH_DOCUMENTS = 32  # decoded at a time, at most: a few long ones may follow each other among short ones
BATCH_ROWS_BYTES = 32 << 20  # of rows in a batch that is read, about
DENSE = 100  # bytes of text per stored byte; no real text compresses so far
MOST_DENSE = 128 << 20  # bytes of text that are unpacked if they are so dense
DICTIONARY_DOCUMENTS = 4096  # read at a time, if only their indices into a dictionary are read
# by default pyarrow fetches all of a row group before the first batch
STREAMING = {"buffer_size": 1 << 20, "pre_buffer": False}


def identify(file: SourceFile, raw: pa.NativeFile) -> dict:
    """What distinguishes a file from others: its size, and the SHA-256 of its footer, which has the place, size and
    statistics of every column chunk.
    """
    size = raw.size()
    length = int.from_bytes(raw.read_at(4, max(0, size - 8)), "little")
    if length + 8 > size:
        raise pa.ArrowInvalid("Parquet magic bytes not found in footer")
    return {"bytes": size, "footer_sha256": sha256(raw.read_at(length, size - 8 - length))}


def plan(
    file: SourceFile, raw: pa.NativeFile, options: ReadOptions, shard_text_bytes: int, known_text_bytes: int | None
) -> list[Cut]:
    """Cuts the file into row groups, one or several per shard. ValueError if it has no such text column."""
    with pq.ParquetFile(raw) as parquet:
        _require_decrypted(file, raw, parquet, options)
        sizes = _text_sizes(_text_chunks(file, parquet, options))
    return [Cut(groups, sum(sizes[i] for i in groups)) for groups in cut_by_size(sizes, shard_text_bytes)]


def read(part: FilePart) -> Iterator[Documents]:
    """Streams the part's documents in order, a few MB at a time."""
    options = part.options
    if options.conversations:
        yield from _read_rows(part)
        return
    with part.file.open() as raw, pq.ParquetFile(raw, **STREAMING) as parquet:
        _require_decrypted(part.file, raw, parquet, options)
        chunks = _text_chunks(part.file, parquet, options)
        sizes = _text_sizes(chunks)
        texts = text_paths(part.file, parquet.schema_arrow, options.text_column)
        kept = kept_paths(parquet.schema_arrow, options)
        columns = sorted({".".join(path) for path in [*texts, *kept.values()]})
        share_of = part.text_bytes / max(1, sum(sizes[i] for i in groups_of(part, parquet)))
        for row_group in groups_of(part, parquet):
            bytes_a_row = sizes[row_group] / max(1, parquet.metadata.row_group(row_group).num_rows)
            batches = _batches(raw, parquet, row_group, columns, chunks[row_group])
            fields = (([field_of(b, path) for path in texts], kept_of(b, options, kept)) for b in batches)
            for some in gathered(bounded(fields, options.max_document_bytes)):
                share = round(some.rows * bytes_a_row * share_of)
                column, repaired = joined(some.texts)
                more = {"repaired_documents": repaired, "oversized_documents": some.oversized}
                yield as_documents(column, share, some.kept, row_group=row_group, kept_found=frozenset(kept), **more)


def _read_rows(part: FilePart) -> Iterator[Documents]:
    """Streams rows with conversations, each as JSON."""
    with part.file.open() as raw, pq.ParquetFile(raw, **STREAMING) as parquet:
        _require_decrypted(part.file, raw, parquet, part.options)
        sizes = _text_sizes(_text_chunks(part.file, parquet, part.options))
        share_of = part.text_bytes / max(1, sum(sizes[i] for i in groups_of(part, parquet)))
        names = row_columns(part.file, parquet.schema_arrow, part.options)
        paths = kept_paths(parquet.schema_arrow, part.options)
        columns = [*names, *(path for path in map(".".join, paths.values()) if path not in names)]
        for row_group in groups_of(part, parquet):
            first, rows = 0, parquet.metadata.row_group(row_group).num_rows
            bytes_a_row = sizes[row_group] / max(1, rows)
            what = {"row_groups": [row_group], "columns": columns, "use_threads": False}
            for batch in _growing(parquet, BATCH_CONVERSATIONS, what):
                found = conversations_of(batch, names, paths, part.options)
                more: dict[str, Any] = {"row_group": row_group, "oversized_documents": len(batch) - len(found.rows)}
                share = round(len(batch) * bytes_a_row * share_of)
                documents = as_documents(unchecked_array(found.texts), share, found.kept, **more)
                documents.kept_found = frozenset(paths)
                documents.locate = _locator(row_group, first, found.rows)
                yield documents
                first += len(batch)


def _locator(row_group: int, first: int, kept: list[int]) -> Callable[[int], str]:
    return lambda number: f"row {first + kept[number]:,} of row group {row_group}"


def _batches(
    raw: pa.NativeFile,
    parquet: pq.ParquetFile,
    row_group: int,
    columns: list[str],
    chunks: list[pq.ColumnChunkMetaData],
) -> Iterator[pa.RecordBatch]:
    """The documents of a row group, a few at a time.

    A dictionary says how long its texts are before they are copied a thousand times, so dictionaries are read as such
    if the row group is denser than real text.
    """
    as_dictionaries = [chunk.path_in_schema for chunk in chunks if _is_of_a_dictionary(chunk)]
    most = DICTIONARY_DOCUMENTS if as_dictionaries and len(as_dictionaries) == len(chunks) else BATCH_DOCUMENTS
    if as_dictionaries:
        parquet = pq.ParquetFile(raw, metadata=parquet.metadata, read_dictionary=as_dictionaries, **STREAMING)
    yield from _growing(parquet, most, {"row_groups": [row_group], "columns": columns, "use_threads": False})


def _growing(parquet: pq.ParquetFile, most: int, what: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    """Batches of one row, two, four ... `most`; fewer if rows are long, which a footer need not say."""
    batches, count = parquet.iter_batches(1, **what), 1
    for batch in batches:
        yield batch
        count = min(2 * count, most, max(1, BATCH_ROWS_BYTES * len(batch) // max(1, batch.nbytes)))
        parquet.reader.set_batch_size(count)


def _is_of_a_dictionary(chunk: pq.ColumnChunkMetaData) -> bool:
    is_read_so = chunk.has_dictionary_page and not any("DELTA" in encoding for encoding in chunk.encodings)
    return is_read_so and _is_dense(chunk)


def groups_of(part: FilePart, parquet: pq.ParquetFile) -> tuple[int, ...]:
    """The row groups of a part."""
    return tuple(range(parquet.metadata.num_row_groups)) if part.span is None else part.span


# ---------------------------------------------------------------------------- columns


def _text_sizes(groups: list[list[pq.ColumnChunkMetaData]]) -> list[int]:
    """Bytes of text in each row group."""
    return [sum(chunk.total_uncompressed_size for chunk in chunks) for chunks in groups]


def _text_chunks(file: SourceFile, parquet: pq.ParquetFile, options: ReadOptions) -> list[list[pq.ColumnChunkMetaData]]:
    """What the footer says about the text columns in each row group. ValueError if there is no such column."""
    schema = parquet.schema_arrow
    if options.conversations:
        names = row_columns(file, schema, options)
        paths = {leaf for name in names for leaf in _leaves(parquet, name)}
    else:
        paths = {".".join(path) for path in text_paths(file, schema, options.text_column)}
    require_kept(file, schema, options)
    numbers = [i for i in range(len(parquet.schema)) if parquet.schema.column(i).path in paths]
    row_groups = [parquet.metadata.row_group(group) for group in range(parquet.metadata.num_row_groups)]
    groups = [[row_group.column(i) for i in numbers] for row_group in row_groups]
    for number, chunks in enumerate(groups):
        _require_unpackable(file, number, chunks)
    return groups


def _leaves(parquet: pq.ParquetFile, name: str) -> list[str]:
    """The paths of the stored columns of a top-level column."""
    found = [parquet.schema.column(i).path for i in range(len(parquet.schema))]
    return [path for path in found if path == name or path.startswith(f"{name}.")]


def _require_decrypted(file: SourceFile, raw: pa.NativeFile, parquet: pq.ParquetFile, options: ReadOptions) -> None:
    """ValueError if a column that is to be read is encrypted: asking pyarrow 26 how large it is ends the process.

    A file with encrypted columns and a footer that anyone can read has a signature after the footer, of 28 bytes.
    """
    footer_bytes = int.from_bytes(raw.read_at(4, raw.size() - 8), "little")
    if parquet.metadata.serialized_size == footer_bytes or not parquet.metadata.num_row_groups:
        return
    if options.conversations:
        names = row_columns(file, parquet.schema_arrow, options)
        paths = [[leaf] for name in names for leaf in _leaves(parquet, name)]
    else:
        paths = text_paths(file, parquet.schema_arrow, options.text_column)
    paths += kept_paths(parquet.schema_arrow, options).values()
    for column in (".".join(path) for path in paths):
        try:
            next(parquet.iter_batches(1, row_groups=[0], columns=[column], use_threads=False), None)
        except OSError as error:
            raise ValueError(
                f"{file.shown}: column {column!r} is encrypted ({str(error).splitlines()[0]}); decrypt it, name "
                "another column by --text-column, --keep-columns or --keep-ids, or take the file out of the source"
            ) from error


def _require_unpackable(file: SourceFile, group: int, chunks: list[pq.ColumnChunkMetaData]) -> None:
    """ValueError if a row group would fill the memory, because a page of parquet is unpacked as a whole."""
    for chunk in filter(_is_dense, chunks):
        if chunk.total_uncompressed_size > MOST_DENSE:
            raise ValueError(
                f"{file.shown}: row group {group} unpacks {chunk.total_compressed_size:,} bytes to "
                f"{chunk.total_uncompressed_size:,} of column {chunk.path_in_schema}, as no text does; "
                "write it again with smaller row groups, or take it out of the source"
            )


def _is_dense(chunk: pq.ColumnChunkMetaData) -> bool:
    return bool(chunk.total_uncompressed_size > DENSE * chunk.total_compressed_size)
