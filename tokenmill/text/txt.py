"""txt: a file is one document, or has a separator between its documents (--document-separator)."""

from collections.abc import Iterator

import pyarrow as pa

from tokenmill.text import separated
from tokenmill.text.formats import ReadOptions
from tokenmill.text.units import Cut, Documents, FilePart, SourceFile

identify = separated.identify


def plan(
    file: SourceFile, raw: pa.NativeFile, options: ReadOptions, shard_text_bytes: int, known_text_bytes: int | None
) -> list[Cut]:
    """Cuts the file into ranges of bytes, one per shard; a file that is one document is not cut."""
    return separated.plan_separated(file, raw, options.document_separator, shard_text_bytes, known_text_bytes)


def read(part: FilePart) -> Iterator[Documents]:
    """Streams the part's documents in order, a few MB at a time."""
    for pieces in separated.read_separated(part, part.options.document_separator):
        yield separated.text_documents(pieces)
