"""The bytes of one shard on disk; nothing else knows the format.

A shard is at least three files in a token set's folder (token_sets.py). Three documents of 4, 2 and 3 tokens
(counting BOS, here 50256) look like this:

    shards/shard_00000.000.bin   50256 15496 995 0  50256 40  50256 64 65   little-endian uint16
    shards/shard_00000.000.idx   0 4 6 9                                    little-endian uint64
    shards/shard_00000.000.json  the record: source, counts, sizes, checksums; its rename makes the shard count

Optional columns (columns.py) are further files, for instance shards/shard_00000.000.ids: the publisher's own id of
each document, as JSON, one a line.

Files appear whole or not at all (files.py). Nothing in them depends on time, machine or number of workers: the same
input gives the same bytes.

shard_writer.py writes a shard, here it is mapped. Left out: reading text, tokenizing, and which file is in which split.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from tokenmill.cached import cached_property
from tokenmill.store.columns import (
    MASK,
    META,
    OFFSETS,
    TARGETS,
    TOKENS,
    Column,
    checksums_of,
    columns_of,
    listed_sha256,
)
from tokenmill.store.files import read_bounded, read_json
from tokenmill.store.maps import map_file, maps_are_scarce, read_ahead, read_here_and_there
from tokenmill.store.pread import FileBytes, FileNumbers, changed, wants_pread
from tokenmill.store.schema import LEFT_OUT_COUNTS

Split = Literal["train", "val"]
SPLITS = get_args(Split)
DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
OFFSET = OFFSETS.numpy_dtype
# what was left out is counted too: null and empty documents, broken lines. Repaired: invalid UTF-8 became U+FFFD
TEXT_COUNTS = ("text_bytes", *LEFT_OUT_COUNTS)
COUNTS = ("documents", "tokens", *TEXT_COUNTS)


def shard_path(folder: Path, name: str, suffix: str) -> Path:
    """The path of a shard's record (`json`), or of one of its columns, in a token set."""
    return folder / "shards" / f"{name}.{suffix}"


def finished_record(folder: Path, name: str) -> dict[str, Any] | None:
    """The record of a finished shard. None if there is no record, or a file is missing or of another size."""
    path = shard_path(folder, name, "json")
    if not path.exists():
        return None
    record = read_json(path, "shard")
    if record["name"] != name:
        raise ValueError(f"{path}: expected the record of shard {name}, found that of {record['name']}; delete it")
    if META.suffix in record and not _has_size(folder, name, META.suffix, record[META.suffix]["bytes"]):
        record = {key: value for key, value in record.items() if key != META.suffix}  # it is added again
    sizes = {suffix: checksums_of(record, suffix)["bytes"] for suffix in columns_of(record)}
    return record if all(_has_size(folder, name, suffix, size) for suffix, size in sizes.items()) else None


def _has_size(folder: Path, name: str, suffix: str, size: int) -> bool:
    path = shard_path(folder, name, suffix)
    return path.exists() and path.stat().st_size == size


def sources_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """What a record says about each source file of its shard."""
    several: list[dict[str, Any]] = record["source"].get("files", [])
    return several or [record["source"]]


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """What the manifest says about one shard."""

    name: str
    split: Split
    source: str  # the source file's name; the first one's where several share the shard
    documents: int
    tokens: int
    text_bytes: int  # UTF-8 bytes of the documents' text
    bin_sha256: str
    idx_sha256: str
    more_sources: tuple[str, ...] = ()  # the others
    columns: tuple[tuple[str, str], ...] = ()  # (suffix, SHA-256) of the optional columns, by name

    @property
    def sha256(self) -> tuple[tuple[str, str], ...]:
        """(suffix, SHA-256) of every column that the manifest lists, in the form of `listed_sha256`."""
        return ((TOKENS.suffix, self.bin_sha256), (OFFSETS.suffix, self.idx_sha256), *self.columns)

    def is_of(self, record: dict[str, Any]) -> bool:
        """Whether a record is of this shard, with the same content."""
        return self.name == record["name"] and self.sha256 == listed_sha256(record)

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the source files."""
        return (self.source, *self.more_sources)


class Shard:
    """One shard: `tokens` (num_tokens,), `offsets` (num_documents + 1,), and `column(name)`.

    Files are mapped into memory, or read when they are needed (pread.py).

    Raises FileNotFoundError or ValueError if the files are not what the manifest says. The first and last offset are
    checked when a shard is opened; that offsets increase is checked when lengths are read.
    """

    def __init__(self, folder: Path, entry: ShardEntry, dtype: str):
        self.entry = entry
        self.path = shard_path(folder, entry.name, "bin")
        self.stamp = _stamp(self.path)
        self.tokens: np.ndarray | FileNumbers
        if wants_pread() or maps_are_scarce():
            self.tokens = _unmapped(self.path, DTYPES[dtype], entry.tokens)
            self.offsets = _read(self.path.with_suffix(".idx"), OFFSET, entry.documents + 1)
        else:
            self.tokens = _map(self.path, DTYPES[dtype], entry.tokens)
            self.offsets = _map(self.path.with_suffix(".idx"), OFFSET, entry.documents + 1)
        if (int(self.offsets[0]), int(self.offsets[-1])) != (0, entry.tokens):
            raise self._damaged_offsets()

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each document, including BOS: (num_documents,) int64."""
        return self.lengths_of(0, self.entry.documents)

    def documents_between(self, begin: int, end: int) -> tuple[int, int]:
        """The documents whose first tokens are in `begin` to `end`: (first, one after the last)."""
        if (begin, end) == (0, self.entry.tokens):
            return 0, self.entry.documents
        ends = np.array([begin, end], OFFSET)  # of one type, or all offsets are converted
        first, last = np.searchsorted(self.offsets[:-1], ends).tolist()
        return first, last

    def lengths_of(self, first: int, last: int) -> np.ndarray:
        """Tokens of the documents from `first` to before `last`: (last - first,) int64."""
        lengths = np.diff(self.offsets[first : last + 1].astype(np.int64))
        if (lengths < 1).any():
            raise self._damaged_offsets()
        return lengths

    def places_of(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first token of each of these documents, and its length: each (len(documents),) int64."""
        begin, end = self.offsets[documents].astype(np.int64), self.offsets[documents + 1].astype(np.int64)
        if (end <= begin).any():
            raise self._damaged_offsets()
        return begin, end - begin

    def read(self, begin: int, end: int, known_first: bool = False) -> np.ndarray:
        """Tokens `begin` to `end`: (end - begin,). Only the hot path (feed/row_table.py) reads in another way.

        `known_first` says that the first one may be 0 and is checked by the caller (remote/holes.py).
        """
        found: np.ndarray = self.tokens[begin:end]
        return found

    @property
    def token_bytes(self) -> memoryview | FileBytes:
        """The bytes of the tokens: a slice of it joins to others."""
        return self.tokens.data if isinstance(self.tokens, FileNumbers) else self.tokens.data.cast("B")

    @cached_property
    def mask_bytes(self) -> memoryview | None:
        """The bytes of the loss mask, a bit a token; None if every token bears loss, as in a set of text."""
        listed = dict(self.entry.columns)
        return self.column(MASK.suffix).data if {MASK.suffix, TARGETS.suffix} <= listed.keys() else None

    @cached_property
    def target_counts(self) -> np.ndarray:
        """How many tokens of each document of a chat set bear loss: (num_documents,)."""
        found: np.ndarray = self.column(TARGETS.suffix)
        return found

    def expect_random_reads(self) -> None:
        """Tells the kernel that rows are read from here and there."""
        if not isinstance(self.tokens, FileNumbers):
            read_here_and_there(self.tokens)

    def read_ahead(self, begin: int, end: int, wait: bool) -> None:
        """Asks the kernel to read tokens `begin` to `end` ahead; with `wait`, until mapped files are in memory."""
        if isinstance(self.tokens, FileNumbers):
            size = self.tokens.itemsize
            self.tokens.data.read_ahead(begin * size, end * size)
        else:
            read_ahead(self.tokens[begin:end], wait)

    def in_blocks(self, size: int) -> Iterator[np.ndarray]:
        """All tokens, `size` at a time."""
        return in_blocks(self.tokens, size)

    def column(self, suffix: str) -> np.ndarray:
        """An optional column of numbers, memory-mapped: (num_tokens,) or (num_documents,), as its record says. Of bits,
        the bytes: value k is bit k of np.unpackbits(..., bitorder="little").

        ValueError if the shard has no such column, or its file has another size; FileNotFoundError if the file is gone.
        """
        column, _ = self._column(suffix)
        read = _read if isinstance(self.tokens, FileNumbers) else _map
        return read(
            self._column_path(suffix), column.numpy_dtype, column.stored(self.entry.documents, self.entry.tokens)
        )

    def lines(self, suffix: str) -> list[str]:
        """An optional column of text: the lines of its file. Each is JSON."""
        path, size = self.column_file(suffix)
        text = read_bounded(path, size, f"column {suffix}").decode("utf-8", "replace")
        return text.split("\n")[:-1]  # splitlines() would also split at U+2028, which a line may hold

    def column_file(self, suffix: str) -> tuple[Path, int]:
        """The file of an optional column, and its size. Raises what `column` raises."""
        _, size = self._column(suffix)
        path = self._column_path(suffix)
        require_size(path, size)
        return path, size

    def _column(self, suffix: str) -> tuple[Column, int]:
        """What the record says about an optional column, and its size in bytes."""
        path = self.path.with_suffix(".json")
        record = read_json(path, "shard")
        if not self.entry.is_of(record):
            raise ValueError(f"{path}: expected the record of the shard that the manifest lists, found another one's")
        known = {name: column for name, column in columns_of(record).items() if column.optional}
        if suffix not in known:
            raise ValueError(f"{path}: has no column {suffix!r}; optional columns here: {', '.join(known) or 'none'}")
        return known[suffix], checksums_of(record, suffix)["bytes"]

    def _column_path(self, suffix: str) -> Path:
        return self.path.with_suffix(f".{suffix}")

    def is_there(self, begin: int, end: int) -> bool:
        """Whether tokens `begin` to `end` are on this disk: those of a local file always are."""
        return True

    def require_unchanged(self) -> None:
        """ValueError if the file of the tokens was replaced since it was opened, by one with other bytes.

        Reading past the end of a truncated mapped file kills a process, so this comes first.
        """
        found = _stamp(self.path)
        if found == self.stamp:
            return
        if found is None or found.size != self.tokens.nbytes or not self._is_as_listed():
            raise changed(self.path)
        self.stamp = found  # touched, or put back

    def _is_as_listed(self) -> bool:
        with open(self.path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.entry.bin_sha256

    def _damaged_offsets(self) -> ValueError:
        path = self.path.with_suffix(".idx")
        return ValueError(
            f"{path}: expected offsets increasing from 0 to {self.entry.tokens}, "
            f"found damage; delete {path.with_suffix('.json')} and prepare again"
        )


class Stamp(NamedTuple):
    """What changes when a file is written to, truncated or replaced."""

    inode: int
    size: int
    changed: int


def _map(path: Path, dtype: np.dtype[Any], count: int) -> np.ndarray:
    """Maps exactly `count` numbers of a file, read-only."""
    size = count * dtype.itemsize
    require_size(path, size)
    numbers = map_file(path, dtype)
    if len(numbers) != count:
        require_size(path, size)
    return numbers


def _unmapped(path: Path, dtype: np.dtype[Any], count: int) -> FileNumbers:
    """Exactly `count` numbers of a file, read when they are asked for."""
    require_size(path, count * dtype.itemsize)
    return FileNumbers(path, dtype)


def _read(path: Path, dtype: np.dtype[Any], count: int) -> np.ndarray:
    """Reads exactly `count` numbers of a file."""
    require_size(path, count * dtype.itemsize)
    numbers = np.fromfile(path, dtype)
    if len(numbers) != count:
        require_size(path, count * dtype.itemsize)
    return numbers


def require_size(path: Path, expected: int) -> None:
    """FileNotFoundError or ValueError if a file of a shard is missing, or has another size."""
    advice = "the shard is damaged; delete its .json record and prepare again"
    try:
        found = os.path.getsize(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: no such file, though the manifest lists it; {advice}") from error
    if found != expected:
        raise ValueError(f"{path}: expected {expected:,} bytes, found {found:,}; {advice}")


def _stamp(path: Path) -> Stamp | None:
    """None if the file is gone."""
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        return None
    return Stamp(stat.st_ino, stat.st_size, max(stat.st_mtime_ns, stat.st_ctime_ns))


def in_blocks(tokens: np.ndarray | FileNumbers, size: int) -> Iterator[np.ndarray]:
    """Tokens, `size` at a time, so that a whole shard is never in memory."""
    for first in range(0, len(tokens), size):
        yield tokens[first : first + size]
