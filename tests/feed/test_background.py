"""A thread runs ahead, just as far as it should, and never outlives its use."""

import os
import signal
import sys
import threading
import time
from collections import Counter
from itertools import count, islice

import pytest
import warm
from making import ROOT, wait_until
from reference import make_loader, rows_of

from tokenmill.feed.background import PAUSE, BackgroundIterator


def threads():
    """Those that the process has, of whatever kind."""
    return set(os.listdir("/proc/self/task"))


def test_items_come_in_order_and_end():
    assert list(BackgroundIterator(iter(range(100)), 3)) == list(range(100))


def test_no_more_than_depth_items_are_made_before_they_are_asked_for():
    made = []

    def items():
        for number in count():
            made.append(number)
            yield number

    ahead = BackgroundIterator(items(), 3)
    wait_until(lambda: len(made) == 3)
    time.sleep(0.1)
    assert len(made) == 3
    next(ahead)
    wait_until(lambda: len(made) == 4)
    ahead.stop()


def test_an_error_comes_after_the_items_before_it_with_its_cause_and_stays():
    def items():
        yield 1
        try:
            raise OSError("a disk")
        except OSError as error:
            raise ValueError("a row") from error

    ahead = BackgroundIterator(items(), 2)
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="a row") as raised:
        next(ahead)
    assert str(raised.value.__cause__) == "a disk"
    assert any(entry.name == "items" for entry in raised.traceback), "it tells where it happened"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"this iterator has failed: ValueError\('a row'\)"):
            next(ahead)


@pytest.mark.parametrize("taken", [0, 5])
def test_stopping_or_dropping_it_ends_the_thread(taken):
    before = threads()
    for end in (lambda ahead: ahead.stop(), lambda ahead: None):
        ahead = BackgroundIterator(count(), 2)
        assert [next(ahead) for _ in range(taken)] == list(range(taken))
        (begun,) = threads() - before  # one that is just leaving may be among those before
        end(ahead)
        del ahead
        wait_until(lambda begun=begun: begun not in threads())


# ---------------------------------------------------------------------------- whole processes, with a loader

PROGRAM = """
import os, sys, time
sys.path.insert(0, {root!r})
from tokenmill import RowLoader, get_batch
loader = RowLoader({tokens!r}, batch_size=2, seq_len=16, **{settings})
"""


def start(token_set, code, **settings):
    program = PROGRAM.format(root=str(ROOT), tokens=str(token_set), settings=settings) + code
    return warm.Command("-c", program, to_the_end=True)


def ended(process, timeout=60):
    """What a process printed, and its errors."""
    done = process.done(timeout)
    return done.stdout, done.stderr


@pytest.mark.parametrize("packing", ["best_fit", "nanochat"])
@pytest.mark.parametrize(
    "code",
    [
        "next(loader)",  # in the middle of an epoch
        "get_batch('train', 2, 16, tokens=loader.token_set.path)",  # held by the module
        "iter(loader)",  # never started
        "batches = [next(loader) for _ in range(50)]; del loader",
        "next(loader); sys.exit()",
    ],
)
def test_leaving_the_process_hangs_nothing(token_set, code, packing):
    done = start(token_set, code, packing=packing).done(60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_thread_that_waits_for_another_one_when_the_process_ends_is_woken():
    """The other was told to end, and ends without an answer."""
    code = """
import time
from tokenmill.feed import background
background.SECONDS_TO_FINISH = 1000
def slowly():
    while True:
        for _ in range(5):
            time.sleep(0.1)
            yield background.PAUSE
        yield 1
inner = background.BackgroundIterator(slowly(), depth=1)
outer = background.BackgroundIterator((item for item in inner), depth=5)
next(outer)
"""
    done = warm.Command("-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}", to_the_end=True).done(60)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_error_in_training_leaves_as_quickly(token_set):
    done = start(token_set, "next(loader); raise RuntimeError('loss is nan')").done(60)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("RuntimeError: loss is nan")


@pytest.mark.parametrize("prefetch", [0, 2])
def test_ctrl_c_ends_a_training_loop(token_set, prefetch):
    process = start(token_set, "print('on', flush=True)\nfor batch in loader: pass", prefetch=prefetch)
    wait_until(lambda: process.printed() == "on\n")
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    done = process.done(60)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.strip().endswith("KeyboardInterrupt")


SLOW = """
from tokenmill.feed.weighted_rows import WeightedRows
read, slowly = WeightedRows.read, [True, True, True, True]
def slow(rows, dealt):
    if slowly:
        slowly.pop()
        time.sleep(0.7)
    return read(rows, dealt)
expected = [next(loader)[0].tolist() for _ in range(8)]
WeightedRows.read = slow
loader = RowLoader(loader.token_set.path, batch_size=2, seq_len=16, prefetch=2)
interrupts = 0
print("ready", flush=True)
got = []
while len(got) < 8:
    try:
        got.append(next(loader)[0].tolist())
    except KeyboardInterrupt:
        interrupts += 1
print(got == expected, interrupts)
"""


def test_a_second_ctrl_c_while_the_first_is_handled_loses_no_row_and_hangs_nothing(token_set):
    process = start(token_set, SLOW)
    wait_until(lambda: process.printed() == "ready\n")
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)  # `next` waits
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)  # and this one comes while the thread is waited for
    done = process.done(60)
    _, same, interrupts = done.stdout.split()
    assert (same, done.returncode) == ("True", 0), done.stderr
    assert int(interrupts) >= 1


def test_a_fork_goes_on_from_the_same_position(token_set):
    code = """
begin = loader.state_dict()
expected = [next(loader)[0].tolist() for _ in range(10)]
loader.load_state_dict(begin)
for _ in range(5): next(loader)
child = os.fork()
same = [next(loader)[0].tolist() for _ in range(5)] == expected[5:]
if child == 0:
    os._exit(0 if same else 3)
print(os.waitstatus_to_exitcode(os.wait()[1]), same)
"""
    printed, errors = ended(start(token_set, code))
    assert (printed, errors) == ("0 True\n", "")


def test_a_fork_may_go_on_though_another_thread_was_in_the_loader(token_set):
    code = """
import threading
next(loader)
held, done = threading.Event(), threading.Event()
threading.Thread(target=lambda: [loader._lock.acquire(), held.set(), done.wait(30), loader._lock.release()]).start()
held.wait(30)
if True:
    child = os.fork()
    if child == 0:
        next(loader)
        os._exit(0)
done.set()
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    printed, errors = ended(start(token_set, code))
    assert (printed, errors) == ("0\n", "")


def test_a_fork_after_a_position_was_loaded_goes_on(token_set):
    """As in a DataLoader's worker that was given the loader: with threads begun, it would wait for them for ever."""
    code = """
next(loader); state = loader.state_dict(); expected = [next(loader)[0].tolist() for _ in range(20)]
other = RowLoader(loader.token_set.path, batch_size=2, seq_len=16, prefetch=2)
other.load_state_dict(state)
child = os.fork()
if child == 0:
    os._exit(0 if [next(other)[0].tolist() for _ in range(20)] == expected else 3)
print(os.waitstatus_to_exitcode(os.wait()[1]), [next(other)[0].tolist() for _ in range(20)] == expected)
"""
    printed, errors = ended(start(token_set, code))
    assert (printed, errors) == ("0 True\n", "")


INTERRUPTED = """
import random, signal
class Interrupt(Exception): pass
def interrupt(*_): raise Interrupt
expected = [next(loader)[0].tolist() for _ in range(300)]
loader = RowLoader(loader.token_set.path, batch_size=2, seq_len=16, prefetch={prefetch})
signal.signal(signal.SIGALRM, interrupt)
got, interrupts = [], 0
while interrupts < 400:
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.004))
        while True:
            before = loader.state_dict()["tokens_seen"] // 32
            batch = next(loader)[0].tolist()
            if before < 300:
                assert batch == expected[before]
    except Interrupt:
        interrupts += 1
print("through")
"""


@pytest.mark.parametrize("prefetch", [0, 2])
def test_hundreds_of_interrupts_anywhere_lock_nothing(token_set, prefetch):
    process = start(token_set, INTERRUPTED.format(prefetch=prefetch))
    printed, errors = ended(process, 120)
    assert printed == "through\n", errors


@pytest.fixture(params=["at Python's pace", "at every chance"])
def switches(request):
    """How often Python goes on with another thread."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before if request.param == "at Python's pace" else 1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_several_threads_get_every_batch_once(token_set, prefetch, switches):
    loader = make_loader(token_set, batch_size=1, prefetch=prefetch)
    expected = Counter(str(rows_of(batch)) for batch in islice(make_loader(token_set, batch_size=1), 1600))
    got = [Counter() for _ in range(4)]

    def take(mine):
        for batch in islice(loader, 400):
            mine[str(rows_of(batch))] += 1

    takers = [threading.Thread(target=take, args=(mine,)) for mine in got]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join(60)
    assert sum(got, Counter()) == expected
    assert loader.tokens_seen == 1600 * 16


def test_a_signal_handler_may_save_the_position_at_any_instant(token_set):
    code = """
import signal
states = []
signal.signal(signal.SIGALRM, lambda *_: states.append(loader.state_dict()))
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
expected = {}
while len(states) < 200:
    state = loader.state_dict()
    expected[state["tokens_seen"]] = state
    next(loader)
signal.setitimer(signal.ITIMER_REAL, 0, 0)
expected[loader.tokens_seen] = loader.state_dict()
print(all(expected[state["tokens_seen"]] == state for state in states))
"""
    printed, errors = ended(start(token_set, code))
    assert (printed, errors) == ("True\n", "")


def test_loaders_that_are_dropped_leave_no_thread_and_no_open_file(token_set):
    from tokenmill import RowLoader

    def open_files():
        return len(os.listdir("/proc/self/fd"))

    next(RowLoader(token_set, batch_size=2, seq_len=16))
    before, running = open_files(), threads()
    for packing in ("best_fit", "concat", "nanochat") * 3:
        loader = RowLoader(token_set, batch_size=2, seq_len=16, packing=packing)
        next(loader)
        loader.load_state_dict(loader.state_dict())
        next(loader)
    del loader
    wait_until(lambda: threads() <= running)
    wait_until(lambda: open_files() <= before)


# ---------------------------------------------------------------------------- answers, and who waits for whom


def test_answers_come_in_the_order_in_which_they_were_asked():
    def squares():
        asked = yield PAUSE
        while True:
            asked = yield asked * asked

    generator = squares()
    next(generator)
    answers = BackgroundIterator(generator)
    for number in range(5):
        answers.submit(number)
    assert [next(answers) for _ in range(5)] == [0, 1, 4, 9, 16]
    answers.stop()


def test_a_thread_in_which_another_is_collected_does_not_wait_for_it():
    """The other may be waiting for this one: of a loader in a cycle, batches wait for the thread that plans."""

    def collecting():
        made = [BackgroundIterator(waiting(), 1)]
        made[0]._shared.owner = 0  # made by another thread
        started.wait(10)
        made.clear()
        yield time.monotonic()
        released.set()
        yield time.monotonic()

    def waiting():
        started.set()
        released.wait(10)
        yield

    started, released = threading.Event(), threading.Event()
    ahead, before = BackgroundIterator(collecting(), 1), time.monotonic()
    assert next(ahead) - before < 5
    next(ahead)
