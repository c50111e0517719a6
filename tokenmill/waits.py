"""Whether what a thread waits for is still wanted: whoever runs something in it says how to tell, long waits ask.

with wanted_unless(lambda: stopped):      around what is run
require_wanted()                          now and then in what may take long; raises Unwanted
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_here = threading.local()


class Unwanted(Exception):
    """Nobody waits for this any more."""


@contextmanager
def wanted_unless(stopped: Callable[[], bool]) -> Iterator[None]:
    """Has waits in this thread end once stopped() is true."""
    before = getattr(_here, "stopped", None)
    _here.stopped = stopped
    try:
        yield
    finally:
        _here.stopped = before


def require_wanted() -> None:
    """Unwanted where whoever runs this has stopped it."""
    stopped = getattr(_here, "stopped", None)
    if stopped is not None and stopped():
        raise Unwanted("stopped")
