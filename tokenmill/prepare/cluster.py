"""`run_tasks` on a Ray cluster: every task is a Ray task, on whatever cluster `ray.init` reaches.

    RAY_ADDRESS=head:6379 tokenmill prepare --cluster ray ...     or within a job: ray job submit -- tokenmill ...

Ray does what workers.py does for one machine: it starts processes on all nodes, and runs a task again when its
worker, or its whole node, dies. Nodes need the packages of the extra `prepare`; tokenmill itself comes along.
Source files and token sets lie in folders that all nodes share, under the same paths.
"""

import os
import pickle
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmill.extras import naming_the_extra
from tokenmill.prepare.outcomes import Failure, failure_of

if TYPE_CHECKING:
    from tokenmill.prepare.workers import Feed  # a node may lack what it needs, and is to say so

PACKAGE = Path(__file__).resolve().parent.parent
RETRIES = 5  # of a task whose worker or node died
POLL_SECONDS = 0.5

_states: dict[Any, Any] = {}  # what `setup` made in this Ray worker, by the job's id


def run_tasks(
    function: Callable,
    tasks: "Feed",
    setup: Callable,
    num_workers: int,
    on_progress: Callable = lambda *numbers: None,
    on_outcome: Callable = lambda task, outcome: None,
) -> list:
    """As workers.run_tasks; Ray's CPUs say how many workers there are, so that `num_workers` is not heeded.

    ConnectionError where no cluster can be reached.
    """
    ray = _connect()
    run = _Run(ray, function, setup, on_progress, on_outcome)
    try:
        while run.open or run.running:
            run.take(tasks)
            run.settle()
            run.show()
        return run.outcomes
    finally:
        ray.shutdown()


def _connect():
    with naming_the_extra("ray"):
        import ray
    address = re.fullmatch(r"(.+):(\d+)", os.environ.get("RAY_ADDRESS", ""))
    try:
        if address and "://" not in address[0]:  # ray.init would wait for ever
            socket.create_connection((address[1], int(address[2])), timeout=10).close()
        ray.init(runtime_env={"py_modules": [str(PACKAGE)]}, log_to_driver=False)
    except OSError as error:
        raise ConnectionError(f"--cluster ray: no cluster could be reached ({error}); check RAY_ADDRESS") from error
    return ray


class _Run:
    """The driver's side."""

    def __init__(self, ray, function, setup, on_progress, on_outcome):
        self.ray, self.on_progress, self.on_outcome = ray, on_progress, on_outcome
        self.open = True  # whether more tasks may come
        self.tasks, self.outcomes, self.running = [], [], {}
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        self._progress = ray.remote(_Progress).options(num_cpus=0, scheduling_strategy=here).remote()
        self._shown = {}  # by task, what on_progress was told of it
        work = ray.remote(_work).options(num_cpus=1, max_retries=RETRIES)
        pickled = ray.put(pickle.dumps((function, setup)))
        self._submit = lambda number, task: work.remote(self._progress, pickled, number, pickle.dumps(task))

    def take(self, feed: "Feed") -> None:
        while self.open and feed.arrived.poll(0 if self.running else POLL_SECONDS):
            try:
                feed.arrived.recv()
            except EOFError:
                self.open = False
            for task in feed.tasks[len(self.tasks) :]:
                self.running[self._submit(len(self.tasks), task)] = len(self.tasks)
                self.tasks.append(task)
                self.outcomes.append(None)

    def settle(self) -> None:
        if not self.running:
            return
        done, _ = self.ray.wait(list(self.running), timeout=POLL_SECONDS)
        for reference in done:
            number = self.running.pop(reference)
            try:
                self.outcomes[number] = self.ray.get(reference)
            except self.ray.exceptions.RayError as error:
                reason = (str(error) or type(error).__name__).splitlines()[0]
                self.outcomes[number] = Failure(f"Ray gave it up after {RETRIES} retries: {reason}")
            self.show()
            self.on_outcome(self.tasks[number], self.outcomes[number])

    def show(self) -> None:
        """Tells what is new of every task, and takes back what a dead worker had reported."""
        for number, numbers in self.ray.get(self._progress.changed.remote()).items():
            before = self._shown.get(number, (0,) * len(numbers))
            self.on_progress(*(now - then for now, then in zip(numbers, before, strict=True)))
            self._shown[number] = numbers


class _Progress:
    """An actor on the driver's node: the sums of what each task has reported."""

    def __init__(self):
        self._changed = {}

    def report(self, number: int, sums: tuple) -> None:
        self._changed[number] = sums

    def changed(self) -> dict[int, tuple]:
        changed, self._changed = self._changed, {}
        return changed


def _work(progress, work: bytes, number: int, task: bytes):
    """A Ray task: setup(task) once a worker, then function(state, task, report)."""
    import ray

    job, sent = ray.get_runtime_context().get_job_id(), [None]
    sums: list[float] = []

    def report(*numbers) -> None:
        sums[:] = map(sum, zip(sums or (0,) * len(numbers), numbers, strict=True))
        if sent[0] is None or ray.wait([sent[0]], timeout=0)[0]:  # one report on its way at a time
            sent[0] = progress.report.remote(number, tuple(sums))

    try:
        (function, setup), task = pickle.loads(work), pickle.loads(task)  # here, as what they import may be missing
        if job not in _states:
            _states[job] = setup(task)
        outcome = function(_states[job], task, report)
    except BaseException as error:
        outcome = failure_of(error)
    if sums:
        ray.get(progress.report.remote(number, tuple(sums)))
    return outcome
