"""Lets the processes of a machine agree on who fetches a block and who needs it, without a leader.

    claims.take(block)            no other process fetches it from now on; False if one does already
    claims.need(blocks)           no other process gives these back
    claims.may_give_back(block)   whether no other process needs it

These are POSIX record locks on the bytes of one file, a byte for each thing to claim. The kernel releases them when a
process ends, however it ends. On file systems without working locks, two processes may fetch the same block, or one
gives back a block that another needs and fetches again. That costs bandwidth, but no row is wrong (holes.py).
"""

import errno
import fcntl
import os
import threading
from pathlib import Path

import numpy as np

FILES, NEEDED = 1 << 40, 1 << 41  # the first bytes for small files of shards, and for blocks that are needed
HELD = {errno.EACCES, errno.EAGAIN}


class Claims:
    """The claims of this process in a file, which stays open, as closing it would release all of them."""

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        self.after_fork()

    def after_fork(self) -> None:
        """A child process does not have its parent's claims."""
        self._taken: set[int] = set()
        self._needed = np.zeros(0, np.int64)
        self._lock = threading.Lock()

    def take(self, number: int) -> bool:
        """Claims a block, or FILES + a shard. False if another thread or process has claimed it."""
        with self._lock:
            if number in self._taken:
                return False
            self._taken.add(number)
        if self._try(fcntl.LOCK_EX, number):
            return True
        self._taken.discard(number)
        return False

    def release(self, number: int) -> None:
        self._try(fcntl.LOCK_UN, number)
        self._taken.discard(number)

    def need(self, blocks: np.ndarray) -> None:
        """Sets the blocks that this process needs from now on (unique, ascending)."""
        with self._lock:
            for first, count in runs(np.setdiff1d(blocks, self._needed, assume_unique=True)):
                self._try(fcntl.LOCK_SH, NEEDED + first, count)
            for first, count in runs(np.setdiff1d(self._needed, blocks, assume_unique=True)):
                self._try(fcntl.LOCK_UN, NEEDED + first, count)
            self._needed = blocks

    def may_give_back(self, block: int) -> bool:
        """Whether no other process needs a block that this one does not need. Locked until `given_back`."""
        return self._try(fcntl.LOCK_EX, NEEDED + block)

    def given_back(self, block: int) -> None:
        self._try(fcntl.LOCK_UN, NEEDED + block)

    def close(self) -> None:
        """Releases everything, for good."""
        self._file, descriptor = -1, self._file
        os.close(descriptor)

    def _try(self, kind: int, first: int, count: int = 1) -> bool:
        if self._file < 0:
            return True
        try:
            fcntl.lockf(self._file, kind | (0 if kind == fcntl.LOCK_UN else fcntl.LOCK_NB), count, first)
        except OSError as error:
            return error.errno not in HELD  # without any locks, every process gets them
        return True


def runs(numbers: np.ndarray) -> list[tuple[int, int]]:
    """Ascending numbers as ranges: (first, how many)."""
    if not len(numbers):
        return []
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    firsts, ends = numbers[[0, *cuts]], np.append(cuts, len(numbers))
    return list(zip(firsts.tolist(), np.diff([0, *ends]).tolist(), strict=True))
