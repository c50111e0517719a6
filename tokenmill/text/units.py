"""What passes from a source to a shard: files, units of work, batches of documents.

A unit of work is one shard: a part of one source file, or several small files whole. Which parts a file has is its
format's (parquet.py, lines.py), which files share a shard lots.py's; here is what all formats share.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.store.shards import Split
from tokenmill.text.formats import COMPRESSIONS, SUFFIX, Reading

BATCH_BYTES = 4 << 20  # of text in memory at a time, about
LONGEST_STEM = 180  # bytes of UTF-8: a shard's name and a temporary file's ending are to fit into 255


@dataclass(frozen=True)
class SourceFile:
    """One file of documents. `name` is its path below the source, the same on every machine."""

    name: str
    path: Path | str  # a str is a URL that fsspec knows
    split: Split
    bytes: int | None = None  # as listed, where that is known
    held: memoryview | None = field(default=None, compare=False, repr=False)  # all of it, where it was read at once

    @property
    def stem(self) -> str:
        """What its shards are called; a name that is too long for that ends with a digest."""
        stem = SUFFIX.sub("", str(PurePosixPath(self.name))).replace("/", "--")
        if len(stem.encode()) <= LONGEST_STEM:
            return stem
        return f"{stem.encode()[: LONGEST_STEM - 20].decode(errors='ignore')}-{sha256(stem.encode())[:16]}"

    @property
    def format(self) -> str:
        """parquet, jsonl or txt."""
        name = self._suffix[1].lower()
        return "jsonl" if "json" in name else name

    @property
    def compression(self) -> str | None:
        """Of a jsonl or txt file as a whole: gzip, zstd or None."""
        return COMPRESSIONS.get((self._suffix[2] or "").lower())

    @property
    def stamp(self) -> tuple[int, ...] | None:
        """What changes where a file is written to or replaced; None of a URL."""
        if not isinstance(self.path, Path):
            return None
        stat = self.path.stat()
        return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns

    @property
    def _suffix(self) -> re.Match[str]:
        found = SUFFIX.search(self.name)
        assert found, "only files of known formats are listed"
        return found

    def open(self) -> pa.NativeFile:
        """The file's bytes; seekable."""
        if self.held is not None:
            return pa.BufferReader(self.held)
        if isinstance(self.path, Path):
            return pa.OSFile(os.fsencode(self.path))  # of any name, UTF-8 or not
        return pa.PythonFile(fsspec.open(self.path, "rb").open(), "r")


@dataclass(frozen=True)
class Part:
    """What a unit has of one file."""

    file: SourceFile
    reading: Reading
    # a parquet file's row groups; of other files the first byte and the one after the last; None is all of it
    span: tuple[int, ...] | None
    text_bytes: int  # as the file tells without being read: near enough to plan and to show progress
    identity: dict  # what identifies the part's text, for the shard's record


@dataclass(frozen=True)
class Unit:
    """One shard's worth of text."""

    parts: tuple[Part, ...]
    number: int = 0
    units: int = 1  # of this file

    @property
    def name(self) -> str:
        return f"{self.parts[0].file.stem}.{self.number:03d}"

    @property
    def files(self) -> list[SourceFile]:
        return [part.file for part in self.parts]

    @property
    def text_bytes(self) -> int:
        return sum(part.text_bytes for part in self.parts)


@dataclass(frozen=True)
class Documents:
    """A few documents of a part, in order, and what was left out or mended beside them."""

    texts: pa.LargeStringArray  # valid UTF-8, none of them null or empty
    text_bytes: int
    null_documents: int
    empty_documents: int
    repaired_documents: int  # not valid UTF-8: the bad bytes became U+FFFD
    share: int  # of the part's `text_bytes`: the progress
    row_group: int | None = None  # that all of them are of, in a parquet file
    broken_lines: int = 0
    oversized_documents: int = 0  # longer than `Reading.max_document_bytes`
    ids: list | None = None  # what their publisher calls them, where that was asked for
    part: int = 0  # of the unit


def as_documents(column: pa.Array, share: int, ids: pa.Array | list | None = None, **more) -> Documents:
    """Leaves out nulls and empty texts, and mends what is not UTF-8. `column` is of any type that casts to text."""
    column, ids = as_text(column), ids.to_pylist() if isinstance(ids, pa.Array) else ids
    if not column.null_count and _none_is_empty(column):
        text_bytes = _text_bytes(column)
        column, repaired = valid_utf8(column)
        repaired += more.pop("repaired_documents", 0)
        return Documents(column, text_bytes, 0, 0, repaired, share, ids=ids, **more)
    lengths = pc.fill_null(pc.binary_length(column), 0)
    nulls = column.null_count
    kept = pc.greater(lengths, 0)
    empty = len(column) - nulls - (pc.sum(kept).as_py() or 0)
    if nulls or empty:
        column = column.filter(kept)
        if ids is not None:
            ids = [id for id, keep in zip(ids, kept.to_pylist(), strict=True) if keep]
    column, repaired = valid_utf8(column)
    repaired += more.pop("repaired_documents", 0)
    return Documents(column, pc.sum(lengths).as_py() or 0, nulls, empty, repaired, share, ids=ids, **more)


def _offsets(column: pa.LargeStringArray) -> np.ndarray:
    return np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]


def _none_is_empty(column: pa.LargeStringArray) -> bool:
    return len(column) > 0 and bool((np.diff(_offsets(column)) > 0).all())


def _text_bytes(column: pa.LargeStringArray) -> int:
    """Bytes of UTF-8 of texts, none of which is null."""
    offsets = _offsets(column)
    return int(offsets[-1] - offsets[0])


def as_text(column: pa.Array) -> pa.LargeStringArray:
    """The column as text, unchecked where it is stored as bytes; `valid_utf8` checks that."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_binary(column.type) or pa.types.is_binary_view(column.type):
        column = column.cast(pa.large_binary())
    if pa.types.is_large_binary(column.type):
        return pa.Array.from_buffers(pa.large_string(), len(column), column.buffers(), -1, column.offset)
    return column.cast(pa.large_string())


def valid_utf8(column: pa.LargeStringArray) -> tuple[pa.LargeStringArray, int]:
    """The texts, bad bytes as U+FFFD, and how many had any."""
    try:
        column.validate(full=True)
        return column, 0
    except pa.ArrowInvalid:
        raw = column.cast(pa.large_binary()).to_pylist()
        texts = [None if data is None else data.decode("utf-8", "replace") for data in raw]
        repaired = sum(text is not None and text.encode() != data for text, data in zip(texts, raw, strict=True))
        return pa.array(texts, pa.large_string()), repaired


@contextlib.contextmanager
def reading(file: SourceFile) -> Iterator[None]:
    """Turns the errors of reading into one that names the file and says what to do."""
    try:
        yield
    except FileNotFoundError:
        raise
    except MemoryError as error:  # Arrow's own is one too
        raise MemoryError(f"{file.path}: there is not memory enough to read it; use fewer --workers") from error
    except PermissionError as error:
        raise PermissionError(f"{file.path}: cannot be read ({error.strerror}); give access, or take it out") from error
    except (pa.ArrowException, OSError, EOFError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        if "requires too much memory for decoding" in str(error):
            raise ValueError(
                f"{file.path}: was compressed with a larger window than Arrow decodes ({reason}); "
                "compress it again without `zstd --long`: zstd -d --long=31 FILE, then zstd"
            ) from error
        raise ValueError(
            f"{file.path}: expected a whole {file.format} file, found damage ({reason}); "
            "fetch it again, or take it out of the source"
        ) from error


def sha256(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()
