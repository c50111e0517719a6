"""A loader is interrupted, closed, let go, forked and copied: it deals no wrong row, and nothing of
it stays.
"""

import copy
import gc
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import weakref
from collections import deque
from contextlib import contextmanager, suppress
from itertools import islice

import pytest
from making import ROOT, make_sources, make_token_set, wait_until
from reference import SEQ_LEN, make_loader, reference_rows, rows_in, rows_of

from tokenmill import Mixture, PackedRows


def threads():
    """The threads of this process, those that nobody told `threading` of included."""
    return len(os.listdir("/proc/self/task"))


@contextmanager
def without_collector():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def mapped(folder):
    files = [
        os.readlink(f"/proc/self/map_files/{name}") for name in os.listdir("/proc/self/map_files")
    ]
    return any(str(folder) in path for path in files)


# ---------------------------------------------------------------------------- Ctrl-C


@pytest.fixture
def alarm():
    """Raises KeyboardInterrupt in this thread when SIGALRM comes, as Ctrl-C does."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("kind", ["one set", "mixture", "nanochat"])
def test_a_ctrl_c_at_any_moment_costs_a_batch_at_most_and_never_gives_wrong_rows(
    tmp_path, alarm, prefetch, kind
):
    folder = make_sources(tmp_path, documents=60)
    tokens = folder / "web"
    how = {"packing": kind if kind == "nanochat" else "best_fit"}
    if kind == "mixture":
        tokens = Mixture(
            {"web": 2, "code": 1}, sources={name: folder / name for name in ("web", "code")}
        )
    plain = make_loader(tokens, prefetch=0, **how)
    before = threads()
    next(make_loader(tokens, prefetch=0, **how))  # imports what planning needs
    loader = make_loader(tokens, prefetch=prefetch, **how)
    rng = random.Random(0)
    found = {}
    interrupts = 0
    while interrupts < 20 or len(found) < 20:  # a busy machine makes no batch in 10 ms
        interrupts += 1
        with suppress(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, rng.random() * 1e-2 + 1e-6)
            for _ in range(3_000):  # Python drops an interrupt of a finalizer
                rows = rows_of(next(loader))
                assert found.setdefault(loader.step - 1, rows) is rows, "none comes twice"
    assert max(found) < len(found) + interrupts, "at most one is lost by each"
    for step in range(loader.step):
        rows = rows_of(next(plain))
        assert found.get(step, rows) == rows
    assert plain.state_dict() == loader.state_dict()
    assert rows_of(next(plain)) == rows_of(next(loader))
    del plain, loader
    wait_until(lambda: gc.collect() < 0 or threads() <= before)  # exceptions are in cycles


# ---------------------------------------------------------------------------- the end of a loader


@pytest.mark.parametrize("settings", [{}, {"packing": "nanochat"}, {"prefetch": 0}])
def test_a_closed_loader_has_no_thread_and_no_file_and_still_tells_its_position(tmp_path, settings):
    tokens = make_token_set(tmp_path / "own", train=[[9] * 30], val=[[9]])
    before = threads()
    with make_loader(tokens, **settings) as loader:
        next(loader)
        assert mapped(tokens)
        position = loader.state_dict()
    wait_until(lambda: threads() <= before)
    assert not mapped(tokens)
    assert loader.state_dict() == position
    shutil.rmtree(tokens)
    for use in (
        lambda: next(loader),
        lambda: next(iter(loader)),
        lambda: loader.load_state_dict(position),
    ):
        with pytest.raises(ValueError, match="is closed; create another"):
            use()
    for use in (lambda: loader.skip(1), lambda: loader.set_epoch(0)):
        with pytest.raises(ValueError, match="is closed|nanochat"):
            use()
    loader.close()


class Large:
    """What an evaluation has beside the loader, such as logits."""


WAYS = {  # what makes an iterator of a token set, and what is done with it
    "to the end": (
        lambda tokens: make_loader(tokens, split="val", epochs=1),
        lambda loader: deque(loader, maxlen=0),
    ),
    "break": (
        lambda tokens: make_loader(Mixture({str(tokens): 1})),
        lambda loader: next(loader.with_state()),
    ),
    "an error": (make_loader, lambda loader: [1 / (2 - number) for number, _ in enumerate(loader)]),
    "PackedRows": (lambda tokens: iter(PackedRows(tokens, batch_size=2, seq_len=SEQ_LEN)), next),
}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_of_an_evaluation_is_alive_after_it_without_the_collector(token_set, way):
    """Programs that train large models disable it. A cycle through a caller's frame would keep all
    its tensors.
    """

    def evaluate():
        make, use = WAYS[way]
        loader = make(token_set)
        large = Large()
        held.extend([weakref.ref(loader), weakref.ref(large)])
        use(loader)

    held = []
    before = threads()
    with without_collector():
        for _ in range(10):
            with suppress(ZeroDivisionError):
                evaluate()
        assert len(held) == 20
        assert not [reference for reference in held if reference() is not None]
        wait_until(lambda: threads() <= before)


def test_the_first_next_imports_nothing(token_set):
    """As an import of a compiled module may lose a Ctrl-C."""
    code = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from tokenmill.numpy import RowLoader
loader = RowLoader({str(token_set)!r}, batch_size=2, seq_len=8)
before = set(sys.modules)
next(loader)
print(sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_python_ends_at_once_while_a_thread_still_makes_batches(token_set):
    code = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from tokenmill import RowLoader
loader = RowLoader({str(token_set)!r}, batch_size=32, seq_len=8, prefetch=50)
next(loader)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


# ---------------------------------------------------------------------------- forks and copies


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("used", ["not yet", "loaded", "in the parent"])
def test_a_forked_child_goes_on_where_the_parent_stood_and_so_does_the_parent(
    token_set, prefetch, used
):
    loader = make_loader(token_set, batch_size=1, prefetch=prefetch)
    expected = list(islice(reference_rows(token_set), 46))
    begin = 0 if used == "not yet" else 5
    if used == "loaded":
        second = make_loader(token_set, batch_size=5)
        next(second)
        loader.load_state_dict(second.state_dict())
    elif used == "in the parent":
        assert rows_in(islice(loader, 5)) == expected[:5]
    readable, writable = os.pipe()
    if not (child := os.fork()):
        signal.alarm(20)
        with open(writable, "w") as pipe:
            pipe.write(repr([rows_of(next(loader))[0] for _ in range(40)]))
            loader.close()
        os._exit(0)
    os.close(writable)
    with open(readable) as pipe:
        assert pipe.read() == repr(expected[begin : begin + 40])
    assert os.waitpid(child, 0)[1] == 0
    assert [rows_of(next(loader))[0] for _ in range(40)] == expected[begin : begin + 40]


def test_a_loader_is_not_pickled_or_copied(token_set):
    loader = make_loader(token_set)
    next(loader)
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(
            TypeError,
            match="a RowLoader cannot be copied or pickled; make another one and load this",
        ):
            attempt(loader)
    assert rows_of(next(loader)) == list(islice(reference_rows(token_set), 2, 4))
