"""The caches of this process: one for each folder, no matter how often or under which name a set is opened.

Two caches of one folder would not know of each other: with POSIX record locks, a process can take its own locks twice,
and loses all locks on a file as soon as it closes one descriptor of it.
"""

import os
import threading
from collections.abc import Mapping
from pathlib import Path

from tokenmill.remote.backends import Backend
from tokenmill.remote.cache import Cache
from tokenmill.store.shards import ShardEntry

_caches: dict[Path, Cache] = {}
_lock = threading.Lock()


def cache_in(
    folder: Path,
    entries: list[ShardEntry],
    itemsize: int,
    backend: Backend | None = None,
    subfolders: int = 0,
    records: Mapping[str, str] | None = None,
) -> Cache:
    """The cache in a folder; it fetches from the backend that was named last. Raises what Cache does.

    If the folder was deleted, this is a new cache; whoever uses the old one gets an error at its next block.
    """
    with _lock:
        found = _caches.get(folder)
        if found is not None and not found.is_in_its_folder():
            found.close()
            found = None
        if found is None:
            found = _caches[folder] = Cache(folder, entries, itemsize, backend, subfolders, records)
        if backend is not None:
            found.backend, found.subfolders, found.records = backend, subfolders, records or {}
        found.after_fork()
        return found


def forget(cache: Cache) -> None:
    """Closes a cache whose folder is going to be deleted."""
    with _lock:
        if _caches.get(cache.folder) is cache:
            del _caches[cache.folder]
        cache.close()


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_new_lock)
