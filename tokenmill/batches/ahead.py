"""Running an iterator ahead, in a thread that never outlives its use.

    batches = Ahead(make_batches(), depth=2)      two batches are made before the first is asked for
    next(batches)                                 waits for one; an error in the thread is raised here

The thread holds no reference to the `Ahead`, so that dropping it ends the thread, as leaving the
process does: a thread that is inside NumPy or torch while Python shuts down would crash it. Nothing polls: the
thread waits for room, the caller for an item.

A Ctrl-C, or a signal handler that raises, may come anywhere in the caller. So all that the two share are C's
`SimpleQueue`s, and the thread is begun by C too: `threading`'s locks, and its `Thread.start`, are Python, and may be
left half done, to be waited for for ever. An iterator that works long on one item yields PAUSE now and then, so that it
can be stopped there.

Without a depth nothing is made until it is asked for, and a generator is sent what was asked:

    answers = Ahead(generator)
    answers.ask(job)                              a `yield` of it gives the job, the next one is the answer
"""

import _thread
import atexit
import contextlib
import os
import weakref
from collections.abc import Generator, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from tokenmill.waits import wanted_unless

SECONDS_TO_LEAVE = 10  # at the process's end, for a thread that waits for a disk
PAUSE = object()  # no item yet

Item = TypeVar("Item")
_running: set[int] = set()  # the threads that there are
_leaving: "list[_Shared]" = []  # those that were stopped where they could not be waited for


class _Shared:
    """What the thread and its user both see."""

    def __init__(self, depth: int):
        self.ready: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self.room: SimpleQueue[Any] = SimpleQueue()  # None: an item; else what is asked for
        self.left: SimpleQueue[None] = SimpleQueue()
        self.begun = self.stopped = False
        self.thread: int | None = None
        self.owner = _thread.get_ident()  # who waits for it
        for _ in range(depth):
            self.room.put(None)


class Ahead(Generic[Item]):
    """An iterator over `items`, which a thread takes at most `depth` ahead; without a depth as they are asked for."""

    def __init__(self, items: Iterator[Item], depth: int = 0):
        self._shared, self._refill = _Shared(depth), depth > 0
        self._over: BaseException | None = None  # what ended it: an error, or StopIteration
        self.stop = weakref.finalize(self, _stop, self._shared, os.getpid())
        self._shared.begun = True
        _thread.start_new_thread(_run, (items, self._shared))

    def __iter__(self) -> "Ahead[Item]":
        return self

    def __next__(self) -> Item:
        """The next item. An error of the thread is raised here, and again at every later call."""
        if self._over is None:
            item: Item
            item, self._over = self._shared.ready.get()
            if self._refill:
                self._shared.room.put(None)
        if self._over is not None:
            raise self._over
        return item

    def ask(self, what: Any) -> None:
        """Has the generator sent `what`, after all that was asked before."""
        self._shared.room.put(what)


def _run(items: Iterator, shared: _Shared) -> None:
    shared.thread = _thread.get_ident()
    _running.add(shared.thread)
    try:
        with wanted_unless(lambda: shared.stopped):
            while _make_one(items, shared):
                pass
    finally:
        if isinstance(items, Generator):
            items.close()  # lets go of what it holds, before it is said that the thread has left
        del items
        _running.discard(shared.thread)
        shared.left.put(None)


def _make_one(items: Iterator, shared: _Shared) -> bool:
    """Waits for room and makes an item; False where there will be no more."""
    asked = shared.room.get()
    item = PAUSE
    while item is PAUSE:
        if shared.stopped:
            return False
        try:
            item = next(items) if asked is None else items.send(asked)  # type: ignore[attr-defined]
            asked = None
        except BaseException as error:  # the caller's to raise; StopIteration too
            shared.ready.put((None, error))
            return False
    shared.ready.put((item, None))
    return True


def _stop(shared: _Shared, pid: int) -> None:
    """Ends the thread, and waits until it has left; called once, by `stop`, the collector or the process's end."""
    if os.getpid() != pid:
        return  # a fork: the thread did not come along
    shared.stopped = True
    shared.room.put(None)
    shared.ready.put((None, RuntimeError("stopped")))  # for a caller in another thread that waits for an item
    here = _thread.get_ident()
    if not shared.begun or shared.thread == here:
        return
    if here in _running and here != shared.owner:  # the collector runs in any thread, this one may wait for that
        _leaving.append(shared)
    else:
        _wait(shared)


def _wait(shared: _Shared) -> None:
    with contextlib.suppress(Empty):
        shared.left.get(timeout=SECONDS_TO_LEAVE)


@atexit.register
def _wait_for_all() -> None:
    """Before Python ends, for the threads that were stopped, and not waited for."""
    while _leaving:
        _wait(_leaving.pop())
