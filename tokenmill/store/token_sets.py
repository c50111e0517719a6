"""A folder of shards that one tokenizer made, and its manifest, which makes it a token set.

manifest.json       the shards in order, each with its split, counts and checksums; what they add up to
tokenizer.json      the whole tokenizer
token_bytes.npy     bytes of text that each token id stands for, 0 for special tokens
shards/             three files a shard (shards.py)
"""

import hashlib
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokenmill.checks import one_of
from tokenmill.store.files import header, read_json, write_json
from tokenmill.store.shards import COUNTS, DTYPES, SPLITS, Shard, ShardEntry, Split, dtype_name, shard_path


def write_manifest(
    folder: Path,
    dataset: str,
    tokenizer: dict[str, Any],
    shards: list[tuple[dict[str, Any], Split]],
    origin: dict[str, Any] | None = None,
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


def _entry(record: dict[str, Any], split: Split) -> ShardEntry:
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


class TokenSet:
    """A folder of shards that one tokenizer made. Reads the manifest; shards are opened one by one.

    Raises FileNotFoundError where the folder or its manifest is missing, ValueError where the
    manifest is of another version.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        manifest = self.path / "manifest.json"
        if not manifest.exists():
            found = "a folder without manifest.json" if self.path.is_dir() else "no such folder"
            raise FileNotFoundError(
                f"{self.path.absolute()}: expected a finished token set, found {found}; "
                "run `tokenmill prepare`, or prepare_data.py, first (again, if it was interrupted)"
            )
        self.manifest = read_json(manifest, "tokens")
        self.dtype: str = self.manifest["dtype"]
        self.tokenizer: dict[str, Any] = self.manifest["tokenizer"]  # name, fingerprint, vocab_size, bos_token, bos_id
        self.bos_id: int = self.tokenizer["bos_id"]
        self.numpy_dtype = DTYPES[self.dtype]
        self.entries = [ShardEntry(**entry) for entry in self.manifest["shards"]]
        self._stamps: dict[str, tuple[int, int, int] | None] = {}

    def split(self, split: str) -> list[ShardEntry]:
        """The shards of "train" or "val", in order."""
        one_of("split", split, SPLITS)
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

    def record(self, entry: ShardEntry) -> dict[str, Any]:
        """What was written down when the shard was made: its source, row groups and documents in each."""
        return read_json(shard_path(self.path, entry.name, "json"), "shard")


def find_token_set(root: str | os.PathLike[str]) -> Path:
    """The one token set under root; FileNotFoundError for none, ValueError that lists several."""
    found = sorted(path.parent for path in Path(root).glob("*/manifest.json"))
    if not found:
        raise FileNotFoundError(
            f"{Path(root).absolute()}: expected a token set, found none; run `tokenmill prepare` "
            "(in a clone `python prepare_data.py`) first, or name its folder with tokens="
        )
    if len(found) > 1:
        listed = "\n  ".join(str(path) for path in found)
        raise ValueError(f"{root}: several token sets; name one of them with tokens=\n  {listed}")
    return found[0]
