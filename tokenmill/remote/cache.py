"""One token set's folder on this machine's disk: blocks of its shards, each checked before it is written.

    CACHE/<manifest's digest>/
        manifest.json, tokenizer.json, token_bytes.npy      as they lie in the set
        shards/a.000.bin          of its full size, with holes where blocks are not there
        shards/a.000.idx, .json   whole, once a window needs them
        blocks                    which blocks are there (marks.py)
        claims                    who fetches what, who needs what (claims.py); always empty

A block is fetched, its CRC-32 compared in memory, written at its place, and then noted. So a process that is killed
loses the block at hand, and whatever else happens to two that fetch the same, both write the same bytes. Any number of
processes share the folder, and none of them is told of the others.
"""

import contextlib
import ctypes
import errno
import hashlib
import os
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tokenmill.remote.addresses import remote_name
from tokenmill.remote.blocks import Block, Blocks
from tokenmill.remote.claims import FILES, Claims
from tokenmill.remote.http import WHOLE
from tokenmill.remote.marks import ABSENT, COMING, THERE, UNSURE, Marks
from tokenmill.remote.places import Place, read
from tokenmill.store.files import parse_json, read_bounded, remove_temporary_files, write_file
from tokenmill.store.names import require_inside
from tokenmill.store.shards import OFFSET, ShardEntry, shard_path

FULL = {errno.ENOSPC, errno.EDQUOT}
TRIES = 3  # of a block whose bytes are wrong
KEEP_SIZE, PUNCH_HOLE = 1, 2  # Linux's numbers

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class Need:
    """Blocks that a plan needs, in the order in which it does, in `due()` windows; as long as the object is there."""

    def __init__(self, blocks: np.ndarray, due: Callable[[], int]):
        self.blocks, self.due = blocks, due


class Order(Protocol):
    """When a loader needs each block next."""

    def next_use(self, blocks: Blocks) -> np.ndarray:
        """In how many windows from now: (count,) int64."""
        ...


class Cache:
    """The blocks of a set of shards, from a place, in a folder. Fetching is the fetcher's (fetcher.py), in its threads.

    Without a place it only tells what is there. ValueError or OSError where the folder is of something else, or cannot
    be written.
    """

    def __init__(
        self, folder: Path, entries: list[ShardEntry], itemsize: int, place: Place | None, subfolders: int = 0
    ):
        self.folder, self.entries, self.place, self.subfolders = folder, entries, place, subfolders
        (folder / "shards").mkdir(parents=True, exist_ok=True)
        require_inside(folder, folder / "shards" / "file")
        self._directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # this one, whatever follows it
        remove_temporary_files(folder, folder / "shards")
        self.blocks = Blocks(entries, itemsize)
        self.number = {entry.name: number for number, entry in enumerate(entries)}  # of each shard
        if not (folder / "blocks").exists():  # of which nobody knows what is there
            for path in (folder / "shards").glob("*.bin"):
                path.unlink(missing_ok=True)
        self.marks, self.claims = Marks(folder / "blocks", self.blocks.count), Claims(folder / "claims")
        self.failed: dict[int, Exception] = {}  # why a block, or FILES + a shard, could not be had
        self._needs: list[weakref.ref[Need]] = []
        self._orders: list[weakref.ref[Order]] = []
        self._checksums: dict[int, np.ndarray] = {}  # of the shards whose small files are there: CRC-32 of each block
        self.no_room: OSError | None = None  # why nothing could come of late
        self._pid = os.getpid()
        self.closed = False
        self._sweep()

    def _sweep(self) -> None:
        """Blocks that a killed process was fetching are not there."""
        for block in np.flatnonzero(self.marks.states() == COMING).tolist():
            if self.claims.take(block):
                self.marks.set(block, ABSENT)
                self.claims.release(block)

    def after_fork(self) -> None:
        """A child has no claims, no plans, and no errors to tell."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self.failed, self._needs = {}, []
            self.claims.after_fork()

    def close(self) -> None:
        """Lets go of its claims. Nothing is fetched any more."""
        self.closed = True
        self.claims.close()

    # ------------------------------------------------------------------------ what is there

    def is_in_its_folder(self) -> bool:
        """Whether the folder is still the one that this is of, and was not deleted since."""
        return self.marks.is_at(self.folder / "blocks")

    def missing(self, numbers: np.ndarray) -> np.ndarray:
        """Those of some blocks, or FILES + shards, that are not there."""
        small = numbers >= FILES
        lacking = [number for number in numbers[small].tolist() if number - FILES not in self._checksums]
        blocks = numbers[~small]
        found = blocks[self.marks.words[blocks] & 3 != THERE]
        return np.concatenate([np.array(lacking, np.int64), found]) if lacking else found

    def add(self, what: "Need | Order") -> None:
        """Takes note of what a loader needs, or in which order, as long as that object is there."""
        (self._needs if isinstance(what, Need) else self._orders).append(weakref.ref(what))  # type: ignore[arg-type]

    def look_at_files(self, shard: str) -> None:
        """Whether a shard's files are still there; where not, `missing` says so from now on."""
        number = self.number[shard]
        sizes = {"bin": self.bytes_of(shard), "idx": (self.entries[number].documents + 1) * OFFSET.itemsize}
        for suffix, size in sizes.items():
            try:
                if os.stat(self._path(number, suffix)).st_size == size:
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
        """Takes no block of a shard for being there."""
        self.marks.set(self.blocks_of(shard), ABSENT)

    def needed(self) -> np.ndarray:
        """The blocks that plans of this process need: ascending, each once."""
        return np.unique(np.concatenate([np.zeros(0, np.int64), *(need.blocks for need in _living(self._needs))]))

    def orders(self) -> "list[Order]":
        """The orders of this process's loaders."""
        return _living(self._orders)

    def size(self) -> int:
        """Bytes of the blocks that are there, or on their way."""
        return self.blocks.size_of(self.marks.states() != ABSENT)

    # ------------------------------------------------------------------------ fetching, in the fetcher's threads

    def fetch(self, number: int, make_room: Any, pause_for: Callable[[float], None] = time.sleep) -> bool:
        """Has a block there, or the small files of the shard FILES + n; False where somebody else is at it.

        `make_room()` is called before bytes come, `pause_for(seconds)` before another try. OSError or ValueError, with
        the address, where it cannot be had.
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
                self._fetch_block(number, make_room, pause_for)
            return True
        finally:
            self.claims.release(number)

    def _fetch_block(self, block: int, make_room: Any, pause_for: Callable[[float], None]) -> None:
        at = self.blocks.place(block)
        if at.shard not in self._checksums:
            self._fetch_files(at.shard, pause_for)
        if self.marks.state(block) == UNSURE and self._crc(self._read_back(at)) == self._expected(at):
            self.marks.set(block, THERE)
            return
        self.marks.set(block, COMING)
        try:
            make_room()
            self._write(at, self._verified(at, pause_for), make_room)
        except BaseException:
            self.marks.set(block, ABSENT)
            raise
        self.marks.set(block, THERE)

    def _verified(self, at: Block, pause_for: Callable[[float], None]) -> bytes:
        """A block's bytes, of the right CRC-32. OSError where they are wrong three times."""
        assert self.place is not None, "a cache without a place fetches nothing"
        name, expected, found = self._name(at.shard, "bin"), self._expected(at), 0
        for number in range(TRIES):
            data = read(self.place, name, at.start, at.stop, number > 0, pause_for)
            found = self._crc(data)
            if found == expected:
                return data
        raise OSError(
            f"{self.place.told(name)}: bytes {at.start:,} to {at.stop - 1:,} (block {at.number}): expected CRC-32 "
            f"{expected:08x}, found {found:08x}, {TRIES} times on fresh connections: damaged there, or replaced since "
            "the set's manifest was written; `tokenmill push --again` sends it again, or name the set as it is now"
        )

    def _write(self, at: Block, data: bytes, make_room: Any) -> None:
        """Writes a block at its place. On a disk that is full others are given back first, and it is tried again."""
        path = self._path(at.shard, "bin")
        try:
            self._write_at(at, data)
        except FileNotFoundError:
            raise
        except OSError as error:
            self._punch(at)
            if error.errno not in FULL:
                raise
            try:
                make_room(full=True)
                self._write_at(at, data)
            except OSError as again:
                self._punch(at)
                told = (
                    f"{path}: cannot be written ({error.strerror}), and blocks that are there are all needed by plans "
                    "at hand; free some disk, or name another cache_dir"
                )
                raise full_disk(error.errno, told) from again

    def _write_at(self, at: Block, data: bytes) -> None:
        start, left = at.start, memoryview(data)
        with self._opened(at.shard) as descriptor:
            while left:
                written = os.pwrite(descriptor, left, start)
                left, start = left[written:], start + written
            if os.fstat(descriptor).st_nlink == 0:
                raise deleted(self._path(at.shard, "bin"))

    def _read_back(self, at: Block) -> bytes:
        with self._opened(at.shard) as descriptor:
            return os.pread(descriptor, at.stop - at.start, at.start)

    @contextlib.contextmanager
    def _opened(self, shard: int, more: int = 0) -> Iterator[int]:
        """A shard's file in this very folder: not in one that was put in its place."""
        name = f"shards/{self.entries[shard].name}.bin"
        try:
            descriptor = os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | more, 0o666, dir_fd=self._directory)
        except FileNotFoundError as error:
            raise deleted(self.folder / name) from error
        try:
            if not self.is_in_its_folder():  # whose map is another: what is done here nobody would know
                raise deleted(self.folder)
            if not more and os.fstat(descriptor).st_size < self.blocks.bytes[shard]:  # cut: writing would hide it
                self.doubt(self.entries[shard].name)
                raise deleted(self.folder / name)
            yield descriptor
        finally:
            os.close(descriptor)

    def _crc(self, data: bytes) -> int:
        return zlib.crc32(data)

    def _expected(self, at: Block) -> int:
        return int(self._checksums[at.shard][at.number])

    # ------------------------------------------------------------------------ small files

    def _fetch_files(self, shard: int, pause_for: Callable[[float], None]) -> None:
        """A shard's record and offsets, from the folder or the place; and the file that its blocks come into."""
        entry = self.entries[shard]
        record = self._record(self._local(shard, "json"), entry)
        if record is None:
            assert self.place is not None, "a cache without a place fetches nothing"
            name = self._name(shard, "json")
            data = read(self.place, name, pause_for=pause_for)
            record = self._record(data, entry)
            if record is None:
                raise ValueError(
                    f"{self.place.told(name)}: expected the record of the shard that the manifest lists, with "
                    f"SHA-256 {entry.bin_sha256[:16]}..., found another; the set is being replaced, or was damaged: "
                    "`tokenmill push --again` sends it again"
                )
            write_file(self._path(shard, "json"), data, durable=False)
        if not self._are_offsets(self._local(shard, "idx"), entry):
            self._fetch_offsets(shard, entry, pause_for)
        self._make_sparse(shard)
        self._checksums[shard] = np.array(record["bin"]["crc32"], np.uint32)

    def _fetch_offsets(self, shard: int, entry: ShardEntry, pause_for: Callable[[float], None]) -> None:
        assert self.place is not None, "a cache without a place fetches nothing"
        name, data = self._name(shard, "idx"), b""
        size = (entry.documents + 1) * OFFSET.itemsize
        for number in range(TRIES):
            data = read(self.place, name, 0, size, number > 0, pause_for)
            if self._are_offsets(data, entry):
                write_file(self._path(shard, "idx"), data, durable=False)
                return
        raise OSError(
            f"{self.place.told(name)}: expected SHA-256 {entry.idx_sha256}, found "
            f"{hashlib.sha256(data).hexdigest()}, {TRIES} times: damaged there, or replaced; "
            "`tokenmill push --again` sends it again"
        )

    def _record(self, data: bytes | None, entry: ShardEntry) -> dict[str, Any] | None:
        """A shard's record, where these bytes are that of the shard that the manifest lists."""
        if data is None:
            return None
        try:
            record = parse_json(data, entry.name, "shard")
            bin, idx = record["bin"], record["idx"]
            right = (entry.name, entry.bin_sha256, entry.idx_sha256, self.bytes_of(entry.name))
            blocks = len(self.blocks_of(entry.name))
            found = (record["name"], bin["sha256"], idx["sha256"], bin["bytes"])
            return record if found == right and len(bin["crc32"]) == blocks else None
        except (ValueError, KeyError, TypeError):
            return None

    def _are_offsets(self, data: bytes | None, entry: ShardEntry) -> bool:
        return data is not None and hashlib.sha256(data).hexdigest() == entry.idx_sha256

    def _make_sparse(self, shard: int) -> None:
        """Gives a shard's file its size. One that was deleted or cut has no blocks any more, and gives a new era.

        It is never made smaller: somebody may have it mapped.
        """
        with self._opened(shard, os.O_CREAT) as descriptor:
            if os.fstat(descriptor).st_size < (size := int(self.blocks.bytes[shard])):
                self.doubt(self.entries[shard].name)
                os.ftruncate(descriptor, size)

    # ------------------------------------------------------------------------ giving back

    def give_back(self, block: int) -> bool:
        """Makes a hole where a block was, unless another process needs it, or somebody is at it. The caller knows that
        this process does not need it. OSError where the file system makes no holes.
        """
        if self.closed or not self.claims.take(block):
            return False
        try:
            if self.marks.state(block) == ABSENT or not self.claims.may_give_back(block):
                return False
            try:
                self.marks.set(block, ABSENT)  # first: who reads it now looks again
                self._punch(self.blocks.place(block))
                return True
            finally:
                self.claims.given_back(block)
        finally:
            self.claims.release(block)

    def _punch(self, at: Block) -> None:
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
        """Where a shard's file lies under the address."""
        return remote_name(self.subfolders, shard, suffix)

    def _name(self, shard: int, suffix: str) -> str:
        return self.name(self.entries[shard].name, suffix)

    def _path(self, shard: int, suffix: str) -> Path:
        return shard_path(self.folder, self.entries[shard].name, suffix)

    def _local(self, shard: int, suffix: str) -> bytes | None:
        try:
            return read_bounded(self._path(shard, suffix), WHOLE, "a file of a cache")
        except FileNotFoundError:
            return None


def deleted(path: Path) -> FileNotFoundError:
    """The error of a file of the cache that somebody took away."""
    return FileNotFoundError(
        f"{path}: deleted or cut while it was in use; leave the cache alone while a run uses it, and resume"
    )


def full_disk(number: int | None, told: str) -> OSError:
    """The error of a disk that has no room."""
    error = OSError(told)
    error.errno = number
    return error


def _living(references: "list[weakref.ref[Any]]") -> list[Any]:
    """What is still there; forgets the others. Several threads may ask, and add."""
    found = [(reference, reference()) for reference in list(references)]
    for reference, there in found:
        if there is None:
            with contextlib.suppress(ValueError):
                references.remove(reference)
    return [there for _, there in found if there is not None]
