"""What the workers of test_pool.py do."""

import os
import signal
import time


def work(task, report):
    """Reports a text, and 1 and 10 three times, then does what the task says; `mark` is a file once
    it has tried.
    """
    what, mark = task
    first = mark is not None and not mark.exists()
    if first:
        mark.touch()
    if what == "die at once" and first:
        os.kill(os.getpid(), signal.SIGKILL)
    report("began")
    for _ in range(3):
        report(1, 10)
    if what == "die" or (what == "die once" and first):
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "stop" or (what == "stop once" and first):
        time.sleep(1000)
    return what, os.getpid()


def cached_encoders(task, report):
    """How many encoders the worker has before it makes one."""
    from tokenmill.prepare.encode import encoder_of

    return encoder_of.cache_info().currsize


def begin(mark):
    """What a pool does once: adds a line to a file."""
    with open(mark, "a") as file:
        file.write("made\n")
