"""Where workers come from: one process imports, sets up once, and then forks each worker, which is ready at once.

    parent  --spawn-->  nursery: setup(task)  --fork-->  worker, worker, worker
       \\________________________ a pipe to each ________________________/

What `setup` made, an engine that is proven and knows the common words, is every worker's own from its first task on,
and lies in memory once until they differ. A setup that fails is tried again by each worker, so that each task says
why it has no result. An engine that starts threads of its own, as fastokens does, would not live through a fork: then
the nursery becomes the one worker itself, and the next is born in another.
"""

import contextlib
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NoReturn

import multiprocess
from multiprocess.connection import Connection
from multiprocess.reduction import recv_handle, send_handle

from tokenmill.prepare.outcomes import failure_of

REAP_SECONDS = 3.0


@dataclass
class Worker:
    """The parent's side of a worker."""

    connection: Any
    nursery: "Nursery"
    pid: int | None = None  # once it has said that it is born
    task: int | None = None  # the number of the task it is doing
    progress: list = field(default_factory=list)  # what it reported of that task
    heard: float = field(default_factory=time.monotonic)  # when it was last given a task, or said something

    def kill(self) -> None:
        """Ends it; one that is not born yet with the nursery that does not bear it."""
        if self.pid is None:
            self.nursery.kill()
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def is_gone(self, seconds: float) -> bool:
        """Whether its end of the pipe is closed within so many seconds; what it still says is not heard."""
        deadline = time.monotonic() + seconds
        try:
            while self.connection.poll(max(0.0, deadline - time.monotonic())):
                self.connection.recv_bytes()
        except (EOFError, OSError):
            return True
        return False

    def exit_code(self) -> int | None:
        """How it ended, as far as the nursery knows: a status, or a signal negated."""
        return None if self.pid is None else self.nursery.exit_code(self.pid)


class Nursery:
    """The parent's side of the process that workers are forks of. `work` is (function, setup), pickled."""

    def __init__(self, work: bytes):
        context = multiprocess.get_context("spawn")
        self._control, theirs = context.Pipe()
        self._process = context.Process(target=_nurse, args=(theirs, work), daemon=True)
        with _born_deaf_to_ctrl_c(), _without_main():
            self._process.start()
        theirs.close()
        self.is_spent = False  # it bears no more
        self.is_worker = False  # it has become a worker itself

    def is_alive(self) -> bool:
        return bool(self._process.is_alive())

    def bore(self, worker: Worker, pid: int) -> None:
        """Takes note of who a worker is, that says so itself."""
        worker.pid = pid
        if pid == self._process.pid:
            self.is_spent = self.is_worker = True

    def bear(self, task: bytes) -> Worker:
        """A new worker; the first of all is set up for this task."""
        ours, theirs = multiprocess.Pipe()
        try:
            self._control.send(("fork", task))
            send_handle(self._control, theirs.fileno(), self._process.pid)
        except OSError:
            self.is_spent = True  # a worker, or dead; that the worker will never be, its closed pipe says
        theirs.close()
        return Worker(ours, self)

    def exit_code(self, pid: int) -> int | None:
        if pid == self._process.pid:
            return self.end_code()
        with contextlib.suppress(OSError, EOFError):
            self._control.send(("reap", pid))
            if self._control.poll(2 * REAP_SECONDS):
                code: int | None = self._control.recv()
                return code
        return None

    def end_code(self) -> int | None:
        """How the nursery itself ended, if it has."""
        self._process.join(0.1)
        code: int | None = self._process.exitcode
        return code

    def let_go(self) -> None:
        """Hangs up; the nursery leaves by itself."""
        self._control.close()
        self._process.join(REAP_SECONDS)
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.join(REAP_SECONDS)  # and no longer, where not even that ends it: a mount that is dead


@contextlib.contextmanager
def _born_deaf_to_ctrl_c():
    """Ctrl-C reaches the whole process group; workers ignore it, and the parent stops them.

    Only a main thread may say so for a process that is still to be born; of another thread's, `_nurse` does.
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


# ---------------------------------------------------------------------------- in the nursery


def _nurse(control, work: bytes) -> None:
    """Forks a worker whenever it is asked to, until the parent hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    state, may_fork = None, True
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            what, value = control.recv()
            if what == "reap":
                control.send(_reap(value))
                continue
            handle = recv_handle(control)
            if state is None:
                state, may_fork = _set_up(work, value)
            if not may_fork or os.fork() == 0:
                _live(Connection(handle), control, work, state)
            os.close(handle)


def _set_up(work: bytes, task: bytes) -> tuple[Any, bool]:
    """What setup makes for a task, and whether a fork is as good; None where it fails: the worker tries itself."""
    try:
        _, setup = pickle.loads(work)
        found = pickle.loads(task)
        before = _threads()
        return setup(found), _threads() <= before
    except BaseException:
        return None, True


def _threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1  # where the system does not tell


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


def _live(connection, control, work: bytes, state: Any) -> NoReturn:
    """The life of a worker: tasks come in, progress and outcomes go out, until the parent hangs up.

    It says that it is born before it closes the nursery's pipe: by then the parent can know whom it asks in vain.
    """
    code = 1
    try:
        with contextlib.suppress(EOFError, ConnectionError):
            connection.send(("born", os.getpid()))
            control.close()
            while True:
                state, outcome = _do(connection, connection.recv_bytes(), work, state)
                connection.send(("outcome", outcome))
        code = 0
    finally:
        os._exit(code)  # what the nursery would do when it leaves is not a worker's


def _do(connection, task: bytes, work: bytes, state: Any) -> tuple[Any, Any]:
    try:
        function: Callable
        function, setup = pickle.loads(work)  # here, as what it imports may be missing
        found = pickle.loads(task)
        state = setup(found) if state is None else state
        return state, function(state, found, lambda *numbers: connection.send(("progress", numbers)))
    except BaseException as error:
        return state, failure_of(error)
