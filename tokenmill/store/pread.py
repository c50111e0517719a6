"""The numbers of a file, read when they are asked for, instead of mapping the file into memory.

    tokens = FileNumbers(path, np.dtype("<u2"))
    tokens[100:2149]                                (2049,) uint16, read with one pread
    tokens.data[200:4298]                           the same, as bytes

Reading has no memory map that a process could run out of, and a file that is cut while it is read is an error instead
of the end of the process. It is used if TOKENMILL_READ=pread is set, for file systems that are slow to map (Lustre,
WekaFS), and as soon as the process has used half of the maps that the kernel allows it (vm.max_map_count).

Each thread keeps a few files open, so no lock is needed that a fork could find held.
"""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.checks import one_of

READ = "TOKENMILL_READ"
WAYS = ("mmap", "pread")
FILES_OPEN = 32  # by each thread


def wants_pread() -> bool:
    """Whether the environment asks for reading instead of mapping. ValueError if it asks for anything unknown."""
    way = os.environ.get(READ, WAYS[0])
    one_of(READ, way, WAYS)
    return way == "pread"


class _OpenFile:
    """A file descriptor that is closed when nobody holds it, as after the end of its thread."""

    def __init__(self, path: Path):
        self.descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


class _OpenFiles(threading.local):
    """The files that this thread read last, by (path, inode)."""

    def __init__(self) -> None:
        self._files: dict[tuple[Path, int], _OpenFile] = {}

    def descriptor(self, path: Path, inode: int) -> int:
        """An open file. FileNotFoundError if it is gone, ValueError if another one has its path."""
        key = path, inode
        found = self._files.pop(key, None)
        if found is None:
            found = _OpenFile(path)
            if os.fstat(found.descriptor).st_ino != inode:
                raise changed(path)
            while len(self._files) >= FILES_OPEN:
                del self._files[next(iter(self._files))]
        self._files[key] = found
        return found.descriptor


_open_files = _OpenFiles()


class FileBytes:
    """The bytes of a file: a slice of it is read."""

    def __init__(self, path: Path):
        found = os.stat(path)
        self.path, self.size, self._inode = path, found.st_size, found.st_ino

    def __getitem__(self, part: slice) -> bytes:
        begin, end, _ = part.indices(self.size)
        read, descriptor = b"", _open_files.descriptor(self.path, self._inode)
        while len(read) < end - begin:
            more = os.pread(descriptor, end - begin - len(read), begin + len(read))
            if not more:
                raise changed(self.path)
            read += more
        return read

    def read_ahead(self, begin: int, end: int) -> None:
        """Asks the kernel to read a part ahead."""
        if hasattr(os, "posix_fadvise"):
            descriptor = _open_files.descriptor(self.path, self._inode)
            os.posix_fadvise(descriptor, begin, end - begin, os.POSIX_FADV_WILLNEED)


class FileNumbers:
    """The numbers of a file, (size // itemsize,): as far as a shard's tokens are used, like a read-only array."""

    def __init__(self, path: Path, dtype: np.dtype[Any]):
        self.dtype, self.data = dtype, FileBytes(path)

    def __len__(self) -> int:
        return self.data.size // self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.data.size

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def __getitem__(self, part: slice) -> np.ndarray:
        begin, end, _ = part.indices(len(self))
        size = self.dtype.itemsize
        found: np.ndarray = np.frombuffer(self.data[begin * size : max(begin, end) * size], self.dtype)
        return found


def changed(path: Path) -> ValueError:
    """The error for a file of tokens that is no longer the one that was opened."""
    return ValueError(
        f"{path}: deleted, truncated or replaced while it was being read; "
        "what comes next is not what was prepared. Put the file back, or prepare again, and resume"
    )
