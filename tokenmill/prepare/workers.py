"""Tasks -> worker processes -> outcomes, and never a hang.

Each worker has a pipe to the parent and does one task after the other. Only a task, small progress
numbers and a result cross the pipe. When a process dies its end of the pipe closes, so the parent
always wakes up:

    task raises          -> that task failed, with its message; the worker goes on with the next
    worker dies          -> its task is tried once more in a fresh worker, then failed
    worker says nothing  -> for ten minutes, stopped or at a dead mount: killed, and as if it had died
    the disk is full     -> no task is begun any more; those that run come to their ends
    Ctrl-C, an error     -> all workers are stopped before `run_tasks` is left
    the parent is killed -> a worker stops at its next progress report

The standard pools do less: `Pool` waits for ever for a killed worker's task, and
`ProcessPoolExecutor` gives up everybody's work.
"""

import pickle
import signal
import time
from collections import deque
from collections.abc import Callable

import multiprocess
from multiprocess.connection import wait

from tokenmill.prepare.nursery import Nursery, Worker
from tokenmill.prepare.outcomes import Failure

ATTEMPTS = 2  # a worker that dies costs its task one retry
PATIENCE_SECONDS = 600.0  # a document of a gigabyte takes two minutes
STOP_SECONDS = 3


class Feed:
    """Tasks that another thread still finds while the first are done. Closed when there are no more."""

    def __init__(self):
        self.tasks = []
        self.arrived, self._announcement = multiprocess.Pipe(duplex=False)

    def add(self, tasks: list) -> None:
        self.tasks += tasks
        self._announcement.send("more")

    def close(self) -> None:
        self._announcement.close()


def run_tasks(
    function: Callable,
    tasks: list | Feed,
    setup: Callable,
    num_workers: int,
    on_progress: Callable = lambda *numbers: None,
    on_outcome: Callable = lambda task, outcome: None,
    patience: float = PATIENCE_SECONDS,
) -> list:
    """Runs function(state, task, report) for every task, in order, in worker processes.

    `state` is setup(task) of the first task; it is made once, and each worker has a copy. `report(*numbers)` calls
    on_progress(*numbers) in the parent; what a dead worker had reported is taken back with the same numbers negated.
    Returns, in the order of the tasks, what function returned, or a Failure, or None where the disk was full before;
    the first two go to `on_outcome` as soon as they are there. A worker that says nothing for `patience` seconds is
    killed. Function, setup, tasks and results are pickled: functions of a module.
    """
    run = _Run(function, tasks, setup, on_progress, on_outcome, patience)
    try:
        while run.more or run.waiting or run.busy():
            run.hand_out(num_workers)
            connections = {worker.connection: worker for worker in run.workers}
            arrived = [tasks.arrived] if isinstance(tasks, Feed) and run.more else []
            for connection in wait([*connections, *arrived], run.longest_wait()):
                if connection in connections:
                    run.listen(connections[connection])
                else:
                    run.look_for_more()
            run.bury_the_silent()
        run.let_go()
    finally:
        run.stop()
    return run.outcomes


class _Run:
    """The parent's side: which task is where."""

    def __init__(self, function, tasks, setup, on_progress, on_outcome, patience):
        self.work = pickle.dumps((function, setup))
        self.on_progress, self.on_outcome, self.patience = on_progress, on_outcome, patience
        self.feed, self.more = tasks, isinstance(tasks, Feed)  # whether more tasks may come
        self.tasks: list = []
        self.waiting: deque[int] = deque()  # tasks by their numbers
        self.outcomes: list = []
        self.attempts: list[int] = []
        self.workers: list[Worker] = []
        self.nurseries: list[Nursery] = []  # the last one bears
        if isinstance(tasks, list):
            self.take(tasks)

    def busy(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.task is not None]

    def take(self, tasks: list) -> None:
        self.waiting.extend(range(len(self.tasks), len(self.tasks) + len(tasks)))
        self.tasks += tasks
        self.outcomes += [None] * len(tasks)
        self.attempts += [0] * len(tasks)

    def look_for_more(self) -> None:
        """Takes what the feed has, once it says so, or notices that it is closed."""
        try:
            self.feed.arrived.recv()
        except EOFError:
            self.more = False
        self.take(self.feed.tasks[len(self.tasks) :])

    def hand_out(self, num_workers: int) -> None:
        """Gives the waiting tasks to workers that have none, and to new ones."""
        for worker in [worker for worker in self.workers if worker.task is None]:
            self.give(worker)
        while self.waiting and len(self.workers) < num_workers:
            self.workers.append(self.bear())
            self.give(self.workers[-1])

    def bear(self) -> Worker:
        if not self.nurseries or self.nurseries[-1].is_spent or not self.nurseries[-1].is_alive():
            self.nurseries.append(Nursery(self.work))
        return self.nurseries[-1].bear(pickle.dumps(self.tasks[self.waiting[0]]))

    def give(self, worker: Worker) -> None:
        """Gives the worker the next task, if there is one."""
        if not self.waiting:
            return
        worker.task, worker.progress, worker.heard = self.waiting.popleft(), [], time.monotonic()
        self.attempts[worker.task] += 1
        try:
            worker.connection.send_bytes(pickle.dumps(self.tasks[worker.task]))
        except ConnectionError:
            self.bury(worker)

    def listen(self, worker: Worker) -> None:
        """Takes one message of a worker, or notices its death."""
        if worker not in self.workers:
            return  # buried since it spoke
        try:
            kind, value = worker.connection.recv()
        except (EOFError, ConnectionError):
            self.bury(worker)
            return
        worker.heard = time.monotonic()
        if kind == "born":
            worker.nursery.bore(worker, value)
        elif kind == "progress":
            worker.progress.append(value)
            self.on_progress(*value)
        else:
            task, worker.task = worker.task, None
            assert task is not None, "an outcome is a task's"
            self.settle(task, value)

    def longest_wait(self) -> float | None:
        """Seconds until some worker has been silent for too long."""
        heard = [worker.heard for worker in self.busy()]
        return max(0.0, min(heard) + self.patience - time.monotonic()) if heard else None

    def bury_the_silent(self) -> None:
        for worker in self.busy():
            if time.monotonic() - worker.heard >= self.patience:
                worker.kill()
                self.bury(worker, f"the worker said nothing for {self.patience:,.0f} s, twice (a mount that is dead?)")

    def bury(self, worker: Worker, cause: str | None = None) -> None:
        """Takes back a dead worker's progress, and gives its task one more try."""
        self.workers.remove(worker)
        if worker.task is None:
            return
        for numbers in worker.progress:
            self.on_progress(*(-number for number in numbers))
        if worker.pid is None and self.has_nobody_tried(worker):
            self.attempts[worker.task] -= 1
        if self.attempts[worker.task] < ATTEMPTS:
            self.waiting.appendleft(worker.task)
        else:
            code = worker.exit_code() if worker.pid else worker.nursery.end_code()
            self.settle(worker.task, Failure(cause or _cause_of_death(code)))
        worker.connection.close()

    def has_nobody_tried(self, worker: Worker) -> bool:
        """Whether a worker was never born because its nursery became a worker, who may have died by now."""
        for sibling in [other for other in self.workers if other.nursery is worker.nursery and other.pid is None]:
            if sibling.connection.poll():
                self.listen(sibling)  # it may be the nursery, and not have been heard
        return worker.nursery.is_worker or worker.nursery.is_alive()

    def settle(self, task: int, outcome) -> None:
        self.outcomes[task] = outcome
        self.on_outcome(self.tasks[task], outcome)
        if isinstance(outcome, Failure) and outcome.is_for_all:
            self.waiting.clear()
            self.more = False

    def let_go(self) -> None:
        """Hangs up on the workers, which then leave by themselves."""
        for worker in self.workers:
            worker.connection.close()
        self.workers = []
        for nursery in self.nurseries:
            nursery.let_go()

    def stop(self) -> None:
        """Ends the workers that are left, when an error or Ctrl-C cut the run short."""
        for worker in self.workers:
            worker.kill()
        deadline = time.monotonic() + STOP_SECONDS
        for worker in self.workers:
            worker.is_gone(max(0.0, deadline - time.monotonic()))
        for nursery in self.nurseries:
            nursery.kill()


def _cause_of_death(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        name = signal.Signals(-exitcode).name
        hint = " (out of memory? use fewer --workers)" if name == "SIGKILL" else ""
        return f"the worker was killed by {name}, twice{hint}"
    return f"the worker {'died' if exitcode is None else f'exited with status {exitcode}'} in the middle, twice"
