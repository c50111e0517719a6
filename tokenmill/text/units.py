"""What passes from a source to a shard: files, units of work, batches of documents.

A unit of work is one shard: consecutive parts of one source file. Which parts they are is its format's
(parquet.py, lines.py); here is what all formats share.
"""

import contextlib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import fsspec
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.store.shards import Split
from tokenmill.text.formats import COMPRESSIONS, SUFFIX, Reading

BATCH_BYTES = 4 << 20  # of text in memory at a time, about


@dataclass(frozen=True)
class SourceFile:
    """One file of documents. `name` is its path below the source, the same on every machine."""

    name: str
    path: Path | str  # a str is a URL that fsspec knows
    split: Split

    @property
    def stem(self) -> str:
        """What its shards are called."""
        return SUFFIX.sub("", str(PurePosixPath(self.name))).replace("/", "--")

    @property
    def format(self) -> str:
        """parquet, jsonl or txt."""
        return self._suffix[1]

    @property
    def compression(self) -> str | None:
        """Of a jsonl or txt file as a whole: gzip, zstd or None."""
        return COMPRESSIONS.get(self._suffix[2])

    @property
    def _suffix(self) -> re.Match[str]:
        found = SUFFIX.search(self.name)
        assert found, "only files of known formats are listed"
        return found

    def open(self) -> pa.NativeFile:
        """The file's bytes; seekable."""
        if isinstance(self.path, Path):
            return pa.OSFile(str(self.path))
        return pa.PythonFile(fsspec.open(self.path, "rb").open(), "r")


@dataclass(frozen=True)
class Unit:
    """One shard's worth of a source file."""

    file: SourceFile
    number: int
    units: int  # of this file
    reading: Reading
    span: tuple[int, ...]  # a parquet file's row groups; of other files the first byte and the one after the last
    text_bytes: int  # as the file tells without being read: near enough to plan and to show progress
    identity: dict  # what identifies the unit's text, for the shard's record

    @property
    def name(self) -> str:
        return f"{self.file.stem}.{self.number:03d}"


@dataclass(frozen=True)
class Documents:
    """A few documents of a unit, in order, and what was left out or mended beside them."""

    texts: pa.LargeStringArray  # valid UTF-8, none of them null or empty
    text_bytes: int
    null_documents: int
    empty_documents: int
    repaired_documents: int  # not valid UTF-8: the bad bytes became U+FFFD
    share: int  # of the unit's `text_bytes`: the progress
    row_group: int | None = None  # that all of them are of, in a parquet file
    broken_lines: int = 0

    @property
    def read(self) -> int:
        """How many documents were read, left out or not."""
        return len(self.texts) + self.null_documents + self.empty_documents


def as_documents(column: pa.Array, share: int, **more) -> Documents:
    """Leaves out nulls and empty texts, and mends what is not UTF-8. `column` is of any type that casts to text."""
    column = column.cast(pa.large_string())
    if nulls := column.null_count:
        column = column.drop_null()
    lengths = pc.binary_length(column)
    if empty := pc.sum(pc.equal(lengths, 0)).as_py() or 0:
        column = column.filter(pc.greater(lengths, 0))
    column, repaired = _valid_utf8(column)
    repaired += more.pop("repaired_documents", 0)
    return Documents(column, pc.sum(lengths).as_py() or 0, nulls, empty, repaired, share, **more)


def _valid_utf8(column: pa.LargeStringArray) -> tuple[pa.LargeStringArray, int]:
    """The texts, bad bytes as U+FFFD, and how many had any."""
    try:
        column.validate(full=True)
        return column, 0
    except pa.ArrowInvalid:
        raw = column.cast(pa.large_binary()).to_pylist()
        texts = [data.decode("utf-8", "replace") for data in raw]
        repaired = sum(text.encode() != data for text, data in zip(texts, raw, strict=True))
        return pa.array(texts, pa.large_string()), repaired


@contextlib.contextmanager
def reading(file: SourceFile) -> Iterator[None]:
    """Turns the errors of reading into one that names the file and says what to do."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, EOFError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"{file.path}: expected a whole {file.format} file, found damage ({reason}); "
            "fetch it again, or take it out of the source"
        ) from error


def sha256(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()
