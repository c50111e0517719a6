"""A fork server: one process imports, sets up once, and then forks each worker, which is ready at once.

    parent  --spawn-->  fork server: setup(task)  --fork-->  worker, worker, worker
       \\____________________________ a pipe to each ____________________________/

Every worker starts with a copy of what `setup` made, such as an engine that is proven and has seen the common words.
The copies share their memory until they differ. If `setup` fails, each worker tries it again, so that every task
reports why it has no result.

`setup` must be safe to fork: it may leave behind no thread that a worker needs. tiktoken and gigatoken start none,
tokenizers is set to start none, and fsspec starts its thread again in a process that was forked.
"""

import contextlib
import gc
import importlib
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NoReturn

import multiprocess
from multiprocess.connection import Connection
from multiprocess.reduction import recv_handle, send_handle

from tokenmill.prepare.outcomes import failure_of

REAP_SECONDS = 3.0
COLLECT_AFTER = 100_000  # objects


@dataclass
class Worker:
    """The parent's side of a worker."""

    connection: Any
    server: "ForkServer"
    pid: int | None = None  # known once the worker says that it has started
    task: int | None = None  # the number of the task that it is doing
    last: int | None = None  # of the one that it did last, or is doing
    progress: list = field(default_factory=list)  # what it has reported of that task
    heard: float = field(default_factory=time.monotonic)  # when it was last given a task, or sent a message

    def kill(self) -> None:
        """Kills the worker. If it has not started, kills the fork server, which has failed to start it."""
        if self.pid is None:
            self.server.kill()
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def is_gone(self, seconds: float) -> bool:
        """Whether its end of the pipe closes within so many seconds; discards what it still sends."""
        deadline = time.monotonic() + seconds
        try:
            while self.connection.poll(max(0.0, deadline - time.monotonic())):
                self.connection.recv_bytes()
        except (EOFError, OSError):
            return True
        return False

    def exit_code(self) -> int | None:
        """How it ended, or how its server did if it never started: a status, a signal negated, or None if unknown."""
        return self.server.end_code() if self.pid is None else self.server.exit_code(self.pid)


class ForkServer:
    """The parent's side of the process that workers are forked from. It starts by importing the modules `preload`, so
    begin it before you know the work. What cannot be imported is imported again by what needs it.
    """

    def __init__(self, preload: Sequence[str] = ()):
        context = multiprocess.get_context("spawn")
        self._control, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, tuple(preload)), daemon=True)
        with _ignoring_ctrl_c(), _without_main():
            self._process.start()
        theirs.close()

    def use(self, work: bytes) -> None:
        """Says what workers do: (function, setup), pickled. Needed once, before the first worker."""
        try:
            self._control.send(("work", work))
        except OSError:
            self.kill()  # it has died, or is about to

    def is_alive(self) -> bool:
        return bool(self._process.is_alive())

    def start_worker(self, task: bytes) -> Worker:
        """Starts a worker. The first one decides which task `setup` is called with."""
        ours, theirs = multiprocess.Pipe()
        try:
            self._control.send(("fork", task))
            send_handle(self._control, theirs.fileno(), self._process.pid)
        except OSError:
            self.kill()  # it has died, or is about to; the closed pipe says that this worker never starts
        theirs.close()
        return Worker(ours, self)

    def exit_code(self, pid: int) -> int | None:
        """How a worker ended."""
        with contextlib.suppress(OSError, EOFError):
            self._control.send(("reap", pid))
            if self._control.poll(2 * REAP_SECONDS):
                code: int | None = self._control.recv()
                return code
        return None

    def end_code(self) -> int | None:
        """How the server itself ended, if it has."""
        self._process.join(0.1)
        code: int | None = self._process.exitcode
        return code

    def close(self) -> None:
        """Closes the pipe; the server then exits by itself."""
        self._control.close()
        self._process.join(REAP_SECONDS)
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.join(REAP_SECONDS)  # no longer: a process that waits for a dead mount cannot be killed


@contextlib.contextmanager
def _ignoring_ctrl_c():
    """Makes a process that starts here ignore Ctrl-C, which reaches the whole process group; the parent stops it.

    Only the main thread can set this before the process starts. In other threads `_serve` sets it.
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
    """Keeps a spawned process from running the parent's main script, which may prepare again or load torch."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


# ---------------------------------------------------------------------------- in the fork server


class _Work:
    """What workers do: (function, setup), unpickled when it is first needed, as what it imports may be missing."""

    def __init__(self, pickled: bytes):
        self._pickled = pickled
        self._loaded: tuple[Callable, Callable] | None = None

    def load(self) -> tuple[Callable, Callable]:
        if self._loaded is None:
            self._loaded = pickle.loads(self._pickled)
        return self._loaded

    def set_up(self, task: bytes) -> Any:
        """What setup(task) makes; None where it fails: then the worker tries."""
        try:
            _, setup = self.load()
            return setup(pickle.loads(task))
        except BaseException:
            return None


def _serve(control, preload: tuple[str, ...]) -> None:
    """Forks a worker whenever the parent asks for one, until the parent closes the pipe, or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in preload:
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    work, state, children = _Work(b""), None, set()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            what, value = control.recv()
            if what == "work":
                work = _Work(value)
                continue
            if what == "reap":
                control.send(_reap(value))
                children.discard(value)
                continue
            handle = recv_handle(control)
            state = work.set_up(value) if state is None else state
            if (pid := os.fork()) == 0:
                _run_worker(Connection(handle), control, work, state)
            children.add(pid)
            os.close(handle)
    for pid in children:  # one that waits for a dead mount would never notice
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _reap(pid: int) -> int | None:
    deadline = time.monotonic() + REAP_SECONDS
    while time.monotonic() < deadline:
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return None


def _run_worker(connection, control, work: _Work, state: Any) -> NoReturn:
    """A worker: receives tasks, sends progress and outcomes, until the parent closes the pipe."""
    code = 1
    try:
        with contextlib.suppress(EOFError, ConnectionError):
            connection.send(("started", os.getpid()))
            control.close()
            gc.freeze()  # the collector never looks at what setup made,
            gc.set_threshold(COLLECT_AFTER)  # and seldom at files by the thousand: it took a quarter of the time
            while True:
                state, outcome = _do(connection, connection.recv_bytes(), work, state)
                connection.send(("outcome", outcome))
        code = 0
    finally:
        os._exit(code)  # skips the exit handlers, which are the server's


def _do(connection, task: bytes, work: _Work, state: Any) -> tuple[Any, Any]:
    try:
        function, setup = work.load()
        found = pickle.loads(task)
        state = setup(found) if state is None else state
        return state, function(state, found, lambda *numbers: connection.send(("progress", numbers)))
    except BaseException as error:
        return state, failure_of(error)
