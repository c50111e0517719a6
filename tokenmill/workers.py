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
import signal
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import multiprocess
from multiprocess.connection import wait

ATTEMPTS = 2  # a worker that dies costs its task one retry
STOP_SECONDS = 3


@dataclass(frozen=True)
class Failure:
    """Why a task has no result: one line for the user, and a traceback where it looks like a bug."""

    reason: str
    traceback: str = ""


@dataclass
class _Worker:
    process: Any
    connection: Any
    task: int = -1  # the number of the task it is doing
    progress: list = field(default_factory=list)  # what it reported of that task


def run_tasks(
    function: Callable, tasks: list, setup: Callable, num_workers: int, on_progress: Callable = lambda *numbers: None
) -> list:
    """Runs function(setup(), task, report) for every task, in order, in worker processes.

    `setup` runs once a worker. `report(*numbers)` calls on_progress(*numbers) in the parent; what a
    dead worker had reported is taken back with the same numbers negated. Returns, in the order of
    the tasks, what function returned, or a Failure. All three are pickled: functions of a module.
    """
    run = _Run(function, tasks, setup, on_progress)
    try:
        while run.waiting or run.workers:
            while run.waiting and len(run.workers) < num_workers:
                run.hire()
            by_connection = {worker.connection: worker for worker in run.workers}
            for connection in wait(list(by_connection)):
                run.listen(by_connection[connection])
    finally:
        run.stop()
    return run.outcomes


class _Run:
    """The parent's side: which task is where."""

    def __init__(self, function, tasks, setup, on_progress):
        self.function, self.tasks, self.setup, self.on_progress = function, tasks, setup, on_progress
        self.waiting, self.workers = deque(range(len(tasks))), []
        self.outcomes, self.attempts = [None] * len(tasks), [0] * len(tasks)

    def hire(self) -> None:
        worker = _start(self.function, self.setup)
        self.workers.append(worker)
        self.give(worker)

    def give(self, worker: _Worker) -> None:
        """Gives the worker the next task, or lets it go."""
        if not self.waiting:
            self.workers.remove(worker)
            worker.connection.close()
            return
        worker.task, worker.progress = self.waiting.popleft(), []
        self.attempts[worker.task] += 1
        try:
            worker.connection.send(self.tasks[worker.task])
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
            self.outcomes[worker.task] = value
            self.give(worker)

    def bury(self, worker: _Worker) -> None:
        """Takes back a dead worker's progress, and gives its task one more try."""
        self.workers.remove(worker)
        worker.process.join()
        for numbers in worker.progress:
            self.on_progress(*(-number for number in numbers))
        if self.attempts[worker.task] < ATTEMPTS:
            self.waiting.appendleft(worker.task)
        else:
            self.outcomes[worker.task] = Failure(_cause_of_death(worker.process.exitcode))

    def stop(self) -> None:
        """Ends the workers that are left, when an error or Ctrl-C cut the run short."""
        for worker in self.workers:
            worker.process.terminate()
        for worker in self.workers:
            worker.process.join(STOP_SECONDS)
            worker.process.kill()
            worker.process.join()


def _start(function, setup) -> _Worker:
    context = multiprocess.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, function, setup), daemon=True)
    # Ctrl-C reaches the whole process group; workers are born ignoring it, and the parent stops them
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, handler)
    theirs.close()  # so that the pipe is closed for good when the process dies
    return _Worker(process, ours)


def _serve(connection, function, setup) -> None:
    """The life of a worker: tasks come in, progress and outcomes go out, until the parent hangs up."""
    state = None
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            task = connection.recv()
            try:
                state = setup() if state is None else state
                outcome = function(state, task, lambda *numbers: connection.send(("progress", numbers)))
            except BaseException as error:
                outcome = _failure(error)
            connection.send(("outcome", outcome))


def _failure(error: BaseException) -> Failure:
    expected = isinstance(error, ValueError | OSError | MemoryError)
    reason = str(error) if expected and str(error) else f"{type(error).__name__}: {error}"
    return Failure(reason, "" if expected else "".join(traceback.format_exception(error)))


def _cause_of_death(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        name = signal.Signals(-exitcode).name
        hint = " (out of memory? use fewer --workers)" if name == "SIGKILL" else ""
        return f"the worker was killed by {name}, twice{hint}"
    return f"the worker exited with status {exitcode} in the middle, twice"
