"""Rows of token sets that lie elsewhere (remote/): which blocks lie under them, and when each is needed next.

    watched = Watched.of(shards)              None where all of them are on this disk
    watched.join(sources, begins, ends, join)     what join() gives, once the blocks under these stretches are there

Reading looks at the blocks before and after, so it is right whatever other processes give back (remote/marks.py).
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Self

import numpy as np

from tokenmill.remote.blocks import Blocks, in_order
from tokenmill.remote.cache import Cache
from tokenmill.remote.fetcher import fetcher
from tokenmill.remote.marks import THERE
from tokenmill.remote.sets import RemoteShard
from tokenmill.rows.windows import Epoch
from tokenmill.store.files import BLOCK_BYTES
from tokenmill.store.shards import Shard, ShardEntry

FAR = 1 << 40  # windows from now


class Plans(Protocol):
    """A split's windows (plans.py)."""

    def epoch(self, epoch: int) -> Epoch: ...
    def entries(self, epoch: int) -> list[ShardEntry]: ...
    def count_windows(self, epoch: int) -> int: ...


class Watched:
    """The blocks under stretches of shards, of which some lie elsewhere."""

    def __init__(self, shards: Sequence[Shard]):
        self._caches = list({id(s.cache): s.cache for s in shards if isinstance(s, RemoteShard)}.values())
        places = {id(cache): place for place, cache in enumerate(self._caches)}
        there = [isinstance(shard, RemoteShard) for shard in shards]
        self._cache = np.array([places[id(s.cache)] if isinstance(s, RemoteShard) else -1 for s in shards])
        first = [int(s.cache.blocks.first[s.number]) if isinstance(s, RemoteShard) else 0 for s in shards]
        self._first = np.array(first, np.int64)
        self._all_in_one = all(there) and len(self._caches) == 1
        self._eras: list[int] | None = None  # in which all blocks under all rows were there
        self._seen: list[int] = []  # in which the files were last seen to be those that were opened
        self._elsewhere = [shard for shard in shards if isinstance(shard, RemoteShard)]

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> Self | None:
        """None where no shard lies elsewhere."""
        return cls(shards) if any(isinstance(shard, RemoteShard) for shard in shards) else None

    def eras(self) -> list[int]:
        """Those of the caches: other ones as soon as any block is given back."""
        return [cache.marks.era for cache in self._caches]

    def look_whether_all_are_there(self, under: list[tuple[Cache, np.ndarray]]) -> None:
        """Of blocks under all rows: once they are, the eras alone are looked at, until they change."""
        eras = self.eras()
        if all((cache.marks.words[blocks] & 3 == THERE).all() for cache, blocks in under):
            self._require_same_files()
            if eras == self.eras():
                self._eras = eras

    def join_if_all_are_there(self, join: Callable[[], bytearray]) -> bytearray | None:
        """What join() makes, where no block was given back since all were there; else None."""
        if self._eras is None or self._eras != self.eras():
            return None
        joined = join()
        return joined if self._eras == self.eras() else None

    def join(self, source: np.ndarray, begin: np.ndarray, end: np.ndarray, join: Callable[[], bytearray]) -> bytearray:
        """What join() makes of bytes `begin` to `end` of shards, while all of them are there."""
        under = self.under(source, begin, end)
        while True:
            before = [_words(cache, blocks) for cache, blocks in under]
            joined = join()
            if all(
                np.array_equal(words, cache.marks.words[b]) for words, (cache, b) in zip(before, under, strict=True)
            ):
                self._require_same_files()
                return joined

    def _require_same_files(self) -> None:
        """FileNotFoundError where a file is no longer the one that was opened. One that is made anew gives an era."""
        if (eras := self.eras()) != self._seen:
            for shard in self._elsewhere:
                shard.require_unchanged()
            self._seen = eras

    def under(self, source: np.ndarray, begin: np.ndarray, end: np.ndarray) -> list[tuple[Cache, np.ndarray]]:
        """The blocks under bytes `begin` to `end` of shards, of each cache in the order in which they come."""
        if self._all_in_one:
            return [(self._caches[0], self._blocks(source, begin, end))]
        of = self._cache[source]
        chosen = [(cache, of == place) for place, cache in enumerate(self._caches)]
        return [(cache, self._blocks(source[some], begin[some], end[some])) for cache, some in chosen if some.any()]

    def _blocks(self, source: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        base = self._first[source]
        return in_order(base + begin // BLOCK_BYTES, base + (end - 1) // BLOCK_BYTES)


def _words(cache: Cache, blocks: np.ndarray) -> np.ndarray:
    """The marks of blocks that are there; waits for them."""
    while True:
        fetcher().require(cache, blocks)
        words: np.ndarray = cache.marks.words[blocks]
        if (words & 3 == THERE).all():
            return words


class Order:
    """When the blocks of a split are needed next: the known order of an epoch's windows, and of the next one's.

    As long as its plans are there. `numbers` are the places of shards, by their names, among the cache's.
    """

    def __init__(self, plans: "Plans", numbers: Mapping[str, int], itemsize: int):
        self._plans, self._numbers, self._itemsize = weakref.ref(plans), numbers, itemsize
        self.at = (0, 0)  # epoch, window: the one at hand
        self._known: tuple[tuple[int, int], np.ndarray] | None = None

    def windows_until(self, epoch: int, window: int) -> int:
        """How many windows come before one, from the one at hand on."""
        plans, (here, at) = self._plans(), self.at
        if plans is None or (epoch, window) <= (here, at):
            return 0
        return sum(plans.count_windows(number) for number in range(here, epoch)) + window - at

    def next_use(self, blocks: Blocks) -> np.ndarray:
        """In how many windows each block is needed next; far from now where it is in none: (count,) int64."""
        at, known, plans = self.at, self._known, self._plans()
        if plans is None:
            return np.full(blocks.count, FAR, np.int64)
        if known is None or known[0] != at:
            known = self._known = (at, self._count(plans, blocks, *at))
        return known[1]

    def _count(self, plans: "Plans", blocks: Blocks, epoch: int, window: int) -> np.ndarray:
        this, following = plans.epoch(epoch), plans.epoch(epoch + 1)
        now, then = this.windows_of_slices(), following.windows_of_slices()
        if len(now) == len(then):
            until = np.where(now >= window, now - window, len(this) - window + then)
        else:  # the set grows with the next epoch, whose slices are others
            until = np.where(now >= window, now - window, len(this) - window)
        shard, begin, end = this.slices()
        shard = np.array([self._numbers.get(entry.name, -1) for entry in plans.entries(epoch)], np.int64)[shard]
        known = shard >= 0  # of a set that lost shards since, some are in a cache of their own
        shard, begin, end, until = shard[known], begin[known], end[known], until[known]
        size = self._itemsize
        first = blocks.first[shard] + begin * size // BLOCK_BYTES
        # the last document of a slice goes on behind it
        last = np.minimum(blocks.first[shard] + end * size // BLOCK_BYTES, blocks.first[shard + 1] - 1)
        found = np.full(blocks.count, FAR, np.int64)
        for step in range(int((last - first).max(initial=-1)) + 1):
            np.minimum.at(found, np.minimum(first + step, last), until)
        return found
