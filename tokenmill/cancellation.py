"""Cancellation: lets a long wait in a thread end when nobody needs its result any more.

with cancelled_by(lambda: stopped):      around the work, by whoever starts it
    ...
raise_if_cancelled()                     now and then during a long wait; raises Cancelled
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
    if (stopped := getattr(_here, "stopped", None)) is not None and stopped():
        raise Cancelled("stopped")
