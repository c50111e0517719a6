"""Tasks -> worker processes -> outcomes, and never a hang.

Each worker has a pipe to the parent and does one task after the other. Only a task, small progress
numbers and a result cross the pipe. When a process dies its end of the pipe closes, so the parent
always wakes up:

    task raises         -> that task failed, with its message; the worker goes on with the next
    worker dies         -> its task is tried once more in a fresh worker, then failed
    Ctrl-C, an error    -> all workers are stopped before `run_tasks` is left
    the parent is killed -> a worker stops at its next progress report

The standard pools do less: `Pool` waits for ever for a killed worker's task, and
`ProcessPoolExecutor` gives up everybody's work.
"""

import contextlib
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import multiprocess
from multiprocess.connection import wait

from tokenmill.prepare.outcomes import Failure, failure_of

ATTEMPTS = 2  # a worker that dies costs its task one retry
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


@dataclass
class _Worker:
    process: Any
    connection: Any
    task: int | None = None  # the number of the task it is doing
    progress: list = field(default_factory=list)  # what it reported of that task


def run_tasks(
    function: Callable,
    tasks: list | Feed,
    setup: Callable,
    num_workers: int,
    on_progress: Callable = lambda *numbers: None,
    on_outcome: Callable = lambda task, outcome: None,
) -> list:
    """Runs function(state, task, report) for every task, in order, in worker processes.

    `state` is setup(task), which runs once a worker. `report(*numbers)` calls on_progress(*numbers) in the
    parent; what a dead worker had reported is taken back with the same numbers negated. Returns, in the order of
    the tasks, what function returned, or a Failure; each goes to `on_outcome` as soon as it is there.
    Function, setup, tasks and results are pickled: functions of a module.
    """
    run = _Run(function, tasks, setup, on_progress, on_outcome)
    try:
        while run.more or run.waiting or any(worker.task is not None for worker in run.workers):
            run.hand_out(num_workers)
            connections = {worker.connection: worker for worker in run.workers}
            arrived = [tasks.arrived] if isinstance(tasks, Feed) and run.more else []
            for connection in wait([*connections, *arrived]):
                if connection in connections:
                    run.listen(connections[connection])
                else:
                    run.look_for_more()
        run.let_go()
    finally:
        run.stop()
    return run.outcomes


class _Run:
    """The parent's side: which task is where."""

    def __init__(self, function, tasks, setup, on_progress, on_outcome):
        self.work = pickle.dumps((function, setup))
        self.on_progress, self.on_outcome = on_progress, on_outcome
        self.feed, self.more = tasks, isinstance(tasks, Feed)  # whether more tasks may come
        self.tasks: list = []
        self.waiting: deque[int] = deque()  # tasks by their numbers
        self.outcomes: list = []
        self.attempts: list[int] = []
        self.workers: list[_Worker] = []
        if isinstance(tasks, list):
            self.take(tasks)

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
            self.workers.append(_start(self.work))
            self.give(self.workers[-1])

    def give(self, worker: _Worker) -> None:
        """Gives the worker the next task, if there is one."""
        if not self.waiting:
            return
        worker.task, worker.progress = self.waiting.popleft(), []
        self.attempts[worker.task] += 1
        try:
            worker.connection.send_bytes(pickle.dumps(self.tasks[worker.task]))
        except ConnectionError:
            self.bury(worker)

    def listen(self, worker: _Worker) -> None:
        """Takes one message of a worker, or notices its death."""
        try:
            kind, value = worker.connection.recv()
        except (EOFError, ConnectionError):
            self.bury(worker)
            return
        if kind == "progress":
            worker.progress.append(value)
            self.on_progress(*value)
        else:
            task, worker.task = worker.task, None
            assert task is not None, "an outcome is a task's"
            self.settle(task, value)

    def bury(self, worker: _Worker) -> None:
        """Takes back a dead worker's progress, and gives its task one more try."""
        self.workers.remove(worker)
        worker.process.join()
        if worker.task is None:
            return
        for numbers in worker.progress:
            self.on_progress(*(-number for number in numbers))
        if self.attempts[worker.task] < ATTEMPTS:
            self.waiting.appendleft(worker.task)
        else:
            self.settle(worker.task, Failure(_cause_of_death(worker.process.exitcode)))

    def settle(self, task: int, outcome) -> None:
        self.outcomes[task] = outcome
        self.on_outcome(self.tasks[task], outcome)

    def let_go(self) -> None:
        """Hangs up on the workers, which then leave by themselves."""
        for worker in self.workers:
            worker.connection.close()
        for worker in self.workers:
            worker.process.join(STOP_SECONDS)
        self.workers = [worker for worker in self.workers if worker.process.is_alive()]

    def stop(self) -> None:
        """Ends the workers that are left, when an error or Ctrl-C cut the run short."""
        for worker in self.workers:
            worker.process.terminate()
        for worker in self.workers:
            worker.process.join(STOP_SECONDS)
            worker.process.kill()
            worker.process.join()


def _start(work: bytes) -> _Worker:
    context = multiprocess.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, work), daemon=True)
    with _born_deaf_to_ctrl_c(), _without_main():
        process.start()
    theirs.close()  # so that the pipe is closed for good when the process dies
    return _Worker(process, ours)


@contextlib.contextmanager
def _born_deaf_to_ctrl_c():
    """Ctrl-C reaches the whole process group; workers ignore it, and the parent stops them.

    Only a main thread may say so for a process that is still to be born; of another thread's, `_serve` does.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


@contextlib.contextmanager
def _without_main():
    """A spawned process runs the parent's main script first: a user's own, which may prepare again, or load torch."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _serve(connection, work: bytes) -> None:
    """The life of a worker: tasks come in, progress and outcomes go out, until the parent hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    state = None
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            task = connection.recv_bytes()
            try:
                function, setup = pickle.loads(work)  # here, as what it imports may be missing
                task = pickle.loads(task)
                state = setup(task) if state is None else state
                outcome = function(state, task, lambda *numbers: connection.send(("progress", numbers)))
            except BaseException as error:
                outcome = failure_of(error)
            connection.send(("outcome", outcome))


def _cause_of_death(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        name = signal.Signals(-exitcode).name
        hint = " (out of memory? use fewer --workers)" if name == "SIGKILL" else ""
        return f"the worker was killed by {name}, twice{hint}"
    return f"the worker exited with status {exitcode} in the middle, twice"
