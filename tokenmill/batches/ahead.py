"""Running an iterator ahead, in a thread that never outlives its use.

    batches = Ahead(make_batches(), depth=2)      two batches are made before the first is asked for
    next(batches)                                 waits for one; an error in the thread is raised here

The thread holds no reference to the `Ahead`, so that dropping it ends the thread, as leaving the
process does: a thread that is inside NumPy or torch while Python shuts down would crash it. Nothing polls: the
thread waits for room, the caller for an item, each at a `SimpleQueue`. These are C: a Ctrl-C, or a signal handler that
raises, may come anywhere in the caller, and finds no lock of `threading`'s half taken that would be held for ever.
An iterator that works long on one item yields PAUSE now and then, so that it can be stopped there.
"""

import os
import threading
import weakref
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

SECONDS_TO_LEAVE = 10  # at the process's end, for a thread that waits for a disk
PAUSE = object()  # no item yet

Item = TypeVar("Item")


class _Shared:
    """What the thread and its user both see."""

    def __init__(self, depth: int):
        self.ready: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self.room: SimpleQueue[None] = SimpleQueue()
        self.stopped = False
        for _ in range(depth):
            self.room.put(None)


class Ahead(Generic[Item]):
    """An iterator over `items`, which a daemon thread takes at most `depth` ahead."""

    def __init__(self, items: Iterator[Item], depth: int, name: str = "tokenmill-ahead"):
        self._shared = _Shared(depth)
        self._over: BaseException | None = None  # what ended it: an error, or StopIteration
        thread = threading.Thread(target=_run, args=(items, self._shared), daemon=True, name=name)
        self.stop = weakref.finalize(self, _stop, thread, self._shared, os.getpid())
        thread.start()

    def __iter__(self) -> "Ahead[Item]":
        return self

    def __next__(self) -> Item:
        """The next item. An error of the thread is raised here, and again at every later call."""
        if self._over is None:
            item: Item
            item, self._over = self._shared.ready.get()
            self._shared.room.put(None)
        if self._over is not None:
            raise self._over
        return item


def _run(items: Iterator, shared: _Shared) -> None:
    while True:
        shared.room.get()
        item = PAUSE
        while item is PAUSE:
            if shared.stopped:
                return
            try:
                item = next(items)
            except BaseException as error:  # the caller's to raise; StopIteration too
                shared.ready.put((None, error))
                return
        shared.ready.put((item, None))


def _stop(thread: threading.Thread, shared: _Shared, pid: int) -> None:
    """Ends the thread, and waits until it has left; called once, by `stop`, the collector or the process's end."""
    if os.getpid() != pid:
        return  # a fork: the thread did not come along
    shared.stopped = True
    shared.room.put(None)
    shared.ready.put((None, RuntimeError("stopped")))  # for a caller in another thread that waits for an item
    # the collector runs in any thread; and a Ctrl-C may have come before the thread was begun
    if thread is not threading.current_thread() and thread.ident is not None:
        thread.join(SECONDS_TO_LEAVE)
