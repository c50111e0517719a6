"""A folder of shards that one tokenizer made, and its manifest, which makes it a token set.

manifest.json       the shards in order, each with its split, counts and checksums; what they add up to
manifests/          every manifest that ever was, <digest>.json: a position names the one that its epoch goes over
tokenizer.json      the whole tokenizer
token_bytes.npy     bytes of text that each token id stands for, 0 for special tokens
shards/             three files a shard, and the columns that chat sets and metadata add (shards.py, columns.py)
"""

import copy
import hashlib
import io
import os
from pathlib import Path
from typing import Any, Self

import numpy as np

from tokenmill.addresses import is_address
from tokenmill.checks import one_of
from tokenmill.messages import counted, redact
from tokenmill.store.columns import LISTED
from tokenmill.store.files import header, read_json, sha256_of_file, write_changed, write_json
from tokenmill.store.schema import CHAT_COUNTS, dtype_name
from tokenmill.store.set_names import set_folder
from tokenmill.store.shards import (
    COUNTS,
    DTYPES,
    SPLITS,
    Shard,
    ShardEntry,
    Split,
    shard_path,
)
from tokenmill.store.views import DIGEST, FOLDER, View, read_view

SMALL_FILES = ("tokenizer.json", "token_bytes.npy")


def write_manifest(
    folder: Path,
    dataset: str,
    tokenizer: dict[str, Any],
    shards: list[tuple[dict[str, Any], Split]],
    origin: dict[str, Any] | None = None,
) -> None:
    """Makes the folder a token set. `shards` are (record, split) in their order; the rest is summed up.

    The folder has tokenizer.json and token_bytes.npy already. `origin` says where the source files are from.
    """
    records = [record for record, _ in shards]
    manifest = header("tokens") | {
        "dataset": dataset,
        "dtype": dtype_name(tokenizer["vocab_size"]),
        "tokenizer": tokenizer,
        **{count: sum(record[count] for record in records) for count in COUNTS},
        **{
            name: sum(r.get(name, 0) for r in records)
            for name in CHAT_COUNTS
            if "chat" in tokenizer
        },
        **(origin or {}),
        "files": checksums_of_files(folder),
        "records": {
            record["name"]: sha256_of_file(shard_path(folder, record["name"], "json"))
            for record in records
        },
        "shards": [ShardEntry.of_record(record, split).listed() for record, split in shards],
    }
    (folder / "manifests").mkdir(exist_ok=True)
    for path in (kept_manifest(folder, digest_of(manifest)), folder / "manifest.json"):
        write_json(path, manifest)


def checksums_of_files(folder: Path) -> dict[str, str]:
    """The SHA-256 of tokenizer.json and token_bytes.npy, as far as the folder has them."""
    return {name: sha256_of_file(folder / name) for name in SMALL_FILES if (folder / name).exists()}


def write_token_bytes(folder: Path, token_bytes: np.ndarray) -> None:
    """Writes how many bytes of text each token id stands for: (vocab_size,)."""
    data = io.BytesIO()
    np.save(data, token_bytes)
    write_changed(folder / "token_bytes.npy", data.getvalue())


def kept_manifest(folder: Path, digest: str) -> Path:
    """The path of a manifest in manifests/. ValueError if this is not a digest, as positions come from others."""
    if not DIGEST.fullmatch(digest):
        raise ValueError(f"expected the digest of a manifest, 16 hex digits, found {digest!r}")
    return folder / "manifests" / f"{digest}.json"


def require_kept_manifests(folder: Path) -> None:
    """ValueError if manifests/ has a file that is not a manifest called after its digest."""
    for path in sorted((folder / "manifests").glob("*.json")):
        found = digest_of(read_json(path, "tokens"))
        if found != path.stem:
            raise ValueError(
                f"{path}: expected a manifest that is called after its digest, {found}; move it elsewhere"
            )


def digest_of(manifest: dict[str, Any]) -> str:
    """16 hex digits that change when any token, document, listed column or split changes, or the order of shards."""
    shards = [
        (one["name"], one["split"], one["documents"], one["tokens"], *map(one.get, LISTED))
        for one in manifest["shards"]
    ]
    return hashlib.sha256(
        repr((manifest["tokenizer"]["fingerprint"], shards)).encode()
    ).hexdigest()[:16]


class TokenSet:
    """A folder of shards that one tokenizer made. Reads the manifest (its shards are `entries`); opens them one by one.

    Raises FileNotFoundError if the folder or its manifest is missing, ValueError if the manifest is of another version.
    """

    address: str  # its folder, or its address (remote/token_set.py)
    view: View | None = None  # how often each document counts; None: once

    def __init__(self, path: str | os.PathLike[str]):
        if is_address(path):
            raise ValueError(
                f"{redact(os.fspath(path))}: expected a folder on this disk, found an address; RowLoader and "
                "the commands take addresses, and `tokenmill pull` fetches a whole set"
            )
        self.path = Path(os.path.abspath(set_folder(path)))  # whatever folder the process goes to
        self.address = str(self.path)
        manifest = self.path / "manifest.json"
        if not manifest.exists():
            if below := sorted(self.path.glob("*/manifest.json")):
                raise FileNotFoundError(
                    f"{self.path}: expected a token set, found a folder of {counted(len(below), 'token set')}; name "
                    f"one of them, as {below[0].parent}"
                )
            found = "a folder without manifest.json" if self.path.is_dir() else "no such folder"
            found = "a file" if self.path.is_file() else found
            raise FileNotFoundError(
                f"{self.path}: expected a finished token set, found {found}; run `tokenmill prepare`, or "
                "prepare_data.py, first (again, if it was interrupted); `tokenmill list` prints the sets that are there"
            )
        self._take(read_json(manifest, "tokens"))

    def _take(self, manifest: dict[str, Any]) -> None:
        self.digest = digest_of(manifest)
        self.entries = [ShardEntry.of_listed(listed) for listed in manifest["shards"]]
        self.manifest = {key: value for key, value in manifest.items() if key != "shards"}
        self.records: dict[str, str] = manifest[
            "records"
        ]  # the SHA-256 of each shard's record, by name
        self.dtype: str = manifest["dtype"]
        self.tokenizer: dict[str, Any] = manifest[
            "tokenizer"
        ]  # name, fingerprint, vocab_size, bos_token, bos_id
        self.bos_id: int = self.tokenizer["bos_id"]
        self.numpy_dtype = DTYPES[self.dtype]
        self.is_chat = "chat" in self.tokenizer  # its documents are conversations, with a loss mask

    def split(self, split: str) -> list[ShardEntry]:
        """The shards of "train" or "val", in order."""
        one_of("split", split, SPLITS)
        return [entry for entry in self.entries if entry.split == split]

    @property
    def display_name(self) -> str:
        """Its folder or address, to be shown."""
        return self.address

    @property
    def name(self) -> str:
        """The last part of its folder or address."""
        return self.path.name

    def have(self, name: str, facts: dict[str, Any] | None = None) -> Path:
        """The path of one of its files, with these "sha256" and "bytes"; a set at an address fetches it."""
        return self.path / name

    def bring(self, entries: list[ShardEntry]) -> None:
        """Fetches the offsets and records of many shards at once. On this disk there is nothing to do."""

    def file(self, name: str) -> Path:
        """The path of one of its small files: tokenizer.json, token_bytes.npy."""
        return self.have(name, {"sha256": self.manifest["files"].get(name)})

    def column_path(self, entry: ShardEntry, suffix: str) -> Path:
        """The path of an optional column of a shard."""
        return self.have(f"shards/{entry.name}.{suffix}", self.record(entry)[suffix])

    # ------------------------------------------------------------------------ views

    def viewed(self, view: str | None) -> "TokenSet":
        """The set with a view, by name or digest; None or "" for none. Raises what `read_view` raises."""
        found = copy.copy(self)
        found.view = read_view(self, view) if view else None
        return found

    def view_names(self) -> list[str]:
        """The names of its views."""
        return [name for name in self.view_stems() if not DIGEST.fullmatch(name)]

    def view_stems(self) -> list[str]:
        """The names and digests of its views, former ones too."""
        return [path.stem for path in sorted((self.path / FOLDER).glob("*.json"))]

    def view_file(self, name: str, facts: dict[str, Any] | None = None) -> Path:
        """The path of a file of a view: of its JSON, or of an array with these "sha256" and "bytes"."""
        return self.have(f"{FOLDER}/{name}", facts)

    def times_of(self, entry: ShardEntry) -> np.ndarray:
        """How often each document of a shard counts: (documents,) int64, 1 without a view."""
        return (
            np.ones(entry.documents, np.int64)
            if self.view is None
            else self.view.counts_of(entry).astype(np.int64)
        )

    @property
    def view_digest(self) -> str:
        """The digest of its view; "" for none."""
        return "" if self.view is None else self.view.digest

    # ------------------------------------------------------------------------ former manifests

    def digests(self) -> list[str]:
        """The digests of the manifests that it has had."""
        return [path.stem for path in sorted((self.path / "manifests").glob("*.json"))]

    def knows(self, digest: str) -> bool:
        """Whether the set has, or once had, the manifest with this digest."""
        return digest == self.digest or self._kept_manifest(digest) is not None

    def _kept_manifest(self, digest: str) -> dict[str, Any] | None:
        """A manifest that it has had, or None. ValueError if the file with its name is another one."""
        try:
            path = self.have(f"manifests/{kept_manifest(self.path, digest).name}")
            manifest = read_json(path, "tokens")
        except FileNotFoundError:
            return None
        if (found := digest_of(manifest)) != digest:
            raise ValueError(
                f"{self.display_name}: manifests/{path.name}: expected the manifest with this digest, found {found}; "
                "put the right file back"
            )
        return manifest

    def as_it_was(self, digest: str, split: str) -> Self:
        """The set as it was when its manifest had this digest. ValueError if that manifest is not known, or a shard of
        the split is gone or was replaced since.
        """
        if digest == self.digest:
            return self
        if (manifest := self._kept_manifest(digest)) is None:
            raise ValueError(
                f"{self.display_name}: this was never the token set with manifest {digest}: expected "
                f"manifests/{digest}.json, found no such file; name the set that it was, or put the file back"
            )
        was, now = self._taken(manifest), {(entry.name, entry.sha256) for entry in self.entries}
        for entry in was.split(split):
            if (entry.name, entry.sha256) not in now:
                raise ValueError(
                    f"{self.display_name}: expected shard {entry.name} of {entry.sources[0]}, with {entry.tokens:,} "
                    "tokens, as the set once had it, found none; put that file back, prepare again, and resume"
                )
        return was

    def _taken(self, manifest: dict[str, Any]) -> Self:
        was = copy.copy(self)
        was.view = None  # it is of another manifest
        was._take(manifest)
        return was

    def open(self, entry: ShardEntry) -> Shard:
        """Maps a shard."""
        return Shard(self.path, entry, self.dtype)

    def record(self, entry: ShardEntry) -> dict[str, Any]:
        """The record of a shard: its source, row groups and the documents in each, counts and checksums."""
        path = shard_path(self.path, entry.name, "json")
        record = read_json(path, "shard")
        if record["name"] != entry.name:
            raise ValueError(
                f"{path}: expected the record of shard {entry.name}, found that of {record['name']}"
            )
        return record
