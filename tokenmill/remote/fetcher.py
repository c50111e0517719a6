"""The threads that fetch blocks: first what a caller waits for, then what plans will need, in their order.

    fetcher().require(cache, blocks)        waits until these are there
    fetcher().expect(cache, need)           fetches what a plan needs, for as long as the plan exists

There is one fetcher for each process, which begins with the first request; a fork begins its own. Threads and callers
share only queues that are written in C, which a Ctrl-C cannot leave half done, and a caller that waits polls.
"""

import _thread
import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

import numpy as np

from tokenmill.cancellation import Cancelled, raise_if_cancelled
from tokenmill.remote.block_locks import FILES
from tokenmill.remote.budget import Budget, NoRoom
from tokenmill.remote.cache import FULL, Cache, Need
from tokenmill.store.files import BLOCK_BYTES

LOG = logging.getLogger("tokenmill")
THREADS = 32  # requests on their way at once, but for those of a server that is in trouble
ASK_AGAIN_SECONDS = 0.25  # for what another process is at, which may have been killed since
SHORT, LONG = 0.0005, 0.01  # seconds between looks of one that waits
WAIT_SECONDS = 480.0  # in all: before NCCL's ten minutes
FULL_SECONDS = 2.0  # that a block that a batch waits for is tried on a full disk
ROOM_SECONDS = 5.0  # that a batch waits for room that other processes have, before the limit is exceeded
NO_ROOM_SECONDS = 0.2  # that fetching ahead pauses for
HOUSE_SECONDS = 0.25  # between looks at plans that are gone
END_SECONDS = 0.5  # that the end of the process waits for threads


class Walk:
    """What a plan needs, block after block. Over when its plan is gone."""

    def __init__(self, cache: Cache, need: Need):
        self.cache, self._need = cache, weakref.ref(need)
        self._at, self._again, self.paused = 0, deque[int](), 0.0

    @property
    def due(self) -> int | None:
        """In how many windows it is needed; None for now."""
        need = self._need()
        return None if need is None else need.due() or None

    def next(self) -> int | None:
        """The next block that is not there."""
        need = self._need()
        while need is not None and (self._again or self._at < len(need.blocks)):
            if self._again:
                block = self._again.popleft()
            else:
                block = int(need.blocks[self._at])
                self._at += 1
            if len(self.cache.missing(np.array([block]))):
                return block
        return None

    @property
    def is_over(self) -> bool:
        """Whether its plan is gone."""
        return self._need() is None

    def again(self, block: int) -> None:
        """One that could not come now."""
        self._again.append(block)
        self.paused = time.monotonic() + NO_ROOM_SECONDS


class Fetcher:
    """Threads of this process, and what they are to fetch."""

    def __init__(self) -> None:
        self._budgets: dict[Path, Budget] = {}  # by the cache's root
        self._demand: deque[tuple[Cache, int]] = deque()  # blocks that a batch waits for
        self._small: deque[tuple[Cache, int]] = deque()  # records and offsets that a plan waits for
        self._coming: deque[Walk] = deque()
        self._walks: list[Walk] = []
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._bell: SimpleQueue[None] = SimpleQueue()  # of who keeps house
        self._left: SimpleQueue[None] = SimpleQueue()  # he has
        self._lock = threading.Lock()  # of the threads among themselves
        self._begun = False
        self._threads = 0
        self._patient: Counter[int] = Counter()  # by the cache's id: threads whose server is in trouble

    def require(self, cache: Cache, numbers: np.ndarray) -> None:
        """Waits until blocks, and the small files of shards (FILES + n), are there. Raises why one cannot be had.

        OSError or ValueError with its address; ConnectionError after eight minutes; Cancelled (waits.py).
        """
        missing = cache.missing(numbers)
        if not len(missing):
            return
        cache.after_fork()
        for number in missing.tolist():
            cache.failed.pop(number, None)  # of another time
        cache.no_room = None
        began, pause, asked = time.monotonic(), SHORT, -ASK_AGAIN_SECONDS
        while len(missing):
            for number in missing.tolist():
                if (error := cache.failed.pop(number, None)) is not None:
                    raise error
            raise_if_cancelled()
            now = time.monotonic()
            if now - began > ROOM_SECONDS and isinstance(cache.no_room, NoRoom) and cache.no_room.for_others:
                self._go_over_limit(cache)
            if now - began > WAIT_SECONDS:
                raise cache.no_room or ConnectionError(self._waited_in_vain(cache, missing))
            if now - asked > ASK_AGAIN_SECONDS:
                asked = now
                for number in missing.tolist():
                    (self._demand if number < FILES else self._small).append((cache, number))
                self._call(len(missing))
            time.sleep(pause)
            pause = min(LONG, 1.5 * pause)
            missing = cache.missing(missing)

    def _go_over_limit(self, cache: Cache) -> None:
        """Lets blocks that batches wait for come without room for a second, as processes wait for each other."""
        if not cache.over_limit_until:
            LOG.warning("%s; the limit is exceeded, as this process has waited for %.0f s", cache.no_room, ROOM_SECONDS)
        cache.over_limit_until = time.monotonic() + 1.0

    def expect(self, cache: Cache, need: Need) -> None:
        """Has blocks fetched in their order, when nothing is waited for."""
        cache.after_fork()
        cache.add(need)
        self._coming.append(Walk(cache, need))
        self._call(THREADS)

    def budget(self, cache: Cache) -> Budget:
        """What blocks under a cache's root may take."""
        with self._lock:
            root = cache.folder.parent
            if root not in self._budgets:
                self._budgets[root] = Budget(root)
            self._budgets[root].add(cache)
            return self._budgets[root]

    def _waited_in_vain(self, cache: Cache, missing: np.ndarray) -> str:
        number = int(missing[0])
        shard = number - FILES if number >= FILES else cache.blocks.span(number).shard
        name = f"shards/{cache.entries[shard].name}"
        where = cache.backend.display(name) if cache.backend is not None else name
        return (
            f"{where}: waited {WAIT_SECONDS:.0f} s for {len(missing):,} blocks of it and others that another process "
            f"of this machine fetches, or for room in {cache.folder.parent}, and they did not come; look at that "
            "process, or give this one a cache_dir of its own"
        )

    # ------------------------------------------------------------------------ in the threads

    def _call(self, many: int) -> None:
        with self._lock:
            if not self._begun:
                self._begun = True
                _thread.start_new_thread(self._keep_house, ())
                for _ in range(THREADS):
                    self._start()
        for _ in range(min(many, THREADS)):
            self._wake.put(None)

    def _start(self) -> None:
        self._threads += 1
        _thread.start_new_thread(self._work, ())

    def _work(self) -> None:
        while not self._leaves():
            self._wake.get()
            while not _ended and (job := self._next()) is not None:
                self._do(*job)

    def _leaves(self) -> bool:
        """Whether a thread is one too many, or the process ends."""
        with self._lock:
            leaves = _ended or self._threads > THREADS + self._patient.total()
            self._threads -= leaves
            return leaves

    def _keep_house(self) -> None:
        """Lets others give back what plans that are gone needed, and continues with walks that waited for room."""
        while not _ended:
            with contextlib.suppress(Empty):
                self._bell.get(timeout=HOUSE_SECONDS)
            for budget in list(self._budgets.values()):
                for cache in budget.caches.values():
                    cache.claims.need(cache.needed())
            if self._walks:
                self._wake.put(None)
        self._left.put(None)

    def end(self, until: float) -> None:
        """Waits for threads that are not in the midst of a request."""
        if self._begun:
            self._bell.put(None)
            with contextlib.suppress(Empty):
                self._left.get(timeout=max(0.0, until - time.monotonic()))
        for _ in range(self._threads):
            self._wake.put(None)
        while self._threads and time.monotonic() < until:
            time.sleep(SHORT)

    def _next(self) -> tuple[Cache, int, Walk | None] | None:
        with self._lock:
            while waiting := self._demand or self._small:  # the batch at hand first, the next window's plan then
                cache, number = waiting.popleft()
                in_trouble = self._patient[id(cache)] >= THREADS  # it is asked for again
                if not in_trouble and len(cache.missing(np.array([number]))):
                    return cache, number, None
            while self._coming:
                walk = self._coming.popleft()
                self._walks.append(walk)
                walk.cache.claims.need(walk.cache.needed())
            full: set[Path] = set()  # roots where the walk that comes first waits for room
            for walk in [walk for walk in self._walks if self._patient[id(walk.cache)] < THREADS]:
                if walk.paused >= time.monotonic():
                    full.add(walk.cache.folder.parent)
                if walk.cache.folder.parent in full:
                    continue
                if (block := walk.next()) is not None:
                    return walk.cache, block, walk
                self._walks.remove(walk)
        return None

    def _do(self, cache: Cache, number: int, walk: Walk | None) -> None:
        troubled = False

        def pause_for(seconds: float) -> None:
            """Another thread takes over, so that what others ask of healthy servers continues."""
            nonlocal troubled
            if cache.closed or (walk is not None and walk.is_over):
                raise Cancelled("nobody waits for it")
            with self._lock:
                if not troubled:
                    troubled = True
                    self._patient[id(cache)] += 1
                    self._start()
            self._wake.put(None)
            time.sleep(seconds)

        try:
            due = None if walk is None else walk.due
            make_room = partial(self.budget(cache).make_room, BLOCK_BYTES, due)
            if walk is None and time.monotonic() < cache.over_limit_until:
                make_room = partial(_only_on_a_full_disk, make_room)
            cache.fetch(number, make_room, pause_for, FULL_SECONDS if walk is None else 0.0)
        except NoRoom as error:
            cache.no_room = error  # reported when the caller stops waiting: others may give some back
            if walk is not None:
                walk.again(number)
            else:
                time.sleep(SHORT)
        except Exception as error:
            if walk is None:
                cache.failed[number] = error
            elif isinstance(error, OSError) and error.errno in FULL:
                walk.again(number)
        finally:
            if troubled:
                with self._lock:
                    self._patient[id(cache)] -= 1


def _only_on_a_full_disk(make_room: Callable[..., None], full: bool = False) -> None:
    if full:
        make_room(full=True)


_ended = False
_fetchers: dict[int, Fetcher] = {}


def fetcher() -> Fetcher:
    """This process's."""
    return _fetchers.get(os.getpid()) or _fetchers.setdefault(os.getpid(), Fetcher())  # one, whoever asks at once


@atexit.register
def _end() -> None:
    """A thread that computes while Python is taken down would take the process down with it."""
    global _ended
    _ended = True
    if (of_this_process := _fetchers.get(os.getpid())) is not None:
        of_this_process.end(time.monotonic() + END_SECONDS)
