"""Files that appear whole, or not at all; and JSON files, which begin with their format and version.

    with AtomicFile(path) as file:           a temporary file beside `path`
        file.write(data)
        checksums = file.commit()            on disk, and renamed: {"bytes": 4, "sha256": "...", "crc32": [...]}
    write_json(path, header("shard") | record)
    read_json(path, "shard")                 ValueError if it is another file, or schema.py finds it wrong

A crash at any instant leaves the old file, the new one, or a `.tmp` that nothing reads.

    with locked(folder): ...                 OSError if another process is in there
    with locked(folder, shared=True): ...    admits others that are shared

A lock is the kernel's (flock) on the folder itself: it ends with its process, however that ends, and leaves no file.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import time
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tokenmill.store.names import require_inside
from tokenmill.store.schema import KINDS, check

if TYPE_CHECKING:
    from typing_extensions import Buffer  # bytes, or a contiguous array

VERSION = 1
TEMPORARY = ".tmp"
LARGEST = 128 << 20  # bytes of a JSON file: a manifest of 300,000 shards
BLOCK_BYTES = 1 << 20  # every block of a file has its own CRC-32


class Checksums:
    """The size and SHA-256 of a file, and the CRC-32 of each MiB, which shows where damage is (verify.py)."""

    def __init__(self) -> None:
        self.bytes = 0
        self.crc32: list[int] = []
        self._digest = hashlib.sha256()

    def update(self, data: "Buffer") -> None:
        """Adds the next bytes, from any contiguous buffer."""
        left = memoryview(data).cast("B")
        self._digest.update(left)
        while len(left):
            room = -self.bytes % BLOCK_BYTES
            if not room:
                self.crc32.append(0)
                room = BLOCK_BYTES
            self.crc32[-1] = zlib.crc32(left[:room], self.crc32[-1])
            self.bytes += len(left[:room])
            left = left[room:]

    def facts(self) -> dict[str, Any]:
        return {"bytes": self.bytes, "sha256": self._digest.hexdigest(), "crc32": self.crc32}


class AtomicFile:
    """A file that appears at `path` whole and on disk, with known checksums, or not at all.

    A file that is not `durable` may be lost or damaged by a power cut: use it for what can be fetched again and is
    checked when it is read.
    """

    def __init__(self, path: Path, durable: bool = True):
        self.path, self._durable, self._checksums = path, durable, Checksums()
        # a unique name: the dying worker of a killed run may still be writing the same shard
        self._temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{TEMPORARY}")
        with self._naming_the_file():
            self._file = open(self._temporary, "wb")  # noqa: SIM115 (closed by commit or discard)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # see remove_temporary_files

    def write(self, data: "Buffer") -> None:
        with self._naming_the_file():
            self._file.write(data)
        self._checksums.update(data)

    @contextlib.contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        """An error, for example a full disk, names the file."""
        try:
            yield
        except OSError as error:
            message = f"{self.path}: cannot be written ({error.strerror}); make room, or mend that, and run again"
            raise with_message(error, message) from error

    def commit(self) -> dict[str, Any]:
        """Makes the file count; returns its {"bytes", "sha256", "crc32"}."""
        with self._naming_the_file():
            self._file.flush()
            if self._durable:
                os.fsync(self._file.fileno())
        if self._durable and hasattr(os, "posix_fadvise"):
            # the next file is written several times faster into memory that is warm
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.replace(self._temporary, self.path)
        self._file.close()
        if self._durable:
            _sync_folder(self.path.parent)
        return self.facts()

    def facts(self) -> dict[str, Any]:
        """The {"bytes", "sha256", "crc32"} of what was written so far."""
        return self._checksums.facts()

    def discard(self) -> None:
        """Removes the file if it is not committed."""
        try:
            self._file.close()
        finally:
            self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.discard()


def _sync_folder(folder: Path) -> None:
    """A rename itself must survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: "Buffer", durable: bool = True) -> dict[str, Any]:
    """Writes data (bytes or a contiguous array) to path in one rename; returns its {"bytes", "sha256", "crc32"}."""
    with AtomicFile(path, durable) as file:
        file.write(data)
        return file.commit()


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes value as JSON in one rename, unless the file has it already."""
    write_changed(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def write_changed(path: Path, data: bytes) -> None:
    """Writes data to path in one rename, unless the file has it already."""
    if not (path.exists() and path.read_bytes() == data):
        write_file(path, data)


def read_json(path: Path, kind: str) -> dict[str, Any]:
    """Reads what `write_json` wrote. FileNotFoundError, or ValueError if it is of another kind or version."""
    try:
        return parse_json(read_bounded(path, LARGEST, KINDS[kind][0]), path, kind)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{path}: expected {KINDS[kind][0]}, found no such file; prepare again"
        ) from error


def read_bounded(path: Path, most: int, what: str) -> bytes:
    """Reads a whole file. ValueError if it is not a regular file, for example a pipe, or has over `most` bytes."""
    if (found := _require_regular(path, what)) > most:
        raise ValueError(f"{path}: expected {what} of at most {most:,} bytes, found {found:,}")
    return path.read_bytes()


def _require_regular(path: Path, what: str) -> int:
    """The size of a file."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path}: expected {what}, found a pipe, a device or a folder")
    return found.st_size


def sha256_of_file(path: Path) -> str:
    """The SHA-256 of a file. ValueError if it is not a regular file, for example a pipe."""
    _require_regular(path, "a file of a token set")
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse_json(data: bytes, path: Path | str, kind: str) -> dict[str, Any]:
    """Parses the bytes of a JSON file. ValueError if they are of another kind or version, or their content is wrong."""
    try:
        value: dict[str, Any] = json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: expected {KINDS[kind][0]}, found broken JSON ({error}); delete it and prepare again"
        ) from error
    found = (
        (value.get("format"), value.get("version"))
        if isinstance(value, dict)
        else f"a {type(value).__name__}"
    )
    if found != (f"tokenmill-{kind}", VERSION):
        raise ValueError(
            f"{path}: expected {KINDS[kind][0]}, of format tokenmill-{kind}, version {VERSION}, found {found}; "
            "if it is a file of a token set, delete it and prepare again"
        )
    try:
        check(kind, value)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return value


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not a number")


def header(kind: str) -> dict[str, Any]:
    """The first keys of every JSON file."""
    return {"format": f"tokenmill-{kind}", "version": VERSION}


def remove_temporary_files(*folders: Path) -> None:
    """Removes what killed runs left in these folders: temporary files that no process holds locked, where the file
    system has locks.
    """
    for path in (path for folder in folders for path in folder.glob(f"*{TEMPORARY}")):
        with contextlib.suppress(OSError), open(path, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def with_message(error: OSError, message: str) -> OSError:
    """The same error, with another message."""
    other = type(error)(message)
    other.errno = error.errno
    return other


DYING_SECONDS = 1.0  # in which a process that was killed loses its lock


@contextlib.contextmanager
def locked(folder: Path, shared: bool = False) -> Iterator[None]:
    """Makes the folder, and holds its lock. Where the file system has no locks, it works without one.

    OSError if another process holds the lock and keeps it for a second; ValueError if a folder inside is a link that
    leads out, as files written and deleted there would be somebody else's.
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
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if not take_lock(descriptor, DYING_SECONDS, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            raise OSError(
                f"{folder}: another process is writing in this folder; wait for it to end"
            )
        yield
    finally:
        os.close(descriptor)


def take_lock(descriptor: int, seconds: float, kind: int = fcntl.LOCK_EX) -> bool:
    """Locks a file; nothing is locked where there are no locks. False if another process keeps it for so long."""
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        except OSError:  # a file system without locks
            return True
