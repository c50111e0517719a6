"""Runs an iterator ahead in a thread, which never outlives its use.

    batches = BackgroundIterator(make_batches(), depth=2)      the thread makes two batches before you ask for one
    next(batches)                                              waits for one; an error in the thread is raised here

The thread holds no reference to the `BackgroundIterator`, so deleting the iterator ends the thread. The end of the
process ends it too, because a thread that is inside NumPy or torch while Python shuts down would crash it. Nothing
polls: the thread waits for requests, and the caller waits for items.

A Ctrl-C, or a signal handler that raises, can interrupt the caller at any point. Therefore the two threads share only
`SimpleQueue`s, and the thread is started with `_thread`, all of which is implemented in C. `threading`'s locks and
`Thread.start` are written in Python. An interrupt can leave them in a state in which a waiter never wakes up. An
iterator that works on one item for long yields PAUSE now and then, so that it can be stopped there.

Without a depth, nothing is made until you ask for it, and your requests are sent to a generator:

    answers = BackgroundIterator(generator)
    answers.submit(job)                           the generator's `yield` returns the job; its next `yield` answers it
"""

import _thread
import atexit
import contextlib
import os
import time
import weakref
from collections.abc import Generator, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from tokenmill.cancellation import cancelled_by

SECONDS_TO_FINISH = 10  # how long the end of the process waits for a thread that waits for a disk
# How long the thread waits if nobody waits for it. The caller's loop runs Python then, and would have to wait whenever
# the thread holds Python's lock; a moment later it usually waits for its device, or computes without the lock.
HEAD_START_SECONDS = 0.001
PAUSE = object()  # yielded instead of an item: not finished yet

Item = TypeVar("Item")
_running: set[int] = set()  # the ids of all background threads
_unfinished: "list[_Shared]" = []  # threads that were stopped where nobody could wait for them


class _Shared:
    """What the thread and its user share."""

    def __init__(self, depth: int):
        self.results: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self.requests: SimpleQueue[Any] = SimpleQueue()  # None asks for the next item; all else is sent
        self.finished: SimpleQueue[None] = SimpleQueue()  # filled when the thread ends
        self.begun = self.stopped = False
        self.thread: int | None = None
        self.owner = _thread.get_ident()  # the thread that uses the iterator
        for _ in range(depth):
            self.requests.put(None)


class BackgroundIterator(Generic[Item]):
    """Iterates over `items`, which a thread makes at most `depth` ahead; with depth 0, when you ask for them."""

    def __init__(self, items: Iterator[Item], depth: int = 0):
        self._shared, self._refill = _Shared(depth), depth > 0
        self._end: BaseException | None = None  # what ended the thread: an error, or StopIteration
        self.stop = weakref.finalize(self, _stop, self._shared, os.getpid())
        self._shared.begun = True
        _thread.start_new_thread(_run, (items, self._shared))

    def __iter__(self) -> "BackgroundIterator[Item]":
        return self

    def __next__(self) -> Item:
        """The next item. An error in the thread is raised here, and again at every later call."""
        if self._end is None:
            item: Item
            item, self._end = self._shared.results.get()
            if self._refill:
                self._shared.requests.put(None)
        if self._end is not None:
            raise self._end
        return item

    def submit(self, request: Any) -> None:
        """Sends a request to the generator, after all earlier requests."""
        self._shared.requests.put(request)


def _run(items: Iterator[Any], shared: _Shared) -> None:
    shared.thread = _thread.get_ident()
    _running.add(shared.thread)
    try:
        with cancelled_by(lambda: shared.stopped):
            while _make_one(items, shared):
                pass
    finally:
        if isinstance(items, Generator):
            items.close()  # releases what it holds before the thread counts as finished
        del items
        _running.discard(shared.thread)
        shared.finished.put(None)


def _make_one(items: Iterator[Any], shared: _Shared) -> bool:
    """Waits for a request and makes an item; False if there will be no more."""
    request = shared.requests.get()
    if request is None and not shared.results.empty():  # the caller has just taken an item, and has another
        time.sleep(HEAD_START_SECONDS)
    item = PAUSE
    while item is PAUSE:
        if shared.stopped:
            return False
        try:
            item = next(items) if request is None else items.send(request)  # type: ignore[attr-defined]
            request = None
        except BaseException as error:  # the caller raises it, StopIteration included
            shared.results.put((None, error))
            return False
    shared.results.put((item, None))
    return True


def _stop(shared: _Shared, pid: int) -> None:
    """Ends the thread and waits for it. Called once: by `stop`, the garbage collector, or the end of the process."""
    if os.getpid() != pid:
        return  # in a forked child, which has no such thread
    shared.stopped = True
    shared.requests.put(None)
    shared.results.put((None, RuntimeError("stopped")))  # wakes a caller in another thread that waits for an item
    here = _thread.get_ident()
    if not shared.begun or shared.thread == here:
        return
    # the garbage collector runs in any thread; one background thread must not wait for another
    if here in _running and here != shared.owner:
        _unfinished.append(shared)
    else:
        _wait(shared)


def _wait(shared: _Shared) -> None:
    with contextlib.suppress(Empty):
        shared.finished.get(timeout=SECONDS_TO_FINISH)


@atexit.register
def _wait_for_all() -> None:
    """Before Python ends, waits for the threads that were stopped without waiting."""
    while _unfinished:
        _wait(_unfinished.pop())
