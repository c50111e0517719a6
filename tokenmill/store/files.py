"""Files that appear whole, or not at all.

    with AtomicFile(path) as file:           a temporary file beside `path`
        file.write(data)
        checksums = file.commit()            on disk, and renamed: {"bytes": 4, "sha256": ...}

A crash at any instant leaves the old file, the new one, or a `.tmp` that nothing reads.
"""

import contextlib
import fcntl
import hashlib
import os
import stat
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

if TYPE_CHECKING:
    from typing_extensions import Buffer  # bytes, or a contiguous array

TEMPORARY = ".tmp"
BLOCK_BYTES = 1 << 20  # every block of a file has its own CRC-32


class Checksums:
    """The size and SHA-256 of a file, and the CRC-32 of each MiB, which shows where damage is
    (verify.py).
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.crc32: list[int] = []
        self._digest = hashlib.sha256()

    def update(self, data: "Buffer") -> None:
        """Adds the next bytes, from any contiguous buffer."""
        remaining = memoryview(data).cast("B")
        self._digest.update(remaining)
        while len(remaining):
            room = -self.bytes % BLOCK_BYTES
            if room == 0:
                self.crc32.append(0)
                room = BLOCK_BYTES
            in_block = remaining[:room]
            self.crc32[-1] = zlib.crc32(in_block, self.crc32[-1])
            self.bytes += len(in_block)
            remaining = remaining[room:]

    def facts(self) -> dict[str, Any]:
        return {"bytes": self.bytes, "sha256": self._digest.hexdigest(), "crc32": self.crc32}


class AtomicFile:
    """A file that appears at `path` whole and on disk, with known checksums, or not at all.

    A file that is not `durable` may be lost or damaged by a power cut: use it for what can be
    fetched again and is checked when it is read.
    """

    def __init__(self, path: Path, durable: bool = True):
        self.path = path
        self._durable = durable
        self._checksums = Checksums()
        # a unique name: the dying worker of a killed run may still be writing the same shard
        unique = uuid.uuid4().hex[:8]
        self._temporary = path.with_name(f"{path.name}.{unique}{TEMPORARY}")
        self._file = self._open()
        while not self._temporary.exists():  # removed before it was locked
            self._file.close()
            self._file = self._open()

    def _open(self) -> BinaryIO:
        """The temporary file, locked: see `remove_temporary_files`."""
        with self._naming_the_file():
            file = open(self._temporary, "wb")  # noqa: SIM115 (closed by rename or discard)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        return file

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
            message = (
                f"{self.path}: cannot be written ({error.strerror}); make room, or mend that, and "
                "run again"
            )
            raise with_message(error, message) from error

    def commit(self) -> dict[str, Any]:
        """Makes the file count; returns its {"bytes", "sha256", "crc32"}.

        Its content is on disk then. Its name is after `sync_folder`, which may serve several files.
        """
        facts = self.flush()
        self.rename()
        return facts

    def flush(self) -> dict[str, Any]:
        """Puts the content on disk, under the temporary name; returns what `commit` does."""
        descriptor = self._file.fileno()
        with self._naming_the_file():
            self._file.flush()
            if self._durable:
                os.fsync(descriptor)
        if self._durable and hasattr(os, "posix_fadvise"):
            # the next file is written several times faster into memory that is warm
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return self.facts()

    def rename(self) -> None:
        """Gives the file that is flushed its name, in place of one that has it."""
        os.replace(self._temporary, self.path)
        self._file.close()  # until here it is locked

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


def sync_folder(folder: Path) -> None:
    """Waits until the names of a folder's files are on disk: a rename must survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: "Buffer", durable: bool = True) -> dict[str, Any]:
    """Writes data (bytes or a contiguous array) to path in one rename.

    Returns its {"bytes", "sha256", "crc32"}.
    """
    with AtomicFile(path, durable) as file:
        file.write(data)
        facts = file.commit()
    if durable:
        sync_folder(path.parent)
    return facts


def write_changed(path: Path, data: bytes) -> None:
    """Writes data to path in one rename, unless the file has it already."""
    if not (path.exists() and path.read_bytes() == data):
        write_file(path, data)


def read_bounded(path: Path, largest: int, what: str) -> bytes:
    """Reads a whole file.

    ValueError if it is no regular file, as a pipe, or has over `largest` bytes.
    """
    size = _regular_size(path, what)
    if size > largest:
        raise ValueError(f"{path}: expected {what} of at most {largest:,} bytes, found {size:,}")
    return path.read_bytes()


def _regular_size(path: Path, what: str) -> int:
    """The size of a file. ValueError if it is no regular file."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path}: expected {what}, found a pipe, a device or a folder")
    return status.st_size


def sha256_of_file(path: Path) -> str:
    """The SHA-256 of a file. ValueError if it is not a regular file, for example a pipe."""
    _regular_size(path, "a file of a token set")
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_temporary_files(*folders: Path) -> None:
    """Removes what killed runs left in these folders.

    These are temporary files that no process holds locked, where the file system has locks.
    """
    for folder in folders:
        for path in folder.glob(f"*{TEMPORARY}"):
            with contextlib.suppress(OSError), open(path, "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def with_message(error: OSError, message: str) -> OSError:
    """The same error, with another message."""
    reworded = type(error)(message)
    reworded.errno = error.errno
    return reworded
