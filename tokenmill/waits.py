"""Whether what a thread waits for is still wanted: whoever begins the thread says how to tell, long waits ask.

wanted_unless(lambda: stopped)        at a thread's beginning
require_wanted()                      now and then in what may take long; raises Unwanted
"""

import threading
from collections.abc import Callable

_here = threading.local()


class Unwanted(Exception):
    """Nobody waits for this any more."""


def wanted_unless(stopped: Callable[[], bool]) -> None:
    """Has waits in this thread end once stopped() is true."""
    _here.stopped = stopped


def require_wanted() -> None:
    """Unwanted where whoever began this thread has stopped it."""
    stopped = getattr(_here, "stopped", None)
    if stopped is not None and stopped():
        raise Unwanted("stopped")
