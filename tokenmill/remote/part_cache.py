"""The cache: parts of shards' tokens as files. A part is there, or it is not.

    CACHE/parts/<shard>/0           bytes 0 to 1 MiB of a shard's tokens
    CACHE/sets/<set>/...            a set's small files (token_set.py), which are never evicted

<shard> is the SHA-256 of the shard's record, which has the CRC-32 of each MiB. So what lies there
cannot be another shard's. A process compares a part when it fetches it, and again when it maps it.

A part is fetched under a temporary name and renamed. Meanwhile its process holds a lock on
`<part>.lock`, so that eight ranks of a machine fetch it once. No row depends on the lock: without
it, the second rename puts the same bytes there.

A part is evicted by unlink; POSIX keeps its bytes for whoever has it mapped. Mapping a part sets
its time. First go parts of sets that this process does not read, the oldest first; then those of
windows that are done, the last one first, as an epoch in random order needs the others sooner.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import time
import uuid
import weakref
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tokenmill.remote.files import read
from tokenmill.remote.prefetch import Job
from tokenmill.remote.retry import WrongBytes
from tokenmill.store.files import BLOCK_BYTES, with_message
from tokenmill.store.locks import take_lock
from tokenmill.store.maps import map_file

PART_BYTES = BLOCK_BYTES
LOCK_SECONDS = 60.0  # then a part is fetched although another process is at it
TRIES = 100  # to fetch a part, which other processes may evict at once
COUNT_AFTER = 64  # the cache is counted after a 64th of its limit is written
ROOM = 16  # a 16th of the limit is evicted, to make room
MOST_UNCOUNTED = 1 << 30  # bytes that are written between two counts
OF_ANOTHER_SET, DONE, IN_USE = range(3)  # the order in which parts go


class Cache:
    """The folder of a user's parts, of at most `limit` bytes; None for nine tenths of what the disk
    has free.

    Offsets and records come on top. Several processes that write at once may be over the limit by a
    64th each. PermissionError if the folder is another user's.
    """

    def __init__(self, root: Path, limit: int | None = None):
        self.root = root
        self._limit = limit
        self.make_folder(root)
        user = os.geteuid()
        owner = root.stat().st_uid
        if owner != user:
            raise PermissionError(
                f"{root}: expected a cache of user {user}, found one of user {owner}; pass a "
                "cache_dir of your own, or set TOKENMILL_CACHE"
            )
        disk = shutil.disk_usage(root).total
        largest = min(limit or disk, disk)
        self._count_after = min(largest // COUNT_AFTER, MOST_UNCOUNTED)
        self._written = self._count_after  # the first part that a process writes is counted
        self.reads: set[str] = set()  # folders of the shards of sets that this process has opened
        self.in_use: weakref.WeakSet[Job] = weakref.WeakSet()  # the parts that this process holds

    def make_folder(self, folder: Path) -> None:
        """Makes a folder of the cache, also if all of it was deleted meanwhile."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)

    def limit(self, used: int | None = None) -> int:
        """How many bytes the parts may take.

        `used` are those that they take, if they were counted.
        """
        if self._limit:
            return self._limit
        if used is None:
            used = PART_BYTES * len(self._paths())
        return int(0.9 * (shutil.disk_usage(self.root).free + used))

    def wrote(self, size: int) -> None:
        """Notes that a part was written; evicts if it is time to count and there are too many."""
        self._written += size
        if self._written >= self._count_after:
            self._written = 0
            self.evict()

    def evict(self, least: int = 0) -> int:
        """Unlinks what is over the limit, or so many bytes if that is more, and some for room.

        Returns how many.
        """
        paths = self._paths()
        used = PART_BYTES * len(paths)  # nearly all are of one size, so only names are counted
        limit = self.limit(used)
        excess = max(used - limit, least)
        if excess < 1:
            return 0
        margin = min(limit, used) // ROOM
        count = (excess + margin) // PART_BYTES + 1
        evicted = 0
        for part in self._in_order_of_eviction(paths)[:count]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part.path)
                evicted += part.size
        return evicted

    def _in_order_of_eviction(self, paths: list[str]) -> list["_Evictable"]:
        """Parts of other sets, oldest first; of done windows, last first; and those in use."""
        oldest_use = min((job.made for job in list(self.in_use)), default=time.time())
        parts = []
        for path in paths:
            folder = os.path.basename(os.path.dirname(path))
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(path)
                mapped = status.st_mtime
                if folder not in self.reads:
                    order = (OF_ANOTHER_SET, mapped)
                elif mapped < oldest_use:
                    order = (DONE, -mapped)
                else:
                    order = (IN_USE, mapped)
                parts.append(_Evictable(order, path, status.st_size))
        return sorted(parts)

    def _paths(self) -> list[str]:
        """The path of each part, and of what killed processes have left, without locks."""
        paths = []
        for folder, _, names in os.walk(self.root / "parts"):
            paths += [f"{folder}/{name}" for name in names if not name.endswith(".lock")]
        return paths


class _Evictable(NamedTuple):
    """A file of the cache."""

    order: tuple[int, float]  # the lowest goes first
    path: str
    size: int


@dataclass(frozen=True)
class PartFolder:
    """The parts of one shard: `name` at `address`, `size` bytes, with the CRC-32 of each MiB."""

    cache: Cache
    key: str  # the SHA-256 of the shard's record
    address: str
    name: str
    size: int
    crc32: tuple[int, ...]

    def _path(self, number: int) -> Path:
        return self.cache.root / "parts" / self.key / str(number)

    def load(self, number: int) -> memoryview:
        """A part, mapped, and fetched first if it is not there.

        Raises what `read` does, or OSError for a full disk, or one that keeps no part.
        """
        for _ in range(TRIES):
            part = self._map(number)
            if part is not None:
                return part
            self._fetch(number)
        raise OSError(
            f"{self._path(number)}: was fetched {TRIES} times, and the disk has other bytes, or "
            "none; pass a cache_dir on another disk"
        )

    def _map(self, number: int) -> memoryview | None:
        """A part that is there, mapped.

        None if it is not there; one with other bytes is removed.
        """
        path = self._path(number)
        try:
            part = map_file(path, np.dtype("u1")).data
            self._require(number, part)
            os.utime(path)
        except FileNotFoundError:
            return None
        except WrongBytes:  # a power cut may leave a name without its bytes
            path.unlink(missing_ok=True)
            return None
        return part

    def _fetch(self, number: int) -> None:
        """Fetches a part, unless another process does so meanwhile."""
        path = self._path(number)
        start = number * PART_BYTES
        end = min(start + PART_BYTES, self.size)
        check = partial(self._require, number)
        self.cache.make_folder(path.parent)
        with _locked(path.with_name(f"{number}.lock")):
            if path.exists():
                return
            data = read(self.address, self.name, start, end, check=check)
            self._write(path, data)
        self.cache.wrote(len(data))

    def _require(self, number: int, data: bytes | memoryview) -> None:
        size = min(PART_BYTES, self.size - number * PART_BYTES)
        require_crc32(size, self.crc32[number : number + 1], data)

    def _write(self, path: Path, data: bytes) -> None:
        """Writes a part, or, on a full disk, makes room for it."""
        temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
        try:
            temporary.write_bytes(data)
            os.replace(temporary, path)
        except FileNotFoundError:  # the cache was deleted, or another process evicted it
            return
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            if not self.cache.evict(len(data)):
                message = (
                    f"{self.cache.root}: no room for {len(data):,} more bytes, and nothing to "
                    "evict. Make room, or pass a cache_dir on another disk"
                )
                raise with_message(error, message) from error


def require_crc32(size: int, crc32: Sequence[int], data: bytes | memoryview) -> None:
    """WrongBytes if data has another size, or a MiB of it another CRC-32."""
    begins = range(0, len(data), PART_BYTES)
    actual = [zlib.crc32(data[begin : begin + PART_BYTES]) for begin in begins]
    expected = list(crc32)
    if len(data) != size or actual != expected:
        raise WrongBytes(
            f"expected {size:,} bytes with CRC-32 {expected}, found {len(data):,} with {actual}: "
            "damaged there, or replaced; delete the shard there, and push it again"
        )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a lock on a file, and removes it. Goes on without it after a time."""
    with open(path, "w") as file:
        take_lock(file.fileno(), LOCK_SECONDS)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough if the process has forked
