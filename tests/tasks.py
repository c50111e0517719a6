"""What the worker processes of test_workers.py do; they import it by name."""

import errno
import os
import signal
import time
from pathlib import Path


def setup(task):
    return {"pid": os.getpid()}


def broken_setup(task):
    raise ValueError("no tokenizer here")


def work(state, task, report):
    """A task is (what, path): what to do, and a file for the memory of it."""
    what, path = task
    assert state["pid"] in (os.getppid(), os.getpid()), "what was set up once is every worker's"
    report(1, 10)
    if what == "raise":
        raise ValueError("this text is bad")
    if what == "bug":
        raise KeyError("a bug")
    if what == "die" or (what == "die once" and not Path(path).exists()):
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "exit":
        os._exit(3)
    if what == "stop" or (what == "stop once" and not Path(path).exists()):
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "full":
        raise OSError(errno.ENOSPC, "No space left on device", path)
    if what == "sleep":
        time.sleep(60)
    report(2, 20)
    return what, os.getpid()
