"""Files that appear whole, or not at all.

Everything tokenmill writes goes to a temporary name in the same folder, is flushed to disk and
renamed, so that a crash at any instant leaves the old file, the new one, or a `.tmp` that nothing
reads. The JSON among them says its format and version first.
"""

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import socket
import stat
import time
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tokenmill.store.names import require_inside
from tokenmill.store.schema import check

if TYPE_CHECKING:
    from typing_extensions import Buffer  # bytes, or a contiguous array

VERSION = 1
TEMPORARY = ".tmp"
LARGEST_JSON = {"tokenizer": 256 << 20}  # bytes; of all others:
CALLED = {  # each kind of JSON, in a sentence
    "tokens": "the manifest of a token set",
    "shard": "the record of a shard",
    "files": "the list of a hub's files",
    "checked": "the list of files that were checked",
    "tokenizer": "a tokenizer that tokenmill wrote",
    "plan": "the plan of a file",
    "counts": "the counts of rows",
}
LARGEST = 64 << 20  # a manifest of 180,000 shards
OLD_SECONDS = 86_400  # a temporary file that nobody has written to since is nobody's
BLOCK_BYTES = 1 << 20  # of which each has a CRC-32


class Checksums:
    """A file's bytes, SHA-256, and the CRC-32 of each MiB, which tells where damage is (verify.py)."""

    def __init__(self) -> None:
        self.bytes = 0
        self.crc32: list[int] = []
        self._digest = hashlib.sha256()

    def update(self, data: "Buffer") -> None:
        """Takes the next bytes, of any contiguous buffer."""
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
    """A file that appears at `path` whole and on disk, with its checksums known, or not at all.

    One that is not `durable` may be gone after a power cut: for what can be had again, and is checked when it is read.
    """

    def __init__(self, path: Path, durable: bool = True):
        self.path, self._durable, self._checksums = path, durable, Checksums()
        # a name of its own: the dying worker of a killed run may still be writing the same shard
        self._temporary = path.with_name(f"{path.name}.{_machine()}-{os.getpid()}-{uuid.uuid4().hex[:8]}{TEMPORARY}")
        try:
            self._file = open(self._temporary, "wb")  # noqa: SIM115 (closed by commit or discard)
        except OSError as error:
            told = f"{path.parent}: cannot be written to ({error.strerror}); mend it, or choose another folder"
            raise _os_error(error, told) from error

    def write(self, data: "Buffer") -> None:
        with self._naming_the_file():
            self._file.write(data)
        self._checksums.update(data)

    @contextlib.contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        """An error of writing, a full disk for one, says where."""
        try:
            yield
        except OSError as error:
            told = f"{self.path}: cannot be written ({error.strerror}); make room, or mend that, and run again"
            raise _os_error(error, told) from error

    def commit(self) -> dict[str, Any]:
        """Makes the file count; returns its {"bytes", "sha256", "crc32"}."""
        with self._naming_the_file():
            self._file.flush()
            if self._durable:
                os.fsync(self._file.fileno())
        # the next file is written several times faster into memory that is warm
        if self._durable and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self._file.close()
        os.replace(self._temporary, self.path)
        if self._durable:
            self._keep_the_name()
        return self._checksums.facts()

    def _keep_the_name(self) -> None:
        """The rename itself must survive a power cut."""
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def discard(self) -> None:
        """Removes what is not committed; does nothing after `commit`."""
        try:
            self._file.close()
        finally:
            self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.discard()


def write_file(path: Path, data: "Buffer", durable: bool = True) -> dict[str, Any]:
    """Writes data (bytes or a contiguous array) to path in one rename: its {"bytes", "sha256", "crc32"}."""
    with AtomicFile(path, durable) as file:
        file.write(data)
        return file.commit()


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes value as JSON in one rename; a file that says the same already stays untouched."""
    data = (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
    if not (path.exists() and path.read_bytes() == data):
        write_file(path, data)


def read_json(path: Path, kind: str) -> dict[str, Any]:
    """Reads what `write_json` wrote; FileNotFoundError, or ValueError where it is no such file of this version."""
    try:
        data = read_bounded(path, LARGEST_JSON.get(kind, LARGEST), CALLED[kind])
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: expected {CALLED[kind]}, found no such file; prepare again") from error
    return parse_json(data, path, kind)


def read_bounded(path: Path, most: int, what: str) -> bytes:
    """A file that is read whole. ValueError where it is none, as a pipe, or one of more than `most` bytes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe or a device"
            raise ValueError(f"{path}: expected {what}, found {kind}; delete it")
        if found.st_size > most:
            raise ValueError(f"{path}: expected {what} of at most {most:,} bytes, found {found.st_size:,}")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def parse_json(data: bytes, path: Path | str, kind: str) -> dict[str, Any]:
    """What the bytes of such a file say. ValueError where they are of none of this version, or say what none can."""
    try:
        value: dict[str, Any] = json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: expected {CALLED[kind]}, found broken JSON ({error}); delete it and prepare again"
        ) from error
    found = (value.get("format"), value.get("version")) if isinstance(value, dict) else None
    if found != (f"tokenmill-{kind}", VERSION):
        other = found or f"a {type(value).__name__}"
        raise ValueError(
            f"{path}: expected {CALLED[kind]}, of format tokenmill-{kind}, version {VERSION}, found {other}; "
            "delete it and prepare again"
        )
    try:
        check(kind, value)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return value


def _no_number(told: str) -> None:
    raise ValueError(f"{told} is no number")


def header(kind: str) -> dict[str, Any]:
    """What every JSON file of the format begins with."""
    return {"format": f"tokenmill-{kind}", "version": VERSION}


@contextlib.contextmanager
def locked(folder: Path, shared: bool = False) -> Iterator[None]:
    """Makes the folder and keeps other processes that change it out; the lock dies with its process.

    `shared` lets in others that share. OSError where another keeps this one out; ValueError where a folder in it is a
    link that leads out of it: what is written and deleted there would be somebody else's.
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
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OSError(f"{folder}: another preparation is writing here; wait for it to end") from error
        yield
    finally:
        os.close(descriptor)


def remove_temporary_files(*folders: Path) -> None:
    """Clears what killed runs left in these folders: of processes of this machine that are gone, and of days ago.

    Not what another machine writes just now: where locks do nothing, as on some network disks, it may be at work here.
    """
    for folder in folders:
        for path in folder.glob(f"*{TEMPORARY}"):
            with contextlib.suppress(FileNotFoundError):
                if _is_left_over(path):
                    path.unlink()


def _is_left_over(path: Path) -> bool:
    if time.time() - path.stat().st_mtime > OLD_SECONDS:
        return True
    machine, _, rest = path.name.removesuffix(TEMPORARY).rpartition(".")[2].partition("-")
    process = rest.partition("-")[0]
    return machine == _machine() and process.isdigit() and not _is_alive(int(process))


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


@functools.cache
def _machine() -> str:
    """What tells this machine from others that share its disks."""
    return hashlib.sha256(f"{socket.gethostname()} {uuid.getnode()}".encode()).hexdigest()[:8]


def _os_error(error: OSError, told: str) -> OSError:
    """The same error, as told."""
    other = type(error)(told)
    other.errno = error.errno
    return other
