"""Locks on folders and files, so that one process at a time writes.

    with locked(folder): ...                 OSError if another process is in there
    with locked(folder, shared=True): ...    admits others that are shared

A lock is the kernel's (flock) on the folder itself: it ends with its process, however that ends,
and leaves no file. Where a file system has no locks, nothing is locked.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from tokenmill.store.names import require_inside

DYING_SECONDS = 1.0  # in which a process that was killed loses its lock
POLL_SECONDS = 0.01


@contextlib.contextmanager
def locked(folder: Path, shared: bool = False, seconds: float = DYING_SECONDS) -> Iterator[None]:
    """Makes the folder, and holds its lock.

    OSError if another process holds the lock and keeps it for so long; ValueError if a folder
    inside is a link that leads out, as files written and deleted there would be somebody else's.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"{folder}: cannot be made ({error.strerror}); choose another folder"
        ) from error
    for path in folder.iterdir():
        if path.is_symlink() and path.is_dir():
            require_inside(folder, path / "file")
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if not take_lock(descriptor, seconds, kind):
            raise OSError(
                f"{folder}: another process is writing in this folder; wait for it to end"
            )
        yield
    finally:
        os.close(descriptor)


def take_lock(descriptor: int, seconds: float, kind: int = fcntl.LOCK_EX) -> bool:
    """Locks a file. False if another process keeps it for so long."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        except OSError:  # a file system without locks
            return True
