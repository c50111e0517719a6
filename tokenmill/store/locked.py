"""Locks a folder against other processes that change it, and says who has it.

    with locked(folder): ...                 OSError if another process is in there
    with locked(folder, shared=True): ...    admits others that are shared

The lock is the kernel's (flock), and ends with its process. Beside it, the file `.writer` says who holds it: which
process of which machine, since when. On file systems without working locks, that file alone keeps a second process out.
"""

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenmill.store.files import is_alive, temporary, this_machine
from tokenmill.store.names import require_inside

WRITER, TAKING = ".writer", ".writer.taking"
TAKING_SECONDS = 60.0  # after which a process that is becoming the writer is taken for dead
DYING_SECONDS = 1.0  # in which a process that was killed loses its lock
WRITER_BYTES = 4096


@contextlib.contextmanager
def locked(folder: Path, shared: bool = False) -> Iterator[None]:
    """Makes the folder, and locks it against other processes that change it. The lock ends with its process.

    A `shared` lock admits others that are shared. OSError if another process holds the lock; ValueError if a folder
    inside is a link that leads out of it, as files written and deleted there would be somebody else's.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"{folder}: cannot be made ({error.strerror}); choose another --tokens-root") from error
    with os.scandir(folder) as found:
        for entry in found:
            if entry.is_symlink() and entry.is_dir():
                require_inside(folder, Path(entry.path) / "file")
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        locks_work = _lock(descriptor, folder, shared)
        if shared:
            yield
            return
        _write_writer(folder, locks_work)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # the folder may be gone, or read-only
                if (_said(folder / WRITER) or {}).get("process") == os.getpid():
                    (folder / WRITER).unlink()
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path, shared: bool) -> bool:
    """Whether locks work here. OSError if another process has the lock, and keeps it for a second."""
    until = time.monotonic() + DYING_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            return True
        except BlockingIOError as error:
            if time.monotonic() > until:
                raise _in_use(folder, _said(folder / WRITER)) from error
            time.sleep(0.02)
        except OSError:  # a file system without locks
            return False


def _write_writer(folder: Path, locks_work: bool) -> None:
    """Says that this process has the folder. OSError if another one that has it is alive, or may be."""
    me = {"machine": this_machine(), "host": socket.gethostname(), "process": os.getpid()}
    me |= {"started": _started(os.getpid()), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    with _one_at_a_time(folder, me):
        if (other := _said(folder / WRITER)) is not None:
            elsewhere = other.get("machine") != this_machine()
            if (elsewhere and not locks_work) or (not elsewhere and _is_same_process(other)):
                raise _in_use(folder, other)
        with contextlib.suppress(OSError):  # of a folder that nobody can write to
            (folder / WRITER).unlink(missing_ok=True)
            _make(folder / WRITER, me)


@contextlib.contextmanager
def _one_at_a_time(folder: Path, me: dict[str, Any]) -> Iterator[None]:
    """Lets one process at a time look for a writer and become it, without locks: a file can be made only once."""
    taking = folder / TAKING
    _remove_if_left(taking)
    try:
        _make(taking, me)
    except FileExistsError as error:
        raise _in_use(folder, _said(taking), TAKING) from error
    except OSError:  # a folder that nobody can write to
        yield
        return
    try:
        yield
    finally:
        taking.unlink()


def _remove_if_left(taking: Path) -> None:
    """Removes the file of a process that was killed while it became the writer."""
    try:
        other, age = _said(taking), time.time() - os.lstat(taking).st_mtime
        dead = other is not None and other.get("machine") == this_machine() and not _is_same_process(other)
        if dead or age > TAKING_SECONDS:
            taking.rmdir() if taking.is_dir() else taking.unlink()  # older versions made a folder
    except OSError:
        pass


def _make(path: Path, content: dict[str, Any]) -> None:
    """Makes a file, whole at once where there are hard links. FileExistsError if it is there."""
    whole = temporary(path)
    try:
        with open(whole, "x") as file:
            json.dump(content, file)
        os.link(whole, path)
    except FileExistsError:
        raise
    except OSError:  # no hard links here
        with open(path, "x") as file:
            json.dump(content, file)
    finally:
        whole.unlink(missing_ok=True)


def _said(path: Path) -> dict[str, Any] | None:
    """Who has the folder, or had it when it was killed, as a file says; None if nobody is known."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = json.loads(os.read(descriptor, WRITER_BYTES))
        finally:
            os.close(descriptor)
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _is_same_process(other: dict[str, Any]) -> bool:
    """Whether the process is alive, and no later one that has its number."""
    process = other.get("process")
    return (
        type(process) is int
        and 0 < process < 1 << 31
        and is_alive(process)
        and _started(process) == other.get("started")
    )


def _started(process: int) -> str:
    """When a process began, in ticks since the boot; "" if the system does not say."""
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return ""


def _in_use(folder: Path, other: dict[str, Any] | None, file: str = WRITER) -> OSError:
    who = ""
    if other is not None:
        who = f": process {other.get('process')} on {other.get('host')}, since {other.get('since')}"
    return OSError(
        f"{folder}: another preparation is writing here{who}; wait for it to end. If it has ended, and locks do not "
        f"work there, delete {folder / file}"
    )
