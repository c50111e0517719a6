"""`run_tasks` on a Ray cluster: every task is a Ray task, on whatever cluster `ray.init` reaches.

    RAY_ADDRESS=head:6379 tokenmill prepare --cluster ray ...     or within a job: ray job submit -- tokenmill ...

Ray does what workers.py does for one machine: it starts processes on all nodes. A task whose worker, or whole node,
died, or that Ray's memory monitor ended, is handed out again, so many times. Nodes need the packages of the extra
`prepare`; tokenmill itself comes along. Source files and token sets lie in folders that all nodes share, under the
same paths.
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
    from tokenmill.prepare.workers import Feed  # a node may lack what it needs, and is to say so

PACKAGE = Path(__file__).resolve().parent.parent
RETRIES = 5  # of a task whose worker or node died
AT_ONCE = 1000  # tasks that Ray has at a time, at least: with more it hands out fewer a second
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
        while run.open or run.running or run.waiting:
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
        self.waiting: deque[int] = deque()
        self.tries: Counter[int] = Counter()
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        actor = ray.remote(_Progress).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here)
        self._progress = actor.remote()
        self._shown = {}  # by task, what on_progress was told of it
        # tried again here: Ray itself does not count the times that its memory monitor ends a task
        work = ray.remote(_work).options(num_cpus=1, max_retries=0)
        pickled = ray.put(pickle.dumps((function, setup)))
        self._submit = lambda number, task: work.remote(self._progress, pickled, number, pickle.dumps(task))

    def take(self, feed: "Feed") -> None:
        """Takes what has come, and hands as many tasks to the cluster as keep it busy."""
        while self.open and feed.arrived.poll(0 if self.running or self.waiting else POLL_SECONDS):
            try:
                feed.arrived.recv()
            except EOFError:
                self.open = False
            new = feed.tasks[len(self.tasks) :]
            self.waiting.extend(range(len(self.tasks), len(self.tasks) + len(new)))
            self.tasks += new
            self.outcomes += [None] * len(new)
        room = max(AT_ONCE, 4 * int(self.ray.cluster_resources().get("CPU", 0))) if self.waiting else 0
        while self.waiting and len(self.running) < room:
            number = self.waiting.popleft()
            self.tries[number] += 1
            self.running[self._submit(number, self.tasks[number])] = number

    def settle(self) -> None:
        """Takes the outcomes that are there, after a while at most; hands out again what died with its worker."""
        if not self.running:
            return
        self.ray.wait(list(self.running), timeout=POLL_SECONDS)
        done, _ = self.ray.wait(list(self.running), num_returns=len(self.running), timeout=0)
        for reference in done:
            number = self.running.pop(reference)
            try:
                outcome, sums = self.ray.get(reference)
            except self.ray.exceptions.RayError as error:
                self._tell(number, ())
                if self.tries[number] <= RETRIES:
                    self.waiting.appendleft(number)
                    continue
                reason = (str(error) or type(error).__name__).splitlines()[0]
                outcome, sums = Failure(f"Ray gave it up after {RETRIES} retries: {reason}"), ()
            self._tell(number, sums)
            self.outcomes[number] = outcome
            self.on_outcome(self.tasks[number], outcome)

    def show(self) -> None:
        """Tells what is new of every task at work; nothing for a while where Ray took the one who knows."""
        try:
            changed = self.ray.get(self._progress.changed.remote(), timeout=POLL_SECONDS)
        except self.ray.exceptions.RayError:  # it is started again, and each outcome says all of its task
            return
        at_work = set(self.running.values())
        for number, sums in changed.items():
            if number in at_work:
                self._tell(number, sums)

    def _tell(self, number: int, sums: tuple) -> None:
        """Tells how a task's sums have changed; what a dead worker had reported is taken back."""
        before = self._shown.get(number) or (0,) * len(sums)
        now = sums or (0,) * len(before)
        if before != now:
            self.on_progress(*(one - other for one, other in zip(now, before, strict=True)))
        self._shown[number] = now


class _Progress:
    """An actor on the driver's node: the sums of what each task has reported. What it knows is for show."""

    def __init__(self):
        self._changed = {}

    def report(self, number: int, sums: tuple) -> None:
        self._changed[number] = sums

    def changed(self) -> dict[int, tuple]:
        changed, self._changed = self._changed, {}
        return changed


def _work(progress, work: bytes, number: int, task: bytes):
    """A Ray task: setup(task) once a worker, then function(state, task, report). (the outcome, what it reported)."""
    import ray

    job, sent = ray.get_runtime_context().get_job_id(), [None]
    sums: list[float] = []

    def report(*numbers) -> None:
        sums[:] = map(sum, zip(sums or (0,) * len(numbers), numbers, strict=True))
        with contextlib.suppress(ray.exceptions.RayError):  # who is told may be gone for a while
            if sent[0] is None or ray.wait([sent[0]], timeout=0)[0]:  # one report on its way at a time
                sent[0] = progress.report.remote(number, tuple(sums))

    try:
        (function, setup), task = pickle.loads(work), pickle.loads(task)  # here, as what they import may be missing
        if job not in _states:
            _states[job] = setup(task)
        outcome = function(_states[job], task, report)
    except BaseException as error:
        outcome = failure_of(error)
    return outcome, tuple(sums)
