"""A token set at an address, used like one on this disk: the same manifest and shards, fetched as they are needed.

    token_set = open_set("s3://bucket/tokens/web")        its manifest is read, nothing else
    shard = token_set.open(entry)                         its offsets and record are fetched
    shard.read(0, 2049)                                   the blocks of these tokens are fetched, and copied
    shard.column("label")                                 an optional column is fetched whole, and mapped

Windows (feed/window_rows.py) ask for many blocks at once, ahead of time.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tokenmill.addresses import cache_root, display_address, name_of, named, remote_name
from tokenmill.checks import whole_number
from tokenmill.remote.backends import Backend, backend_of, read, require_same_again
from tokenmill.remote.block_locks import FILES
from tokenmill.remote.budget import say_limit
from tokenmill.remote.cache import PART_BYTES, TRIES, Cache, Need, deleted
from tokenmill.remote.cache_folder import own_folder
from tokenmill.remote.caches import cache_in
from tokenmill.remote.fetcher import fetcher
from tokenmill.remote.holes import doubtful, read_verified
from tokenmill.store.columns import TOKENS
from tokenmill.store.files import BLOCK_BYTES, AtomicFile, parse_json, write_file
from tokenmill.store.shards import Shard, ShardEntry
from tokenmill.store.small_files import what_is_wrong
from tokenmill.store.token_sets import TokenSet, digest_of, kept_manifest
from tokenmill.store.views import DIGEST, FOLDER


class Kept(NamedTuple):
    """The folder that keeps blocks, and how many bytes they may take: None for the default of each."""

    folder: str | os.PathLike[str] | None = None
    bytes: int | None = None


KEPT = Kept()
MOST_TOKENS = 1 << 44  # of a set at an address: a map of a quarter of a GiB for uint32, and plans of a GiB
MOST_UNASKED = 1 << 33  # tokens of a shard whose size is compared only when its record comes


def open_set(tokens: str | os.PathLike[str], kept: Kept = KEPT) -> TokenSet:
    """The token set of a folder, a name (store/set_names.py) or an address.

    Raises what TokenSet does, and for an address also ConnectionError, PermissionError or OSError.
    """
    where = named(tokens)
    return TokenSet(where) if isinstance(where, Path) else RemoteTokenSet(where, kept)


def manifest_at(address: str) -> tuple[bytes, dict[str, Any]]:
    """The manifest at an address, as it is now: its bytes, and its content.

    FileNotFoundError if there is none, and what else reading raises.
    """
    backend = backend_of(address)
    try:
        data = read(backend, "manifest.json")
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{display_address(address)}: expected a finished token set, found no manifest.json: {error}; "
            "check the address"
        ) from error
    return data, parse_json(data, backend.display("manifest.json"), "tokens")


def fetch_checked(backend: Backend, name: str, path: Path, checksums: dict[str, Any]) -> None:
    """Fetches a file, some MB at a time. OSError if its SHA-256 is wrong three times."""
    found = ""
    for number in range(TRIES):
        with AtomicFile(path) as file:
            for first in range(0, checksums["bytes"], PART_BYTES):
                last = min(first + PART_BYTES, checksums["bytes"])
                file.write(read(backend, name, first, last, fresh=number > 0))
            found = file.facts()["sha256"]
            if found == checksums["sha256"]:
                file.commit()
                return
    raise OSError(
        f"{backend.display(name)}: expected SHA-256 {checksums['sha256']}, found {found}, {TRIES} times on fresh "
        "connections: damaged there, or replaced; `tokenmill push` sends it again"
    )


def _cache_of(folder: Path, token_set: TokenSet, kept: Kept) -> Cache:
    if kept.bytes is not None:
        say_limit(folder.parent, whole_number("cache_bytes", kept.bytes, 1))
    backend, subfolders = backend_of(token_set.address), int(token_set.manifest.get("subfolders", 0))
    itemsize = token_set.numpy_dtype.itemsize
    return cache_in(folder, token_set.entries, itemsize, backend, subfolders, token_set.records)


class RemoteTokenSet(TokenSet):
    """A token set at an address; `path` is its folder in the cache."""

    def __init__(self, address: str, kept: Kept = KEPT):
        self._kept_at = kept
        data, manifest = manifest_at(address)
        self.address = address
        self._stamps = {}
        self._right: set[str] = set()  # small files that were compared with the manifest
        self._take(manifest)
        self._require_plausible()
        self.path = own_folder(cache_root(kept.folder), self.digest)
        path = self.path / "manifest.json"
        if not (path.exists() and path.read_bytes() == data):  # so it was not read before
            require_same_again(backend_of(address), "manifest.json", data)
            write_file(path, data, durable=False)
        self.cache = _cache_of(self.path, self, kept)

    def _require_plausible(self) -> None:
        """ValueError or OSError if the manifest lists more tokens than there can be: the cache has a map of them."""
        if self.manifest["tokens"] > MOST_TOKENS:
            raise ValueError(
                f"{self.display_name}: expected at most {MOST_TOKENS:,} tokens in a set at an address, found "
                f"{self.manifest['tokens']:,} in its manifest; pull it, or make several sets of it"
            )
        backend = backend_of(self.address)
        for entry in self.entries:
            if entry.tokens > MOST_UNASKED:
                size = entry.tokens * self.numpy_dtype.itemsize
                name = remote_name(int(self.manifest.get("subfolders", 0)), entry.name, TOKENS.suffix)
                read(backend, name, size - 1, size)  # so the file has that size

    @property
    def display_name(self) -> str:
        """Its address, to be shown."""
        return display_address(self.address)

    @property
    def name(self) -> str:
        return name_of(self.address)

    def file(self, name: str) -> Path:
        """The path of one of its small files, which is fetched when it is first asked for."""
        path = self.path / name
        if name not in self._right:
            if not path.exists() or what_is_wrong(name, path.read_bytes(), self.manifest) is not None:
                write_file(path, self._right_file(name), durable=False)
            self._right.add(name)
        return path

    def _right_file(self, name: str) -> bytes:
        """The bytes of one of its small files. OSError if they are not what the manifest says, three times."""
        backend, wrong = backend_of(self.address), None
        for number in range(TRIES):
            data = read(backend, name, fresh=number > 0)
            if (wrong := what_is_wrong(name, data, self.manifest)) is None:
                return data
        raise OSError(
            f"{backend.display(name)}: {wrong}, {TRIES} times on fresh connections: damaged there, or replaced; "
            "`tokenmill push` sends it again"
        )

    def view_stems(self) -> list[str]:
        """The names and digests of the views that were pushed with the set."""
        return list(self.manifest.get("views", []))

    def view_file(self, name: str, checksums: dict[str, Any] | None = None) -> Path:
        """The path of a file of a view in the cache. What a name stands for is read again each time; what a digest
        stands for never changes, and is fetched, and checked, once.
        """
        path, backend, remote = super().view_file(name), backend_of(self.address), f"{FOLDER}/{name}"
        path.parent.mkdir(exist_ok=True)
        if checksums is not None:
            if not path.exists() or path.stat().st_size != checksums["bytes"]:
                fetch_checked(backend, remote, path, checksums)
        elif not (DIGEST.fullmatch(path.stem) and path.exists()):
            data = read(backend, remote)
            if not (path.exists() and path.read_bytes() == data):
                require_same_again(backend, remote, data)
                write_file(path, data, durable=False)
        return path

    def column_path(self, entry: ShardEntry, suffix: str) -> Path:
        """The path of an optional column in the cache, which is fetched, and checked, when it is first asked for."""
        self.bring([entry])
        return self.cache.column(entry.name, suffix)

    def bring(self, entries: list[ShardEntry]) -> None:
        """Fetches the offsets and records of shards."""
        numbers = np.array([FILES + self.cache.number[entry.name] for entry in entries], np.int64)
        fetcher().require(self.cache, numbers)

    def open(self, entry: ShardEntry) -> "RemoteShard":
        """Maps a shard, with holes where blocks are missing."""
        self.cache.look_at_files(entry.name)
        self.bring([entry])
        return RemoteShard(self.path, entry, self.dtype, self.cache)

    def record(self, entry: ShardEntry) -> dict[str, Any]:
        """The record of a shard, which is fetched if needed."""
        self.cache.look_at_files(entry.name)
        self.bring([entry])
        return super().record(entry)

    def digests(self) -> list[str]:
        """The digests of the manifests that it has had, from the newest one."""
        return sorted({*self.manifest.get("earlier", []), self.digest})

    def _kept_manifest(self, digest: str) -> dict[str, Any] | None:
        path = kept_manifest(self.path, digest)
        if not path.exists():
            try:
                data = read(backend_of(self.address), f"manifests/{digest}.json")
            except FileNotFoundError:
                return None
            found = digest_of(parse_json(data, self.display_name, "tokens"))
            if found != digest:
                raise ValueError(
                    f"{self.display_name}: manifests/{digest}.json: expected the manifest with this digest, found "
                    f"{found}; `tokenmill push` sends it again"
                )
            path.parent.mkdir(exist_ok=True)
            write_file(path, data, durable=False)
        return super()._kept_manifest(digest)

    def _require_still_there(self, entry: ShardEntry) -> None:
        """Does nothing: the record of a shard is compared when it is opened."""

    def _taken(self, manifest: dict[str, Any]) -> "TokenSet":
        """The set as it was. It shares the cache of the current set if that has all its shards."""
        was = super()._taken(manifest)
        assert isinstance(was, RemoteTokenSet)
        now = {(entry.name, entry.sha256) for entry in self.entries}
        same = {entry.name for entry in was.entries if (entry.name, entry.sha256) in now}
        if len(same) < len(was.entries):
            newer = {shard: sha256 for shard, sha256 in self.records.items() if shard in same}
            was.manifest = was.manifest | {"records": was.records | newer}
            was.path = own_folder(self.path.parent, was.digest)
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

    def read(self, begin: int, end: int, known_first: bool = False) -> np.ndarray:
        """Tokens `begin` to `end`, copied."""
        found: np.ndarray = while_there(self.cache, self._blocks(begin, end), self.tokens[begin:end].copy)
        self.require_unchanged()
        if len(found) and len(doubtful(found, np.zeros(1, np.int64), np.array([known_first]))):
            size = found.itemsize
            right = read_verified(self.cache, self.number, begin * size, (begin + len(found)) * size)
            found = np.frombuffer(right, found.dtype)
        return found

    def in_blocks(self, size: int) -> Iterator[np.ndarray]:
        """All tokens, `size` at a time; what comes next is fetched meanwhile."""
        need = Need(self._blocks(0, len(self.tokens)), lambda: 0)
        fetcher().expect(self.cache, need)
        for begin in range(0, len(self.tokens), size):
            yield self.read(begin, begin + size)
        del need

    def _column_path(self, suffix: str) -> Path:
        return self.cache.column(self.entry.name, suffix)

    def is_there(self, begin: int, end: int) -> bool:
        return not len(self.cache.missing(self._blocks(begin, end)))

    def _blocks(self, begin: int, end: int) -> np.ndarray:
        """The blocks that tokens `begin` to `end` are in."""
        size, first = self.tokens.itemsize, int(self.cache.blocks.first[self.number])
        end = min(end, len(self.tokens))
        if begin >= end:
            return np.zeros(0, np.int64)
        return np.arange(first + begin * size // BLOCK_BYTES, first + (end * size - 1) // BLOCK_BYTES + 1)

    def require_unchanged(self) -> None:
        """FileNotFoundError if the file in the cache was deleted or cut. Its blocks are checked when they are read."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError as error:
            raise deleted(self.path) from error
        if self.stamp is None or (found.st_ino, found.st_size) != self.stamp[:2]:
            raise deleted(self.path)


def while_there(cache: Cache, blocks: np.ndarray, copy: Any) -> Any:
    """Waits for blocks, and returns copy(); copies again if a block was given back meanwhile."""
    while True:
        fetcher().require(cache, blocks)
        before = cache.marks.words[blocks]
        if len(cache.missing(blocks)):
            continue
        found = copy()
        if np.array_equal(before, cache.marks.words[blocks]):
            return found
