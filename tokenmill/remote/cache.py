"""The cache of one token set in a folder on this disk: blocks of its shards, each checked before it is written.

    CACHE/<manifest's digest>/
        manifest.json, tokenizer.json, token_bytes.npy      as in the set
        shards/a.000.bin          of its full size, with holes where blocks are missing
        shards/a.000.idx, .json   whole, once a window needs them
        shards/a.000.<column>     an optional column, whole, once it is opened
        blocks                    which blocks are there (block_state.py)
        claims                    who fetches what, who needs what (block_locks.py); always empty

A block is fetched, its CRC-32 is compared in memory, it is written at its offset, and then marked as there. So a killed
process loses only the blocks it was fetching, and two processes that fetch the same block write the same bytes. Any
number of processes can share the folder without knowing of each other.
"""

import contextlib
import ctypes
import errno
import hashlib
import os
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tokenmill.addresses import remote_name
from tokenmill.remote.backends import Backend, read
from tokenmill.remote.block_locks import FILES, Claims
from tokenmill.remote.block_state import ABSENT, COMING, THERE, UNSURE, Marks, deleted
from tokenmill.remote.blocks import Blocks, BlockSpan
from tokenmill.remote.cache_folder import open_own
from tokenmill.store.columns import OFFSETS, TOKENS, checksums_of, columns_of
from tokenmill.store.files import (
    LARGEST,
    AtomicFile,
    parse_json,
    read_bounded,
    read_json,
    remove_temporary_files,
    write_file,
)
from tokenmill.store.shards import ShardEntry, shard_path
from tokenmill.store.small_files import is_record

FULL = {errno.ENOSPC, errno.EDQUOT}
FULL_PAUSE = 0.01  # seconds between two tries to write to a full disk
TRIES = 3  # of a block, or a file, whose bytes are wrong
PART_BYTES = 32 << 20  # of a file that is fetched whole: what is asked for at once
KEEP_SIZE, PUNCH_HOLE = 1, 2  # Linux's numbers

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class Need:
    """Blocks that a plan needs, in order, in `due()` windows. They are needed for as long as the object exists.

    While it is set to `stay`, they are never evicted.
    """

    def __init__(self, blocks: np.ndarray, due: Callable[[], int]):
        self.blocks, self.due, self.stay = blocks, due, False


class NextUse(Protocol):
    """When a loader needs each block next."""

    def next_use(self, blocks: Blocks) -> np.ndarray:
        """In how many windows from now: (count,) int64."""
        ...


class Cache:
    """The blocks of a set's shards in a folder, which come from a backend. The threads of fetcher.py do the fetching.

    Without a backend it only says what is there. ValueError or OSError if the folder holds something else, or cannot
    be written.
    """

    def __init__(
        self,
        folder: Path,
        entries: list[ShardEntry],
        itemsize: int,
        backend: Backend | None,
        subfolders: int = 0,
        records: Mapping[str, str] | None = None,
    ):
        self.folder, self.entries, self.backend, self.subfolders = folder, entries, backend, subfolders
        self.records = records or {}  # the SHA-256 of shards' records, by name
        self._open_folders()
        remove_temporary_files(folder, folder / "shards")
        self.blocks = Blocks(entries, itemsize)
        self.number = {entry.name: number for number, entry in enumerate(entries)}  # of each shard
        if not (folder / "blocks").exists():  # of which nobody knows what is there
            for path in (folder / "shards").glob("*.bin"):
                path.unlink(missing_ok=True)
        shards = hashlib.sha256(repr([(entry.name, entry.bin_sha256) for entry in entries]).encode()).hexdigest()
        self.marks = Marks(folder / "blocks", self.blocks.count, shards)
        self.claims = Claims(folder / "claims")
        self.failed: dict[int, Exception] = {}  # why a block, or FILES + a shard, could not be had
        self._needs: list[weakref.ref[Need]] = []
        self._orders: list[weakref.ref[NextUse]] = []
        self._checksums: dict[int, np.ndarray] = {}  # of the shards whose small files are there: CRC-32 of each block
        self.no_room: OSError | None = None  # why nothing could come of late
        self.over_limit_until = 0.0  # in monotonic time: blocks that batches wait for come without room
        self._pid = os.getpid()
        self.closed = False
        self._sweep()

    def _open_folders(self) -> None:
        """Opens `shards`, which stays this folder whatever takes its place."""
        folder = open_own(self.folder)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir("shards", 0o700, dir_fd=folder)
            self._directory = open_own(self.folder / "shards", folder)
        finally:
            os.close(folder)
        weakref.finalize(self, os.close, self._directory).atexit = False  # threads may use it until the end

    def _sweep(self) -> None:
        """Marks blocks that a killed process was fetching as missing."""
        for block in np.flatnonzero(self.marks.states() == COMING).tolist():
            if self.claims.take(block):
                if self.marks.state(block) == COMING:  # it may have come since
                    self.marks.set(block, ABSENT)
                self.claims.release(block)

    def after_fork(self) -> None:
        """A child process begins without claims, plans and errors."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self.failed, self._needs = {}, []
            self.claims.after_fork()

    def close(self) -> None:
        """Releases its claims. Nothing is fetched from now on."""
        self.closed = True
        self.claims.close()

    # ------------------------------------------------------------------------ what is there

    def is_in_its_folder(self) -> bool:
        """Whether the folder is still the same one, and neither it nor its `shards` was deleted since."""
        try:
            same = os.path.samestat(os.stat(self.folder / "shards"), os.fstat(self._directory))
        except FileNotFoundError:
            return False
        return same and self.marks.is_at(self.folder / "blocks")

    def missing(self, numbers: np.ndarray) -> np.ndarray:
        """Which of some blocks, or of the small files of shards (FILES + shard), are missing."""
        small = numbers >= FILES
        lacking = [number for number in numbers[small].tolist() if number - FILES not in self._checksums]
        blocks = numbers[~small]
        found = blocks[self.marks.words[blocks] & 3 != THERE]
        return np.concatenate([np.array(lacking, np.int64), found]) if lacking else found

    def add(self, what: "Need | NextUse") -> None:
        """Notes what a loader needs, or in which order, for as long as that object exists."""
        (self._needs if isinstance(what, Need) else self._orders).append(weakref.ref(what))  # type: ignore[arg-type]

    def look_at_files(self, shard: str) -> None:
        """Looks for the files of a shard. If one is gone, `missing` says so from now on."""
        number = self.number[shard]
        entry = self.entries[number]
        sizes = {"bin": self.bytes_of(shard), "idx": OFFSETS.size(entry.documents, entry.tokens), "json": None}
        for suffix, size in sizes.items():
            try:
                if os.stat(self._path(number, suffix)).st_size == size or size is None:
                    continue
            except FileNotFoundError:
                pass
            self._checksums.pop(number, None)

    def bytes_of(self, shard: str) -> int:
        """How many bytes of tokens a shard has."""
        return int(self.blocks.bytes[self.number[shard]])

    def blocks_of(self, shard: str) -> np.ndarray:
        """All blocks of a shard."""
        first, last = self.blocks.first[self.number[shard] :][:2].tolist()
        return np.arange(first, last)

    def doubt(self, shard: str) -> None:
        """Marks all blocks of a shard as missing."""
        self.marks.set(self.blocks_of(shard), ABSENT)

    def needed(self, that_stay: bool = False) -> np.ndarray:
        """The blocks that plans of this process need, or those of them that stay: unique, ascending."""
        needs = [need.blocks for need in _living(self._needs) if need.stay or not that_stay]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *needs]))

    def orders(self) -> "list[NextUse]":
        """The orders of this process's loaders."""
        return _living(self._orders)

    def size(self) -> int:
        """Bytes of the blocks that are there or being fetched."""
        return self.blocks.size_of(self.marks.states() != ABSENT)

    # ------------------------------------------------------------------------ fetching, in the fetcher's threads

    def fetch(
        self, number: int, make_room: Any, pause_for: Callable[[float], None] = time.sleep, full_seconds: float = 0.0
    ) -> bool:
        """Fetches a block, or the small files of shard n for FILES + n. Returns False if another process does it now.

        `make_room()` is called before bytes are fetched, `pause_for(seconds)` before another try. If the disk is full,
        it evicts blocks and writes again for `full_seconds`. OSError or ValueError, with the address, if it cannot be
        fetched.
        """
        if self.closed or not self.is_in_its_folder():
            raise deleted(self.folder)
        if not len(self.missing(np.array([number]))):
            return True
        if not self.claims.take(number):
            return False
        try:
            if number >= FILES:
                self._fetch_files(number - FILES, pause_for)
            elif self.marks.state(number) != THERE:
                self._fetch_block(number, make_room, pause_for, full_seconds)
            return True
        finally:
            self.claims.release(number)

    def _fetch_block(self, block: int, make_room: Any, pause_for: Callable[[float], None], full_seconds: float) -> None:
        at = self.blocks.span(block)
        if at.shard not in self._checksums:
            self._fetch_files(at.shard, pause_for)
        if self.marks.state(block) == UNSURE and self.read_if_right(block) is not None:
            self.marks.set(block, THERE)
            return
        self.marks.set(block, COMING)
        try:
            make_room()
            self._write(at, self._verified(at, pause_for), make_room, full_seconds)
        except BaseException:
            self.marks.set(block, ABSENT)
            raise
        self.marks.set(block, THERE)

    def _verified(self, at: BlockSpan, pause_for: Callable[[float], None]) -> bytes:
        """The bytes of a block, with the right CRC-32. OSError if it is wrong three times."""
        assert self.backend is not None, "a cache without a backend fetches nothing"
        name, expected, found = self._name(at.shard, "bin"), self._expected(at), 0
        for number in range(TRIES):
            data = read(self.backend, name, at.start, at.stop, number > 0, pause_for)
            found = self._crc(data)
            if found == expected:
                return data
        raise OSError(
            f"{self.backend.display(name)}: bytes {at.start:,} to {at.stop - 1:,} (block {at.number}): expected CRC-32 "
            f"{expected:08x}, found {found:08x}, {TRIES} times on fresh connections: damaged there, or replaced since "
            "the set's manifest was written; `tokenmill push --again` sends it again, or name the set as it is now"
        )

    def _write(self, at: BlockSpan, data: bytes, make_room: Any, full_seconds: float) -> None:
        """Writes a block at its offset. If the disk is full, other blocks are given back, and it is tried again."""
        try:
            self._write_at(at, data)
        except FileNotFoundError:
            raise
        except OSError as error:
            self._punch(at)
            if error.errno not in FULL:
                raise
            self._write_where_it_was_full(at, data, make_room, time.monotonic() + full_seconds)

    def _write_where_it_was_full(self, at: BlockSpan, data: bytes, make_room: Any, until: float) -> None:
        """Evicts blocks, and writes. Tries again, as other threads take the room that was made."""
        while True:
            failed = None
            try:
                make_room(full=True)
            except OSError as error:
                failed = error  # nothing can be evicted now, but others may have freed some
            try:
                return self._write_at(at, data)
            except FileNotFoundError:
                raise
            except OSError as error:
                self._punch(at)
                failed = failed or error
            if time.monotonic() > until:
                message = (
                    f"{self._path(at.shard, 'bin')}: cannot be written ({os.strerror(errno.ENOSPC)}), and blocks that "
                    "are there are all needed by plans at hand; free some disk, or name another cache_dir"
                )
                raise full_disk(errno.ENOSPC, message) from failed
            time.sleep(FULL_PAUSE)

    def _write_at(self, at: BlockSpan, data: bytes) -> None:
        start, left = at.start, memoryview(data)
        with self._opened(at.shard) as descriptor:
            while left:
                written = os.pwrite(descriptor, left, start)
                left, start = left[written:], start + written
            if os.fstat(descriptor).st_nlink == 0:
                raise deleted(self._path(at.shard, "bin"))

    def read_if_right(self, block: int) -> bytes | None:
        """The bytes of a block in the file; None if their CRC-32 is wrong. The shard's record must be there."""
        at = self.blocks.span(block)
        with self._opened(at.shard) as descriptor:
            data = os.pread(descriptor, at.stop - at.start, at.start)
        return data if self._crc(data) == self._expected(at) else None

    @contextlib.contextmanager
    def _opened(self, shard: int, more: int = 0) -> Iterator[int]:
        """Opens the file of a shard in this folder, and not in another one that replaced it."""
        path = self._path(shard, "bin")
        try:
            descriptor = os.open(
                path.name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | more, 0o600, dir_fd=self._directory
            )
        except FileNotFoundError as error:
            raise deleted(path) from error
        try:
            if not self.is_in_its_folder():  # whose map is another: what is done here nobody would know
                raise deleted(self.folder)
            if not more and os.fstat(descriptor).st_size < self.blocks.bytes[shard]:  # cut: writing would hide it
                self.doubt(self.entries[shard].name)
                raise deleted(path)
            yield descriptor
        finally:
            os.close(descriptor)

    def _crc(self, data: bytes) -> int:
        return zlib.crc32(data)

    def _expected(self, at: BlockSpan) -> int:
        return int(self._checksums[at.shard][at.number])

    # ------------------------------------------------------------------------ small files

    def _fetch_files(self, shard: int, pause_for: Callable[[float], None]) -> None:
        """Reads the record and offsets of a shard, from the folder or the backend, and makes a file for its blocks."""
        entry = self.entries[shard]
        record = self._record(self._local_record(shard), entry) or self._fetch_record(shard, pause_for)
        if self._sha256(shard, OFFSETS.suffix) != entry.idx_sha256:
            self._fetch_whole(shard, OFFSETS.suffix, record[OFFSETS.suffix], pause_for)
        self._make_sparse(shard)
        self._checksums[shard] = np.array(record["bin"]["crc32"], np.uint32)

    def _fetch_record(self, shard: int, pause_for: Callable[[float], None]) -> dict[str, Any]:
        """Fetches the record of a shard. ValueError if it is not the one that the manifest lists, three times."""
        assert self.backend is not None, "a cache without a backend fetches nothing"
        entry, name = self.entries[shard], self._name(shard, "json")
        for number in range(TRIES):
            data = read(self.backend, name, fresh=number > 0, pause_for=pause_for)
            if (record := self._record(data, entry)) is not None:
                write_file(self._path(shard, "json"), data, durable=False)
                return record
        raise ValueError(
            f"{self.backend.display(name)}: expected the record of the shard that the manifest lists, with tokens of "
            f"SHA-256 {entry.bin_sha256[:16]}..., found another, {TRIES} times on fresh connections; the set is being "
            "replaced, or was damaged: `tokenmill push --again` sends it again"
        )

    def column(self, name: str, suffix: str) -> Path:
        """The path of an optional column of a shard whose record is there.

        It is fetched whole when it is first asked for, and its SHA-256 is compared. It stays, and does not count
        towards the limit of the cache. OSError or ValueError, with the address, if it cannot be fetched.
        """
        shard = self.number[name]
        path, record = self._path(shard, suffix), read_json(self._path(shard, "json"), "shard")
        if suffix not in columns_of(record):
            raise ValueError(f"{path}: the record of the shard lists no such column")
        checksums = checksums_of(record, suffix)
        if path.is_symlink() or not path.exists() or path.stat().st_size != checksums["bytes"]:
            self._fetch_whole(shard, suffix, checksums, time.sleep, durable=True)  # as it is not read again to check it
        return path

    def _fetch_whole(
        self,
        shard: int,
        suffix: str,
        checksums: dict[str, Any],
        pause_for: Callable[[float], None],
        durable: bool = False,
    ) -> None:
        """Fetches a column, some MB at a time. OSError if its SHA-256 is wrong three times."""
        assert self.backend is not None, "a cache without a backend fetches nothing"
        name, size, expected, found = self._name(shard, suffix), checksums["bytes"], checksums["sha256"], ""
        for number in range(TRIES):
            with AtomicFile(self._path(shard, suffix), durable) as file:
                for first in range(0, size, PART_BYTES):
                    part = (first, min(first + PART_BYTES, size))
                    file.write(read(self.backend, name, *part, number > 0, pause_for))
                found = file.facts()["sha256"]
                if found == expected:
                    return self._commit(file)
        raise OSError(
            f"{self.backend.display(name)}: expected SHA-256 {expected}, found {found}, {TRIES} times: damaged "
            "there, or replaced; `tokenmill push --again` sends it again"
        )

    def _commit(self, file: AtomicFile) -> None:
        try:
            file.commit()
        except FileNotFoundError as error:
            raise deleted(file.path) from error

    def _record(self, data: bytes | None, entry: ShardEntry) -> dict[str, Any] | None:
        """The record of a shard; None if these bytes are not the record of the shard that the manifest lists."""
        if data is None:
            return None
        try:
            record = parse_json(data, entry.name, "shard")
            size = checksums_of(record, TOKENS.suffix)["bytes"]  # with which its CRC-32s agree
            same = record["documents"] == entry.documents and size == self.bytes_of(entry.name)
            return record if same and entry.is_of(record) and is_record(data, entry.name, self.records) else None
        except (ValueError, KeyError, TypeError):
            return None

    def _make_sparse(self, shard: int) -> None:
        """Gives the file of a shard its size. If it was deleted or cut, its blocks are missing, and a new era begins.

        It is never made smaller, as another process may have it mapped.
        """
        first, last = self.blocks.first[shard:][:2].tolist()
        self.marks.allocate(first, last - first)
        with self._opened(shard, os.O_CREAT) as descriptor:
            if os.fstat(descriptor).st_size < (size := int(self.blocks.bytes[shard])):
                self.doubt(self.entries[shard].name)
                os.ftruncate(descriptor, size)

    # ------------------------------------------------------------------------ giving back

    def give_back(self, block: int) -> bool:
        """Punches a hole where a block was, unless another process needs or fetches it. The caller knows that this
        process does not need it. OSError if the file system cannot punch holes.
        """
        if self.closed or not self.claims.take(block):
            return False
        try:
            if self.marks.state(block) == ABSENT or not self.claims.may_give_back(block):
                return False
            try:
                self.marks.set(block, ABSENT)  # first: who reads it now looks again
                self._punch(self.blocks.span(block))
                return True
            finally:
                self.claims.given_back(block)
        finally:
            self.claims.release(block)

    def _punch(self, at: BlockSpan) -> None:
        path = self._path(at.shard, "bin")
        with self._opened(at.shard) as descriptor:
            if _libc.fallocate(descriptor, PUNCH_HOLE | KEEP_SIZE, at.start, at.stop - at.start):
                number = ctypes.get_errno()
                raise OSError(
                    number,
                    f"{path}: the file system cannot give back a part of a file ({os.strerror(number)}); name a "
                    "cache_dir on another one, or a larger cache_bytes",
                )

    # ------------------------------------------------------------------------ names

    def name(self, shard: str, suffix: str) -> str:
        """The name of a shard's file under the address."""
        return remote_name(self.subfolders, shard, suffix)

    def _name(self, shard: int, suffix: str) -> str:
        return self.name(self.entries[shard].name, suffix)

    def _path(self, shard: int, suffix: str) -> Path:
        return shard_path(self.folder, self.entries[shard].name, suffix)

    def _local_record(self, shard: int) -> bytes | None:
        try:
            return read_bounded(self._path(shard, "json"), LARGEST, "the record of a shard")
        except FileNotFoundError:
            return None

    def _sha256(self, shard: int, suffix: str) -> str | None:
        """The SHA-256 of a file of a shard; None if it is not there."""
        try:
            with open(self._path(shard, suffix), "rb", opener=_without_links) as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return None


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def full_disk(number: int | None, message: str) -> OSError:
    """The error for a full disk."""
    error = OSError(message)
    error.errno = number
    return error


def _living(references: "list[weakref.ref[Any]]") -> list[Any]:
    """The objects that still exist; forgets the others. Several threads may call this and add to the list."""
    found = [(reference, reference()) for reference in list(references)]
    for reference, there in found:
        if there is None:
            with contextlib.suppress(ValueError):
                references.remove(reference)
    return [there for _, there in found if there is not None]
