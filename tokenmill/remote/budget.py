"""Limits the disk space of blocks, and chooses which are given back when it is used up.

    say_limit(root, 50 << 30)       the limit for all sets under a cache's root together, in this process
    Budget(root)                    by default what the blocks take when it begins, and nine tenths of the free space

The blocks that are needed last are given back first: those of sets that this process does not read, then by when the
known order of rows needs them next (Belady 1966: optimal, as the future is known). A block that a current plan of any
process needs is never given back, except that what a plan of this process needs later makes room for what it needs now.
If the windows of several processes do not fit together, each would wait for the others: after some seconds, blocks of
the batch at hand come without room, and the limit is exceeded (fetcher.py).
"""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tokenmill.remote.block_state import THERE, UNSURE
from tokenmill.remote.cache import Cache
from tokenmill.remote.cache_folder import OLD, is_own
from tokenmill.remote.caches import cache_in, forget
from tokenmill.store.files import read_json
from tokenmill.store.shards import DTYPES
from tokenmill.store.token_sets import entry_of

FREE_SHARE = 0.9
LOOK_SECONDS = 10.0  # between looks for sets that others have begun
A_SHARE = 64  # of the budget that is given back at once
NEVER = 1 << 40  # windows from now


_said: dict[Path, int] = {}  # the limit of each root that the user gave last, in bytes


def say_limit(root: Path, limit: int) -> None:
    """Limits the bytes that blocks of all sets under a root take, from now on."""
    _said[root] = limit


class NoRoom(OSError):
    """There is no room, and no block can be given back now. `for_others` says that other processes need some."""

    for_others = False


class Budget:
    """The disk space for blocks of all sets under `root` together: `limit` bytes."""

    def __init__(self, root: Path):
        self.root, self.caches = root, dict[Path, Cache]()  # by their folders; put in whole, as threads go through it
        self._lock = threading.Lock()
        self._looked = -LOOK_SECONDS
        self._left, self._left_of = 0, -1  # bytes that may come before all is counted again, and of which limit
        self._free: int | None = None

    @property
    def limit(self) -> int:
        """The limit of say_limit; else the bytes in use at the first call, and nine tenths of what was free then."""
        if self.root in _said:
            return _said[self.root]
        if self._free is None:
            disk = os.statvfs(self.root)
            self._free = self.used() + int(FREE_SHARE * disk.f_bavail * disk.f_frsize)
        return self._free

    def add(self, cache: Cache) -> None:
        """Counts a cache of this process from now on, without waiting for the next look."""
        if self.caches.get(cache.folder) is not cache and not cache.closed:
            self.caches = {**self.caches, cache.folder: cache}

    def used(self) -> int:
        """Bytes of blocks under the root, from all processes."""
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            self._look()
        return sum(cache.size() for cache in self.caches.values())

    def _look(self) -> None:
        """Notes sets that other processes have begun, and sets that were deleted."""
        found = {folder: cache for folder, cache in self.caches.items() if cache.is_in_its_folder()}
        for gone in [cache for folder, cache in self.caches.items() if folder not in found]:
            forget(gone)
        for folder in {path.parent for path in self.root.glob("*/blocks")} - found.keys():
            try:
                if folder.name.endswith(OLD) or not is_own(folder):
                    continue  # going to be deleted, or another user's
                manifest = read_json(folder / "manifest.json", "tokens")
                entries = [entry_of(listed) for listed in manifest["shards"]]
                found[folder] = cache_in(folder, entries, DTYPES[manifest["dtype"]].itemsize)
            except (OSError, ValueError, KeyError, TypeError):
                continue  # begun just now, or not a cache
        self.caches = found

    def make_room(self, size: int, due: int | None, full: bool = False) -> None:
        """Makes room for `size` bytes, which are counted already, and are needed in `due` windows (None: now).

        `full` says that the disk itself is full. NoRoom if there is nothing that is needed later.
        """
        with self._lock:
            self._left -= size
            if self._left >= 0 and not full and self._left_of == self.limit:
                return
            over = self.used() - self.limit
            if over > 0 or full:
                self._give_back(max(over, size if full else 0), due)
            self._left_of = self.limit
            self._left = max(0, self._left_of - self.used()) // 16  # as others fill it too

    def _give_back(self, size: int, due: int | None) -> None:
        """Gives back at least `size` bytes, and a share of the budget if no plan needs it."""
        left, more, kept = size, max(size, self.limit // A_SHARE), False
        for cache, block, idle in self._candidates(due):
            if left <= 0 and not (idle and more > 0):
                return
            try:
                given = cache.give_back(block)
            except FileNotFoundError:  # deleted or replaced since: look again
                self._looked, given = -LOOK_SECONDS, True
            if given:
                at = cache.blocks.span(block)
                left, more = left - (at.stop - at.start), more - (at.stop - at.start)
            kept |= not given
        if left > 0:
            error = NoRoom(
                f"{self.root}: blocks may take {self.limit:,} bytes, and all that are there are needed by plans at "
                "hand, of this job or of others on this machine; give a larger cache_bytes, or another cache_dir"
            )
            error.for_others = kept
            raise error

    def _candidates(self, due: int | None) -> Iterator[tuple[Cache, int, bool]]:
        """(cache, block, whether no plan needs it) of blocks that can make room for what is needed in `due` windows,
        the best first.
        """
        caches = list(self.caches.values())
        found = [_candidates_of(cache, due) for cache in caches]
        numbers = np.concatenate([np.full(len(blocks), number) for number, (blocks, _) in enumerate(found)])
        blocks, keys = (np.concatenate(column) for column in zip(*found, strict=True))
        for at in np.argsort(-keys, kind="stable").tolist():
            yield caches[int(numbers[at])], int(blocks[at]), bool(keys[at] > NEVER)


def _candidates_of(cache: Cache, due: int | None) -> tuple[np.ndarray, np.ndarray]:
    """(blocks, keys): the greatest key is given back first. A key above NEVER means that no plan needs the block."""
    next_use, there = _next_use(cache), _is_there(cache)
    needed = np.zeros(cache.blocks.count, bool)
    needed[cache.needed()] = True
    later = next_use > (due or 0)
    there[cache.needed(that_stay=True)] = False
    blocks = np.flatnonzero(there & ((~needed | later) if due is None else (~needed & later)))
    return blocks, next_use[blocks] + np.where(needed[blocks], 0, NEVER + 1)


def _is_there(cache: Cache) -> np.ndarray:
    states = cache.marks.states()
    there: np.ndarray = (states == THERE) | (states == UNSURE)
    return there


def _next_use(cache: Cache) -> np.ndarray:
    """In how many windows the loaders of this process need each block next: (count,) int64."""
    found = np.full(cache.blocks.count, NEVER, np.int64)
    for order in cache.orders():
        np.minimum(found, order.next_use(cache.blocks), out=found)
    return found
