"""The caches of this process: one for each folder, however often and by whichever name a set there is opened.

Two would not know of each other: the kernel lets a process take its own locks twice, and lets go of all that it has on
a file as soon as it closes it once (POSIX record locks).
"""

import os
import threading
from pathlib import Path

from tokenmill.remote.cache import Cache
from tokenmill.remote.places import Place
from tokenmill.store.shards import ShardEntry

_caches: dict[Path, Cache] = {}
_lock = threading.Lock()


def cache_in(
    folder: Path, entries: list[ShardEntry], itemsize: int, place: Place | None = None, subfolders: int = 0
) -> Cache:
    """The cache in a folder; it fetches from the place that was named last. Raises what Cache does.

    Where the folder was deleted since, a new one: what still uses the old is told so when it needs another block.
    """
    with _lock:
        found = _caches.get(folder)
        if found is not None and not found.is_in_its_folder():
            found.close()
            found = None
        if found is None:
            found = _caches[folder] = Cache(folder, entries, itemsize, place, subfolders)
        if place is not None:
            found.place, found.subfolders = place, subfolders
        found.after_fork()
        return found


def forget(cache: Cache) -> None:
    """Lets go of a cache: its folder is going to be deleted."""
    with _lock:
        if _caches.get(cache.folder) is cache:
            del _caches[cache.folder]
        cache.close()


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_new_lock)
