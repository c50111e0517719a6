"""The bytes on disk; nothing else knows the format.

A token set is a folder. One shard of it is three files; three documents of 4, 2 and 3 tokens
(BOS counted, here 50256) look like this:

    shards/shard_00000.000.bin   50256 15496 995 0  50256 40  50256 64 65   little-endian uint16
    shards/shard_00000.000.idx   0 4 6 9                                    little-endian uint64
    shards/shard_00000.000.json  the record: source, counts, sizes, checksums; its rename makes the shard count
    manifest.json                the shards in order, each with its split; its rename makes the folder a token set
    tokenizer.json               the whole tokenizer
    token_bytes.npy              bytes of text that each token id stands for, 0 for special tokens

Files appear whole or not at all (files.py). Nothing in them depends on time, machine or number of
workers: the same input gives the same bytes.

Left out: reading text, tokenizing, and which file is in which split.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from tokenmill.files import AtomicFile, header, read_json, write_file, write_json

SPLITS = ("train", "val")
DTYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
OFFSET = np.dtype("<u8")
# what was left out is counted too: null and empty documents, broken lines; repaired: what was not UTF-8 became U+FFFD
TEXT_COUNTS = ("text_bytes", "null_documents", "empty_documents", "repaired_documents", "broken_lines")
COUNTS = ("documents", "tokens", *TEXT_COUNTS)


def dtype_name(vocab_size: int) -> str:
    """The narrowest type that holds every id below vocab_size: "uint16" up to 65,536."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


class ShardWriter:
    """Writes one shard, a few documents at a time. Nothing counts before `finish`.

    with ShardWriter(folder, "shard_00000.000", "uint16") as writer:
        writer.write(tokens, lengths)
        writer.finish({"source": ...})
    """

    def __init__(self, folder: Path, name: str, dtype: str):
        self.folder, self.name, self.dtype = folder, name, dtype
        self.num_documents = self.num_tokens = 0
        self._lengths = [np.zeros(1, dtype=OFFSET)]
        (folder / "shards").mkdir(exist_ok=True)
        self._bin = AtomicFile(shard_path(folder, name, "bin"))

    def write(self, tokens: np.ndarray, lengths: np.ndarray) -> None:
        """Appends documents: their tokens (num_tokens,) one after the other, their lengths."""
        self._bin.write(np.ascontiguousarray(tokens, dtype=DTYPES[self.dtype]).data)
        self._lengths.append(np.asarray(lengths, dtype=OFFSET))
        self.num_documents += len(lengths)
        self.num_tokens += len(tokens)

    def finish(self, facts: dict) -> dict:
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
        write_json(shard_path(self.folder, self.name, "json"), record)
        return record

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._bin.discard()


def shard_path(folder: Path, name: str, suffix: str) -> Path:
    """Where a shard's `bin`, `idx` or `json` lies in a token set."""
    return folder / "shards" / f"{name}.{suffix}"


def finished_record(folder: Path, name: str) -> dict | None:
    """The record of a shard that is done, or None: no record, or files of another size than it says."""
    path = shard_path(folder, name, "json")
    if not path.exists():
        return None
    record = read_json(path, "shard")
    files = [(shard_path(folder, name, suffix), record[suffix]["bytes"]) for suffix in ("bin", "idx")]
    return record if all(f.exists() and f.stat().st_size == size for f, size in files) else None


@dataclass(frozen=True)
class ShardEntry:
    """What the manifest says of one shard."""

    name: str
    split: str
    source: str  # the source file's name
    documents: int
    tokens: int
    text_bytes: int  # UTF-8 bytes of the documents' text
    bin_sha256: str
    idx_sha256: str


def write_manifest(
    folder: Path, dataset: str, tokenizer: dict, shards: list[tuple[dict, str]], origin: dict | None = None
) -> None:
    """Makes the folder a token set. `shards` are (record, split) in their order; the rest is summed up.

    `origin` is what is known of where the source files are from.
    """
    records = [record for record, _ in shards]
    manifest = header("tokens") | {
        "dataset": dataset,
        "dtype": dtype_name(tokenizer["vocab_size"]),
        "tokenizer": tokenizer,
        **{count: sum(record.get(count, 0) for record in records) for count in COUNTS},  # old records lack new counts
        **(origin or {}),
        "shards": [asdict(_entry(record, split)) for record, split in shards],
    }
    write_json(folder / "manifest.json", manifest)


def _entry(record: dict, split: str) -> ShardEntry:
    return ShardEntry(
        name=record["name"],
        split=split,
        source=record["source"]["file"],
        documents=record["documents"],
        tokens=record["tokens"],
        text_bytes=record["text_bytes"],
        bin_sha256=record["bin"]["sha256"],
        idx_sha256=record["idx"]["sha256"],
    )


class Shard:
    """One shard, memory-mapped: `tokens` (num_tokens,), `offsets` (num_documents + 1,).

    Raises FileNotFoundError or ValueError where the files are not what the manifest says. The ends of
    the offsets are checked when a shard is opened, that they increase when `lengths` reads them.
    """

    def __init__(self, folder: Path, entry: ShardEntry, dtype: str):
        self.entry = entry
        self.path = shard_path(folder, entry.name, "bin")
        self.tokens = _map(self.path, DTYPES[dtype], entry.tokens)
        self.offsets = _map(self.path.with_suffix(".idx"), OFFSET, entry.documents + 1)
        self.stamp = _stamp(self.path)
        if (int(self.offsets[0]), int(self.offsets[-1])) != (0, entry.tokens):
            raise self._damaged_offsets()

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each document, BOS counted: (num_documents,) int64."""
        lengths = np.diff(self.offsets.astype(np.int64))
        if (lengths < 1).any():
            raise self._damaged_offsets()
        return lengths

    def require_unchanged(self) -> None:
        """ValueError where the tokens' file is no longer the one that was opened.

        Reading past the end of a mapped file that was truncated kills a process, so this comes first.
        """
        if _stamp(self.path) != self.stamp:
            raise ValueError(
                f"{self.path}: deleted, truncated or replaced while it was being read; "
                "what comes next is not what was prepared. Put the file back, or run prepare_data.py, and resume"
            )

    def _damaged_offsets(self) -> ValueError:
        path = self.path.with_suffix(".idx")
        return ValueError(
            f"{path}: expected offsets increasing from 0 to {self.entry.tokens}, "
            f"found damage; delete {path.with_suffix('.json')} and run prepare_data.py again"
        )


def _map(path: Path, dtype: np.dtype, count: int) -> np.ndarray:
    """Maps exactly `count` numbers of a file, read-only."""
    advice = "the shard is damaged; delete its .json record and run prepare_data.py again"
    expected = count * dtype.itemsize
    try:
        if (found := path.stat().st_size) != expected:
            raise ValueError(f"{path}: expected {expected:,} bytes, found {found:,}; {advice}")
        return np.memmap(path, dtype, mode="r") if count else np.empty(0, dtype)
    except FileNotFoundError as error:  # at either
        raise FileNotFoundError(f"{path}: no such file, though the manifest lists it; {advice}") from error


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes where a file is written to, truncated or replaced; None where it is gone."""
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def in_blocks(tokens: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Tokens, `size` at a time, so that a shard is never in memory as a whole."""
    for first in range(0, len(tokens), size):
        yield tokens[first : first + size]


class TokenSet:
    """A folder of shards that one tokenizer made. Reads the manifest; shards are opened one by one.

    Raises FileNotFoundError where the folder or its manifest is missing, ValueError where the
    manifest is of another version.
    """

    def __init__(self, path):
        self.path = Path(path)
        manifest = self.path / "manifest.json"
        if not manifest.exists():
            found = "a folder without manifest.json" if self.path.is_dir() else "no such folder"
            raise FileNotFoundError(
                f"{self.path.absolute()}: expected a finished token set, found {found}; "
                "run prepare_data.py (again, if it was interrupted)"
            )
        self.manifest = read_json(manifest, "tokens")
        self.dtype: str = self.manifest["dtype"]
        self.tokenizer: dict = self.manifest["tokenizer"]  # name, fingerprint, vocab_size, bos_token, bos_id
        self.bos_id: int = self.tokenizer["bos_id"]
        self.numpy_dtype = DTYPES[self.dtype]
        self.entries = [ShardEntry(**entry) for entry in self.manifest["shards"]]
        self._stamps: dict[str, tuple] = {}

    def split(self, split: str) -> list[ShardEntry]:
        """The shards of "train" or "val", in order."""
        if split not in SPLITS:
            raise ValueError(f"split must be one of {SPLITS}, not {split!r}")
        return [entry for entry in self.entries if entry.split == split]

    def digest(self, split: str) -> str:
        """16 hex digits that change when any byte, or the order, of a split's shards does."""
        sums = [(e.name, e.bin_sha256, e.idx_sha256) for e in self.split(split)]
        return hashlib.sha256(repr(sums).encode()).hexdigest()[:16]

    def open(self, entry: ShardEntry) -> Shard:
        """Maps a shard. ValueError where it is another file than when it was opened last."""
        shard = Shard(self.path, entry, self.dtype)
        if self._stamps.setdefault(entry.name, shard.stamp) != shard.stamp:
            raise ValueError(f"{shard.path}: another file than when it was opened last; put the old one back")
        return shard

    def record(self, entry: ShardEntry) -> dict:
        """What was written down when the shard was made: its source, row groups and documents in each."""
        return read_json(shard_path(self.path, entry.name, "json"), "shard")


def find_token_set(root: Path) -> Path:
    """The one token set under root; FileNotFoundError for none, ValueError that lists several."""
    found = sorted(path.parent for path in Path(root).glob("*/manifest.json"))
    if not found:
        raise FileNotFoundError(
            f"{Path(root).absolute()}: expected a token set, found none; run `python prepare_data.py` first, "
            "or name its folder with tokens="
        )
    if len(found) > 1:
        listed = "\n  ".join(str(path) for path in found)
        raise ValueError(f"{root}: several token sets; name one of them with tokens=\n  {listed}")
    return found[0]
