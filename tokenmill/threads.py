"""Helpers for code that runs in threads, in processes that may fork; and how many cores they have.

`cached_property` is functools' without its lock, which a fork could find held: in Python 3.11,
there is one for all instances of a class. If a process forks while a thread computes such a
property, for example when a DataLoader starts workers while a window is planned, the child waits
forever. Without a lock, two threads may compute the same value, and either value is used. Python
3.12 works this way.

Cancellation lets a long wait in a thread end when nobody needs its result any more:

    with cancelled_by(lambda: stopped):      around the work, by whoever starts it
        ...
    raise_if_cancelled()                     now and then during a long wait; raises Cancelled
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property:  # noqa: N801  # as property is
        """A property that is computed at the first access and then stored in the instance."""

        def __init__(self, make: Any):
            self._make = make
            self.__doc__ = make.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type) -> Any:
            if instance is None:
                return self
            value = self._make(instance)
            vars(instance)[self._name] = value  # later accesses find it there
            return value


_here = threading.local()


class Cancelled(Exception):
    """Nobody needs the result of this work any more."""


@contextmanager
def cancelled_by(stopped: Callable[[], bool]) -> Iterator[None]:
    """Cancels waits in this thread as soon as stopped() is true."""
    before = getattr(_here, "stopped", None)
    _here.stopped = stopped
    try:
        yield
    finally:
        _here.stopped = before


def raise_if_cancelled() -> None:
    """Raises Cancelled if the work in this thread was cancelled."""
    stopped = getattr(_here, "stopped", None)
    if stopped is not None and stopped():
        raise Cancelled("stopped")


def available_cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores that this process may use: those it is bound to, and its container's quota."""
    bound = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        bound = len(os.sched_getaffinity(0))
    try:
        microseconds, period = quota.read_text().split()
        return max(1, min(bound, ceil(int(microseconds) / int(period))))
    except (OSError, ValueError):  # no container, or "max"
        return bound
