"""`tokenmill bench` says what a step takes longer with a loader than with one constant batch."""

import re
import statistics
from types import SimpleNamespace

import pytest
import torch
from making import make_token_set

from tokenmill.batches import step_times
from tokenmill.cli import main
from tokenmill.look import bench


class Clock:
    """A clock that only what is measured moves on."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


class SlowLoader:
    """A loader whose batches take 3 seconds each."""

    def __init__(self, clock):
        self.clock, self.waited, self.batches = clock, 0.0, 0
        self.config = SimpleNamespace(prefetch=0)

    def __next__(self):
        self.clock.now += 3
        self.waited += 3
        self.batches += 1
        return torch.ones((2, 2, 4), dtype=torch.int64).unbind()


def test_a_step_is_longer_by_what_the_loader_takes(monkeypatch):
    clock, used = Clock(), []

    def step(inputs, targets):
        used.append(inputs)
        clock.now += 10
        return inputs.sum()

    monkeypatch.setattr(step_times, "time", clock)
    monkeypatch.setattr(step_times, "make_step", lambda device, seconds: step)
    loader = SlowLoader(clock)
    times = step_times.measure(loader, step_seconds=10, seconds=63 * 20)
    rounds = len(times.fed)
    assert rounds == 19, "it stops in time"
    assert times.constant == [10] * rounds
    assert times.fed == [13] * rounds
    assert times.waited == [3] * rounds
    assert times.alone == [3] * rounds
    assert len({id(inputs) for inputs in used}) > 21, "steps on the loader's batches have batches of their own"
    lines = bench.report(bench.Bench("set", batch_size=2, seq_len=4, step_ms=10_000), times, first=5)
    assert lines[-1] == (
        "Steps take longer with the loader: +30.0% (+3,000.000 ms) a step; half of 19 rounds were between +30.0% and "
        "+30.0%. The rest of the gap comes from cores that the loader's thread uses too, or from late copies."
    )
    assert "3,000.000 ms in next(loader)" in lines[3]


class AheadLoader:
    """A loader whose thread makes a batch in 30 seconds, and 2 batches ahead."""

    def __init__(self, clock):
        self.clock, self.waited, self.made, self.freed = clock, 0.0, [0.0], 0.0
        self.config = SimpleNamespace(prefetch=2)

    def __next__(self):
        while len(self.made) < 3:  # the batch to return, and those ahead of it
            self.made.append(max(self.made[-1], self.freed) + 30)
        ready = self.made.pop(0)
        self.waited += max(0, ready - self.clock.now)
        self.freed = self.clock.now = max(self.clock.now, ready)
        return torch.ones((2, 2, 4), dtype=torch.int64).unbind()


def test_what_was_made_ahead_does_not_hide_a_slow_loader(monkeypatch):
    clock = Clock()

    def step(inputs, targets):
        clock.now += 10
        return inputs.sum()

    monkeypatch.setattr(step_times, "time", clock)
    monkeypatch.setattr(step_times, "make_step", lambda device, seconds: step)
    times = step_times.measure(AheadLoader(clock), step_seconds=10, seconds=63 * 100)
    assert statistics.median(times.constant) == 10
    assert statistics.median(times.fed) == pytest.approx(30, rel=0.1)
    assert statistics.median(times.alone) == pytest.approx(30, rel=0.1)


def test_rounds_that_differ_are_no_answer_and_steps_of_another_length_are_named():
    told = [times_of([10, 10, 10], fed) for fed in ([10.1, 9.9, 10], [10, 15, 9], [12, 12, 12])]
    config = bench.Bench("set", step_ms=10_000)
    assert [bench.verdict(config, times)[0][:24] for times in told] == [
        "No difference was found:",
        "The machine was too busy",
        "Steps take longer with t",
    ]
    assert [len(bench.verdict(config, times)) for times in told] == [1, 1, 1]
    assert bench.verdict(bench.Bench("set", step_ms=1000), told[0])[1].startswith(
        "Steps took 10,000.000 ms, not the 1,000 ms that you asked for"
    )


def times_of(constant, fed):
    return step_times.Times([1.0] * len(fed), constant, fed, [0.0] * len(fed))


@pytest.mark.parametrize("seconds", [0.0005, 0.005])
def test_a_step_needs_the_batch_and_takes_as_many_products_as_the_time_asks_for(seconds):
    step = step_times.make_step(torch.device("cpu"), seconds)
    ones = torch.ones((2, 4), dtype=torch.int64)
    assert float(step(ones * 0, ones * 0)) == 0
    assert float(step(ones, ones)) != 0


QUICK = ["--batch-size", "2", "--seq-len", "16", "--step-ms", "1", "--seconds", "0.3"]


@pytest.mark.parametrize("more", [["--documents"], ["--prefetch", "0", "--packing", "concat"]])
def test_it_measures_a_set_on_the_cpu(tmp_path, capsys, more):
    made = make_token_set(tmp_path / "set", train=[[40] * 50], val=[[40]])
    assert main(["bench", str(made), *QUICK, *more]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("batches of 2 x 16 tokens on cpu, ")
    assert "not copied" in lines[0]
    assert [line[:20].rstrip() for line in lines[1:5]] == [
        "first batch",
        "loader alone, no tra",
        "steps on one constan",
        "steps on batches of",
    ]
    assert all(float(number) > 0 for line in lines[2:5] for number in re.findall(r"([\d.]+) ms", line))
    assert re.search(r"[-+][\d.]+% \([-+][\d.]+ ms\) a step; half of \d+ rounds", lines[5])


@pytest.mark.parametrize("option", ["--step-ms", "--seconds"])
def test_a_time_that_makes_no_sense_is_refused(tmp_path, capsys, option):
    made = make_token_set(tmp_path / "set", train=[[40] * 50], val=[[40]])
    assert main(["bench", str(made), option, "0"]) == 1
    assert f"error: {option} must be more than 0" in capsys.readouterr().err
