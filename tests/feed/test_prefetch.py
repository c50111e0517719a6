"""A thread runs ahead, just as far as it should, and ends with its user."""

import gc
import os
import random
import signal
import time
from itertools import count, islice

import pytest
from making import wait_until
from reference import reference_rows, rows_of

from tokenmill.feed.prefetch import Prefetch, Stop
from tokenmill.numpy import RowLoader


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

    before, closed = threads(), []
    ahead = Prefetch(items(), depth, Stop())
    assert list(islice(ahead, taken)) == list(range(taken))
    if not dropped:
        ahead.stop()
    del ahead
    gc.collect()
    wait_until(lambda: threads() <= before)
    assert closed or not taken, "what never began has nothing to close"


# ---------------------------------------------------------------------------- with a loader


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("prefetch", [0, 2])
def test_after_a_ctrl_c_at_any_moment_a_loader_continues_with_the_right_rows(token_set, prefetch):
    expected, rng = list(islice(reference_rows(token_set), 4_000)), random.Random(0)
    loader = RowLoader(token_set, batch_size=2, seq_len=16, prefetch=prefetch)

    def interrupt(*_):
        raise KeyboardInterrupt

    before, interrupts = signal.signal(signal.SIGALRM, interrupt), 0
    try:
        while interrupts < 100 and loader.step < 1_900:
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 4e-3))
                for _ in range(50):  # Python ignores an exception that comes while it deletes something
                    rows = rows_of(next(loader))
                    assert rows == expected[2 * loader.step - 2 : 2 * loader.step]
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupts += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert rows_of(next(loader)) == expected[2 * loader.step - 2 : 2 * loader.step]


def test_a_fork_continues_at_the_same_position(token_set):
    expected = list(islice(reference_rows(token_set), 20))
    loader = RowLoader(token_set, batch_size=2, seq_len=16)
    assert [row for batch in islice(loader, 5) for row in rows_of(batch)] == expected[:10]
    child, is_same = os.fork(), False
    try:
        is_same = [row for batch in islice(loader, 5) for row in rows_of(batch)] == expected[10:]
    finally:
        if not child:
            os._exit(0 if is_same else 3)
    assert is_same
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("packing", ["best_fit", "nanochat"])
def test_loaders_that_are_dropped_leave_no_thread(token_set, packing):
    before = threads()
    for _ in range(4):
        loader = RowLoader(token_set, batch_size=2, seq_len=16, packing=packing)
        next(loader)
        loader.load_state_dict(loader.state_dict())
        next(loader)
    del loader
    gc.collect()
    wait_until(lambda: threads() <= before)
