"""Tasks -> worker processes on this machine. A worker that dies or stands still costs its task one retry.

    with Pool(workers=8) as pool:
        pool.start("tokenmill.prepare.worker", {"TOKENMILL_ENCODER": ...})     optional: what workers begin with
        failures = pool.run(function, tasks, setup)      what on_outcome was given that is a Failure

    function(state, task, report)     runs in a worker; `report` passes numbers to on_progress
    setup() -> (state, told)          runs once in a worker; `told` is passed to on_ready

Workers are forked from a server, which has imported a module beforehand. What that module has computed, such as a
proven encoder, each worker has from the start, in shared memory.
"""

import contextlib
import os
import signal
import sys
import time
import types
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import multiprocess
from multiprocess import connection, forkserver

from tokenmill.prepare.failures import Failure, failure_of

TRIES = 2
SILENT_SECONDS = 600  # after which a worker is taken for dead; it reports something every few MB
POLL_SECONDS = 0.5


def no_setup() -> tuple[None, None]:
    """The setup of workers that need none."""
    return None, None


class Pool:
    """Worker processes. The server that forks them starts with `start`, or else with `run`."""

    def __init__(self, workers: int):
        self.workers, self._context = workers, multiprocess.get_context("forkserver")

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *error: object) -> None:
        server = forkserver._forkserver  # is ended, as the next pool of this process may import other modules
        if server._forkserver_pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server._forkserver_pid, signal.SIGKILL)
        server._stop()

    def start(self, preload: str | None = None, environment: Mapping[str, str] | None = None) -> None:
        """Starts the server, which imports a module meanwhile. Does nothing if it runs already."""
        more = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(environment or {})}  # not passed on by 3.11
        before = {name: os.environ.get(name) for name in more}
        self._context.set_forkserver_preload([preload] if preload else [])
        os.environ.update(more)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which the server and its workers inherit:
        try:  # the parent ends them
            with _without_main():
                forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    def run(
        self,
        function: Callable[[Any, Any, Callable[..., None]], Any],
        tasks: Sequence[Any],
        setup: Callable[[], tuple[Any, Any]] = no_setup,
        on_progress: Callable[..., None] = lambda *numbers: None,
        on_outcome: Callable[[Any, Any], None] = lambda task, outcome: None,
        on_ready: Callable[[Any], None] = lambda told: None,
        state_of: Callable[[Any], bool | str] = lambda task: True,
    ) -> list[Failure]:
        """Runs all tasks; what failed. `state_of` says whether a task may begin yet, or why it never can.

        Raises what `setup` raises, in one line, and what the callbacks raise.
        """
        waiting, tries, failures = deque(range(len(tasks))), Counter[int](), list[Failure]()
        workers: list[_Worker] = []
        self.start()

        def settle(number: int, outcome: Any) -> None:
            if isinstance(outcome, Failure):
                outcome = outcome._replace(task=tasks[number])
                failures.append(outcome)
                if outcome.is_for_all:
                    waiting.clear()
            on_outcome(tasks[number], outcome)

        def next_task() -> int | None:
            for number in list(waiting):
                state = state_of(tasks[number])
                if state is not False:
                    waiting.remove(number)
                if state is True:
                    return number
                if isinstance(state, str):
                    settle(number, Failure(None, state))
            return None

        def bury(one: _Worker, reason: str) -> None:
            one.kill()
            workers.remove(one)
            if one.sums:
                on_progress(*(-number for number in one.sums))
            if one.number is None:
                raise OSError(f"{reason}, while it started")
            tries[one.number] += 1
            if tries[one.number] < TRIES:
                waiting.appendleft(one.number)
            else:
                settle(one.number, Failure(None, f"{reason}, {TRIES} times"))

        def hear(one: _Worker, kind: str, *values: Any) -> None:
            one.heard = time.monotonic()
            if kind == "progress":
                one.sums = [sum(pair) for pair in zip(one.sums or [0] * len(values), values, strict=True)]
                on_progress(*values)
            elif kind == "ready":
                one.is_ready = True
                on_ready(*values)
            elif kind == "unable":
                raise ValueError(values[0])
            elif one.number is not None:
                number, one.number, one.sums = one.number, None, []
                settle(number, *values)

        try:
            while waiting or any(one.number is not None for one in workers):
                busy = sum(one.number is not None for one in workers)
                for _ in range(min(self.workers, len(waiting) + busy) - len(workers)):
                    workers.append(_Worker(self._context, setup, function))
                for pipe in connection.wait([one.pipe for one in workers], POLL_SECONDS):
                    one = next(one for one in workers if one.pipe is pipe)
                    try:
                        message = pipe.recv()
                    except (EOFError, ConnectionResetError):
                        bury(one, "the worker died, perhaps for want of memory (use fewer --workers)")
                    else:
                        hear(one, *message)
                for one in [one for one in workers if one.is_ready and one.number is None]:
                    if (number := next_task()) is not None:
                        one.give(number, tasks[number])
                for one in [one for one in workers if time.monotonic() - one.heard > SILENT_SECONDS]:
                    if one.number is not None:
                        bury(one, f"the worker reported nothing for {SILENT_SECONDS} s")
            return failures
        finally:
            for one in workers:
                one.kill()


class _Worker:
    """A worker process, as the parent sees it."""

    def __init__(self, context: Any, setup: Callable[..., Any], function: Callable[..., Any]):
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, setup, function), daemon=True)
        with _without_main():
            self.process.start()
        theirs.close()  # so that the pipe ends when the worker does
        self.number: int | None = None  # of the task that it is doing
        self.sums: list[float] = []  # of what it has reported of that task
        self.is_ready, self.heard = False, time.monotonic()

    def give(self, number: int, task: Any) -> None:
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


def _serve(pipe: Any, setup: Callable[..., Any], function: Callable[..., Any]) -> None:
    """Runs in a worker, until the parent closes the pipe or is gone."""
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            state, told = setup()
            pipe.send(("ready", told))
        except Exception as error:
            pipe.send(("unable", failure_of(None, error).reason))
            return
        while True:
            task = pipe.recv()
            try:
                result = function(state, task, lambda *numbers: pipe.send(("progress", *numbers)))
            except (BrokenPipeError, ConnectionResetError):
                raise
            except BaseException as error:
                result = failure_of(None, error)
            pipe.send(("outcome", result))
