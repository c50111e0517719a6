"""Rows of token sets at an address (remote/): which blocks contain their tokens, and when each block is needed next.

    guard = BlockGuard.of(shards)                 None if all shards are on this disk
    guard.join(sources, begins, ends, join)       what join() returns, read while all blocks of these bytes are present

The guard compares the marks of the blocks before and after it reads, and replaces what may come from a hole. The result
is therefore right even if another process evicts blocks at the same time (remote/block_state.py), and on file systems
without working locks (remote/holes.py).
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Self

import numpy as np

from tokenmill.remote.block_state import THERE
from tokenmill.remote.blocks import Blocks, in_order
from tokenmill.remote.cache import Cache
from tokenmill.remote.fetcher import fetcher
from tokenmill.remote.holes import doubtful, read_verified
from tokenmill.remote.sets import RemoteShard
from tokenmill.rows.windows import EpochWindows
from tokenmill.store.files import BLOCK_BYTES
from tokenmill.store.shards import Shard, ShardEntry

NEVER = 1 << 40  # windows from now, for a block that no window needs


class Plans(Protocol):
    """The windows of a split (window_plans.py)."""

    def epoch(self, epoch: int) -> EpochWindows: ...
    def entries(self, epoch: int) -> list[ShardEntry]: ...
    def count_windows(self, epoch: int) -> int: ...


class BlockGuard:
    """Guards reads of shards of which some are remote: the blocks that are read must be present in the cache."""

    def __init__(self, shards: Sequence[Shard]):
        self._caches = list({id(s.cache): s.cache for s in shards if isinstance(s, RemoteShard)}.values())
        places = {id(cache): place for place, cache in enumerate(self._caches)}
        is_remote = [isinstance(shard, RemoteShard) for shard in shards]
        self._cache = np.array([places[id(s.cache)] if isinstance(s, RemoteShard) else -1 for s in shards])
        first = [int(s.cache.blocks.first[s.number]) if isinstance(s, RemoteShard) else 0 for s in shards]
        self._first = np.array(first, np.int64)
        self._all_in_one = all(is_remote) and len(self._caches) == 1
        self._eras: list[int] | None = None  # the eras in which all blocks of all rows were present
        self._eras_of_files: list[int] = []  # the eras in which the files were last checked
        self._shards = shards
        self._remote = [shard for shard in shards if isinstance(shard, RemoteShard)]

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> Self | None:
        """A guard for these shards; None if no shard is remote."""
        return cls(shards) if any(isinstance(shard, RemoteShard) for shard in shards) else None

    def eras(self) -> list[int]:
        """The eras of the caches. A cache gets a new era as soon as any of its blocks is evicted."""
        return [cache.marks.era for cache in self._caches]

    def check_all_present(self, blocks_by_cache: list[tuple[Cache, np.ndarray]]) -> None:
        """Checks whether all blocks of all rows are present. From then on only eras are compared, until one changes."""
        eras = self.eras()
        if all((cache.marks.words[blocks] & 3 == THERE).all() for cache, blocks in blocks_by_cache):
            self._require_same_files()
            self._eras = eras

    def join_if_all_present(self, join: Callable[[], bytearray]) -> bytearray | None:
        """What join() returns, if all blocks were present at the last check and none was evicted since; else None."""
        if self._eras is None or self._eras != self.eras():
            return None
        joined = join()
        return joined if self._eras == self.eras() else None

    def join(self, source: np.ndarray, begin: np.ndarray, end: np.ndarray, join: Callable[[], bytearray]) -> bytearray:
        """What join() makes of bytes `begin` to `end` of shards, read while all their blocks are present."""
        needed = self.blocks(source, begin, end)
        while True:
            before = [_fetched_marks(cache, blocks) for cache, blocks in needed]
            joined = join()
            after = [cache.marks.words[blocks] for cache, blocks in needed]
            if all(map(np.array_equal, before, after)):
                self._require_same_files()
                return joined

    def replace_holes(
        self,
        tokens: np.ndarray,
        firsts: np.ndarray,
        source: np.ndarray,
        begin: np.ndarray,
        end: np.ndarray,
        known: np.ndarray,
    ) -> None:
        """Replaces stretches in `tokens` that may come from a hole with what verified blocks have (remote/holes.py).

        Stretch s is bytes begin[s] to end[s] of a shard, and begins at tokens[firsts[s]]. If known[s] is set, its first
        token does not matter.
        """
        for stretch in doubtful(tokens, firsts, known).tolist():
            shard = self._shards[source[stretch]]
            if isinstance(shard, RemoteShard):
                right = read_verified(shard.cache, shard.number, int(begin[stretch]), int(end[stretch]))
                tokens[firsts[stretch] :][: len(right) // tokens.itemsize] = np.frombuffer(right, tokens.dtype)

    def _require_same_files(self) -> None:
        """Raises FileNotFoundError if a file is no longer the one that was opened; another file has another era."""
        if (eras := self.eras()) != self._eras_of_files:
            for shard in self._remote:
                shard.require_unchanged()
            self._eras_of_files = eras

    def blocks(self, source: np.ndarray, begin: np.ndarray, end: np.ndarray) -> list[tuple[Cache, np.ndarray]]:
        """The blocks of bytes `begin` to `end` of shards, by cache, in the order of the bytes."""
        if self._all_in_one:
            return [(self._caches[0], self._blocks(source, begin, end))]
        number = self._cache[source]
        chosen = [(cache, number == place) for place, cache in enumerate(self._caches)]
        return [(cache, self._blocks(source[some], begin[some], end[some])) for cache, some in chosen if some.any()]

    def _blocks(self, source: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        base = self._first[source]
        return in_order(base + begin // BLOCK_BYTES, base + (end - 1) // BLOCK_BYTES)


def _fetched_marks(cache: Cache, blocks: np.ndarray) -> np.ndarray:
    """Waits until the blocks are present, and returns their marks."""
    while True:
        fetcher().require(cache, blocks)
        words: np.ndarray = cache.marks.words[blocks]
        if (words & 3 == THERE).all():
            return words


class BlockOrder:
    """When each block of a split is needed next, from the known order of this epoch's and the next epoch's windows.

    It is valid for as long as its plans exist. `numbers` are the numbers of shards in the cache, by name.
    """

    def __init__(self, plans: "Plans", numbers: Mapping[str, int], itemsize: int):
        self._plans, self._numbers, self._itemsize = weakref.ref(plans), numbers, itemsize
        self.at = (0, 0)  # (epoch, window) that is being read
        self._known: tuple[tuple[int, int], np.ndarray] | None = None

    def windows_until(self, epoch: int, window: int) -> int:
        """How many windows come before this one, counted from the one that is being read."""
        plans, (here, at) = self._plans(), self.at
        if plans is None or (epoch, window) <= (here, at):
            return 0
        return sum(plans.count_windows(number) for number in range(here, epoch)) + window - at

    def next_use(self, blocks: Blocks) -> np.ndarray:
        """In how many windows each block is needed next: (count,) int64, NEVER if no window needs it."""
        at, known, plans = self.at, self._known, self._plans()
        if plans is None:
            return np.full(blocks.count, NEVER, np.int64)
        if known is None or known[0] != at:
            known = self._known = (at, self._count(plans, blocks, *at))
        return known[1]

    def _count(self, plans: "Plans", blocks: Blocks, epoch: int, window: int) -> np.ndarray:
        this, following = plans.epoch(epoch), plans.epoch(epoch + 1)
        now, then = this.windows_of_slices(), following.windows_of_slices()
        if len(now) == len(then):
            until = np.where(now >= window, now - window, len(this) - window + then)
        else:  # the set has grown, so the next epoch has other slices
            until = np.where(now >= window, now - window, len(this) - window)
        shard, begin, end = this.slices()
        shard = np.array([self._numbers.get(entry.name, -1) for entry in plans.entries(epoch)], np.int64)[shard]
        known = shard >= 0  # shards that were removed from the set since are in a separate cache
        shard, begin, end, until = shard[known], begin[known], end[known], until[known]
        size = self._itemsize
        first = blocks.first[shard] + begin * size // BLOCK_BYTES
        # the last document of a slice continues past its end
        last = np.minimum(blocks.first[shard] + end * size // BLOCK_BYTES, blocks.first[shard + 1] - 1)
        found = np.full(blocks.count, NEVER, np.int64)
        for step in range(int((last - first).max(initial=-1)) + 1):
            np.minimum.at(found, np.minimum(first + step, last), until)
        return found
