"""What the workers of test_pool.py do."""

import os
import signal
import time


def setup():
    return "state", ("told", 1)


def broken_setup():
    raise ValueError("no tokenizer here")


def dying_setup():
    os.kill(os.getpid(), signal.SIGKILL)


def work(state, task, report):
    """Reports 1 and 10 three times, then does what the task says; `mark` is a file that says whether it has tried."""
    what, mark = task
    assert state == "state"
    first = mark is not None and not mark.exists()
    if first:
        mark.touch()
    if what == "die at once" and first:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(3):
        report(1, 10)
    if what == "raise":
        raise ValueError("this text is bad")
    if what == "bug":
        raise KeyError("a bug")
    if what == "full":
        raise OSError(28, "No space left on device", "there")
    if what == "die" or (what == "die once" and first):
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "stop" or (what == "stop once" and first):
        time.sleep(1000)
    return what, os.getpid()
