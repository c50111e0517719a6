"""Worker processes, all forked from one process that has made what they share.

    source = WorkerSource()
    source.start(["tokenmill.prepare.make"])      it imports these modules, and waits
    source.call(load_tokenizer)                   it calls this meanwhile
    source.begin(function, make_encoder)          it calls make_encoder, once
    worker = Worker(source)                       a fork of it, which calls function(task, report)

The source is a process of its own, not the caller's, which may have threads. It must start none
itself. A worker ends when its pipe is closed or the caller is gone, and so does the source.
"""

import contextlib
import importlib
import os
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import multiprocess
from multiprocess import connection, reduction, resource_tracker

from tokenmill.prepare.failures import failure_of

Function = Callable[[Any, Callable[..., None]], Any]
Begin = Callable[[], Any]


def nothing() -> None:
    """What a source calls that has nothing to make."""


class WorkerSource:
    """The process that workers are forked from."""

    def __init__(self) -> None:
        self._context = multiprocess.get_context("spawn")
        self._process: Any = None
        self._has_begun = False

    @property
    def is_ready(self) -> bool:
        """Whether workers can be forked from it."""
        return self._has_begun and self._process.is_alive()

    def start(self, modules: Sequence[str] = ()) -> None:
        """Starts it, and imports modules there meanwhile. Does nothing if it runs already."""
        if self._process is not None and self._process.is_alive():
            return
        self._pipe, source_end = self._context.Pipe()
        process = self._context.Process(
            target=_fork_workers, args=(source_end, modules), daemon=True
        )
        self._has_begun = False
        resource_tracker.ensure_running()  # before: it unblocks SIGINT
        with _without_sigint(), _without_main():
            process.start()
        self._process = process
        source_end.close()

    def call(self, early: Begin) -> None:
        """Has it call a function that makes what workers may share."""
        self.start()
        self._send(None, early)

    def begin(self, function: Function, begin: Begin) -> None:
        """Has it make what workers share, and begin to fork those that call this function."""
        self.start()
        self._send(function, begin)
        self._has_begun = True

    def _send(self, function: Function | None, begin: Begin) -> None:
        with contextlib.suppress(ConnectionError):  # it has died, as its workers will say
            self._pipe.send((function, begin))

    def fork(self) -> Any:
        """A pipe to a new worker. The worker says its number first."""
        pipe, workers_end = self._context.Pipe()
        with contextlib.suppress(OSError):  # it has died: the pipe ends
            reduction.send_handle(self._pipe, workers_end.fileno(), self._process.pid)
        workers_end.close()  # so that the pipe ends when the worker does
        return pipe

    def kill(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.join()
        self._pipe.close()


class Worker:
    """A worker process, as the caller sees it."""

    def __init__(self, source: WorkerSource):
        self.pipe = source.fork()
        self.pid: int | None = None  # once it has begun
        self.number: int | None = None  # of the task that it is doing
        self.sums: list[float] = []  # of what it has reported of that task
        self.heard = time.monotonic()

    @property
    def is_free(self) -> bool:
        return self.pid is not None and self.number is None

    def do(self, number: int, task: Any) -> None:
        self.number = number
        self.sums = []
        self.heard = time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # it has died, which the next poll finds
            self.pipe.send(task)

    def add(self, numbers: Sequence[float]) -> None:
        sums = self.sums or [0] * len(numbers)
        self.sums = [total + number for total, number in zip(sums, numbers, strict=True)]

    def kill(self) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it is dead already
                os.kill(self.pid, signal.SIGKILL)
        self.pipe.close()


# ---------------------------------------------------------------------------- in the processes


def _fork_workers(pipe: Any, modules: Sequence[str]) -> None:
    """Runs in the source, until the caller closes the pipe or is gone."""
    for module in modules:
        importlib.import_module(module)
    with contextlib.suppress(EOFError, OSError):
        function = None
        while function is None:
            function, begin = pipe.recv()
            with contextlib.suppress(Exception):  # each worker meets the error too, and reports it
                begin()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers
        while True:
            handle = reduction.recv_handle(pipe)
            if os.fork() == 0:
                pipe.close()
                _work_and_exit(connection.Connection(handle), function)
            os.close(handle)


def _work_and_exit(pipe: Any, function: Function) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        _work(pipe, function)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def _work(pipe: Any, function: Function) -> None:
    """Runs in a worker, until the caller closes the pipe or is gone."""
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        pipe.send((False, os.getpid()))
        while True:
            task = pipe.recv()
            try:
                result = function(task, lambda *values: pipe.send((False, *values)))
            except (BrokenPipeError, ConnectionResetError):
                raise
            except BaseException as error:
                result = failure_of(task, error)
            pipe.send((True, result))


_REPLACING_MAIN = threading.Lock()  # by one of several threads that prepare at once


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Processes that start meanwhile do not run the user's script again.

    It may lack `if __name__ == "__main__"`.
    """
    with _REPLACING_MAIN:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


@contextlib.contextmanager
def _without_sigint() -> Iterator[None]:
    """SIGINT blocked, which the source and its workers inherit: the caller ends them."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
