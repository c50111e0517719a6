"""Runs an iterator ahead in a thread, which never outlives its use.

    batches = BackgroundIterator(make_batches(), depth=2)      the thread makes two batches before you ask for one
    next(batches)                                              waits for one; an error in the thread is raised here

The thread holds no reference to the `BackgroundIterator`, so deleting the iterator ends the thread. That runs no Python
where the iterator goes (the callback of its weak reference is the queue's own `put`), because a Ctrl-C that came there
would be swallowed. The end of the process ends the thread too, because a thread that is inside NumPy or torch while
Python shuts down would crash it. Nothing polls: the thread waits for requests, and the caller waits for items.

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
_alive: "dict[int, _Shared]" = {}  # what each running background thread shares, by its id


class _Shared:
    """What the thread and its user share."""

    def __init__(self, depth: int):
        self.results: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self.requests: SimpleQueue[Any] = SimpleQueue()  # None asks for the next item; all else is sent
        self.finished: SimpleQueue[None] = SimpleQueue()  # filled when the thread ends
        self.begun = self.stopped = False
        self.requested_at = 0.0  # when the thread took the last request
        self.user: weakref.ref[Any] | None = None  # the iterator; its end is a request
        self.thread: int | None = None
        self.owner = _thread.get_ident()  # the thread that uses the iterator
        for _ in range(depth):
            self.requests.put(None)

    @property
    def is_stopped(self) -> bool:
        return self.stopped or (self.user is not None and self.user() is None)


class BackgroundIterator(Generic[Item]):
    """Iterates over `items`, which a thread makes at most `depth` ahead; with depth 0, when you ask for them."""

    def __init__(self, items: Iterator[Item], depth: int = 0):
        self._shared, self._refill = _Shared(depth), depth > 0
        self._ended_by: str | None = None  # what ended the thread; not the error itself, which refers to its callers
        self._pid = os.getpid()
        self._shared.user = weakref.ref(self, self._shared.requests.put)
        self._shared.begun = True
        _thread.start_new_thread(_run, (items, self._shared))

    def __iter__(self) -> "BackgroundIterator[Item]":
        return self

    def __next__(self) -> Item:
        """The next item. An error in the thread is raised here; later calls raise RuntimeError."""
        if self._ended_by is not None:
            if not self._ended_by:
                raise StopIteration
            raise RuntimeError(f"this iterator has failed: {self._ended_by}")
        item: Item
        item, error = self._shared.results.get()
        if self._refill:
            self._shared.requests.put(None)
        if error is None:
            return item
        self._ended_by = "" if isinstance(error, StopIteration) else repr(error)
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame

    def stop(self) -> None:
        """Ends the thread and waits for it. A second call does nothing."""
        if not self._shared.stopped and self._pid == os.getpid():  # a forked child has no such thread
            _stop(self._shared)

    def submit(self, request: Any) -> None:
        """Sends a request to the generator, after all earlier requests."""
        self._shared.requests.put(request)


def _run(items: Iterator[Any], shared: _Shared) -> None:
    shared.thread = _thread.get_ident()
    _alive[shared.thread] = shared
    try:
        with cancelled_by(lambda: shared.is_stopped):
            while _make_one(items, shared):
                pass
    finally:
        if isinstance(items, Generator):
            items.close()  # releases what it holds before the thread counts as finished
        del items
        _alive.pop(shared.thread, None)
        shared.finished.put(None)


def _make_one(items: Iterator[Any], shared: _Shared) -> bool:
    """Waits for a request and makes an item; False if there will be no more."""
    request = shared.requests.get()
    now, before = time.monotonic(), shared.requested_at
    shared.requested_at = now
    # the caller has just taken an item, has another, and takes its time between items
    if request is None and now - before > 2 * HEAD_START_SECONDS and not shared.results.empty():
        with contextlib.suppress(Empty):
            shared.requests.put(shared.requests.get(timeout=HEAD_START_SECONDS))  # or until it takes the other too
    item = PAUSE
    while item is PAUSE:
        if shared.is_stopped:
            return False
        try:
            item = next(items) if request is None else items.send(request)  # type: ignore[attr-defined]
            request = None
        except BaseException as error:  # the caller raises it, StopIteration included
            shared.results.put((None, error))
            return False
    shared.results.put((item, None))
    return True


def _stop(shared: _Shared) -> None:
    """Ends the thread and waits for it, unless that could wait for ever."""
    shared.stopped = True
    shared.requests.put(None)
    shared.results.put((None, RuntimeError("stopped")))  # wakes a caller in another thread that waits for an item
    here = _thread.get_ident()
    if not shared.begun or shared.thread == here:
        return
    if here not in _alive or here == shared.owner:  # one background thread does not wait for another
        _wait(shared)


def _wait(shared: _Shared) -> None:
    with contextlib.suppress(Empty):
        shared.finished.get(timeout=SECONDS_TO_FINISH)


@atexit.register
def stop_all() -> None:
    """Before Python ends, ends all threads, and waits for them."""
    running = list(_alive.values())
    for shared in running:
        shared.stopped = True
        shared.requests.put(None)
        shared.results.put((None, RuntimeError("stopped")))  # wakes another thread that waits for an item of this one
    for shared in running:
        _wait(shared)


def _after_fork() -> None:
    _alive.clear()  # threads do not survive a fork


os.register_at_fork(after_in_child=_after_fork)
