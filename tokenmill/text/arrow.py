"""arrow: files of Arrow's IPC formats, as `save_to_disk` of Hugging Face's `datasets` writes them.

    data-00000-of-00002.arrow, batches of 90, 90, 90 and 30 MiB of text, shards of 256 MiB
    ->  data-00000-of-00002.000 (batches 0 and 1), data-00000-of-00002.001 (2 and 3)

A shard takes consecutive record batches. A file of this machine is memory-mapped, so batches that are skipped are not
read. Columns are found as in parquet (arrow_columns.py).
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import pyarrow as pa

from tokenmill.text import separated
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
from tokenmill.text.decoding import bounded, bytes_of_texts, gathered
from tokenmill.text.formats import ReadOptions
from tokenmill.text.units import Cut, Documents, FilePart, SourceFile, as_documents, cut_by_size, sharing
from tokenmill.text_arrays import unchecked_array

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
MAGIC = b"ARROW1"  # begins a file of the format that ends with a footer; the other one is a stream of messages
CONVERSATIONS = 1024  # turned into JSON at a time

identify = separated.identify


def plan(
    file: SourceFile, raw: pa.NativeFile, options: ReadOptions, shard_text_bytes: int, known_text_bytes: int | None
) -> list[Cut]:
    """Cuts the file into record batches, one or several per shard. ValueError if it has no such text column."""
    with _opened(file) as (schema, batches):
        require_kept(file, schema, options)
        names = row_columns(file, schema, options) if options.conversations else []
        paths = [] if options.conversations else text_paths(file, schema, options.text_column)
        sizes = [_text_bytes(batch, names, paths) for batch in batches]
    cuts = [cut for cut in cut_by_size(sizes, shard_text_bytes) if cut] or [(0,)]
    return [Cut((cut[0], cut[-1] + 1), sum(sizes[cut[0] : cut[-1] + 1])) for cut in cuts]


def read(part: FilePart) -> Iterator[Documents]:
    """Streams the part's documents in order, a few MB at a time."""
    with _opened(part.file) as (schema, batches):
        require_kept(part.file, schema, part.options)
        begin, end = part.span or (0, None)
        documents = _conversations if part.options.conversations else _texts
        yield from sharing(part, documents(part, schema, islice(batches, begin, end)))


def _texts(part: FilePart, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[Documents]:
    paths = text_paths(part.file, schema, part.options.text_column)
    kept = kept_paths(schema, part.options)
    fields = (([_sound(field_of(b, path)) for path in paths], kept_of(b, part.options, kept)) for b in batches)
    for some in gathered(bounded(fields, part.options.max_document_bytes)):
        column, repaired = joined(some.texts)
        more = {"repaired_documents": repaired, "oversized_documents": some.oversized}
        yield as_documents(column, some.bytes, some.kept, kept_found=frozenset(kept), **more)


def _conversations(part: FilePart, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[Documents]:
    names, kept = row_columns(part.file, schema, part.options), kept_paths(schema, part.options)
    first = 0
    for batch in batches:
        batch.validate(full=True)
        for begin in range(0, len(batch), CONVERSATIONS):
            rows = batch.slice(begin, CONVERSATIONS)
            found = conversations_of(rows, names, kept, part.options)
            share = sum(map(len, found.texts))
            oversized = len(rows) - len(found.rows)
            documents = as_documents(unchecked_array(found.texts), share, found.kept, oversized_documents=oversized)
            documents.kept_found = frozenset(kept)
            documents.locate = _locator(first + begin, found.rows, part.span is None or part.span[0] == 0)
            yield documents
        first += len(batch)


def _locator(first: int, rows: list[int], from_the_beginning: bool) -> Callable[[int], str]:
    of = "" if from_the_beginning else " of this shard"
    return lambda number: f"row {first + rows[number]:,}{of}"


@contextlib.contextmanager
def _opened(file: SourceFile) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """The schema of a file, and its record batches in order. ArrowInvalid after them if a stream does not end there."""
    is_mapped = file.is_local and file.held is None and os.path.getsize(file.path) > 0
    with pa.memory_map(os.fsencode(file.path)) if is_mapped else file.open() as raw:
        if raw.read(len(MAGIC)) == MAGIC:
            reader = pa.ipc.open_file(raw)
            yield reader.schema, map(reader.get_batch, range(reader.num_record_batches))
        else:
            raw.seek(0)
            stream = pa.ipc.open_stream(raw)
            yield stream.schema, _whole_stream(stream, raw)


def _whole_stream(stream: pa.ipc.RecordBatchStreamReader, raw: pa.NativeFile) -> Iterator[pa.RecordBatch]:
    yield from stream
    size, end = raw.size(), raw.tell()
    if raw.read_at(len(END_OF_STREAM), max(0, size - len(END_OF_STREAM))) != END_OF_STREAM:
        raise pa.ArrowInvalid("the stream has no end mark, so its last batches may be missing")
    if end != size:
        raise pa.ArrowInvalid(f"{size - end:,} bytes follow the end of the stream, perhaps another stream")


def _text_bytes(batch: pa.RecordBatch, names: list[str], paths: list[list[str]]) -> int:
    """Bytes of text in a batch; of conversations, bytes of their columns."""
    if names:
        return int(batch.select(names).nbytes)
    return int(sum(np.sum(bytes_of_texts(_sound(field_of(batch, path)))) for path in paths))


def _sound(column: pa.Array) -> pa.Array:
    """The column, whose offsets stay within its bytes. ArrowInvalid if they do not: the file is damaged."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):  # as bytes: bad UTF-8 is no damage
        as_bytes = pa.binary() if pa.types.is_string(kind) else pa.large_binary()
        pa.Array.from_buffers(as_bytes, len(column), column.buffers(), -1, column.offset).validate(full=True)
    elif not pa.types.is_string_view(kind):
        column.validate(full=True)
    return column
