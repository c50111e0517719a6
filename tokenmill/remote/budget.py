"""How much of the disk blocks may take, and which are given back when there is no more.

    Budget(root, 50 << 30)          of all sets under a cache's root together
    Budget(root, None)              what is there by now, and nine tenths of what is free

What is needed last is given back first: sets that this process does not read, then blocks by when the known order of
rows needs them next (Belady 1966: with the future known nothing is better). Never one that a plan at hand, of any
process, still needs; but what a plan of this process will need later makes room for what it needs now.
"""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tokenmill.remote.cache import Cache
from tokenmill.remote.marks import THERE, UNSURE
from tokenmill.store.files import read_json
from tokenmill.store.shards import DTYPES
from tokenmill.store.token_sets import entry_of

FREE_SHARE = 0.9
LOOK_SECONDS = 10.0  # between looks for sets that others have begun
A_SHARE = 64  # of the budget that is given back at once
NEVER = 1 << 40  # windows from now


class NoRoom(OSError):
    """There is no room, and nothing may be given back now."""


class Budget:
    """The room that blocks of all sets under `root` may take together: `limit` bytes."""

    def __init__(self, root: Path, limit: int | None):
        self.root, self.caches = root, list[Cache]()  # those of this process
        self._lock = threading.Lock()
        self._others: dict[Path, Cache] = {}  # of sets that it does not read
        self._looked = -LOOK_SECONDS
        self._left = 0  # bytes that may come before all is counted again
        self.limit = limit if limit is not None else self._all_that_is_free()

    def _all_that_is_free(self) -> int:
        disk = os.statvfs(self.root)
        return self.used() + int(FREE_SHARE * disk.f_bavail * disk.f_frsize)

    def used(self) -> int:
        """Bytes of blocks under the root, by whatever process."""
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            self._look_for_others()
        return sum(cache.size() for cache in [*self.caches, *self._others.values()])

    def _look_for_others(self) -> None:
        own = {cache.folder for cache in self.caches}
        folders = {path.parent for path in self.root.glob("*/blocks")} - own
        for gone in self._others.keys() - folders:
            self._others.pop(gone).claims.close()
        for folder in folders - self._others.keys():
            try:
                manifest = read_json(folder / "manifest.json", "tokens")
                entries = [entry_of(listed) for listed in manifest["shards"]]
                self._others[folder] = Cache(folder, entries, DTYPES[manifest["dtype"]].itemsize, None)
            except (OSError, ValueError, KeyError, TypeError):
                continue  # begun just now, or nothing of ours

    def make_room(self, size: int, due: int | None, full: bool = False) -> None:
        """Has room for `size` bytes, which are counted already, and are needed in `due` windows (None: now).

        With `full` the disk itself has none. NoRoom where nothing that is needed later may be given back.
        """
        with self._lock:
            self._left -= size
            if self._left >= 0 and not full:
                return
            over = self.used() - self.limit
            if over > 0 or full:
                self._give_back(max(over, size if full else 0), due)
            self._left = max(0, self.limit - self.used()) // 16  # as others fill it too

    def _give_back(self, size: int, due: int | None) -> None:
        """Gives back at least `size` bytes, and a share of the budget where that is idle."""
        left, more = size, max(size, self.limit // A_SHARE)
        for cache, block, idle in self._candidates(due):
            if left <= 0 and not (idle and more > 0):
                return
            if cache.give_back(block):
                at = cache.blocks.place(block)
                left, more = left - (at.stop - at.start), more - (at.stop - at.start)
        if left > 0:
            raise NoRoom(
                f"{self.root}: blocks may take {self.limit:,} bytes, and all that are there are needed by plans at "
                "hand, of this job or of others on this machine; give a larger cache_bytes, or another cache_dir"
            )

    def _candidates(self, due: int | None) -> Iterator[tuple[Cache, int, bool]]:
        """(cache, block, whether no plan needs it) of what may be given back for what is needed in `due` windows,
        best first.
        """
        for cache in self._others.values():
            yield from ((cache, block, True) for block in np.flatnonzero(_is_there(cache)).tolist())
        found = [_own_candidates(cache, due) for cache in self.caches]
        numbers = np.concatenate([np.full(len(blocks), number) for number, (blocks, _) in enumerate(found)])
        blocks, keys = (np.concatenate(column) for column in zip(*found, strict=True))
        for at in np.argsort(-keys, kind="stable").tolist():
            yield self.caches[int(numbers[at])], int(blocks[at]), bool(keys[at] > NEVER)


def _own_candidates(cache: Cache, due: int | None) -> tuple[np.ndarray, np.ndarray]:
    """(blocks, keys): what is given back first has the greatest key, and one above NEVER where no plan needs it."""
    next_use, there = _next_use(cache), _is_there(cache)
    needed = np.zeros(cache.blocks.count, bool)
    needed[cache.needed()] = True
    later = next_use > (due or 0)
    blocks = np.flatnonzero(there & ((~needed | later) if due is None else (~needed & later)))
    return blocks, next_use[blocks] + np.where(needed[blocks], 0, NEVER + 1)


def _is_there(cache: Cache) -> np.ndarray:
    states = cache.marks.states()
    there: np.ndarray = (states == THERE) | (states == UNSURE)
    return there


def _next_use(cache: Cache) -> np.ndarray:
    """In how many windows each block is needed next, by the loaders of this process: (count,) int64."""
    found = np.full(cache.blocks.count, NEVER, np.int64)
    for order in cache.orders():
        np.minimum(found, order.next_use(cache.blocks), out=found)
    return found
