"""Locks a folder against other processes that write in it.

    with locked(folder): ...                 OSError if another process is in there
    with locked(folder, shared=True): ...    admits others that are shared

The lock is the kernel's (flock) on the folder itself: it ends with its process, however that ends, and leaves no file.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from tokenmill.store.names import require_inside

DYING_SECONDS = 1.0  # in which a process that was killed loses its lock


@contextlib.contextmanager
def locked(folder: Path, shared: bool = False) -> Iterator[None]:
    """Makes the folder, and holds its lock. On a file system without locks, nothing is locked.

    OSError if another process holds the lock and keeps it for a second; ValueError if a folder inside is a link that
    leads out, as files written and deleted there would be somebody else's.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"{folder}: cannot be made ({error.strerror}); choose another --tokens-root") from error
    for path in folder.iterdir():
        if path.is_symlink() and path.is_dir():
            require_inside(folder, path / "file")
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _lock(descriptor, folder, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path, kind: int) -> None:
    until = time.monotonic() + DYING_SECONDS
    while True:
        try:
            return fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > until:
                raise OSError(f"{folder}: another process is writing in this folder; wait for it to end") from error
            time.sleep(0.02)
        except OSError:  # a file system without locks
            return None
