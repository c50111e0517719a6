"""Locks on folders and files, so that one process at a time writes.

    with locked(folder): ...                 OSError if another process is in there
    with locked(folder, shared=True): ...    admits others that are shared
    with held_for(path, purpose): ...        admits others of the same purpose

A lock is the kernel's (flock) on the folder or file itself: it ends with its process, however that
ends. Where a file system has no locks, nothing is locked, with a warning.
"""

import contextlib
import fcntl
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from tokenmill.store.files import with_message
from tokenmill.store.names import require_inside

DYING_SECONDS = 1.0  # in which a process that was killed loses its lock
POLL_SECONDS = 0.01
NO_LOCKS = "a file system has no locks; let one process at a time write into a token set"


@contextlib.contextmanager
def locked(folder: Path, shared: bool = False) -> Iterator[None]:
    """Makes the folder, and holds its lock.

    OSError if another process holds the lock and keeps it for a second; ValueError if a folder
    inside is a link that leads out, as files written and deleted there would be somebody else's.
    """
    _make_folder(folder)
    for path in folder.iterdir():
        if path.is_symlink() and path.is_dir():
            require_inside(folder, path / "file")
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if not take_lock(descriptor, DYING_SECONDS, kind):
            raise OSError(
                f"{folder}: another process is writing in this folder; wait for it to end"
            )
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def held_for(path: Path, purpose: str) -> Iterator[None]:
    """Makes a file that says the purpose, and holds its lock together with others of the same one.

    BlockingIOError if a process of another purpose holds it and keeps it for a second. The last of
    them removes the file. Where nothing can be written, nothing is locked.
    """
    descriptor = _join(path, purpose.encode())
    try:
        yield
    finally:
        if descriptor is not None:
            if take_lock(descriptor, seconds=0):  # nobody else holds it
                path.unlink(missing_ok=True)
            os.close(descriptor)


def _join(path: Path, purpose: bytes) -> int | None:
    """The descriptor of a file that is locked, by processes of this purpose alone."""
    _make_folder(path.parent)
    deadline = time.monotonic() + DYING_SECONDS
    while time.monotonic() < deadline:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            if not os.path.lexists(path) and not os.access(path.parent, os.W_OK):
                return None
            reason = f"{path}: cannot be opened ({error.strerror}); delete it, if no run has it"
            raise with_message(error, reason) from error
        if _joins(descriptor, purpose):
            return descriptor
        os.close(descriptor)
        time.sleep(POLL_SECONDS)
    raise BlockingIOError(f"{path}: another process holds it for another purpose")


def _joins(descriptor: int, purpose: bytes) -> bool:
    """Whether this process holds the file's lock now, with others of the same purpose."""
    if take_lock(descriptor, seconds=0):  # nobody else holds it
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, purpose, 0)
    if not take_lock(descriptor, DYING_SECONDS, fcntl.LOCK_SH):
        return False
    is_removed = os.fstat(descriptor).st_nlink == 0
    return not is_removed and os.pread(descriptor, len(purpose) + 1, 0) == purpose


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"{folder}: cannot be made ({error.strerror}); choose another folder"
        ) from error


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
        except OSError:
            warnings.warn(NO_LOCKS, stacklevel=1)
            return True
