"""A folder of shards that one tokenizer made: its manifest makes it a token set (manifests.py).

tokenizer.json    the whole tokenizer
token_bytes.npy   bytes of text that each token id stands for, 0 for special tokens
shards/           three files a shard, and columns of chat sets and metadata (shards.py, columns.py)
"""

import copy
import os
from pathlib import Path
from typing import Any, Self
from weakref import WeakValueDictionary

import numpy as np

from tokenmill.addresses import is_address
from tokenmill.checks import one_of
from tokenmill.messages import counted, redact
from tokenmill.store.json_files import read_json
from tokenmill.store.manifests import digest_of, kept_manifest
from tokenmill.store.set_names import set_folder
from tokenmill.store.shards import (
    DTYPES,
    SPLITS,
    Shard,
    ShardEntry,
    read_record,
    shard_path,
)
from tokenmill.store.views import DIGEST, FOLDER, View, read_view


class _OpenShards(WeakValueDictionary[ShardEntry, Shard]):
    """Shards that are in use. A pickled set has none."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return _OpenShards, ()


class TokenSet:
    """A folder of shards that one tokenizer made. Reads the manifest; opens shards one by one.

    `entries` are its shards, in order. Raises FileNotFoundError if the folder or its manifest is
    missing, ValueError if the manifest is of another version.
    """

    address: str  # its folder, or its address (remote/token_set.py)
    view: View | None = None  # how often each document counts; None: once

    def __init__(self, path: str | os.PathLike[str]):
        if is_address(path):
            address = redact(os.fspath(path))
            raise ValueError(
                f"{address}: expected a folder on this disk, found an address; RowLoader and "
                "the commands take addresses, and `tokenmill pull` fetches a whole set"
            )
        self.path = Path(os.path.abspath(set_folder(path)))  # whatever folder the process goes to
        self.address = str(self.path)
        _require_manifest(self.path)
        self._load(read_json(self.path / "manifest.json", "tokens"))

    def _load(self, manifest: dict[str, Any]) -> None:
        self._open_shards = _OpenShards()
        self.digest = digest_of(manifest)
        self.entries = [ShardEntry.of_listed(listed) for listed in manifest["shards"]]
        self.manifest = {key: value for key, value in manifest.items() if key != "shards"}
        # the SHA-256 of each shard's record, by name
        self.records: dict[str, str] = manifest["records"]
        self.dtype: str = manifest["dtype"]
        self.numpy_dtype = DTYPES[self.dtype]
        # name, fingerprint, vocab_size, bos_token, bos_id
        self.tokenizer: dict[str, Any] = manifest["tokenizer"]
        self.bos_id: int = self.tokenizer["bos_id"]
        self.is_chat = "chat" in self.tokenizer  # its documents are conversations, with a loss mask

    def split(self, split: str) -> list[ShardEntry]:
        """The shards of "train" or "val", in order."""
        one_of("split", split, SPLITS)
        return [entry for entry in self.entries if entry.split == split]

    def __repr__(self) -> str:
        documents = counted(self.manifest["documents"], "document")
        tokens = counted(self.manifest["tokens"], "token")
        view = "" if self.view is None else f", view {self.view.name}"
        name = self.tokenizer["name"]
        return f"<TokenSet {self.display_name}: {documents}, {tokens}, tokenizer {name}{view}>"

    @property
    def display_name(self) -> str:
        """Its folder or address, to be shown."""
        return self.address

    @property
    def name(self) -> str:
        """The last part of its folder or address."""
        return self.path.name

    def path_of(self, name: str, facts: dict[str, Any] | None = None) -> Path:
        """The path of one of its files; a set at an address fetches it, and checks these `facts`.

        `facts` are its "sha256" and "bytes".
        """
        return self.path / name

    def fetch(self, entries: list[ShardEntry]) -> None:
        """Fetches the offsets and records of many shards at once. On this disk they are there."""

    def file(self, name: str) -> Path:
        """The path of one of its small files: tokenizer.json, token_bytes.npy."""
        return self.path_of(name, {"sha256": self.manifest["files"].get(name)})

    def column_path(self, entry: ShardEntry, suffix: str) -> Path:
        """The path of an optional column of a shard."""
        return self.path_of(f"shards/{entry.name}.{suffix}", self.record(entry)[suffix])

    def open(self, entry: ShardEntry) -> Shard:
        """Maps a shard, unless this set, or it with another view, has it open."""
        shard = self._open_shards.get(entry)
        if shard is None:
            shard = self._map(entry)
            self._open_shards[entry] = shard
        return shard

    def _map(self, entry: ShardEntry) -> Shard:
        return Shard(self.path, entry, self.dtype)

    def record(self, entry: ShardEntry) -> dict[str, Any]:
        """The record of a shard: its source, row groups, counts and checksums."""
        return read_record(shard_path(self.path, entry.name, "json"), entry.name)

    # ------------------------------------------------------------------------ views

    def viewed(self, view: str | None) -> "TokenSet":
        """The set with a view, by name or digest; None or "" for none.

        Raises as `read_view` does.
        """
        token_set = copy.copy(self)
        token_set.view = read_view(self, view) if view else None
        return token_set

    def view_names(self) -> list[str]:
        """The names of its views."""
        return [name for name in self.view_stems() if not DIGEST.fullmatch(name)]

    def view_stems(self) -> list[str]:
        """The names and digests of its views, former ones too."""
        return [path.stem for path in sorted((self.path / FOLDER).glob("*.json"))]

    def view_file(self, name: str, facts: dict[str, Any] | None = None) -> Path:
        """The path of a file of a view: its JSON, or an array with these "sha256" and "bytes"."""
        return self.path_of(f"{FOLDER}/{name}", facts)

    def repeats_of(self, entry: ShardEntry) -> np.ndarray:
        """How often each document of a shard counts: (documents,) int64, 1 without a view."""
        if self.view is None:
            return np.ones(entry.documents, np.int64)
        return self.view.repeats_of(entry).astype(np.int64)

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
        return digest == self.digest or self._former_manifest(digest) is not None

    def _former_manifest(self, digest: str) -> dict[str, Any] | None:
        """A manifest that it has had, or None.

        ValueError if the file of its name is another one.
        """
        try:
            path = self.path_of(f"manifests/{kept_manifest(self.path, digest).name}")
            manifest = read_json(path, "tokens")
        except FileNotFoundError:
            return None
        actual = digest_of(manifest)
        if actual != digest:
            raise ValueError(
                f"{self.display_name}: manifests/{path.name}: expected the manifest with this "
                f"digest, found {actual}; put the right file back"
            )
        return manifest

    def as_it_was(self, digest: str, split: str) -> Self:
        """The set as it was when its manifest had this digest.

        ValueError if that manifest is not known, or a shard of the split is gone or was replaced
        since.
        """
        if digest == self.digest:
            return self
        manifest = self._former_manifest(digest)
        if manifest is None:
            raise ValueError(
                f"{self.display_name}: this was never the token set with manifest {digest}: "
                f"expected manifests/{digest}.json, found no such file; name the set that it was, "
                "or put the file back"
            )
        former = self._with_manifest(manifest)
        present = {(entry.name, entry.sha256) for entry in self.entries}
        for entry in former.split(split):
            if (entry.name, entry.sha256) not in present:
                raise ValueError(
                    f"{self.display_name}: expected shard {entry.name} of {entry.sources[0]}, with "
                    f"{entry.tokens:,} tokens, as the set once had it, found none; put that file "
                    "back, prepare again, and resume"
                )
        return former

    def _with_manifest(self, manifest: dict[str, Any]) -> Self:
        former = copy.copy(self)
        former.view = None  # it is of another manifest
        former._load(manifest)
        return former


def _require_manifest(folder: Path) -> None:
    """FileNotFoundError that says what the folder is, if it is no token set."""
    if (folder / "manifest.json").exists():
        return
    below = sorted(folder.glob("*/manifest.json"))
    if below:
        sets = counted(len(below), "token set")
        raise FileNotFoundError(
            f"{folder}: expected a token set, found a folder of {sets}; name one of them, as "
            f"{below[0].parent}"
        )
    actual = "no such folder"
    if folder.is_dir():
        actual = "a folder without manifest.json"
    elif folder.is_file():
        actual = "a file"
    raise FileNotFoundError(
        f"{folder}: expected a finished token set, found {actual}; run `tokenmill prepare`, or "
        "prepare_data.py, first (again, if it was interrupted); `tokenmill list` prints the sets "
        "that are there"
    )
