"""A token set that lies elsewhere, as one on this disk: the same manifest, the same shards, blocks as they are needed.

    token_set = open_set("s3://bucket/tokens/web")        its manifest is read, nothing else
    shard = token_set.open(entry)                         its offsets and record are fetched
    shard.read(0, 2049)                                   the blocks under these tokens are fetched, and copied

Windows (batches/window_rows.py) ask for many at once, ahead of time.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tokenmill.checks import whole_number
from tokenmill.remote.addresses import cache_root, name_of, named, told
from tokenmill.remote.budget import say_limit
from tokenmill.remote.cache import Cache, Need, deleted
from tokenmill.remote.caches import cache_in
from tokenmill.remote.claims import FILES
from tokenmill.remote.fetcher import fetcher
from tokenmill.remote.places import place_of, read
from tokenmill.store.files import BLOCK_BYTES, parse_json, write_file
from tokenmill.store.shards import Shard, ShardEntry
from tokenmill.store.token_sets import TokenSet, digest_of, kept_manifest


class Kept(NamedTuple):
    """Where blocks are kept, and how many bytes they may take: None for the default of each."""

    folder: str | os.PathLike[str] | None = None
    bytes: int | None = None


KEPT = Kept()


def open_set(tokens: str | os.PathLike[str], kept: Kept = KEPT) -> TokenSet:
    """The token set of a folder or an address. Raises what TokenSet does; where it lies elsewhere also
    ConnectionError, PermissionError or OSError, with the address.
    """
    where = named(tokens)
    return TokenSet(where) if isinstance(where, Path) else RemoteTokenSet(where, kept)


def manifest_at(address: str) -> tuple[bytes, dict[str, Any]]:
    """The manifest of the set at an address, as it is there now: its bytes, and what they say.

    FileNotFoundError where there is none; what else reading raises.
    """
    place = place_of(address)
    try:
        data = read(place, "manifest.json")
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{told(address)}: expected a finished token set, found no manifest.json: {error}; check the address"
        ) from error
    return data, parse_json(data, place.told("manifest.json"), "tokens")


def _cache_of(folder: Path, token_set: TokenSet, kept: Kept) -> Cache:
    if kept.bytes is not None:
        say_limit(folder.parent, whole_number("cache_bytes", kept.bytes, 1))
    place, subfolders = place_of(token_set.address), int(token_set.manifest.get("subfolders", 0))
    return cache_in(folder, token_set.entries, token_set.numpy_dtype.itemsize, place, subfolders)


class RemoteTokenSet(TokenSet):
    """A token set at an address; `path` is its folder in the cache."""

    def __init__(self, address: str, kept: Kept = KEPT):
        self._kept_at = kept
        data, manifest = manifest_at(address)
        self.address = address
        self._stamps = {}
        self._take(manifest)
        self.path = cache_root(kept.folder) / self.digest
        _make(self.path)
        if not (self.path / "manifest.json").exists():
            write_file(self.path / "manifest.json", data, durable=False)
        self.cache = _cache_of(self.path, self, kept)

    @property
    def told(self) -> str:
        """Its address, as it may be shown."""
        return told(self.address)

    @property
    def name(self) -> str:
        return name_of(self.address)

    def file(self, name: str) -> Path:
        """One of its small files, fetched when it is asked for first."""
        path = self.path / name
        if not path.exists():
            shard, dot, suffix = name.removeprefix("shards/").rpartition(".")
            there = self.cache.name(shard, suffix) if name.startswith("shards/") else name
            write_file(path, read(place_of(self.address), there), durable=False)
        return path

    def bring(self, entries: list[ShardEntry]) -> None:
        """Has the offsets and records of shards there."""
        numbers = np.array([FILES + self.cache.number[entry.name] for entry in entries], np.int64)
        fetcher().require(self.cache, numbers)

    def open(self, entry: ShardEntry) -> "RemoteShard":
        """Maps a shard, with holes where blocks are not there."""
        self.cache.look_at_files(entry.name)
        self.bring([entry])
        return RemoteShard(self.path, entry, self.dtype, self.cache)

    def record(self, entry: ShardEntry) -> dict[str, Any]:
        """What was written down when the shard was made."""
        self.bring([entry])
        return super().record(entry)

    def digests(self) -> list[str]:
        """The manifests that it has had, as the newest tells."""
        return sorted({*self.manifest.get("earlier", []), self.digest})

    def _kept_manifest(self, digest: str) -> dict[str, Any] | None:
        path = kept_manifest(self.path, digest)
        if not path.exists():
            try:
                data = read(place_of(self.address), f"manifests/{digest}.json")
            except FileNotFoundError:
                return None
            found = digest_of(parse_json(data, self.told, "tokens"))
            if found != digest:
                raise ValueError(
                    f"{self.told}: manifests/{digest}.json: expected the manifest with this digest, found {found}; "
                    "`tokenmill push` sends it again"
                )
            _make(path.parent)
            write_file(path, data, durable=False)
        return super()._kept_manifest(digest)

    def _require_still_there(self, entry: ShardEntry) -> None:
        """A shard that the newest manifest does not list: its record is compared when it is opened."""

    def _taken(self, manifest: dict[str, Any]) -> "TokenSet":
        """As it was; its blocks are those of the set as it is, where that has all its shards."""
        was = super()._taken(manifest)
        assert isinstance(was, RemoteTokenSet)
        now = {(entry.name, entry.bin_sha256) for entry in self.entries}
        if not {(entry.name, entry.bin_sha256) for entry in was.entries} <= now:
            was.path = self.path.with_name(was.digest)
            _make(was.path)
            data = kept_manifest(self.path, was.digest).read_bytes()
            write_file(was.path / "manifest.json", data, durable=False)
            was.cache = _cache_of(was.path, was, self._kept_at)
        return was


class RemoteShard(Shard):
    """A shard whose tokens come block by block: `read` waits for them."""

    def __init__(self, folder: Path, entry: ShardEntry, dtype: str, cache: Cache):
        super().__init__(folder, entry, dtype)
        self.cache, self.number = cache, cache.number[entry.name]
        if not cache.is_in_its_folder():  # and the file that was opened is another's
            raise deleted(cache.folder)

    def read(self, begin: int, end: int) -> np.ndarray:
        """Tokens `begin` to `end`, copied."""
        found: np.ndarray = while_there(self.cache, self._blocks(begin, end), self.tokens[begin:end].copy)
        self.require_unchanged()
        return found

    def in_blocks(self, size: int) -> Iterator[np.ndarray]:
        """All tokens, `size` at a time; what comes next is fetched meanwhile."""
        need = Need(self._blocks(0, len(self.tokens)), lambda: 0)
        fetcher().expect(self.cache, need)
        for begin in range(0, len(self.tokens), size):
            yield self.read(begin, begin + size)
        del need

    def is_there(self, begin: int, end: int) -> bool:
        return not len(self.cache.missing(self._blocks(begin, end)))

    def _blocks(self, begin: int, end: int) -> np.ndarray:
        """The blocks under tokens."""
        size, first = self.tokens.itemsize, int(self.cache.blocks.first[self.number])
        end = min(end, len(self.tokens))
        if begin >= end:
            return np.zeros(0, np.int64)
        return np.arange(first + begin * size // BLOCK_BYTES, first + (end * size - 1) // BLOCK_BYTES + 1)

    def require_unchanged(self) -> None:
        """FileNotFoundError where the file in the cache was deleted or cut; its blocks are looked at when they are
        read.
        """
        try:
            found = os.stat(self.path)
        except FileNotFoundError as error:
            raise deleted(self.path) from error
        if self.stamp is None or (found.st_ino, found.st_size) != self.stamp[:2]:
            raise deleted(self.path)


def while_there(cache: Cache, blocks: np.ndarray, copy: Any) -> Any:
    """What copy() gives while blocks are there: waits for them, and copies again where one was given back meanwhile."""
    while True:
        fetcher().require(cache, blocks)
        before = cache.marks.words[blocks]
        if len(cache.missing(blocks)):
            continue
        found = copy()
        if np.array_equal(before, cache.marks.words[blocks]):
            return found


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise type(error)(
            f"{folder}: cannot be made ({error.strerror}); name another cache_dir, or set TOKENMILL_CACHE"
        ) from error
