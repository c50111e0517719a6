"""Every task ends with a result or a reason, whatever its worker does, and nothing hangs."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import tasks
from making import ROOT, wait_until

from tokenmill.prepare.outcomes import Failure
from tokenmill.prepare.workers import TaskQueue, run_tasks


def run(whats, tmp_path, num_workers=2, setup=tasks.setup):
    sums = [0, 0]

    def add(*numbers):
        for i, number in enumerate(numbers):
            sums[i] += number

    outcomes = run_tasks(
        tasks.work, [(what, tmp_path / str(i)) for i, what in enumerate(whats)], setup, num_workers, add
    )
    return outcomes, sums


@pytest.mark.parametrize("num_workers", [1, 3])
def test_results_come_in_the_order_of_the_tasks(tmp_path, num_workers):
    outcomes, sums = run([f"task {i}" for i in range(7)], tmp_path, num_workers)
    assert [what for what, _ in outcomes] == [f"task {i}" for i in range(7)]
    assert len({pid for _, pid in outcomes} - {os.getpid()}) <= num_workers
    assert sums == [7 * 3, 7 * 30]


def test_a_task_that_raises_fails_alone_with_its_message(tmp_path):
    outcomes, _ = run(["a", "raise", "b", "bug"], tmp_path)
    assert [outcomes[0][0], outcomes[2][0]] == ["a", "b"]
    assert outcomes[1] == Failure("this text is bad")
    assert outcomes[3].reason == "KeyError: 'a bug'"
    assert "tasks.py" in outcomes[3].traceback


def test_a_worker_that_dies_costs_its_task_one_retry(tmp_path):
    outcomes, sums = run(["a", "die once", "b"], tmp_path)
    assert [what for what, _ in outcomes] == ["a", "die once", "b"]
    assert sums == [9, 90], "what the dead worker had reported is taken back"


@pytest.mark.parametrize(("what", "reason"), [("die", "killed by SIGKILL, twice"), ("exit", "exited with status 3")])
def test_a_worker_that_dies_twice_is_reported_and_the_others_finish(tmp_path, what, reason):
    outcomes, _ = run(["a", what, "b", "c"], tmp_path)
    assert [outcomes[i][0] for i in (0, 2, 3)] == ["a", "b", "c"]
    assert reason in outcomes[1].reason


@pytest.mark.parametrize("what", ["stop", "stop once"])
def test_a_worker_that_says_nothing_is_killed_and_its_task_tried_once_more(tmp_path, what):
    todo = [("a", None), (what, tmp_path / "1"), ("b", None), ("c", None)]
    outcomes = run_tasks(tasks.work, todo, tasks.setup, 2, patience=1.5)
    assert [outcomes[i][0] for i in (0, 2, 3)] == ["a", "b", "c"]
    if what == "stop":
        assert outcomes[1].reason.startswith("the worker said nothing for 2 s, twice")
    else:
        assert outcomes[1][0] == what


def test_a_fork_server_that_is_stopped_is_replaced(tmp_path):
    started = time.monotonic()
    todo = [(f"task {number}", None) for number in range(3)]

    def stop_the_first(task):
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):  # one that has ended meanwhile has no command line
                is_ours = "spawn_main" in " ".join(child.cmdline())  # and no server of the tests
                if is_ours and time.monotonic() - started < 1.0:
                    child.suspend()

    queue = TaskQueue()

    def add():
        try:
            queue.add(todo)
            time.sleep(0.2)
            stop_the_first(None)
        finally:
            queue.close()  # or the tasks never end

    threading.Thread(target=add).start()
    outcomes = run_tasks(tasks.work, queue, tasks.setup, 2, patience=2.0)
    assert [what for what, _ in outcomes] == [what for what, _ in todo]


def test_a_full_disk_begins_no_more_tasks(tmp_path):
    settled = []
    todo = [("a", None), ("full", "there"), *((f"task {number}", None) for number in range(20))]
    outcomes = run_tasks(tasks.work, todo, tasks.setup, 1, on_outcome=lambda task, outcome: settled.append(task[0]))
    assert outcomes[1] == Failure("[Errno 28] No space left on device: 'there'", is_for_all=True)
    assert outcomes[2:] == [None] * 20
    assert settled == ["a", "full"]


def test_a_setup_that_fails_is_every_task_s_reason(tmp_path):
    outcomes, _ = run(["a", "b"], tmp_path, setup=tasks.broken_setup)
    assert outcomes == [Failure("no tokenizer here")] * 2


def test_no_tasks_need_no_workers(tmp_path):
    assert run([], tmp_path) == ([], [0, 0])


def test_tasks_run_from_another_thread_too(tmp_path):
    """Other threads cannot set the signals of a process before it starts."""
    found = []
    thread = threading.Thread(target=lambda: found.append(run(["a", "b"], tmp_path)))
    thread.start()
    thread.join(60)
    ((outcomes, _),) = found
    assert [what for what, _ in outcomes] == ["a", "b"]


def start_sleepers(tmp_path):
    """A parent with two workers asleep, in a process group of its own; and the workers' pids."""
    code = (
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[2]]\n"
        "import tasks; from tokenmill.prepare.workers import run_tasks\n"
        "if __name__ == '__main__':\n"
        "    run_tasks(tasks.work, [('sleep', None)] * 2, tasks.setup, 2, lambda *n: print('working', flush=True))\n"
    )
    script = tmp_path / "parent.py"
    script.write_text(code)
    command = [sys.executable, script, ROOT / "tests", ROOT]
    pipe = subprocess.PIPE
    parent = subprocess.Popen(command, stdout=pipe, stderr=pipe, start_new_session=True)
    for _ in range(2):
        parent.stdout.readline()
    return parent, [process.pid for process in psutil.Process(parent.pid).children(recursive=True)]


def alive(pid):
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc to see the workers")
def test_ctrl_c_stops_the_parent_and_all_workers_promptly(tmp_path):
    parent, children = start_sleepers(tmp_path)
    assert sum(alive(pid) for pid in children) >= 3, "two workers, and what they are forks of"
    os.killpg(parent.pid, signal.SIGINT)
    _, stderr = parent.communicate(timeout=20)
    assert stderr.decode().count("KeyboardInterrupt") == 1, "the parent's alone"
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in children)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc to see the workers")
def test_workers_that_say_nothing_end_with_a_parent_that_is_killed(tmp_path):
    parent, children = start_sleepers(tmp_path)
    parent.kill()
    parent.communicate(timeout=20)
    wait_until(lambda: not any(map(alive, children)), 10)


def test_tasks_may_come_while_others_are_done_or_none_is_there(tmp_path):
    queue, settled = TaskQueue(), []

    def find_tasks():
        for number, pause in enumerate((0, 0.3, 0, 0, 0.3)):
            time.sleep(pause)
            queue.add([(f"task {number}", None), (f"twin {number}", None)])
        queue.close()

    threading.Thread(target=find_tasks).start()
    outcomes = run_tasks(
        tasks.work, queue, tasks.setup, 2, on_outcome=lambda task, outcome: settled.append((task[0], outcome[0]))
    )
    expected = [f"{what} {number}" for number in range(5) for what in ("task", "twin")]
    assert [what for what, _ in outcomes] == expected
    assert sorted(settled) == sorted(zip(expected, expected, strict=True)), "each was told once"
    assert len({pid for _, pid in outcomes}) == 2, "idle workers are kept"


def test_a_worker_that_dies_while_it_waits_for_a_task_is_replaced(tmp_path):
    queue = TaskQueue()
    pids = []

    def settle(task, outcome):
        pids.append(outcome[1])
        if len(pids) == 1:
            os.kill(outcome[1], signal.SIGKILL)
            queue.add([("after it", None)])
            queue.close()

    queue.add([("before it", None)])
    outcomes = run_tasks(tasks.work, queue, tasks.setup, 1, on_outcome=settle)
    assert [what for what, _ in outcomes] == ["before it", "after it"]
    assert len(set(pids)) == 2


def test_an_empty_queue_is_no_work(tmp_path):
    queue = TaskQueue()
    queue.close()
    assert run_tasks(tasks.work, queue, tasks.setup, 2) == []
