"""A thread runs ahead, just as far as it should, and ends with its user."""

import gc
import os
import time
from itertools import count, islice

import pytest
from making import wait_until

from tokenmill.feed.prefetch import Prefetch, Stop


def threads():
    """Those that the process has, of whatever kind."""
    return set(os.listdir("/proc/self/task"))


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_items_come_in_order_and_end(depth):
    ahead = Prefetch(iter(range(100)), depth, Stop())
    assert list(ahead) == list(range(100))
    assert list(ahead) == []


def test_no_more_than_depth_items_are_made_before_they_are_asked_for():
    made = []
    ahead = Prefetch((made.append(number) or number for number in count()), 3, Stop())
    for taken in range(5):
        wait_until(lambda taken=taken: len(made) == taken + 3)
        time.sleep(0.02)  # in which another one might be made
        assert len(made) == taken + 3
        assert next(ahead) == taken
    ahead.stop()


@pytest.mark.parametrize("depth", [0, 2])
def test_an_error_comes_after_the_items_before_it_with_its_cause_and_where_it_happened(depth):
    def items():
        yield 1
        try:
            raise OSError("a disk")
        except OSError as error:
            raise ValueError("a row") from error

    ahead = Prefetch(items(), depth, Stop())
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="a row") as raised:
        next(ahead)
    assert str(raised.value.__cause__) == "a disk"
    assert any(entry.name == "items" for entry in raised.traceback)


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("taken", [0, 5])
def test_stopping_or_dropping_it_ends_the_thread_and_what_it_iterates_over(depth, dropped, taken):
    def items():
        try:
            yield from count()
        finally:
            closed.append(True)

    before = threads()
    closed = []
    ahead = Prefetch(items(), depth, Stop())
    assert list(islice(ahead, taken)) == list(range(taken))
    if not dropped:
        ahead.stop()
    del ahead
    gc.collect()
    wait_until(lambda: threads() <= before)
    assert closed or not taken, "what never began has nothing to close"


# ---------------------------------------------------------------------------- with a loader
