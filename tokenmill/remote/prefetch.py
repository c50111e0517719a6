"""What will be needed, fetched by a pool of threads in the order of need.

    jobs = [Job(partial(parts.load, 7)), Job(partial(parts.load, 9))]
    expect(jobs, after=0)       fetched some time, the first one first
    require(jobs)               now, before all others; returns when their `result`s are there

A job that nobody holds any more is not done, so a window that was left takes its parts out of the
queue by going away. A job that failed is tried again when it is required again.
"""

import _thread
import copy
import heapq
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tokenmill.threads import raise_if_cancelled

THREADS = 32  # at 20 ms a request and 1 MiB a part, 1.6 GB/s
NOW = -1
CHECK_SECONDS = 0.1


class Job:
    """A function to be called once, in a thread; `result` is None until it has returned."""

    __slots__ = ("__weakref__", "error", "made", "process", "result", "run")

    def __init__(self, run: Callable[[], Any]):
        self.run = run
        self.result: Any = None
        self.error: BaseException | None = None
        self.made = time.time()
        self.process = 0  # the one that is running it: after a fork, that is another one

    @property
    def is_open(self) -> bool:
        """Whether it has neither returned nor failed."""
        return self.result is None and self.error is None


class _Pool:
    """The queue of this process. Threads start with the first job, and never end.

    `threading.Thread.start` is not used, because a Ctrl-C inside it leaves a broken lock.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.count = itertools.count()
        self.threads = 0
        self.waiting: list[tuple[int, int, weakref.ref[Job]]] = []  # (place, count, job)

    def put(self, jobs: Sequence[Job], after: int) -> None:
        with self.changed:
            for number, job in enumerate(jobs):
                place = after if after == NOW else after + number
                heapq.heappush(self.waiting, (place, next(self.count), weakref.ref(job)))
            while self.threads < THREADS:
                self.threads += 1
                _thread.start_new_thread(self._work, ())
            self.changed.notify_all()

    def _work(self) -> None:
        while True:
            self._do(self._next())

    def _do(self, job: Job) -> None:
        result = error = None
        try:
            result = job.run()
        except BaseException as raised:
            error = raised.with_traceback(None)  # whose frames hold the job
        with self.changed:  # all at once, as `_next` drops a job that is still being run
            job.result = result
            job.error = error
            job.process = 0
            self.changed.notify_all()

    def _next(self) -> Job:
        with self.changed:
            while True:
                while not self.waiting:
                    self.changed.wait()
                _, _, reference = heapq.heappop(self.waiting)
                job = reference()
                if job is not None and job.is_open and job.process != os.getpid():
                    job.process = os.getpid()
                    return job
                del job  # or this thread holds it while it waits

    def wait(self, jobs: Sequence[Job]) -> None:
        with self.changed:
            for job in jobs:
                while job.is_open:
                    self.changed.wait(CHECK_SECONDS)
                    raise_if_cancelled()  # close() does not wait for a server
                if job.error is not None:
                    raise _copied(job.error)  # each waiter its own


_pool = _Pool()


def _copied(error: BaseException) -> BaseException:
    """Another error like this one; the same one if its type is called in a way of its own."""
    try:
        copied = copy.copy(error)
    except TypeError:
        return error
    if isinstance(copied, OSError):
        copied.errno = getattr(error, "errno", None)
    return copied


def expect(jobs: Sequence[Job], after: int = 0) -> None:
    """Has jobs done in this order; `after` so many others."""
    missing = [job for job in jobs if job.result is None]
    if missing:
        _pool.put(missing, after)


def require(jobs: Sequence[Job]) -> None:
    """Does jobs before all others, and returns when they are done.

    Raises what the first one that failed raised.
    """
    missing = [job for job in jobs if job.result is None]
    if not missing:
        return
    with _pool.changed:
        for job in missing:
            job.error = None
    _pool.put(missing, NOW)
    _pool.wait(missing)


def call_all(functions: Sequence[Callable[[], Any]]) -> None:
    """Calls functions in the threads, now. Raises what the first one that failed raised."""
    require([Job(partial(_returning, function)) for function in functions])


def _returning(function: Callable[[], Any]) -> Any:
    """What a function returns, or True in place of nothing: a job is done once it has a result."""
    return function() or True


def _begin_anew() -> None:
    """In a fork there are no threads, and the lock may be held by one that is gone."""
    global _pool
    _pool = _Pool()


os.register_at_fork(after_in_child=_begin_anew)
