"""The bytes of one shard on disk; nothing else knows the format.

A shard is three files in a token set's folder (token_sets.py); three documents of 4, 2 and 3 tokens
(BOS counted, here 50256) look like this:

    shards/shard_00000.000.bin   50256 15496 995 0  50256 40  50256 64 65   little-endian uint16
    shards/shard_00000.000.idx   0 4 6 9                                    little-endian uint64
    shards/shard_00000.000.json  the record: source, counts, sizes, checksums; its rename makes the shard count

and, where preparing was asked to keep them, shards/shard_00000.000.ids: the publisher's own id of each document, a
line of JSON each.

Files appear whole or not at all (files.py). Nothing in them depends on time, machine or number of
workers: the same input gives the same bytes.

Left out: reading text, tokenizing, and which file is in which split.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np

from tokenmill.once import once
from tokenmill.store.files import AtomicFile, header, read_json, write_file, write_json
from tokenmill.store.maps import map_file
from tokenmill.store.schema import LATER_COUNTS

Split = Literal["train", "val"]
SPLITS = get_args(Split)
DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
OFFSET = np.dtype("<u8")
# what was left out is counted too: null and empty documents, broken lines; repaired: what was not UTF-8 became U+FFFD
TEXT_COUNTS = ("text_bytes", *LATER_COUNTS)
COUNTS = ("documents", "tokens", *TEXT_COUNTS)


class ShardWriter:
    """Writes one shard, a few documents at a time. Nothing counts before `finish`.

    with ShardWriter(folder, "shard_00000.000", "uint16") as writer:
        writer.write(tokens, lengths)
        writer.finish({"source": ...})
    """

    def __init__(self, folder: Path, name: str, dtype: str, with_ids: bool = False):
        self.folder, self.name, self.dtype = folder, name, dtype
        self.num_documents = self.num_tokens = 0
        self._lengths = [np.zeros(1, dtype=OFFSET)]
        (folder / "shards").mkdir(exist_ok=True)
        self._bin = AtomicFile(shard_path(folder, name, "bin"))
        self._ids = AtomicFile(shard_path(folder, name, "ids")) if with_ids else None

    def write(self, tokens: np.ndarray, lengths: Sequence[int] | np.ndarray) -> None:
        """Appends documents: their tokens (num_tokens,) one after the other, their lengths."""
        self._bin.write(np.ascontiguousarray(tokens, dtype=DTYPES[self.dtype]).data)
        self._lengths.append(np.asarray(lengths, dtype=OFFSET))
        self.num_documents += len(lengths)
        self.num_tokens += len(tokens)

    def write_ids(self, ids: Iterable[object]) -> None:
        """Appends what the publisher calls the documents, a line of JSON each."""
        assert self._ids is not None, "a writer with ids"
        lines = (json.dumps(id, ensure_ascii=False, default=str) + "\n" for id in ids)
        self._ids.write("".join(lines).encode("utf-8", "replace"))

    def finish(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Makes the shard count; returns its record: the counts, the checksums, and `facts`."""
        offsets = np.cumsum(np.concatenate(self._lengths), dtype=OFFSET)
        assert offsets[-1] == self.num_tokens, "the lengths do not add up to the tokens"
        record = header("shard") | {
            "name": self.name,
            "dtype": self.dtype,
            "documents": self.num_documents,
            "tokens": self.num_tokens,
            **facts,
            "bin": self._bin.commit(),
            "idx": write_file(shard_path(self.folder, self.name, "idx"), offsets.data),
        }
        if self._ids is not None:
            record["ids"] = self._ids.commit()
        write_json(shard_path(self.folder, self.name, "json"), record)
        return record

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.discard()

    def discard(self) -> None:
        """Leaves nothing of a shard that is not finished."""
        self._bin.discard()
        if self._ids is not None:
            self._ids.discard()


def shard_path(folder: Path, name: str, suffix: str) -> Path:
    """Where a shard's `bin`, `idx` or `json` lies in a token set."""
    return folder / "shards" / f"{name}.{suffix}"


def finished_record(folder: Path, name: str) -> dict[str, Any] | None:
    """The record of a shard that is done, or None: no record, or files of another size than it says."""
    path = shard_path(folder, name, "json")
    if not path.exists():
        return None
    record = read_json(path, "shard")
    if record["name"] != name:
        raise ValueError(f"{path}: expected the record of shard {name}, found that of {record['name']}; delete it")
    files = [(shard_path(folder, name, suffix), record[suffix]["bytes"]) for suffix in suffixes_of(record)]
    return record if all(f.exists() and f.stat().st_size == size for f, size in files) else None


def suffixes_of(record: dict[str, Any]) -> tuple[str, ...]:
    """The files that a shard has beside its record."""
    return ("bin", "idx", "ids") if "ids" in record else ("bin", "idx")


def sources_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """What a record says of each source file that its shard was made of."""
    several: list[dict[str, Any]] = record["source"].get("files", [])
    return several or [record["source"]]


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """What the manifest says of one shard."""

    name: str
    split: Split
    source: str  # the source file's name; the first one's where several share the shard
    documents: int
    tokens: int
    text_bytes: int  # UTF-8 bytes of the documents' text
    bin_sha256: str
    idx_sha256: str
    more_sources: tuple[str, ...] = ()  # the others

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the source files."""
        return (self.source, *self.more_sources)


class Shard:
    """One shard, memory-mapped: `tokens` (num_tokens,), `offsets` (num_documents + 1,).

    Raises FileNotFoundError or ValueError where the files are not what the manifest says. The ends of
    the offsets are checked when a shard is opened, that they increase when lengths are read.
    """

    def __init__(self, folder: Path, entry: ShardEntry, dtype: str):
        self.entry = entry
        self.path = shard_path(folder, entry.name, "bin")
        self.stamp = _stamp(self.path)
        self.tokens = _map(self.path, DTYPES[dtype], entry.tokens)
        self.offsets = _map(self.path.with_suffix(".idx"), OFFSET, entry.documents + 1)
        if (int(self.offsets[0]), int(self.offsets[-1])) != (0, entry.tokens):
            raise self._damaged_offsets()

    @once
    def lengths(self) -> np.ndarray:
        """Tokens of each document, BOS counted: (num_documents,) int64."""
        return self.lengths_of(0, self.entry.documents)

    def documents_between(self, begin: int, end: int) -> tuple[int, int]:
        """The documents whose first tokens lie from token `begin` to `end`: (first, one after the last)."""
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

    def read(self, begin: int, end: int) -> np.ndarray:
        """Tokens `begin` to `end`: (end - begin,). All but what rows are joined of (batches/table.py) reads by this."""
        found: np.ndarray = self.tokens[begin:end]
        return found

    def in_blocks(self, size: int) -> Iterator[np.ndarray]:
        """All tokens, `size` at a time."""
        return in_blocks(self.tokens, size)

    def is_there(self, begin: int, end: int) -> bool:
        """Whether tokens `begin` to `end` are on this disk: of a file here they always are."""
        return True

    def require_unchanged(self) -> None:
        """ValueError where the tokens' file is no longer the one that was opened, nor one of the same bytes.

        Reading past the end of a mapped file that was truncated kills a process, so this comes first.
        """
        found = _stamp(self.path)
        if found == self.stamp:
            return
        if found is None or found.size != self.tokens.nbytes or not self._is_as_listed():
            raise ValueError(
                f"{self.path}: deleted, truncated or replaced while it was being read; "
                "what comes next is not what was prepared. Put the file back, or prepare again, and resume"
            )
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
    """What changes where a file is written to, truncated or replaced."""

    inode: int
    size: int
    changed: int


def _map(path: Path, dtype: np.dtype[Any], count: int) -> np.ndarray:
    """Maps exactly `count` numbers of a file, read-only."""
    advice = "the shard is damaged; delete its .json record and prepare again"
    try:
        numbers = map_file(path, dtype) if os.path.getsize(path) == count * dtype.itemsize else None
        if numbers is None or len(numbers) != count:
            found = os.path.getsize(path)
            raise ValueError(f"{path}: expected {count * dtype.itemsize:,} bytes, found {found:,}; {advice}")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: no such file, though the manifest lists it; {advice}") from error
    return numbers


def _stamp(path: Path) -> Stamp | None:
    """None where the file is gone."""
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        return None
    return Stamp(stat.st_ino, stat.st_size, max(stat.st_mtime_ns, stat.st_ctime_ns))


def in_blocks(tokens: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Tokens, `size` at a time, so that a shard is never in memory as a whole."""
    for first in range(0, len(tokens), size):
        yield tokens[first : first + size]
