"""Running an iterator ahead, in a thread that never outlives its use.

    batches = Ahead(make_batches(), depth=2)      two batches are made before the first is asked for
    next(batches)                                 waits for one; an error in the thread is raised here

The thread holds no reference to the `Ahead`, so that dropping it ends the thread, as leaving the
process does: a thread that is inside NumPy or torch while Python shuts down would crash it. Nothing polls: the
thread waits for room, the caller for an item.
"""

import os
import threading
import weakref
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

SECONDS_TO_LEAVE = 10  # at the process's end, for a thread that waits for a disk


Item = TypeVar("Item")


class Ahead(Generic[Item]):
    """An iterator over `items`, which a daemon thread takes at most `depth` ahead."""

    def __init__(self, items: Iterator[Item], depth: int):
        self._ready: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._room = threading.Semaphore(depth)
        self._over: BaseException | None = None  # what ended it: an error, or StopIteration
        stopped = threading.Event()
        thread = threading.Thread(
            target=_run, args=(items, self._ready, self._room, stopped), daemon=True, name="tokenmill-ahead"
        )
        self.stop = weakref.finalize(self, _stop, thread, self._ready, self._room, stopped, os.getpid())
        thread.start()

    def __iter__(self) -> "Ahead[Item]":
        return self

    def __next__(self) -> Item:
        """The next item. An error of the thread is raised here, and again at every later call."""
        if self._over is None:
            item: Item
            item, self._over = self._ready.get()
            self._room.release()
        if self._over is not None:
            raise self._over
        return item


def _run(items: Iterator, ready: SimpleQueue, room: threading.Semaphore, stopped: threading.Event) -> None:
    while True:
        room.acquire()
        if stopped.is_set():
            return
        try:
            ready.put((next(items), None))
        except BaseException as error:  # the caller's to raise; StopIteration too
            ready.put((None, error))
            return


def _stop(
    thread: threading.Thread, ready: SimpleQueue, room: threading.Semaphore, stopped: threading.Event, pid: int
) -> None:
    """Ends the thread, and waits until it has left; called once, by `stop`, the collector or the process's end."""
    if os.getpid() != pid:
        return  # a fork: the thread did not come along, but locks that it held are held here for ever
    stopped.set()
    room.release()
    ready.put((None, RuntimeError("stopped")))  # for a caller in another thread that waits for an item
    if thread is not threading.current_thread():  # the collector runs in any thread
        thread.join(SECONDS_TO_LEAVE)
