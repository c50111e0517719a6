"""The map of a cache's blocks: which of them are there, shared by all processes of the machine.

It is a file with a number for each block, which all processes map. The low two bits are the state of the block, the
others count how often it changed.

    absent    not there
    coming    a process fetches it, or was killed while it did
    there     its bytes were checked, and are in the shard's file
    unsure    it was there before the last reboot: it is checked again before it counts

A reader looks at a block's number, copies the bytes, and looks again: if the number is the same, nobody gave the block
back meanwhile (a seqlock, as in Linux). Where locks do not work, a block may be a hole although its number says that it
is there; holes.py finds those. Before any block is given back, the whole map gets another `era`, a random number: a
reader that has seen all its blocks there only compares that.
"""

import hashlib
import mmap
import os
import secrets
from pathlib import Path

import numpy as np

from tokenmill.store.files import with_message

ABSENT, COMING, THERE, UNSURE = range(4)
MAGIC = int.from_bytes(b"millmap1", "little")
HEAD = 24  # bytes: the magic, which start of the machine and which shards this is of, and the era


class Marks:
    """The states of `count` blocks, in a file. OSError if it cannot be written, ValueError if it has another size.

    `of` says which shards these are the blocks of. If the file was made for others, as where a folder was moved to the
    place of another, no block is trusted before it is checked again.
    """

    def __init__(self, path: Path, count: int, of: str = ""):
        size = HEAD + 4 * count
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            found = os.fstat(descriptor).st_size
            if found not in (0, size):
                raise ValueError(f"{path}: expected {size:,} bytes, found {found:,}; delete {path.parent}")
            if not found:
                os.ftruncate(descriptor, size)  # without taking the space
            _take_space(descriptor, path, 0, min(HEAD, size))
            self._memory = mmap.mmap(descriptor, size)
            self._inode = os.fstat(descriptor).st_ino
        finally:
            os.close(descriptor)
        self._path = path
        self._head = head = memoryview(self._memory)[:HEAD].cast("Q")
        self.words = np.frombuffer(self._memory, np.uint32, count, HEAD)  # (count,)
        boot = _boot() ^ int.from_bytes(hashlib.sha256(of.encode()).digest()[:8], "little")
        if head[0] != MAGIC or head[1] != boot:
            self._doubt()
            head[0], head[1] = MAGIC, boot

    def allocate(self, first: int, count: int) -> None:
        """Takes the disk space of the states of `count` blocks, before they are set. OSError if the disk is full.

        Without it, a full disk would be a signal that ends the process.
        """
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError as error:
            raise deleted(self._path) from error
        try:
            if os.fstat(descriptor).st_ino == self._inode and count:
                _take_space(descriptor, self._path, HEAD + 4 * first, 4 * count)
        finally:
            os.close(descriptor)

    def is_at(self, path: Path) -> bool:
        """Whether the file is still at its path."""
        try:
            return os.stat(path).st_ino == self._inode
        except FileNotFoundError:
            return False

    def _doubt(self) -> None:
        """After a reboot, blocks that were not on disk yet are lost, and nothing shows which."""
        there = np.flatnonzero(self.states() == THERE)
        self.set(there, UNSURE)

    @property
    def era(self) -> int:
        """A number that stays the same until a block is given back."""
        return self._head[2]

    def states(self) -> np.ndarray:
        """The state of each block: (count,) uint32."""
        states: np.ndarray = self.words & 3
        return states

    def state(self, block: int) -> int:
        return int(self.words[block]) & 3

    def set(self, blocks: int | np.ndarray, state: int) -> None:
        """Gives blocks a state, and another number. If they are no longer there, a new era begins."""
        self.words[blocks] = (((self.words[blocks].astype(np.uint64) >> 2) + 1) << 2 | state).astype(np.uint32)
        if state in (ABSENT, UNSURE):
            self._head[2] = secrets.randbits(64)


def _boot() -> int:
    """Identifies this boot of the machine; 1 if the system does not say."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return 1
    return int.from_bytes(hashlib.sha256(boot_id).digest()[:8], "little")


def _take_space(descriptor: int, path: Path, offset: int, size: int) -> None:
    """Takes disk space for a part of a file. OSError, with the path, if there is none."""
    try:
        os.posix_fallocate(descriptor, offset, size)
    except OSError as error:
        message = f"{path}: cannot be written ({error.strerror}); free some disk, or name another cache_dir"
        raise with_message(error, message) from error


def deleted(path: Path) -> FileNotFoundError:
    """The error for a file of the cache that was deleted."""
    return FileNotFoundError(
        f"{path}: deleted or cut while it was in use; leave the cache alone while a run uses it, and resume"
    )
