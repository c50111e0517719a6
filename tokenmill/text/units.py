"""What passes from a source to a shard: files, units of work, batches of documents.

A unit of work makes one shard: a part of one source file, or several small files whole. A format's module decides which
parts a file has, and file_groups.py which files share a shard. This module has what all formats share.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from tokenmill.addresses import display_address, has_scheme
from tokenmill.sanitize import redact
from tokenmill.store.shards import Split
from tokenmill.text.formats import ReadOptions, TextFormat, format_of
from tokenmill.text_arrays import text_array

BATCH_BYTES = 4 << 20  # of text in memory at a time, about
LONGEST_STEM = 180  # bytes of UTF-8: the name of a shard and the suffix of a temporary file must fit into 255


@dataclass(frozen=True)
class SourceFile:
    """One file of documents. `name` is its path below the source, the same on every machine."""

    name: str
    path: str  # absolute; or a URL that fsspec knows
    split: Split
    bytes: int | None = None  # as listed; None if unknown
    held: memoryview | None = field(default=None, compare=False, repr=False)  # the whole file, if it was read at once
    format: TextFormat = field(default=None, compare=False, repr=False)  # type: ignore[assignment]  # by default the name says which
    val_fraction: float | None = None  # of its documents validate; each split has them under its own name
    VAL_OF: ClassVar[str] = "val-of/"  # begins the name under which those that validate are listed

    def __post_init__(self) -> None:
        if self.format is None:
            object.__setattr__(self, "format", format_of(self.name))
        assert self.format is not None, "only files of known formats are listed"

    @property
    def listed_name(self) -> str:
        """Its path below the source, also where `name` is that of the documents that validate."""
        is_val_of = self.val_fraction is not None and self.split == "val"
        return self.name.removeprefix(self.VAL_OF) if is_val_of else self.name

    @property
    def fraction(self) -> float:
        """How much of the file is in its split, about."""
        if self.val_fraction is None:
            return 1.0
        return self.val_fraction if self.split == "val" else 1 - self.val_fraction

    def facts(self, options: ReadOptions) -> dict:
        """How it is read, as far as its documents depend on it, for the record of a shard."""
        by_document = {} if self.val_fraction is None else {"val_fraction": self.val_fraction}
        return self.format.facts(options) | by_document

    @property
    def is_local(self) -> bool:
        """Whether it is a file of this machine, and not at a URL."""
        return not has_scheme(self.path)

    @property
    def stem(self) -> str:
        """The start of its shards' names. If it would be too long, it is cut and ends with a digest."""
        stem = self.format.stem(self.name).replace("/", "--")
        if len(stem.encode()) <= LONGEST_STEM:
            return stem
        return f"{stem.encode()[: LONGEST_STEM - 20].decode(errors='ignore')}-{sha256(stem.encode())[:16]}"

    @property
    def compression(self) -> str | None:
        """How the whole file is compressed: gzip, zstd or None."""
        return self.format.compression(self.name)

    @property
    def shown(self) -> str:
        """Its path, or its URL without passwords and signatures."""
        return self.path if self.is_local else display_address(self.path)

    @property
    def stamp(self) -> tuple[int, ...] | None:
        """Changes when the file is written to or replaced; None for a URL."""
        if not self.is_local:
            return None
        stat = os.stat(self.path)
        return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns

    @property
    def written(self) -> tuple[int, ...] | None:
        """Its size, and when it was written to, the same on every machine; None for a URL."""
        stamp = self.stamp
        return None if stamp is None else stamp[2:]

    def holding(self, data: memoryview) -> "SourceFile":
        """The same file, read as a whole."""
        # dataclasses.replace takes many times as long
        return SourceFile(self.name, self.path, self.split, self.bytes, data, self.format, self.val_fraction)

    def open(self) -> pa.NativeFile:
        """The file's bytes; seekable."""
        if self.held is not None:
            return pa.BufferReader(self.held)
        if self.is_local:
            return pa.OSFile(os.fsencode(self.path))  # takes any name, UTF-8 or not
        import fsspec  # takes a tenth of a second

        return pa.PythonFile(fsspec.open(self.path, "rb").open(), "r")

    def open_text(self) -> pa.NativeFile:
        """The file's bytes, decompressed if the whole file is compressed; then not seekable."""
        raw = self.open()
        return pa.CompressedInputStream(raw, self.compression) if self.compression else raw


class Cut(NamedTuple):
    """What one shard takes of a file, as a format plans it."""

    span: tuple[int, ...]  # the first byte, or batch, and the one after the last; or row groups
    text_bytes: int


def cut_by_size(sizes: Sequence[int], limit: int) -> list[tuple[int, ...]]:
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


@dataclass(frozen=True)
class FilePart:
    """What a unit takes of one file."""

    file: SourceFile
    options: ReadOptions
    span: tuple[int, ...] | None  # as in Cut; None for the whole file
    text_bytes: int  # known without reading it: close enough to plan and to show progress
    identity: dict  # identifies the part's text, for the shard's record; empty until a small file is read
    written: tuple[int, ...] | None = None  # SourceFile.written when it was planned

    def of(self, file: SourceFile, identity: dict) -> "FilePart":
        """The same part of a file that was opened, with its identity."""
        return FilePart(file, self.options, self.span, self.text_bytes, identity)


@dataclass(frozen=True)
class Unit:
    """One shard's worth of text."""

    parts: tuple[FilePart, ...]
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
        """About how much text the unit's documents have."""
        return sum(round(part.text_bytes * part.file.fraction) for part in self.parts)


@dataclass(slots=True)
class Documents:
    """A few documents of a part, in order, and how many were left out or repaired."""

    texts: pa.LargeStringArray  # valid UTF-8, none of them null or empty
    text_bytes: int
    null_documents: int
    empty_documents: int
    repaired_documents: int  # invalid UTF-8, whose bad bytes were replaced with U+FFFD
    share: int  # of the part's `text_bytes`, for progress
    row_group: int | None = None  # which all of them belong to, if the format has row groups
    broken_lines: int = 0
    oversized_documents: int = 0  # longer than `ReadOptions.max_document_bytes`
    kept: pa.Table | None = None  # the columns that the user asked to keep, a row for each of the texts
    kept_found: frozenset[str] = frozenset()  # the names of those that the source has here
    part: int = 0  # of the unit
    other_split: int = 0  # documents of the file that are not in its split
    locate: Callable[[int], str] | None = None  # the place of a document in the file, for errors about it


def sharing(part: FilePart, stream: Iterator[Documents]) -> Iterator[Documents]:
    """The documents of a part, whose shares add up to no more than was planned."""
    left = part.text_bytes
    for documents in stream:
        documents.share = min(documents.share, left)
        left -= documents.share
        yield documents


def as_documents(column: pa.Array, share: int, kept: pa.Table | None = None, **more) -> Documents:
    """Leaves out null and empty texts, and repairs invalid UTF-8. `column` has any type that casts to text."""
    column = as_text(column)
    if not column.null_count and (text_bytes := _bytes_if_none_is_empty(column)):
        column, repaired = valid_utf8(column)
        repaired += more.pop("repaired_documents", 0)
        return Documents(column, text_bytes, 0, 0, repaired, share, kept=kept, **more)
    import pyarrow.compute as pc  # takes a twentieth of a second

    lengths = pc.fill_null(pc.binary_length(column), 0)
    nulls = column.null_count
    has_text = pc.greater(lengths, 0)
    empty = len(column) - nulls - (pc.sum(has_text).as_py() or 0)
    if nulls or empty:
        column = column.filter(has_text)
        kept = None if kept is None else kept.filter(has_text)
    column, repaired = valid_utf8(column)
    repaired += more.pop("repaired_documents", 0)
    return Documents(column, pc.sum(lengths).as_py() or 0, nulls, empty, repaired, share, kept=kept, **more)


def _bytes_if_none_is_empty(column: pa.LargeStringArray) -> int:
    """Bytes of UTF-8 in texts, none of which is null; 0 if one is empty, or if there are none."""
    offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
    return int(offsets[-1] - offsets[0]) if (offsets[1:] > offsets[:-1]).all() else 0


def as_text(column: pa.Array) -> pa.LargeStringArray:
    """The column as text. Columns stored as bytes are not checked here; `valid_utf8` does that."""
    if pa.types.is_large_string(column.type):
        return column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_binary(column.type) or pa.types.is_binary_view(column.type):
        column = column.cast(pa.large_binary())
    if pa.types.is_large_binary(column.type):
        return pa.Array.from_buffers(pa.large_string(), len(column), column.buffers(), -1, column.offset)
    return column.cast(pa.large_string())


def valid_utf8(column: pa.LargeStringArray) -> tuple[pa.LargeStringArray, int]:
    """The texts, with bad bytes replaced with U+FFFD, and how many had any."""
    try:
        column.validate(full=True)
        return column, 0
    except pa.ArrowInvalid:
        raw = column.cast(pa.large_binary()).to_pylist()
        texts = [None if data is None else data.decode("utf-8", "replace") for data in raw]
        repaired = sum(text is not None and text.encode() != data for text, data in zip(texts, raw, strict=True))
        return text_array(texts), repaired


@contextlib.contextmanager
def naming_file(file: SourceFile) -> Iterator[None]:
    """Turns errors of reading into errors that name the file and say what to do."""
    try:
        yield
    except FileNotFoundError:
        if file.is_local:
            raise
        raise FileNotFoundError(f"{file.shown}: no such file; check --source") from None
    except MemoryError as error:  # Arrow's own is one too
        raise MemoryError(f"{file.shown}: there is not memory enough to read it; use fewer --workers") from error
    except PermissionError as error:
        raise PermissionError(
            f"{file.shown}: cannot be read ({error.strerror}); give access, or take it out"
        ) from error
    except (pa.ArrowException, OSError, EOFError) as error:
        reason = redact((str(error) or type(error).__name__).splitlines()[0])
        if "requires too much memory for decoding" in str(error):
            raise ValueError(
                f"{file.shown}: was compressed with a larger window than Arrow decodes ({reason}); "
                "compress it again without `zstd --long`: zstd -d --long=31 FILE, then zstd"
            ) from (error if file.is_local else None)  # whose text may have a URL, with its signature
        raise ValueError(
            f"{file.shown}: expected a whole {file.format.name} file, found damage ({reason}); "
            "fetch it again, or take it out of the source"
        ) from (error if file.is_local else None)


def sha256(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()
