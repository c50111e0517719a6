"""`run_tasks` on a Ray cluster: every task is a Ray task, on the cluster that `ray.init` reaches.

    RAY_ADDRESS=head:6379 tokenmill prepare --cluster ray ...     or within a job: ray job submit -- tokenmill ...

Ray does for all nodes what workers.py does for one machine: it starts processes. A task is submitted again, a few
times, if its worker or node dies, or if Ray's memory monitor kills it. Nodes need the packages of the extra `prepare`;
tokenmill itself is sent to them. Source files and token sets must be in folders that all nodes share, under the same
paths.
"""

import contextlib
import os
import pickle
import re
import socket
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmill.extras import naming_the_extra
from tokenmill.prepare.outcomes import Failure, failure_of

if TYPE_CHECKING:
    from tokenmill.prepare.workers import TaskQueue  # a node may lack its packages, and must be able to say so

PACKAGE = Path(__file__).resolve().parent.parent
RETRIES = 5  # of a task whose worker or node died
AT_ONCE = 1000  # tasks that Ray has at a time, at least; with more it starts fewer per second
POLL_SECONDS = 0.5

_states: dict[Any, Any] = {}  # what `setup` made in this Ray worker, by the job's id


def run_tasks(
    function: Callable,
    tasks: "TaskQueue",
    setup: Callable,
    num_workers: int,
    on_progress: Callable = lambda *numbers: None,
    on_outcome: Callable = lambda task, outcome: None,
) -> list:
    """Like workers.run_tasks, but Ray's CPUs decide how many workers there are, and `num_workers` is ignored.

    ConnectionError if no cluster can be reached.
    """
    ray = _connect()
    ray_tasks = _RayTasks(ray, function, setup, on_progress, on_outcome)
    try:
        while ray_tasks.open or ray_tasks.running or ray_tasks.waiting:
            ray_tasks.take(tasks)
            ray_tasks.settle()
            ray_tasks.show()
        return ray_tasks.outcomes
    finally:
        ray.shutdown()


def _connect():
    with naming_the_extra("ray"):
        import ray
    address = re.fullmatch(r"(.+):(\d+)", os.environ.get("RAY_ADDRESS", ""))
    try:
        if address and "://" not in address[0]:  # ray.init would wait forever
            socket.create_connection((address[1], int(address[2])), timeout=10).close()
        ray.init(runtime_env={"py_modules": [str(PACKAGE)]}, log_to_driver=False)
    except OSError as error:
        raise ConnectionError(f"--cluster ray: no cluster could be reached ({error}); check RAY_ADDRESS") from error
    return ray


class _RayTasks:
    """The driver's side."""

    def __init__(self, ray, function, setup, on_progress, on_outcome):
        self.ray, self.on_progress, self.on_outcome = ray, on_progress, on_outcome
        self.open = True  # whether more tasks may come
        self.tasks, self.outcomes, self.running = [], [], {}
        self.waiting: deque[int] = deque()
        self.tries: Counter[int] = Counter()
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        actor = ray.remote(_Progress).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here)
        self._progress = actor.remote()
        self._shown = {}  # by task, what was passed to on_progress
        # retried here: Ray does not count how often its memory monitor kills a task
        work = ray.remote(_work).options(num_cpus=1, max_retries=0)
        pickled = ray.put(pickle.dumps((function, setup)))
        self._submit = lambda number, task: work.remote(self._progress, pickled, number, pickle.dumps(task))

    def take(self, queue: "TaskQueue") -> None:
        """Takes new tasks, and submits as many to the cluster as keep it busy."""
        while self.open and queue.arrived.poll(0 if self.running or self.waiting else POLL_SECONDS):
            try:
                queue.arrived.recv()
            except EOFError:
                self.open = False
            new = queue.tasks[len(self.tasks) :]
            self.waiting.extend(range(len(self.tasks), len(self.tasks) + len(new)))
            self.tasks += new
            self.outcomes += [None] * len(new)
        room = max(AT_ONCE, 4 * int(self.ray.cluster_resources().get("CPU", 0))) if self.waiting else 0
        while self.waiting and len(self.running) < room:
            number = self.waiting.popleft()
            self.tries[number] += 1
            self.running[self._submit(number, self.tasks[number])] = number

    def settle(self) -> None:
        """Takes the outcomes that have arrived, after a short wait; submits again what died with its worker."""
        if not self.running:
            return
        self.ray.wait(list(self.running), timeout=POLL_SECONDS)
        done, _ = self.ray.wait(list(self.running), num_returns=len(self.running), timeout=0)
        for reference in done:
            number = self.running.pop(reference)
            try:
                outcome, sums = self.ray.get(reference)
            except self.ray.exceptions.RayError as error:
                self._report(number, ())
                if self.tries[number] <= RETRIES:
                    self.waiting.appendleft(number)
                    continue
                reason = (str(error) or type(error).__name__).splitlines()[0]
                outcome, sums = Failure(f"Ray gave it up after {RETRIES} retries: {reason}"), ()
            self._report(number, sums)
            self.outcomes[number] = outcome
            self.on_outcome(self.tasks[number], outcome)

    def show(self) -> None:
        """Reports the progress of all running tasks; nothing for a while if the actor that counts it has died."""
        try:
            changed = self.ray.get(self._progress.changed.remote(), timeout=POLL_SECONDS)
        except self.ray.exceptions.RayError:  # Ray starts it again, and each outcome has the sums of its task
            return
        at_work = set(self.running.values())
        for number, sums in changed.items():
            if number in at_work:
                self._report(number, sums)

    def _report(self, number: int, sums: tuple) -> None:
        """Reports how a task's sums have changed; takes back what a dead worker had reported."""
        before = self._shown.get(number) or (0,) * len(sums)
        now = sums or (0,) * len(before)
        if before != now:
            self.on_progress(*(one - other for one, other in zip(now, before, strict=True)))
        self._shown[number] = now


class _Progress:
    """An actor on the driver's node: the sums of what each task has reported, used only to show progress."""

    def __init__(self):
        self._changed = {}

    def report(self, number: int, sums: tuple) -> None:
        self._changed[number] = sums

    def changed(self) -> dict[int, tuple]:
        changed, self._changed = self._changed, {}
        return changed


def _work(progress, work: bytes, number: int, task: bytes):
    """A Ray task: setup(task) once per worker, then function(state, task, report). Returns (outcome, reported sums)."""
    import ray

    job, sent = ray.get_runtime_context().get_job_id(), [None]
    sums: list[float] = []

    def report(*numbers) -> None:
        sums[:] = map(sum, zip(sums or (0,) * len(numbers), numbers, strict=True))
        with contextlib.suppress(ray.exceptions.RayError):  # the actor may be gone for a while
            if sent[0] is None or ray.wait([sent[0]], timeout=0)[0]:  # one report at a time
                sent[0] = progress.report.remote(number, tuple(sums))

    try:
        (function, setup), task = pickle.loads(work), pickle.loads(task)  # here, as what they import may be missing
        if job not in _states:
            _states[job] = setup(task)
        outcome = function(_states[job], task, report)
    except BaseException as error:
        outcome = failure_of(error)
    return outcome, tuple(sums)
