"""Prefetch: runs an iterator ahead in a thread, which ends with it.

    batches = Prefetch(make_batches(), depth=2)      the thread makes two batches before you ask
    next(batches)                                    waits for one; an error in the thread is raised

Two queues and no lock: the thread waits for requests, the caller for items. The thread holds no
reference to the Prefetch, so when that goes, or Python ends, a finalizer asks the thread to end.
`threading.Thread.start` is not used, because a Ctrl-C inside it leaves a broken lock.
"""

import _thread
import os
import weakref
from collections.abc import Generator, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from tokenmill.threads import Cancelled, cancelled_by

SECONDS_TO_FINISH = 10  # how long `stop` waits for a thread that waits for a disk
CLOSED = "the loader was closed or moved by another thread"


class Stop:
    """Whether what runs in threads for an iterator is still needed."""

    stopped = False
    has_thread = False  # an interrupt may come before the thread has begun


class _Queues(NamedTuple):
    requests: SimpleQueue[bool]  # for an item, or False to end
    results: SimpleQueue[tuple[Any, BaseException | None]]
    finished: SimpleQueue[None]


class Prefetch:
    """Iterates over `items`, made at most `depth` ahead by a thread; with depth 0, when asked."""

    def __init__(self, items: Iterator[Any], depth: int, stop: Stop):
        self._items = items
        self._depth = depth
        self._flag = stop
        if depth:
            self._queues = _Queues(SimpleQueue(), SimpleQueue(), SimpleQueue())
            for _ in range(depth):
                self._queues.requests.put(True)
            self._end = weakref.finalize(self, _stop, os.getpid(), stop, self._queues)
            _running.add(self)
            _thread.start_new_thread(_run, (items, stop, self._queues))

    def __iter__(self) -> "Prefetch":
        return self

    def __next__(self) -> Any:
        if not self._depth:
            try:
                with cancelled_by(lambda: self._flag.stopped):
                    return next(self._items)
            except Cancelled:
                raise ValueError(CLOSED) from None
        item, error = self._queues.results.get()
        if error is None:
            self._queues.requests.put(True)
            return item
        # the thread has ended
        self._depth = 0
        self._items = iter(())
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame

    def stop(self) -> None:
        """Ends the thread and waits for it.

        A caller that waits for an item in another thread gets an error.
        """
        self._flag.stopped = True
        if self._depth:
            self._end()
        elif isinstance(self._items, Generator):
            with suppress(ValueError):  # it runs in another thread, which sees the flag
                self._items.close()


_running: "weakref.WeakSet[Prefetch]" = weakref.WeakSet()


def stop_all() -> None:
    """Ends all threads, for a library that must not be used by one while it shuts down."""
    for running in list(_running):
        running.stop()


def _run(items: Iterator[Any], stop: Stop, queues: _Queues) -> None:
    stop.has_thread = True
    finished = queues.finished
    try:
        with cancelled_by(lambda: stop.stopped):
            while queues.requests.get():
                queues.results.put((next(items), None))
    except BaseException as error:  # the caller raises it, StopIteration included
        queues.results.put((None, error))
    finally:
        with suppress(BaseException):
            items.close()  # type: ignore[attr-defined]  # releases what it holds before it ends
        del items, queues  # the error's traceback refers to this frame
        finished.put(None)


def _stop(pid: int, stop: Stop, queues: _Queues) -> None:
    if os.getpid() != pid:
        return  # in a forked child, where the thread does not run
    stop.stopped = True
    with suppress(Empty):
        while True:
            queues.requests.get_nowait()
    queues.requests.put(False)
    queues.results.put((None, ValueError(CLOSED)))
    if stop.has_thread:
        with suppress(Empty):
            queues.finished.get(timeout=SECONDS_TO_FINISH)
