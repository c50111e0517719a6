"""A token set at an address, used like one in a folder: the same manifest, records and columns,
fetched as needed.

    token_set = open_set("s3://bucket/tokens/web")        its manifest is read, nothing else
    shard = token_set.open(entry)                         its record and offsets are fetched
    shard.read(0, 2049)                                   the parts of these tokens are fetched

Small files are fetched whole, and are kept in CACHE/sets/<set>, where <set> is a digest of the
manifest with all checksums that it lists. A process compares each with its SHA-256 when it first
uses it.
"""

import hashlib
import json
import os
import re
import weakref
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from tokenmill.addresses import cache_root, name_of, named
from tokenmill.checks import whole_number
from tokenmill.messages import redact
from tokenmill.remote.files import read, sizes
from tokenmill.remote.part_cache import PART_BYTES, Cache, PartFolder
from tokenmill.remote.prefetch import Job, call_all, expect, require
from tokenmill.remote.retry import WrongBytes
from tokenmill.store.columns import TOKENS
from tokenmill.store.files import sha256_of_file, write_file
from tokenmill.store.json_files import LARGEST, parse_json
from tokenmill.store.shards import DTYPES, Shard, ShardEntry, shard_path
from tokenmill.store.token_sets import TokenSet
from tokenmill.store.views import DIGEST, FOLDER, NAME

AHEAD = 8  # parts that are fetched behind those that `read` reads
HELD = 64  # parts that it keeps mapped
MOST_BYTES = 1 << 30  # of offsets or another file that is fetched whole: of 134M documents


class CacheConfig(NamedTuple):
    """The folder of the cache, and how many bytes its parts may take; None for a default."""

    folder: str | os.PathLike[str] | None = None
    bytes: int | None = None


DEFAULT_CACHE = CacheConfig()


def open_set(tokens: str | os.PathLike[str], cache: CacheConfig = DEFAULT_CACHE) -> TokenSet:
    """The token set of a folder, a name (store/set_names.py) or an address.

    Raises what TokenSet and `read` do.
    """
    location = named(tokens)
    if isinstance(location, Path):
        return TokenSet(location)
    return RemoteTokenSet(location, cache)


def read_manifest(address: str) -> tuple[bytes, dict[str, Any]]:
    """The manifest at an address, as it is now.

    FileNotFoundError if there is none; what `read` raises.
    """
    shown = redact(address)
    try:
        data = read(address, "manifest.json")
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{shown}: expected a finished token set, found no manifest.json; check the address "
            f"({error})"
        ) from error
    return data, parse_json(data, f"{shown}/manifest.json", "tokens")


_cache_of = lru_cache(None)(Cache)  # one for each root and limit, as it counts what it writes


class RemoteTokenSet(TokenSet):
    """A token set at an address; `path` is its folder in the cache."""

    def __init__(self, address: str, cache: CacheConfig = DEFAULT_CACHE):
        limit = None if cache.bytes is None else whole_number("cache_bytes", cache.bytes, 1)
        self.address = address
        self.cache = _cache_of(cache_root(cache.folder), limit)
        data, manifest = read_manifest(address)
        self._load(manifest)
        self._begin()
        write_file(self.path / "manifests" / f"{self.digest}.json", data, durable=False)

    def _begin(self) -> None:
        """Makes its folder in the cache."""
        content = [self.display_name, self.records, self.manifest["files"]]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
        self.path = self.cache.root / "sets" / f"{self.digest}-{digest}"
        for name in ("shards", "manifests"):
            self.cache.make_folder(self.path / name)
        self._compared: set[str] = set()  # files whose checksums this process has compared
        self.cache.reads |= set(self.records.values())

    @property
    def display_name(self) -> str:
        """Its address, to be shown."""
        return redact(self.address)

    @property
    def name(self) -> str:
        return name_of(self.address)

    # ------------------------------------------------------------------------ small files

    def path_of(self, name: str, facts: dict[str, Any] | None = None) -> Path:
        """The path of a file in the cache.

        It is fetched if it is not there, or if it has no checksum, as the JSON of views.
        """
        facts = facts or {}
        fetch = partial(self._fetch, name, facts.get("sha256"), facts.get("bytes", LARGEST))
        call_all([fetch])  # in a thread, as close() does not wait for a server
        return self.path / name

    def _fetch(self, name: str, sha256: str | None, size: int) -> None:
        path = self.path / name
        if not self._is_right(name, sha256):
            self.cache.make_folder(path.parent)
            data = read(self.address, name, check=partial(require_sha256, sha256), most=size)
            write_file(path, data, durable=False)
        self._compared.add(name)

    def _is_right(self, name: str, sha256: str | None) -> bool:
        """Whether the cache has the file with this checksum, which is compared once."""
        path = self.path / name
        if sha256 is None or not path.exists():
            return False
        return name in self._compared or sha256 == sha256_of_file(path)

    def _was_compared(self, name: str) -> bool:
        return name in self._compared and (self.path / name).exists()

    def fetch(self, entries: list[ShardEntry]) -> None:
        """Fetches the records, offsets and listed columns of shards."""
        missing = []
        for entry in entries:
            checksums = {"json": self.records[entry.name], **dict(entry.sha256)}
            del checksums[TOKENS.suffix]  # which come in parts
            for suffix, sha256 in checksums.items():
                name = f"shards/{entry.name}.{suffix}"
                if not self._was_compared(name):
                    missing.append(partial(self._fetch, name, sha256, MOST_BYTES))
        call_all(missing)

    def record(self, entry: ShardEntry) -> dict[str, Any]:
        name = f"shards/{entry.name}.json"
        if not self._was_compared(name):
            self.path_of(name, {"sha256": self.records[entry.name]})
        record = super().record(entry)
        if not entry.is_of(record) or record["dtype"] != self.dtype:
            raise ValueError(
                f"{self.display_name}: the record of shard {entry.name} is not of the shard that "
                "the manifest lists; push the set again"
            )
        return record

    def _map(self, entry: ShardEntry) -> "RemoteShard":
        """A shard whose parts are mapped as they come."""
        self.fetch([entry])
        facts = self.record(entry)[TOKENS.suffix]
        parts = PartFolder(
            cache=self.cache,
            key=self.records[entry.name],
            address=self.address,
            name=f"shards/{entry.name}.{TOKENS.suffix}",
            size=facts["bytes"],
            crc32=tuple(facts["crc32"]),
        )
        return RemoteShard(self, entry, parts)

    def view_stems(self) -> list[str]:
        """The names and digests of its views, where the address can be listed; it cannot over
        https://.
        """
        return self._listed(FOLDER, NAME, DIGEST)

    def digests(self) -> list[str]:
        return sorted({*self._listed("manifests", DIGEST), self.digest})

    def _listed(self, folder: str, *patterns: re.Pattern[str]) -> list[str]:
        """The stems of JSON files in a folder that match a pattern: others may write there too."""
        stems = []
        for name in sizes(self.address, folder):
            match = re.fullmatch(rf"{folder}/([^/]+)\.json", name)
            if match and any(pattern.fullmatch(match[1]) for pattern in patterns):
                stems.append(match[1])
        return sorted(stems)

    def _with_manifest(self, manifest: dict[str, Any]) -> Self:
        """The set as it was.

        A shard that the set still has is read by its present record, which may have metadata.
        """
        present = {(entry.name, entry.sha256) for entry in self.entries}
        former = super()._with_manifest(manifest)
        former.records = dict(former.records)
        for entry in former.entries:
            if (entry.name, entry.sha256) in present:
                former.records[entry.name] = self.records[entry.name]
        former._begin()
        return former


class RemoteShard(Shard):
    """A shard whose tokens are in several files, each a part of the cache."""

    part_bytes = PART_BYTES

    def __init__(self, token_set: RemoteTokenSet, entry: ShardEntry, parts: PartFolder):
        self.entry = entry
        self.path = shard_path(token_set.path, entry.name, TOKENS.suffix)
        self.dtype = DTYPES[token_set.dtype]
        self._parts = parts
        # nothing to read ahead: a part is read whole when it is mapped
        self.tokens = np.empty(0, self.dtype)
        self.offsets = self._map_offsets()
        self._jobs: weakref.WeakValueDictionary[int, Job] = weakref.WeakValueDictionary()
        self._held: dict[int, Job] = {}  # the parts that `read` used last, and those behind

    def part(self, number: int) -> Job:
        """A part of the tokens: `result` is its bytes, mapped while the job is held, or None."""
        job = self._jobs.get(number)
        if job is None:
            job = Job(partial(self._parts.load, number))
            self._jobs[number] = job
            self._parts.cache.in_use.add(job)
        return job

    def read(self, begin: int, end: int) -> np.ndarray:
        """Tokens `begin` to `end`, copied. The parts behind them are fetched too."""
        end = min(end, self.entry.tokens)
        if begin >= end:
            return np.empty(0, self.dtype)
        first_byte = begin * self.dtype.itemsize
        end_byte = end * self.dtype.itemsize
        first_part = first_byte // PART_BYTES
        last_part = (end_byte - 1) // PART_BYTES
        ahead = min(last_part + AHEAD, (self._parts.size - 1) // PART_BYTES)
        jobs = {number: self.part(number) for number in range(first_part, ahead + 1)}
        expect([job for number, job in jobs.items() if number not in self._held])
        needed = {number: jobs[number] for number in range(first_part, last_part + 1)}
        require(list(needed.values()))
        self._hold(jobs)
        pieces = []
        for number, job in needed.items():
            offset = number * PART_BYTES
            pieces.append(job.result[max(first_byte - offset, 0) : end_byte - offset])
        return np.frombuffer(bytearray().join(pieces), self.dtype)

    def _hold(self, jobs: dict[int, Job]) -> None:
        """Keeps the parts that were used last mapped, in the order of their use."""
        earlier = {number: job for number, job in self._held.items() if number not in jobs}
        latest = list({**earlier, **jobs}.items())
        self._held = dict(latest[-HELD:])

    def require_unchanged(self) -> None:
        """Does nothing: a part never changes."""


def require_sha256(expected: str | None, data: bytes) -> None:
    """WrongBytes if data has another SHA-256."""
    actual = hashlib.sha256(data).hexdigest()
    if expected not in (None, actual):
        raise WrongBytes(
            f"expected SHA-256 {expected}, found {actual}: damaged there, or replaced; push it "
            "again"
        )
