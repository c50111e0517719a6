"""Tasks -> worker processes on this machine. A worker that dies or stands still costs its task one retry.

    with Pool(workers=8) as pool:
        pool.start("tokenmill.prepare.make")      optional: a module that workers begin with
        failures = pool.run(function, tasks)      what on_outcome was given that is a Failure

    function(task, report)     runs in a worker; `report` passes texts to on_text, and numbers to on_numbers

A Failure is one line that says why a task has no result. Workers are forked from a server, which imports that module
once, while the parent does something else.
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


class ForAllError(ValueError):
    """What every task would fail for."""


class Failure(NamedTuple):
    """Why a task has no result: one line for the user, and a traceback if it looks like a bug."""

    task: Any
    reason: str
    traceback: str = ""
    is_for_all: bool = False  # every other task would fail for it too: a full disk


def failure_of(task: Any, error: BaseException) -> Failure:
    """The Failure for an error: its message, and a traceback too unless the user can do something about it."""
    expected = isinstance(error, ValueError | OSError | MemoryError)
    reason = str(error) if expected and str(error) else f"{type(error).__name__}: {error}"
    is_for_all = isinstance(error, ForAllError) or (
        isinstance(error, OSError) and error.errno in FULL
    )
    return Failure(
        task, reason, "" if expected else "".join(traceback.format_exception(error)), is_for_all
    )


PACKAGES = str(Path(__file__).resolve().parents[2])  # where this package is, if it is not installed
TRIES = 2
SILENT_SECONDS = 600  # after which a worker is taken for dead; it reports something every few MB
POLL_SECONDS = 0.5


class Pool:
    """Worker processes. The server that forks them starts with `start`, or else with `run`."""

    def __init__(self, workers: int):
        self.workers = whole_number("workers", workers, 1)
        self._context = multiprocess.get_context("forkserver")

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *error: object) -> None:
        server = (
            forkserver._forkserver
        )  # is ended, as the next pool of this process may import other modules
        if server._forkserver_pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server._forkserver_pid, signal.SIGKILL)
        server._stop()

    def start(self, *preload: str) -> None:
        """Starts the server, which imports modules meanwhile. Does nothing if it runs already."""
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [PACKAGES, *filter(None, sys.path)]
        )  # not passed on by 3.11
        self._context.set_forkserver_preload(list(preload))
        resource_tracker.ensure_running()  # before: it unblocks SIGINT
        mask = signal.pthread_sigmask(
            signal.SIG_BLOCK, {signal.SIGINT}
        )  # which the server and its workers inherit:
        try:  # the parent ends them
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)

    def run(
        self,
        function: Callable[[Any, Callable[..., None]], Any],
        tasks: Sequence[Any],
        on_numbers: Callable[..., None] = lambda *numbers: None,
        on_outcome: Callable[[Any, Any], None] = lambda task, outcome: None,
        on_text: Callable[[str], None] = lambda text: None,
        state_of: Callable[[Any], bool | str] = lambda task: True,
    ) -> list[Failure]:
        """Runs all tasks; what failed. `state_of` says whether a task may begin yet, or why it never can. Numbers of a
        worker that died are taken back. Raises what the callbacks raise.
        """
        waiting, tries, failures = deque(range(len(tasks))), Counter[int | None](), list[Failure]()
        workers: list[_Worker] = []
        self.start()

        def settle(number: int, outcome: Any) -> None:
            if isinstance(outcome, Failure):
                failures.append(outcome)
                if outcome.is_for_all:
                    waiting.clear()
            on_outcome(tasks[number], outcome)

        def give(worker: _Worker) -> None:
            for number in list(waiting):
                if state := state_of(tasks[number]):
                    waiting.remove(number)
                    if state is True:
                        worker.begin(number, tasks[number])
                        return
                    settle(number, Failure(tasks[number], state))

        def bury(worker: _Worker, reason: str) -> None:
            worker.kill()
            workers.remove(worker)
            if worker.sums:
                on_numbers(*(-number for number in worker.sums))
            tries[worker.number] += 1
            if worker.number is None:  # it died before it had a task
                if tries[None] > TRIES * self.workers:
                    raise OSError(
                        f"{tries[None]} workers died at their start; what they printed may say why"
                    )
            elif tries[worker.number] < TRIES:
                waiting.appendleft(worker.number)
            else:
                settle(worker.number, Failure(tasks[worker.number], f"{reason}, {TRIES} times"))

        def hear(worker: _Worker, is_done: bool, *values: Any) -> None:
            worker.heard = time.monotonic()
            if is_done and worker.number is not None:
                number, worker.number, worker.sums = worker.number, None, []
                settle(number, *values)
            elif isinstance(values[0], str):
                on_text(*values)
            else:
                worker.sums = list(
                    map(sum, zip(worker.sums or [0] * len(values), values, strict=True))
                )
                on_numbers(*values)

        try:
            while waiting or any(worker.number is not None for worker in workers):
                busy = sum(worker.number is not None for worker in workers)
                for _ in range(min(self.workers, len(waiting) + busy) - len(workers)):
                    workers.append(_Worker(self._context, function))
                for worker in list(workers):
                    if worker.number is None:
                        give(worker)
                    elif time.monotonic() - worker.heard > SILENT_SECONDS:
                        bury(worker, f"the worker reported nothing for {SILENT_SECONDS} s")
                ready = connection.wait([worker.pipe for worker in workers], POLL_SECONDS)
                for worker in [worker for worker in workers if worker.pipe in ready]:
                    try:
                        hear(worker, *worker.pipe.recv())
                    except (EOFError, ConnectionResetError):
                        bury(
                            worker,
                            "the worker died, perhaps for want of memory (use fewer --workers)",
                        )
            return failures
        finally:
            for worker in workers:
                worker.kill()


class _Worker:
    """A worker process, as the parent sees it."""

    def __init__(self, context: Any, function: Callable[..., Any]):
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, function), daemon=True)
        with _without_main():
            self.process.start()
        theirs.close()  # so that the pipe ends when the worker does
        self.number: int | None = None  # of the task that it is doing
        self.sums: list[float] = []  # of what it has reported of that task
        self.heard = 0.0

    def begin(self, number: int, task: Any) -> None:
        self.number, self.sums, self.heard = number, [], time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # it has died, which the next poll finds
            self.pipe.send(task)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it is dead already
            os.kill(self.process.pid, signal.SIGKILL)
        self.pipe.close()


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Processes that start meanwhile do not run the user's script again: it may lack `if __name__ == "__main__"`."""
    main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _serve(pipe: Any, function: Callable[..., Any]) -> None:
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
