"""Tasks -> worker processes -> outcomes, and never a hang.

Each worker has a pipe to the parent and does one task after the other. Only tasks, small progress
numbers and results cross the pipe. When a process dies, its end of the pipe closes, so the parent
always wakes up:

    task raises           -> that task failed, with its message; the worker continues with the next
    worker dies           -> its task is tried once more in a new worker, then reported as failed
    worker is silent      -> for ten minutes (stopped, or waiting for a dead mount): killed, treated as dead
    the disk is full      -> no more tasks are started; those that are running finish
    Ctrl-C, an error      -> all workers are stopped before `run_tasks` returns
    the parent is killed  -> a worker stops at its next progress report

The standard pools do less: `Pool` waits forever for the task of a killed worker, and
`ProcessPoolExecutor` gives up everybody's work.
"""

import pickle
import signal
import time
from collections.abc import Callable, Hashable
from typing import Any

import multiprocess
from multiprocess.connection import wait

from tokenmill.prepare.fork_server import ForkServer, Worker
from tokenmill.prepare.outcomes import Failure
from tokenmill.prepare.waiting_tasks import WaitingTasks

ATTEMPTS = 2  # a worker that dies costs its task one retry
PATIENCE_SECONDS = 600.0  # a document of a gigabyte takes two minutes
STOP_SECONDS = 3


class TaskQueue:
    """Tasks that another thread may add to while the first ones are running. Closed when there are no more."""

    def __init__(self, tasks: list | None = None):
        self.tasks: list = []
        self.arrived, self._announcement = multiprocess.Pipe(duplex=False)
        if tasks is not None:
            self.add(tasks)
            self.close()

    def add(self, tasks: list) -> None:
        self.tasks += tasks
        self._announcement.send("more")

    def close(self) -> None:
        self._announcement.close()


def run_tasks(
    function: Callable,
    tasks: list | TaskQueue,
    setup: Callable,
    num_workers: int,
    on_progress: Callable = lambda *numbers: None,
    on_outcome: Callable = lambda task, outcome: None,
    patience: float = PATIENCE_SECONDS,
    server: ForkServer | None = None,
    chain_of: Callable[[Any], Hashable | None] = lambda task: None,
) -> list:
    """Runs function(state, task, report) for every task, in order, in worker processes.

    `state` is setup(task) of the first task; it is made once, and each worker has a copy. `report(*numbers)` calls
    on_progress(*numbers) in the parent; what a dead worker had reported is taken back with the same numbers negated.
    Returns, in the order of the tasks, what function returned, or a Failure, or None if the disk was full before the
    task started. The first two are passed to `on_outcome` as they arrive. A worker that sends nothing for `patience`
    seconds is killed. Functions, tasks and results are pickled, so functions must belong to a module. A `server` that
    was begun earlier starts the workers. Tasks with the same `chain_of(task)` are done in their order, by one worker as
    long as others have something else to do.
    """
    queue = tasks if isinstance(tasks, TaskQueue) else TaskQueue(tasks)
    scheduler = _Scheduler(function, queue, setup, on_progress, on_outcome, patience, server, chain_of)
    try:
        while scheduler.more or scheduler.waiting or scheduler.busy():
            scheduler.hand_out(num_workers)
            connections = {worker.connection: worker for worker in scheduler.workers}
            arrived = [scheduler.queue.arrived] if scheduler.more else []
            for connection in wait([*connections, *arrived], scheduler.longest_wait()):
                if connection in connections:
                    scheduler.receive(connections[connection])
                else:
                    scheduler.take_new()
            scheduler.kill_silent()
        scheduler.close()
    finally:
        scheduler.stop()
    return scheduler.outcomes


class _Scheduler:
    """The parent's side: which task is where."""

    def __init__(self, function, queue: TaskQueue, setup, on_progress, on_outcome, patience, server, chain_of):
        self.work = pickle.dumps((function, setup))
        self.on_progress, self.on_outcome, self.patience = on_progress, on_outcome, patience
        self.queue, self.more = queue, True  # whether more tasks may come
        self.tasks: list = []
        self.waiting, self.chain_of = WaitingTasks(), chain_of
        self.outcomes: list = []
        self.attempts: list[int] = []
        self.workers: list[Worker] = []
        self.servers: list[ForkServer] = []  # the last one starts workers
        self.begun = server

    def busy(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.task is not None]

    def take_new(self) -> None:
        """Takes new tasks from the queue, or notices that it is closed."""
        try:
            self.queue.arrived.recv()
        except EOFError:
            self.more = False
        new = self.queue.tasks[len(self.tasks) :]
        for number, task in enumerate(new, len(self.tasks)):
            self.waiting.add(number, self.chain_of(task))
        self.tasks += new
        self.outcomes += [None] * len(new)
        self.attempts += [0] * len(new)

    def hand_out(self, num_workers: int) -> None:
        """Gives the waiting tasks to idle workers, and to new ones."""
        for worker in [worker for worker in self.workers if worker.task is None]:
            self.give(worker)
        while self.waiting and len(self.workers) < num_workers:
            self.workers.append(self.start_worker())
            self.give(self.workers[-1])

    def start_worker(self) -> Worker:
        if not self.servers or not self.servers[-1].is_alive():
            server, self.begun = self.begun or ForkServer(), None
            server.use(self.work)
            self.servers.append(server)
        return self.servers[-1].start_worker(pickle.dumps(self.tasks[self.waiting.first()]))

    def give(self, worker: Worker) -> None:
        """Gives the worker the next task, if there is one."""
        if not self.waiting:
            return
        worker.task = worker.last = self.waiting.take(worker.last)
        worker.progress, worker.heard = [], time.monotonic()
        self.attempts[worker.task] += 1
        try:
            worker.connection.send_bytes(pickle.dumps(self.tasks[worker.task]))
        except ConnectionError:
            self.remove(worker)

    def receive(self, worker: Worker) -> None:
        """Takes one message from a worker, or notices its death."""
        if worker not in self.workers:
            return  # removed since it sent something
        try:
            kind, value = worker.connection.recv()
        except (EOFError, ConnectionError):
            self.remove(worker)
            return
        worker.heard = time.monotonic()
        if kind == "started":
            worker.pid = value
        elif kind == "progress":
            worker.progress.append(value)
            self.on_progress(*value)
        else:
            task, worker.task = worker.task, None
            assert task is not None, "an outcome belongs to a task"
            self.settle(task, value)

    def longest_wait(self) -> float | None:
        """Seconds until a worker has been silent for too long."""
        heard = [worker.heard for worker in self.busy()]
        return max(0.0, min(heard) + self.patience - time.monotonic()) if heard else None

    def kill_silent(self) -> None:
        for worker in self.busy():
            if time.monotonic() - worker.heard >= self.patience:
                worker.kill()
                self.remove(
                    worker, f"the worker said nothing for {self.patience:,.0f} s, twice (a mount that is dead?)"
                )

    def remove(self, worker: Worker, cause: str | None = None) -> None:
        """Takes back a dead worker's progress, and gives its task one more try."""
        self.workers.remove(worker)
        if worker.task is None:
            return
        for numbers in worker.progress:
            self.on_progress(*(-number for number in numbers))
        if self.attempts[worker.task] < ATTEMPTS:
            self.waiting.put_back(worker.task)
        else:
            self.settle(worker.task, Failure(cause or _cause_of_death(worker.exit_code())))
        worker.connection.close()

    def settle(self, task: int, outcome) -> None:
        self.outcomes[task] = outcome
        self.on_outcome(self.tasks[task], outcome)
        if isinstance(outcome, Failure) and outcome.is_for_all:
            self.waiting.clear()
            self.more = False

    def close(self) -> None:
        """Closes the pipes; the processes then exit by themselves."""
        for worker in self.workers:
            worker.connection.close()
        self.workers = []
        for server in self.servers:
            server.close()

    def stop(self) -> None:
        """Kills the workers that are left when an error or Ctrl-C cut the run short."""
        for worker in self.workers:
            worker.kill()
        deadline = time.monotonic() + STOP_SECONDS
        for worker in self.workers:
            worker.is_gone(max(0.0, deadline - time.monotonic()))
        for server in self.servers:
            server.kill()


def _cause_of_death(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        name = signal.Signals(-exitcode).name
        hint = " (out of memory? use fewer --workers)" if name == "SIGKILL" else ""
        return f"the worker was killed by {name}, twice{hint}"
    return f"the worker {'died' if exitcode is None else f'exited with status {exitcode}'} in the middle, twice"
