"""Properties that are computed once: by whichever thread, and in a child that is forked."""

import os
import signal
import threading

from tokenmill.threads import cached_property


class Slow:
    """One whose value takes as long as it is told."""

    def __init__(self, wait):
        self.made = 0
        self._wait = wait

    @cached_property
    def value(self):
        """A value."""
        self.made += 1
        self._wait()
        return [self.made]


def test_a_child_that_is_forked_while_a_thread_computes_one_computes_its_own():
    begun = threading.Event()
    go_on = threading.Event()
    busy = Slow(lambda: (begun.set(), go_on.wait()))
    thread = threading.Thread(target=lambda: busy.value)
    thread.start()
    begun.wait()
    if not (child := os.fork()):
        signal.alarm(20)  # ends a child that waits
        os._exit(Slow(lambda: None).value != [1])
    assert os.waitpid(child, 0)[1] == 0
    go_on.set()
    thread.join()
