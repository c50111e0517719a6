"""The bytes of one shard on disk; nothing else knows the format.

A shard is at least three files in a token set's folder (token_sets.py). Three documents of 4, 2 and
3 tokens (counting BOS, here 50256) look like this:

    shards/shard_00000.000.bin   50256 15496 995 0  50256 40  50256 64 65   little-endian uint16
    shards/shard_00000.000.idx   0 4 6 9                                    little-endian uint64
    shards/shard_00000.000.json  the record: source, counts, sizes, checksums

The rename of the record makes the shard count. Chat sets and sets with metadata have further
columns (columns.py).

Files appear whole or not at all (files.py). Nothing in them depends on time, machine or number of
workers: the same input gives the same bytes.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np

from tokenmill.store.columns import (
    COLUMNS,
    LISTED,
    MASK,
    OFFSETS,
    TARGETS,
    columns_of,
    listed_sha256,
)
from tokenmill.store.json_files import read_json
from tokenmill.store.maps import map_file, read_ahead, read_here_and_there
from tokenmill.store.schema import LEFT_OUT_COUNTS
from tokenmill.threads import cached_property

Split = Literal["train", "val"]
SPLITS = get_args(Split)
DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
OFFSET = OFFSETS.numpy_dtype
# what was left out is counted too: null and empty documents, broken lines. Repaired: invalid UTF-8
# became U+FFFD
TEXT_COUNTS = ("text_bytes", *LEFT_OUT_COUNTS)
COUNTS = ("documents", "tokens", *TEXT_COUNTS)
TOTALS = ("documents", "tokens", "text_bytes")


def shard_path(folder: Path, name: str, suffix: str) -> Path:
    """The path of a shard's record (`json`), or of one of its columns, in a token set."""
    return folder / "shards" / f"{name}.{suffix}"


def is_finished(folder: Path, record: dict[str, Any]) -> bool:
    """Whether all files of the shard with this record are there, with their sizes."""
    for suffix in columns_of(record):
        path = shard_path(folder, record["name"], suffix)
        if not path.exists() or path.stat().st_size != record[suffix]["bytes"]:
            return False
    return True


def read_record(path: Path, name: str, advice: str = "") -> dict[str, Any]:
    """The record of a shard. ValueError if it is another shard's."""
    record = read_json(path, "shard")
    actual = record["name"]
    if actual != name:
        raise ValueError(
            f"{path}: expected the record of shard {name}, found that of {actual}{advice}"
        )
    return record


def sources_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """What a record says about each source file of its shard."""
    files: list[dict[str, Any]] = record["source"].get("files", [])
    return files or [record["source"]]


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """What the manifest says about one shard."""

    name: str
    split: Split
    sources: tuple[str, ...]  # the names of the source files
    documents: int
    tokens: int
    text_bytes: int  # UTF-8 bytes of the documents' text
    sha256: tuple[tuple[str, str], ...]  # (suffix, SHA-256) of each column that is listed

    @classmethod
    def of_record(cls, record: dict[str, Any], split: Split) -> Self:
        """The entry of the shard with this record."""
        sources = [source["file"] for source in sources_of(record)]
        return cls.of_listed(record | {"split": split, "sources": sources} | listed_sha256(record))

    @classmethod
    def of_listed(cls, listed: dict[str, Any]) -> Self:
        """From the form of a manifest."""
        return cls(
            name=listed["name"],
            split=listed["split"],
            sources=tuple(listed["sources"]),
            sha256=tuple((suffix, listed[suffix]) for suffix in LISTED if suffix in listed),
            **{key: listed[key] for key in TOTALS},
        )

    def listed(self) -> dict[str, Any]:
        """In the form of a manifest."""
        return {
            "name": self.name,
            "split": self.split,
            "sources": list(self.sources),
            **{key: getattr(self, key) for key in TOTALS},
            **dict(self.sha256),
        }

    def is_of(self, record: dict[str, Any]) -> bool:
        """Whether a record is of this shard, with the same content."""
        return self == ShardEntry.of_record(record, self.split)


class Shard:
    """One shard, mapped into memory: `tokens` (num_tokens,) and `offsets` (num_documents + 1,).

    Raises FileNotFoundError or ValueError if the files are not what the manifest says. The first
    and last offset are checked when a shard is opened; that offsets increase is checked when
    lengths are read.
    """

    # of a shard whose tokens are in several files (remote/): the size of each
    part_bytes: int | None = None
    checked = 0.0  # when `require_unchanged` was last called by a loader, as time.monotonic()

    def __init__(self, folder: Path, entry: ShardEntry, dtype: str):
        self.entry = entry
        self.path = shard_path(folder, entry.name, "bin")
        self.dtype = DTYPES[dtype]
        self.tokens = map_numbers(self.path, self.dtype, entry.tokens)
        self.offsets = self._map_offsets()

    def _map_offsets(self) -> np.ndarray:
        offsets = map_numbers(self.path.with_suffix(".idx"), OFFSET, self.entry.documents + 1)
        if offsets[0] != 0 or offsets[-1] != self.entry.tokens:
            raise self._damaged_offsets()
        return offsets

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each document, including BOS: (num_documents,) int64."""
        return self.lengths_of(0, self.entry.documents)

    def documents_between(self, begin: int, end: int) -> tuple[int, int]:
        """The documents whose first tokens are in `begin` to `end`: (first, one after the last)."""
        bounds = np.array([begin, end], OFFSET)  # of one type, or all offsets are converted
        first, last = np.searchsorted(self.offsets[:-1], bounds).tolist()
        return first, last

    def lengths_of(self, first: int, last: int) -> np.ndarray:
        """Tokens of the documents from `first` to before `last`: (last - first,) int64."""
        lengths = np.diff(self.offsets[first : last + 1].astype(np.int64))
        if (lengths < 1).any():
            raise self._damaged_offsets()
        return lengths

    def bounds(self, document: int) -> tuple[int, int]:
        """The first token of a document, and the one after its last."""
        begin, end = self.offsets[document : document + 2].tolist()
        return begin, end

    def spans_of(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first token of each of these documents, and its length: (len(documents),) int64."""
        begin = self.offsets[documents].astype(np.int64)
        end = self.offsets[documents + 1].astype(np.int64)
        if (end <= begin).any():
            raise self._damaged_offsets()
        return begin, end - begin

    def read(self, begin: int, end: int) -> np.ndarray:
        """Tokens `begin` to `end`: (end - begin,).

        Only the hot path, feed/token_files.py, does not call it.
        """
        tokens: np.ndarray = self.tokens[begin:end]
        return tokens

    def column(self, suffix: str) -> np.ndarray:
        """A column that the manifest lists, mapped. ValueError if there is none.

        "mask" is bytes, of which value k is bit k of np.unpackbits(..., bitorder="little");
        "targets" is (num_documents,) uint32.
        """
        listed = dict(self.entry.sha256)
        if suffix not in listed:
            known = ", ".join(listed)
            raise ValueError(f"{self.path}: the shard has no column {suffix!r}, only {known}")
        column = COLUMNS[suffix]
        count = column.stored(self.entry.documents, self.entry.tokens)
        return map_numbers(self.path.with_suffix(f".{suffix}"), column.numpy_dtype, count)

    @cached_property
    def mask_bytes(self) -> memoryview | None:
        """The bytes of the loss mask, a bit a token; None if every token is in the loss."""
        if MASK.suffix not in dict(self.entry.sha256):
            return None
        return self.column(MASK.suffix).data

    @cached_property
    def target_counts(self) -> np.ndarray:
        """How many tokens of each document of a chat set are in the loss: (num_documents,)."""
        return self.column(TARGETS.suffix)

    def expect_random_reads(self) -> None:
        """Tells the kernel that rows are read from here and there."""
        read_here_and_there(self.tokens)

    def read_ahead(self, begin: int, end: int) -> None:
        """Asks the kernel to read tokens `begin` to `end` ahead."""
        read_ahead(self.tokens[begin:end])

    def require_unchanged(self) -> None:
        """ValueError if the file of the tokens is gone, or has another size than when it was
        opened.

        Reading past the end of a truncated mapped file kills a process, so this comes first.
        `tokenmill verify` compares its bytes.
        """
        try:
            size = os.path.getsize(self.path)
        except FileNotFoundError:
            size = -1
        if size != self.tokens.nbytes:
            raise ValueError(
                f"{self.path}: deleted, truncated or replaced while it was being read; what comes "
                "next is not what was prepared. Put the file back, or prepare again, and resume"
            )

    def _damaged_offsets(self) -> ValueError:
        path = self.path.with_suffix(".idx")
        record = path.with_suffix(".json")
        return ValueError(
            f"{path}: expected offsets increasing from 0 to {self.entry.tokens}, found damage; "
            f"delete {record} and prepare again"
        )


def map_numbers(path: Path, dtype: np.dtype[Any], count: int, advice: str = "") -> np.ndarray:
    """Maps exactly `count` numbers of a file, read-only.

    FileNotFoundError or ValueError if it has others; the message ends with `advice`.
    """
    advice = advice or "the shard is damaged; delete its .json record and prepare again"
    try:
        content = map_file(path, np.dtype(np.uint8))
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{path}: no such file, though the manifest lists it; {advice}"
        ) from error
    expected = count * dtype.itemsize
    if len(content) != expected:
        raise ValueError(f"{path}: expected {expected:,} bytes, found {len(content):,}; {advice}")
    return content.view(dtype)


def in_blocks(tokens: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Tokens, `size` at a time, so that a whole shard is never in memory."""
    for first in range(0, len(tokens), size):
        yield tokens[first : first + size]
