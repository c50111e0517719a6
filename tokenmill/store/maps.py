"""Files as arrays, mapped into memory without keeping a file descriptor each.

    tokens = map_file(path, np.dtype("<u2"))    read-only; unmapped after its last array is gone
    read_ahead(tokens[a:b])                     asks the kernel to read a part of it

A window of rows reads hundreds of shards, and many machines allow 1,024 descriptors a process.
`np.memmap` and, before Python 3.13, `mmap` keep one for each map, so this is the C library's. Its
madvise lets other threads of Python run while a disk is read, which `mmap.madvise` does not.
"""

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import weakref
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

RANDOM = 1  # MADV_RANDOM
WILL_NEED = 3  # MADV_WILLNEED

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value


@functools.cache
def _most_maps() -> int:
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):  # not Linux
        return 65_530


def map_file(path: Path, dtype: np.dtype[Any]) -> np.ndarray:
    """All numbers of a file: (size // itemsize,), read-only. OSError if it cannot be opened or
    mapped.

    Once the process has used half of the maps that the kernel allows it (vm.max_map_count), as with
    tens of thousands of small shards, files are read instead. The other half is for everything
    else: without a map, the program's next large array fails.
    """
    unmap_dropped()
    if 2 * len(_mapped) >= _most_maps():
        return _read(path, dtype)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe is not waited for
    try:
        size = os.fstat(descriptor).st_size
        if not size:
            return np.empty(0, dtype)
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == _FAILED:
            code = ctypes.get_errno()
            if code != errno.ENOMEM:
                raise OSError(code, os.strerror(code), str(path))
            return _read(path, dtype)
    finally:
        os.close(descriptor)
    memory = (ctypes.c_char * size).from_address(address)
    mapped = _Map(memory, _dropped.append)
    mapped.address = address
    mapped.size = size
    _mapped[address] = mapped
    # a ctypes array is a buffer
    numbers: np.ndarray = np.frombuffer(memory, dtype)  # type: ignore[call-overload]
    numbers.flags.writeable = False
    return numbers


def _read(path: Path, dtype: np.dtype[Any]) -> np.ndarray:
    numbers = np.fromfile(path, dtype)
    numbers.flags.writeable = False
    return numbers


class _Map(weakref.ref["ctypes.Array[ctypes.c_char]"]):
    """A mapped file, for as long as an array of it exists."""

    address: int
    size: int


_mapped: dict[int, _Map] = {}  # by address
# C's append, so that no Python runs where an array goes: a Ctrl-C that came there would be
# swallowed
_dropped: deque[_Map] = deque()


def unmap_dropped() -> None:
    """Unmaps the files whose last array is gone."""
    while _dropped:
        with contextlib.suppress(IndexError):  # another thread took the last
            dropped = _dropped.popleft()
            del _mapped[dropped.address]
            _libc.munmap(dropped.address, dropped.size)


def read_ahead(numbers: np.ndarray) -> None:
    """Asks the kernel to read a part of a mapped file ahead, in large reads."""
    _advise(numbers, WILL_NEED)


def read_here_and_there(numbers: np.ndarray) -> None:
    """Tells the kernel that access is random: it would read up to 8 MB around each row."""
    _advise(numbers, RANDOM)


def _advise(numbers: np.ndarray, advice: int) -> None:
    if numbers.nbytes:
        address = numbers.ctypes.data
        begin = address // mmap.PAGESIZE * mmap.PAGESIZE
        end = address + numbers.nbytes
        _libc.madvise(begin, end - begin, advice)
