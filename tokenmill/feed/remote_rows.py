"""Rows of token sets at an address (remote/): which blocks contain their tokens, and when each block is needed next.

    guard = BlockGuard(shards)                    of which some are remote
    guard.join(sources, begins, ends, join)       what join() returns, read while all blocks of these bytes are present

The guard compares the marks of the blocks before and after it reads, and replaces what may come from a hole. The result
is therefore right even if another process evicts blocks at the same time (remote/block_state.py), and on file systems
without working locks (remote/holes.py).
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tokenmill.remote.block_state import THERE
from tokenmill.remote.blocks import Blocks, in_order
from tokenmill.remote.cache import Cache, Need
from tokenmill.remote.fetcher import fetcher
from tokenmill.remote.holes import doubtful, read_verified
from tokenmill.remote.sets import RemoteShard, RemoteTokenSet
from tokenmill.rows import windows
from tokenmill.store.files import BLOCK_BYTES
from tokenmill.store.shards import Shard
from tokenmill.store.token_sets import TokenSet

NEVER = 1 << 40  # windows from now, for a block that no window needs
WINDOWS = 2  # that a loader needs in the cache: the current one, and the next one while it is fetched


class BlockGuard:
    """Guards reads of shards of which some are remote: the blocks that are read must be present in the cache."""

    def __init__(self, shards: Sequence[Shard]):
        self._caches = list({id(s.cache): s.cache for s in shards if isinstance(s, RemoteShard)}.values())
        places = {id(cache): place for place, cache in enumerate(self._caches)}
        self._cache = np.array([places[id(s.cache)] if isinstance(s, RemoteShard) else -1 for s in shards])
        first = [int(s.cache.blocks.first[s.number]) if isinstance(s, RemoteShard) else 0 for s in shards]
        self._first = np.array(first, np.int64)
        self._eras: list[int] | None = None  # the eras in which all blocks of all rows were present
        self._eras_of_files: list[int] = []  # the eras in which the files were last checked
        self._shards = shards

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
        """Replaces spans in `tokens` that may come from a hole with what verified blocks have (remote/holes.py).

        Span s is bytes begin[s] to end[s] of a shard, and begins at tokens[firsts[s]]. If known[s] is set, its first
        token does not matter.
        """
        for span in doubtful(tokens, firsts, known).tolist():
            shard = self._shards[source[span]]
            if isinstance(shard, RemoteShard):
                right = read_verified(shard.cache, shard.number, int(begin[span]), int(end[span]))
                tokens[firsts[span] :][: len(right) // tokens.itemsize] = np.frombuffer(right, tokens.dtype)

    def _require_same_files(self) -> None:
        """Raises FileNotFoundError if a file is no longer the one that was opened; another file has another era."""
        if (eras := self.eras()) != self._eras_of_files:
            for shard in self._shards:
                shard.require_unchanged()
            self._eras_of_files = eras

    def blocks(self, source: np.ndarray, begin: np.ndarray, end: np.ndarray) -> list[tuple[Cache, np.ndarray]]:
        """The blocks of bytes `begin` to `end` of shards, by cache, in the order of the bytes."""
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

    It is valid for as long as its source exists (source.py).
    """

    def __init__(self, source: Any, token_set: RemoteTokenSet):
        self._source, self._numbers = weakref.ref(source), token_set.cache.number
        self._itemsize = token_set.numpy_dtype.itemsize
        self.at = (0, 0)  # (epoch, window) that is being read
        self._known: tuple[tuple[int, int], np.ndarray] | None = None
        token_set.cache.add(self)

    def windows_until(self, epoch: int, window: int) -> int:
        """How many windows come before this one, counted from the one that is being read."""
        source, (here, at) = self._source(), self.at
        if source is None or (epoch, window) <= (here, at):
            return 0
        between: int = sum(source.count_windows(number) for number in range(here, epoch))
        return between + window - at

    def next_use(self, blocks: Blocks) -> np.ndarray:
        """In how many windows each block is needed next: (count,) int64, NEVER if no window needs it."""
        at, known, source = self.at, self._known, self._source()
        if source is None:
            return np.full(blocks.count, NEVER, np.int64)
        if known is None or known[0] != at:
            known = self._known = (at, self._count(source, blocks, *at))
        return known[1]

    def _count(self, source: Any, blocks: Blocks, epoch: int, window: int) -> np.ndarray:
        this, following = source.documents(epoch), source.documents(epoch + 1).windows
        now, then = this.windows.windows_of_slices(), following.windows_of_slices()
        if len(now) == len(then):
            until = np.where(now >= window, now - window, len(this.windows) - window + then)
        else:  # the set has grown, so the next epoch has other slices
            until = np.where(now >= window, now - window, len(this.windows) - window)
        shard, begin, end, _ = this.windows.slices
        shard = np.array([self._numbers.get(entry.name, -1) for entry in this.entries], np.int64)[shard]
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


def needs_of(
    blocks_by_cache: Sequence[tuple[Cache, np.ndarray]], place: tuple[int, int], order: BlockOrder
) -> list[Need]:
    """Has the blocks of a window fetched in the order of its rows, for as long as the result exists."""
    needs = []
    for cache, blocks in blocks_by_cache:
        needs.append(need := Need(blocks, partial(order.windows_until, *place)))
        fetcher().expect(cache, need)
    return needs


def require_room(sets: Iterable[TokenSet], split: str) -> None:
    """ValueError if the cache of remote sets is smaller than two windows of each: the current one, and the next one
    while it is fetched.
    """
    remote, needed = [token_set for token_set in sets if isinstance(token_set, RemoteTokenSet)], 0
    size = windows.DEFAULT_WINDOW_SIZE
    for token_set in remote:
        itemsize, tokens = token_set.numpy_dtype.itemsize, sum(entry.tokens for entry in token_set.split(split))
        window = size.window
        if token_set.view is not None:  # all blocks from a slice's first document to its last, however few it keeps
            slices = token_set.view.slices_of(split, windows.SLICE)
            read = int((slices["end"] - slices["begin"]).sum())
            window = window * read // max(1, token_set.view.tokens(split))
        blocks = window // size.slice * (size.slice * itemsize + BLOCK_BYTES)  # a document may end in the next block
        needed += min(WINDOWS * blocks, tokens * itemsize)
    if remote and needed > (limit := fetcher().budget(remote[0].cache).limit):
        raise ValueError(
            f"{remote[0].cache.folder.parent}: blocks may take {limit:,} bytes there, but rows need {needed:,}: "
            f"{WINDOWS} windows of {size.window:,} tokens of each token set, or all of it; pass a larger cache_bytes, "
            "or a cache_dir on a disk with more room"
        )
