"""Who fetches what, and who needs what: agreed among the processes of a machine without a leader or a lock file.

    claims.take(block)            nobody else fetches it from now on; False where somebody does
    claims.need(blocks)           nobody else gives these back
    claims.may_give_back(block)   whether nobody else needs it

All are POSIX record locks on bytes of one file, as many bytes as there are things to claim: the kernel lets go of them
when a process ends, however it does. Where locks lie, as on some network disks, two processes fetch the same block, or
one gives back what another needs and that fetches it again: it costs bandwidth, and no row is wrong (marks.py).
"""

import errno
import fcntl
import os
import threading
from pathlib import Path

import numpy as np

FILES, NEEDED = 1 << 40, 1 << 41  # where the bytes of shards' small files, and of needed blocks, begin
HELD = {errno.EACCES, errno.EAGAIN}


class Claims:
    """The claims of this process in a file. Kept open: closing it would let go of all."""

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        self.after_fork()

    def after_fork(self) -> None:
        """A child has none of its parent's claims."""
        self._taken: set[int] = set()
        self._needed = np.zeros(0, np.int64)
        self._lock = threading.Lock()

    def take(self, number: int) -> bool:
        """Claims a block, or FILES + a shard; False where another thread or process has it."""
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
        """Says which blocks this process needs from now on: these (ascending, each once) and no others."""
        with self._lock:
            for first, count in runs(np.setdiff1d(blocks, self._needed, assume_unique=True)):
                self._try(fcntl.LOCK_SH, NEEDED + first, count)
            for first, count in runs(np.setdiff1d(self._needed, blocks, assume_unique=True)):
                self._try(fcntl.LOCK_UN, NEEDED + first, count)
            self._needed = blocks

    def may_give_back(self, block: int) -> bool:
        """Whether no other process needs a block, that this one does not. Held until `given_back`."""
        return self._try(fcntl.LOCK_EX, NEEDED + block)

    def given_back(self, block: int) -> None:
        self._try(fcntl.LOCK_UN, NEEDED + block)

    def close(self) -> None:
        """Lets go of everything, for good."""
        self._file, descriptor = -1, self._file
        os.close(descriptor)

    def _try(self, kind: int, first: int, count: int = 1) -> bool:
        if self._file < 0:
            return True
        try:
            fcntl.lockf(self._file, kind | (0 if kind == fcntl.LOCK_UN else fcntl.LOCK_NB), count, first)
        except OSError as error:
            return error.errno not in HELD  # where there are no locks at all, everybody has them
        return True


def runs(numbers: np.ndarray) -> list[tuple[int, int]]:
    """Ascending numbers as stretches: (first, how many)."""
    if not len(numbers):
        return []
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    firsts, ends = numbers[[0, *cuts]], np.append(cuts, len(numbers))
    return list(zip(firsts.tolist(), np.diff([0, *ends]).tolist(), strict=True))
