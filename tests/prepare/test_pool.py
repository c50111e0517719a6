"""Every task ends with a result or a reason, whatever its worker does, and nothing hangs."""

import os
import subprocess
import sys
from functools import partial

import psutil
import pytest
import tasks
from making import ROOT, wait_until

from tokenmill.prepare import pool as pools
from tokenmill.prepare import progress as progresses
from tokenmill.prepare.failures import Failure
from tokenmill.prepare.pool import Pool


def run(whats, tmp_path, workers=2, **more):
    """The outcomes by task, the sums of the numbers that were reported, and the texts."""
    outcomes = {}
    sums = [0, 0]
    texts = []

    def add(ones, tens):
        sums[0] += ones
        sums[1] += tens

    todo = [(what, tmp_path / str(i)) for i, what in enumerate(whats)]
    with Pool(workers) as pool:
        failures = pool.run(
            tasks.work,
            todo,
            add,
            lambda task, outcome: outcomes.update({task[0]: outcome}),
            texts.append,
            **more,
        )
    assert failures == [outcome for outcome in outcomes.values() if isinstance(outcome, Failure)]
    return outcomes, sums, texts


@pytest.mark.parametrize("workers", [1, 3])
def test_all_tasks_are_done_by_at_most_so_many_workers(tmp_path, workers):
    outcomes, sums, texts = run([f"task {i}" for i in range(7)], tmp_path, workers)
    assert [what for what, _ in outcomes.values()] == list(outcomes) or sorted(outcomes) == [
        f"task {i}" for i in range(7)
    ]
    assert len({pid for _, pid in outcomes.values()} - {os.getpid()}) <= workers
    assert sums == [7 * 3, 7 * 30]
    assert texts == ["began"] * 7
    assert run([], tmp_path) == ({}, [0, 0], [])


def test_what_workers_share_is_made_once_and_an_error_there_is_left_to_them(tmp_path):
    mark = tmp_path / "made"
    whats = [f"task {number}" for number in range(60)]
    outcomes, _, _ = run(whats, tmp_path, 3, begin=partial(tasks.begin, mark))
    assert len({pid for _, pid in outcomes.values()}) > 1
    assert mark.read_text() == "made\n"
    outcomes, _, _ = run(whats, tmp_path, 3, begin=partial(tasks.begin, tmp_path))
    assert sorted(what for what, _ in outcomes.values()) == sorted(whats), "a folder is no file"


def test_a_worker_that_dies_costs_its_task_one_retry(tmp_path):
    outcomes, sums, _ = run(["a", "die once", "die at once"], tmp_path)
    assert [outcomes[what][0] for what in outcomes] == list(outcomes)
    assert sums == [9, 90], "what the dead worker had reported is taken back"
    outcomes, _, _ = run(["a", "die", "b", "c"], tmp_path)
    assert [outcomes[what][0] for what in "abc"] == ["a", "b", "c"]
    assert (
        outcomes["die"].reason
        == "the worker died, perhaps for want of memory (use fewer --workers), 2 times"
    )


@pytest.mark.parametrize("what", ["stop", "stop once"])
def test_a_worker_that_reports_nothing_is_killed_and_its_task_tried_once_more(
    tmp_path, what, monkeypatch
):
    monkeypatch.setattr(pools, "SILENT_SECONDS", 1.5)
    outcomes, _, _ = run(["a", what, "b", "c"], tmp_path)
    assert [outcomes[task][0] for task in "abc"] == ["a", "b", "c"]
    if what == "stop":
        assert outcomes[what].reason == "the worker reported nothing for 1.5 s, 2 times"
    else:
        assert outcomes[what][0] == what


def test_tasks_that_may_not_begin_yet_wait_and_those_that_never_may_fail(tmp_path):
    states = {
        "late": lambda: (tmp_path / "2").exists(),  # once the third has begun
        "never": lambda: "not on the hub",
        "a": lambda: True,
    }
    outcomes, _, _ = run(
        ["late", "never", "a"], tmp_path, 1, state_of=lambda task: states[task[0]]()
    )
    assert list(outcomes)[-1] == "late"
    assert outcomes["never"].reason == "not on the hub"


SCRIPT = """
import pathlib, sys
sys.path[:0] = {paths!r}
import tasks
from tokenmill.prepare.pool import Pool
print("once", flush=True)
with Pool(2) as pool:
    pool.run(tasks.work, [(what, None) for what in sys.argv[1:]])
"""


def test_a_script_without_a_main_guard_is_not_run_again_and_its_workers_end_with_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(paths=[str(ROOT), str(ROOT / "tests")]))
    done = subprocess.run(
        [sys.executable, script, "a", "b", "c"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "once\n"), done.stderr
    process = subprocess.Popen(
        [sys.executable, script, "stop", "stop"], stdout=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    below = psutil.Process(process.pid)
    wait_until(
        lambda: len(below.children(recursive=True)) >= 4
    )  # a server, a tracker and two workers
    children = below.children(recursive=True)
    process.kill()
    process.wait()
    sleeping = [child for child in children if child.is_running()]
    for child in sleeping:  # a worker ends when it reports, which these two never do
        child.terminate()
    psutil.wait_procs(children, 30)
    assert not any(
        child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children
    )


def test_a_run_that_made_nothing_does_not_say_what_it_made(capsys):
    with progresses.Progress() as progress:
        progress.begin("preparing", 5)
        progress.end()
    assert capsys.readouterr().err == ""
