"""Positions in loops that hold batches which they have not trained on, and that evaluate on one rank alone."""

import dis
import json
import re
import sys
import warnings
from itertools import islice, pairwise

import pytest
import torch
import torch.distributed.checkpoint as dcp
import warm
from making import ROOT, make_token_set, on_ranks
from reference import PACKINGS, SEQ_LEN, changed, make_loader, rows_of

import tokenmill
from tokenmill import Mixture, RowLoader, get_batch
from tokenmill.batches import get_batch as module
from tokenmill.batches.get_batch import LoaderCache
from tokenmill.batches.loader_core import POSITIONS_KEPT
from tokenmill.rows.row_stream import RowStream


@pytest.fixture
def fresh(monkeypatch):
    monkeypatch.setattr(module, "_loaders", LoaderCache())


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    for seed, name in enumerate(("web", "code", "math")):
        make_token_set(folder / name, train=[[5, 40, 7, 9, 30], [3] * 20, [100, 33]], val=[[4, 8]], seed=seed)
    return {"web": folder / "web", "code": folder / "code", "math": folder / "math"}


# ---------------------------------------------------------------------------- batches that the caller holds


@pytest.mark.parametrize("settings", [*PACKINGS, {"packing": "nanochat"}])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_position_before_the_last_batches_is_the_one_that_there_was(token_set, settings, prefetch):
    loader = make_loader(token_set, prefetch=prefetch, **settings)
    before = [loader.state_dict()]
    for step in range(40):
        next(loader)
        before.append(loader.state_dict())
        for pending in range(min(step + 1, POSITIONS_KEPT) + 1):
            assert loader.state_dict(pending=pending) == before[-1 - pending]


def test_no_more_can_be_pending_than_were_returned_or_are_kept(token_set):
    loader = make_loader(token_set)
    with pytest.raises(ValueError, match="pending=1: 0 batches were returned since this loader began"):
        loader.state_dict(pending=1)
    for _ in range(POSITIONS_KEPT + 5):
        next(loader)
    loader.state_dict(pending=POSITIONS_KEPT)
    with pytest.raises(
        ValueError,
        match=f"pending={POSITIONS_KEPT + 1}: only the positions of the last {POSITIONS_KEPT} batches are kept",
    ):
        loader.state_dict(pending=POSITIONS_KEPT + 1)
    loader.load_state_dict(loader.state_dict(pending=2))
    with pytest.raises(ValueError, match="pending=1: 0 batches were returned since this loader began or loaded a"):
        loader.state_dict(pending=1)
    with pytest.raises(ValueError, match="pending must be a whole number"):
        loader.state_dict(pending=-1)


def test_at_the_end_of_an_iteration_the_last_batch_may_be_pending(token_set):
    loader = make_loader(token_set, epochs=1, drop_last=False)
    *_, last = list(loader)
    again = make_loader(token_set, epochs=1, drop_last=False)
    again.load_state_dict(loader.state_dict(pending=1))
    assert [rows_of(batch) for batch in again] == [rows_of(last)]


def loop(step, save, steps, first):
    """nanoGPT's and nanochat's: the next batch is fetched before the position is taken. What was trained on."""
    batch, trained, saved = first, [], []
    for _ in range(steps):
        saved.append(save())
        trained.append(rows_of(batch))
        batch = step()
    return trained, saved


def test_a_loop_that_fetches_ahead_is_resumed_without_losing_a_batch(token_set):
    loader = make_loader(token_set)
    trained, saved = loop(lambda: next(loader), lambda: loader.state_dict(pending=1), 12, next(loader))
    for at, state in enumerate(saved):
        again = make_loader(token_set)
        again.load_state_dict(state)
        resumed, _ = loop(lambda again=again: next(again), lambda: None, 12 - at, next(again))
        assert trained[:at] + resumed == trained


def test_so_is_one_that_calls_get_batch_with_several_loaders_and_evaluations(token_set, fresh):
    def step(number):
        seq_len = SEQ_LEN if number % 3 else 8  # two loaders in turns
        get_batch("val", 1, SEQ_LEN, tokens=token_set)
        get_batch("train", 2, SEQ_LEN, tokens=token_set, purpose="eval")
        return rows_of(get_batch("train", 2, seq_len, tokens=token_set))

    rows = [step(number) for number in range(3)]
    states = []
    for number in range(3, 12):
        rows.append(step(number))
        states.append(tokenmill.state_dict(pending=2))  # the last two are held
    for at, state in enumerate(states):
        tokenmill.load_state_dict(json.loads(json.dumps(state)))
        assert [step(number) for number in range(at + 2, 12)] == rows[at + 2 :]
    tokenmill.load_state_dict(states[-1])
    with pytest.raises(
        ValueError, match="pending=1: get_batch has returned 0 batches for training since the program began"
    ):
        tokenmill.state_dict(pending=1)


class Interrupting:
    """Raises KeyboardInterrupt in `RowLoader.__next__` where Python may run a signal handler: after its n-th call."""

    CALLS = ("CALL", "CALL_FUNCTION_EX", "CALL_KW", "FOR_ITER", "WITH_EXCEPT_START")

    def __init__(self, number: int):
        self.left, self.code = number, RowLoader.__next__.__code__
        found = list(dis.get_instructions(self.code))
        self.after_calls = {b.offset for a, b in pairwise(found) if a.opname in self.CALLS}

    def __enter__(self):
        sys.settrace(self._enter)
        return self

    def __exit__(self, *error):
        sys.settrace(None)

    def _enter(self, frame, event, argument):
        if frame.f_code is self.code:
            frame.f_trace_opcodes = True
            return self._step
        return None

    def _step(self, frame, event, argument):
        if event == "opcode" and frame.f_lasti in self.after_calls:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
        return self._step


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_ctrl_c_anywhere_in_next_loses_no_batch_and_gives_none_twice(token_set, prefetch):
    expected = [rows_of(batch) for batch in islice(make_loader(token_set), 40)]
    loader, got, interrupts = make_loader(token_set, prefetch=prefetch), [], 0
    positions = [loader.state_dict()]
    while len(got) < len(expected):
        number = interrupts
        try:
            with Interrupting(number):
                for batch in loader:
                    got.append(rows_of(batch))
                    positions.append(loader.state_dict())
                    break
            if number > 15:
                number = -1  # `next` has fewer calls: it ran to its end
        except KeyboardInterrupt:
            assert loader.state_dict() == positions[len(got)], "the position is not past what was returned"
        interrupts = number + 1
    assert got == expected
    assert interrupts


def test_a_signal_handler_that_takes_the_position_while_one_is_loaded_gets_the_old_or_the_new(token_set, monkeypatch):
    """And never the one's place with the other's pasts."""
    first = RowLoader(token_set, batch_size=2, seq_len=8)
    next(first)
    loader = make_loader(token_set)
    next(loader)
    told, seek = [], RowStream.seek

    def asked(stream, place):
        told.append(loader.state_dict())
        seek(stream, place)
        told.append(loader.state_dict())

    monkeypatch.setattr(RowStream, "seek", asked)
    before = loader.state_dict()
    loader.load_state_dict(first.state_dict())
    assert len(told) >= 2
    assert all(state in (before, loader.state_dict()) for state in told)
    monkeypatch.setattr(RowStream, "seek", lambda *_: 1 / 0)
    now = loader.state_dict()
    with pytest.raises(ZeroDivisionError):
        loader.set_epoch(1)
    assert loader.state_dict() == now, "what fails goes nowhere"


@pytest.mark.parametrize(
    "wrong",
    [
        {"pasts": [[0, 0, [1.5, 0]]]},
        {"pasts": [[0, -1, [5, 0]]]},
        {"pasts": 3},
        {"skip_rows": None},
        {"row": True},
        {"row": -1},
        {"row": "1"},
        {"tokens_seen": float("nan")},
        {"began": 0},
    ],
)
def test_a_position_with_a_wrong_value_is_refused_and_changes_nothing(token_set, wrong):
    loader = make_loader(token_set)
    before = loader.state_dict()
    with pytest.raises(ValueError, match=r"must be|did not make it"):
        loader.load_state_dict(changed(before, **wrong))
    for key in before:
        with pytest.raises(ValueError, match=key):
            loader.load_state_dict({name: value for name, value in before.items() if name != key})
    for nothing in (None, [], "x"):
        with pytest.raises(ValueError, match="expected a position, the dict that state_dict made, found"):
            loader.load_state_dict(nothing)
    assert loader.state_dict() == before


@pytest.mark.parametrize("wrong", [None, {"loaders": [1]}, {"version": 2, "loaders": ['{"a": 1}']}, {"version": 2}])
def test_what_is_no_state_of_get_batch_s_is_refused(fresh, wrong):
    with pytest.raises(ValueError, match="expected what tokenmill.state_dict"):
        tokenmill.load_state_dict(wrong)


# ---------------------------------------------------------------------------- evaluation


def test_evaluation_moves_no_training_and_goes_on_where_it_was(token_set, fresh):
    def training(steps, evaluating):
        rows = []
        for _ in range(steps):
            rows.append(rows_of(get_batch("train", 2, SEQ_LEN, tokens=token_set)))
            if evaluating:
                seen.extend(rows_of(get_batch("train", 2, SEQ_LEN, tokens=token_set, purpose="eval")))
        return rows

    seen = []
    rows = training(8, evaluating=True)
    state = tokenmill.state_dict()
    more = training(4, evaluating=True)
    tokenmill.load_state_dict(state)
    again = seen[:16]
    seen, first = again, seen
    assert training(4, evaluating=True) == more
    assert seen == first, "an evaluation too goes on"
    loader = make_loader(token_set)
    assert rows + more == [rows_of(next(loader)) for _ in range(12)]
    assert seen != [row for batch in rows + more for row in batch], "in an order of its own"
    with pytest.raises(ValueError, match="purpose must be one of train, eval, not 'test'"):
        get_batch("train", 2, SEQ_LEN, tokens=token_set, purpose="test")


def test_training_s_batches_where_no_gradient_is_taken_are_warned_of_once(token_set, fresh):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        get_batch("train", 2, SEQ_LEN, tokens=token_set)
        with torch.no_grad():
            get_batch("val", 1, SEQ_LEN, tokens=token_set)
            get_batch("train", 2, SEQ_LEN, tokens=token_set, purpose="eval")
            assert not caught
            for _ in range(2):
                get_batch("train", 2, SEQ_LEN, tokens=token_set)
    (one,) = caught
    assert "use get_batch(..., purpose='eval')" in str(one.message)
    assert one.filename == __file__, "it points at the user's line"


def test_validation_is_evaluation_whatever_is_said(token_set, fresh):
    one = rows_of(get_batch("val", 1, SEQ_LEN, tokens=token_set, purpose="eval"))
    loader = make_loader(token_set, split="val", batch_size=1)
    assert [one, rows_of(get_batch("val", 1, SEQ_LEN, tokens=token_set))] == [rows_of(next(loader)) for _ in range(2)]
    assert len(tokenmill.state_dict()["loaders"]) == 1


ONE_RANK = """
import time, warnings, tokenmill
from tokenmill import get_batch
def batch(purpose="train", split="train"):
    return get_batch(split, 2, 16, tokens={tokens!r}, purpose=purpose)
def error_of(take):
    try:
        take()
        return ""
    except ValueError as error:
        return str(error)
def evaluate(purpose, calls):
    if dist.get_rank() == 0:
        for _ in range(calls):
            batch(purpose)
            batch(split="val")
            time.sleep(0.002)
rank, told = dist.get_rank(), {{}}
for _ in range(4):
    batch()
    evaluate("eval", 30)
if rank:
    batch("eval")
own = {{}}
told["apart"] = error_of(lambda: own.update(tokenmill.state_dict(pending=1)))
dist.barrier()
evaluate("train", 200)
dist.barrier()
if rank == 0:
    told["alone"] = error_of(tokenmill.state_dict)
dist.barrier()
told["of all"] = error_of(tokenmill.state_dict)
loader = RowLoader({tokens!r}, batch_size=2, seq_len=16)
next(loader)
told["in step"] = [error_of(loader.state_dict) for _ in range(20)]
if rank == 0:
    for _ in range(40):
        next(loader)
told["out of step"] = error_of(loader.state_dict)
val = RowLoader({tokens!r}, "val", batch_size=1, seq_len=16)
if rank == 0:
    next(val)
told["validation"] = error_of(val.state_dict)
tokenmill.load_state_dict(own)
told["evaluation loaded"] = error_of(lambda: batch("eval"))
told["validation loaded"] = error_of(lambda: val.load_state_dict(val.state_dict()))
tell(told)
"""


def test_ranks_that_stand_elsewhere_where_a_position_is_taken_are_told(prepared, tmp_path):
    ranks = on_ranks(ONE_RANK.format(tokens=str(prepared[1])), tmp_path)
    for key in ("apart", "validation", "validation loaded", "evaluation loaded"):
        assert [told[key] for told in ranks] == ["", ""], key
    assert [told["in step"] for told in ranks] == [[""] * 20] * 2
    for key, rows in (("of all", {"816", "16"}), ("out of step", {"164", "4"})):
        (said,) = [told[key] for told in ranks if told[key]]
        assert set(re.search(r"row is (\d+) on rank \d, (\d+) on rank \d", said).groups()) == rows, said
        assert "evaluate with get_batch(..., purpose='eval')" in said
    assert ranks[0]["alone"] == "", "one rank alone may take a position: nothing is compared"


# ---------------------------------------------------------------------------- torch.distributed.checkpoint


def shape_of(state):
    """The values that torch.distributed.checkpoint keeps apart, by their names."""
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict

    return set(flatten_state_dict({"data": state})[0])


def histories(token_set, mixture):
    """(a loader after something, a fresh one that goes on from it)."""

    def plain(**settings):
        return RowLoader(token_set, **({"batch_size": 2, "seq_len": SEQ_LEN} | settings))

    def mixed(weights, removed=(), **settings):
        sources = {name: mixture[name] for name in weights}
        made = Mixture(weights, sources=sources, removed=removed)
        return RowLoader(made, **({"batch_size": 2, "seq_len": SEQ_LEN} | settings))

    def after(loader, calls=3, then=None):
        for _ in range(calls):
            next(loader)
        if then is not None:
            then.load_state_dict(loader.state_dict())
            return after(then)
        return loader

    yield after(plain(skip_rows=["0:0:18-20"])), plain()
    yield after(plain(), then=plain(seq_len=8)), plain(seq_len=8)
    yield after(plain(packing="concat"), then=plain(packing="concat", seq_len=8)), plain(packing="concat", seq_len=8)
    yield after(plain(packing="nanochat")), plain(packing="nanochat")
    two = {"web": 2, "code": 1}
    three = two | {"math": 1}
    yield after(mixed(two), then=mixed(three)), mixed({"web": 1, "math": 1}, removed=["code"])
    yield after(mixed(two, skip_rows=["web/0:0:4"]), then=mixed(two, seq_len=8)), mixed(three, seq_len=8)


def test_a_checkpoint_of_dcp_s_forgets_nothing_and_lacks_nothing(token_set, mixture, tmp_path):
    for number, (loader, fresh) in enumerate(histories(token_set, mixture)):
        dcp.save({"data": loader}, checkpoint_id=tmp_path / str(number))
        expected = type(fresh).of(fresh.config)
        expected.load_state_dict(loader.state_dict())
        assert shape_of(fresh.state_dict()) == shape_of(loader.state_dict())
        dcp.load({"data": fresh}, checkpoint_id=tmp_path / str(number))
        assert fresh.state_dict() == expected.state_dict()
        assert rows_of(next(fresh)) == rows_of(next(expected))


def test_so_with_get_batch_in_a_fresh_process(token_set, tmp_path):
    """`tokenmill` itself has a state, before any of its names was used."""
    code = """
import sys, warnings; sys.path.insert(0, sys.argv[1]); warnings.simplefilter("ignore")
import tokenmill, torch.distributed.checkpoint as dcp
def step():
    tokenmill.get_batch("val", 1, 16, tokens=sys.argv[2])
    return tokenmill.get_batch("train", 2, 16, tokens=sys.argv[2], skip_rows=["0:0:9"])[0].tolist()
if sys.argv[4] == "save":
    [step() for _ in range(3)]
    dcp.save({"data": tokenmill}, checkpoint_id=sys.argv[3])
else:
    dcp.load({"data": tokenmill}, checkpoint_id=sys.argv[3])
print(step())
"""
    told = []
    for what in ("save", "load"):
        done = warm.run("-c", code, ROOT, token_set, tmp_path / "dcp", what)
        assert done.returncode == 0, done.stderr
        told.append(done.stdout)
    assert told[0] == told[1] != ""


def test_a_position_holds_nothing_but_what_torch_loads_without_trust(token_set, mixture, tmp_path):
    for loader, _ in histories(token_set, mixture):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.save(loader.state_dict(), tmp_path / "state.pt")
            assert torch.load(tmp_path / "state.pt", weights_only=True) == loader.state_dict()
