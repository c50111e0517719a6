"""Tasks -> worker processes here. A worker that dies or stands still costs its task one retry.

    with Pool(workers=8) as pool:
        pool.start("tokenmill.prepare.make")    optional: a module that workers begin with
        failures = pool.run(function, tasks)    what on_outcome was given that is a Failure

    function(task, report)     runs in a worker; `report` passes texts to on_text, and numbers to
                               on_numbers

A Failure is one line that says why a task has no result. Workers are forked from a server, which
imports that module once, while the parent does something else.
"""

import contextlib
import errno
import os
import signal
import sys
import time
import traceback
import types
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import multiprocess
from multiprocess import connection, forkserver, resource_tracker

from tokenmill.checks import whole_number

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
PACKAGES = str(Path(__file__).resolve().parents[2])  # where this package is, if it is not installed
TRIES = 2
SILENT_SECONDS = 600  # after which a worker is taken for dead; it reports something every few MB
POLL_SECONDS = 0.5

Function = Callable[[Any, Callable[..., None]], Any]
OnNumbers = Callable[..., None]
OnOutcome = Callable[[Any, Any], None]
OnText = Callable[[str], None]
StateOf = Callable[[Any], bool | str]


class ForAllError(ValueError):
    """What every task would fail for."""


class Failure(NamedTuple):
    """Why a task has no result: one line for the user, and a traceback if it looks like a bug."""

    task: Any
    reason: str
    traceback: str = ""
    is_for_all: bool = False  # every other task would fail for it too: a full disk
    is_refusal: bool = False  # of the settings: a ForAllError


def failure_of(task: Any, error: BaseException) -> Failure:
    """The Failure for an error: its message; and a traceback unless the user can do something."""
    is_full = isinstance(error, OSError) and error.errno in FULL
    is_refusal = isinstance(error, ForAllError)
    named = f"{type(error).__name__}: {error}"
    if isinstance(error, ValueError | OSError | MemoryError):
        return Failure(task, str(error) or named, "", is_full or is_refusal, is_refusal)
    return Failure(task, named, "".join(traceback.format_exception(error)), is_full)


class Pool:
    """Worker processes. The server that forks them starts with `start`, or else with `run`."""

    def __init__(self, workers: int):
        self.workers = whole_number("workers", workers, 1)
        self._context = multiprocess.get_context("forkserver")

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *error: object) -> None:
        # the server ends, as the next pool of this process may import other modules
        server = forkserver._forkserver
        if server._forkserver_pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server._forkserver_pid, signal.SIGKILL)
        server._stop()

    def start(self, *preload: str) -> None:
        """Starts the server, which imports modules meanwhile. Does nothing if it runs already."""
        self._context.set_forkserver_preload(list(preload))
        with _python_path():
            resource_tracker.ensure_running()  # before: it unblocks SIGINT
            with _without_sigint():
                forkserver.ensure_running()

    def run(
        self,
        function: Function,
        tasks: Sequence[Any],
        on_numbers: OnNumbers = lambda *numbers: None,
        on_outcome: OnOutcome = lambda task, outcome: None,
        on_text: OnText = lambda text: None,
        state_of: StateOf = lambda task: True,
    ) -> list[Failure]:
        """Runs all tasks; what failed.

        `state_of` says whether a task may begin yet, or why it never can. Numbers of a worker that
        died are taken back. Raises what the callbacks raise.
        """
        self.start()
        most_deaths = TRIES * self.workers
        run = _Run(tasks, most_deaths, on_numbers, on_outcome, on_text, state_of)
        try:
            while run.waiting or run.num_busy:
                wanted = min(self.workers, len(run.waiting) + run.num_busy)
                for _ in range(wanted - len(run.workers)):
                    run.workers.append(_Worker(self._context, function))
                run.give_tasks()
                run.hear()
            return run.failures
        finally:
            for worker in run.workers:
                worker.kill()


class _Run:
    """The tasks of a call, and who does them."""

    def __init__(
        self,
        tasks: Sequence[Any],
        most_deaths: int,  # of workers at their start
        on_numbers: OnNumbers,
        on_outcome: OnOutcome,
        on_text: OnText,
        state_of: StateOf,
    ):
        self.tasks = tasks
        self.workers: list[_Worker] = []
        self.waiting = deque(range(len(tasks)))
        self.failures: list[Failure] = []
        self._most_deaths = most_deaths
        self._deaths = Counter[int | None]()  # by the number of the task; None: without one
        self._on_numbers = on_numbers
        self._on_outcome = on_outcome
        self._on_text = on_text
        self._state_of = state_of

    @property
    def num_busy(self) -> int:
        return sum(worker.number is not None for worker in self.workers)

    def give_tasks(self) -> None:
        """Gives a task to each worker that has none, and ends those that say nothing."""
        for worker in list(self.workers):
            if worker.number is None:
                self._give_task(worker)
            elif time.monotonic() - worker.heard > SILENT_SECONDS:
                self._bury(worker, f"the worker reported nothing for {SILENT_SECONDS} s")

    def hear(self) -> None:
        """What workers report, within POLL_SECONDS."""
        ready = connection.wait([worker.pipe for worker in self.workers], POLL_SECONDS)
        for worker in [worker for worker in self.workers if worker.pipe in ready]:
            try:
                is_done, *values = worker.pipe.recv()
            except (EOFError, ConnectionResetError):
                self._bury(
                    worker, "the worker died, perhaps for want of memory (use fewer --workers)"
                )
                continue
            worker.heard = time.monotonic()
            if is_done and worker.number is not None:
                number = worker.number
                worker.number = None
                worker.sums = []
                self._settle(number, *values)
            elif isinstance(values[0], str):
                self._on_text(*values)
            else:
                worker.add(values)
                self._on_numbers(*values)

    def _give_task(self, worker: "_Worker") -> None:
        for number in list(self.waiting):
            state = self._state_of(self.tasks[number])
            if not state:
                continue
            self.waiting.remove(number)
            if state is True:
                worker.begin(number, self.tasks[number])
                return
            self._settle(number, Failure(self.tasks[number], state))

    def _settle(self, number: int, outcome: Any) -> None:
        if isinstance(outcome, Failure):
            self.failures.append(outcome)
            if outcome.is_for_all:
                self.waiting.clear()
        self._on_outcome(self.tasks[number], outcome)

    def _bury(self, worker: "_Worker", reason: str) -> None:
        worker.kill()
        self.workers.remove(worker)
        if worker.sums:
            self._on_numbers(*(-number for number in worker.sums))
        number = worker.number
        self._deaths[number] += 1
        if number is None:  # it died before it had a task
            if self._deaths[None] > self._most_deaths:
                raise OSError(
                    f"{self._deaths[None]} workers died at their start; what they printed may say "
                    "why"
                )
        elif self._deaths[number] < TRIES:
            self.waiting.appendleft(number)
        else:
            self._settle(number, Failure(self.tasks[number], f"{reason}, {TRIES} times"))


class _Worker:
    """A worker process, as the parent sees it."""

    def __init__(self, context: Any, function: Function):
        self.pipe, workers_end = context.Pipe()
        self.process = context.Process(target=_serve, args=(workers_end, function), daemon=True)
        with _without_main():
            self.process.start()
        workers_end.close()  # so that the pipe ends when the worker does
        self.number: int | None = None  # of the task that it is doing
        self.sums: list[float] = []  # of what it has reported of that task
        self.heard = 0.0

    def begin(self, number: int, task: Any) -> None:
        self.number = number
        self.sums = []
        self.heard = time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # it has died, which the next poll finds
            self.pipe.send(task)

    def add(self, numbers: Sequence[float]) -> None:
        sums = self.sums or [0] * len(numbers)
        self.sums = [total + number for total, number in zip(sums, numbers, strict=True)]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it is dead already
            os.kill(self.process.pid, signal.SIGKILL)
        self.pipe.close()


def _serve(pipe: Any, function: Function) -> None:
    """Runs in a worker, until the parent closes the pipe or is gone."""
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            task = pipe.recv()
            try:
                result = function(task, lambda *values: pipe.send((False, *values)))
            except (BrokenPipeError, ConnectionResetError):
                raise
            except BaseException as error:
                result = failure_of(task, error)
            pipe.send((True, result))


# ---------------------------------------------------------------------------- inherited


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Processes that start meanwhile do not run the user's script again.

    It may lack `if __name__ == "__main__"`.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextlib.contextmanager
def _python_path() -> Iterator[None]:
    """PYTHONPATH as sys.path is, which Python 3.11 does not pass on."""
    former = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([PACKAGES, *filter(None, sys.path)])
    try:
        yield
    finally:
        del os.environ["PYTHONPATH"]
        if former is not None:
            os.environ["PYTHONPATH"] = former


@contextlib.contextmanager
def _without_sigint() -> Iterator[None]:
    """SIGINT blocked, which the server and its workers inherit: the parent ends them."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
