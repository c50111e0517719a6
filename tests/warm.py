"""Runs Python commands as `subprocess.run` does, in forks of a Python that has imported what takes
long already.

    run("prepare_data.py", "--source", "a", cwd=folder)      as  python prepare_data.py --source a
    run("-m", "tokenmill", "show", folder, "--row", 0)       as  python -m tokenmill show ...
    run("-c", "import tokenmill; print(1)")                  as  python -c ...
    run_ranks(2, "train.py")                         as  torchrun --nproc-per-node 2 train.py

Importing torch, pyarrow and tyro takes two seconds, and the tests run some hundred commands. So
each test process has one server, which imports them once and forks for every command:

    tests  --a socket-->  server: imports  --fork-->  a command: its own folder, environment,
                                                      output, signals, status

The server runs nothing itself, so it has no threads that a fork would miss. Left out are the
options of Python, its environment variables but PYTHONPATH, and the tidying of modules when it
ends, which takes 0.2 s once torch is imported. Each area also has tests that start a Python of
their own.
"""

import atexit
import fcntl
import gc
import importlib
import json
import multiprocessing.process
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
# not huggingface_hub, which reads the environment while it is imported
IMPORTED = """
    tokenmill tokenmill.cli tokenmill.prepare.command tokenmill.prepare.make tokenmill.look.show
    tokenmill.look.report tokenmill.look.verify tokenmill.look.mix tokenmill.exchange.convert
    tokenmill.batches.packed_rows tokenmill.batches.get_batch tokenmill.tokenize.tokenizer
    torch.distributed torch.utils.data s3fs
"""


def run(*words, cwd=None, env=None, timeout: float = 300) -> subprocess.CompletedProcess:
    """Runs a command to its end.

    Its status is negative where a signal ended it, as subprocess has it.
    """
    return Command(*words, cwd=cwd, env=env).done(timeout)


def run_ranks(
    ranks: int, *words, cwd=None, env=None, timeout: float = 180
) -> list[subprocess.CompletedProcess]:
    """Runs a command on some ranks, which find each other as torchrun's do."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free.getsockname()[1]),
            "WORLD_SIZE": str(ranks),
        }
    base = dict(os.environ if env is None else env, **meeting, LOCAL_WORLD_SIZE=str(ranks))
    commands = []
    for rank in map(str, range(ranks)):
        env = base | {"RANK": rank, "LOCAL_RANK": rank}
        commands.append(Command(*words, cwd=cwd, env=env))
    return [command.done(timeout) for command in commands]


class Command:
    """A command that runs, in a process of its own. One must wait until it is `done`."""

    def __init__(self, *words, cwd=None, env=None):
        self.words = [*map(str, words)]
        self._output = tempfile.TemporaryDirectory()
        env = os.environ if env is None else env
        environment = {key: os.fspath(value) for key, value in env.items()}
        request = {"words": self.words, "cwd": os.fspath(cwd or os.getcwd()), "env": environment}
        self.pid = _ask(request | {"output": self._output.name})

    def printed(self) -> str:
        """What it has written to its standard output by now."""
        path = Path(self._output.name) / "stdout"
        return path.read_text(errors="replace") if path.exists() else ""

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it by SIGKILL, and waits for it."""
        self.send_signal(signal.SIGKILL)
        self.done()

    def done(self, timeout: float = 300) -> subprocess.CompletedProcess:
        """Waits for its end.

        TimeoutExpired, once it is killed, if it takes longer than `timeout` seconds.
        """
        status = _ask({"wait": self.pid}, timeout, self.pid)
        out, err = (
            (Path(self._output.name) / name).read_text(errors="replace")
            for name in ("stdout", "stderr")
        )
        self._output.cleanup()
        if status is None:
            raise subprocess.TimeoutExpired(self.words, timeout, out, err)
        return subprocess.CompletedProcess(self.words, status, out, err)


# ---------------------------------------------------------------------------- in the test process


_numbers = count()


@cache
def _server(pid: int) -> tuple[socket.socket, subprocess.Popen]:
    """The server of the test process of this id: a fork of it has one of its own."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, __file__, str(theirs.fileno())]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    process = subprocess.Popen(
        command, pass_fds=[theirs.fileno()], env=dict(os.environ, PYTHONPATH=paths), cwd=ROOT
    )
    theirs.close()
    atexit.register(_hang_up, ours, process)
    return ours, process


def _hang_up(control: socket.socket, process: subprocess.Popen) -> None:
    control.close()
    process.wait()


def _ask(request: dict, timeout: float | None = None, pid: int | None = None) -> int | None:
    """The server's answer; None if it took longer, and the process `pid` was killed."""
    control, _ = _server(os.getpid())
    number = next(_numbers)
    control.sendall(json.dumps(request | {"number": number}).encode() + b"\n")
    control.settimeout(timeout)
    try:
        return _answer(control, number)
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        control.settimeout(None)
        _answer(control, number)
        return None


def _answer(control: socket.socket, number: int) -> int:
    """The answer to the request of this number; one to a request that was interrupted is passed
    over.
    """
    while True:
        data = b""
        while not data.endswith(b"\n"):
            byte = control.recv(1)
            if not byte:
                raise RuntimeError("tests/warm.py: the server of commands ended")
            data += byte
        of, value = map(int, data.split())
        if of == number:
            return value


# ------------------------------------------------------------------ in the server, and its forks


def serve(control: socket.socket) -> dict:
    """Forks for each request until the tests hang up. Returns in the forks, with the request."""
    for line in control.makefile():
        request = json.loads(line)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        else:
            outputs = [
                os.open(f"{request['output']}/{name}", os.O_WRONLY | os.O_CREAT)
                for name in ("stdout", "stderr")
            ]
            if not (answer := os.fork()):
                control.close()
                for number, file in enumerate([os.open(os.devnull, os.O_RDONLY), *outputs]):
                    os.dup2(file, number)
                    os.close(file)
                return request
            for file in outputs:
                os.close(file)
        control.sendall(b"%d %d\n" % (request["number"], answer))
    os._exit(0)


def lend_a_child() -> None:
    """Forks a child that becomes the server that forks a preparation's workers.

    The child waits, and is told the arguments and the open files that a new Python would have been
    given.
    """
    util = importlib.import_module("multiprocess.util")
    spawn = util.spawnv_passfds
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if not pid:
        ours.close()
        message, received, *_ = socket.recv_fds(theirs, 1 << 20, 16)
        if not message:
            os._exit(0)
        request = json.loads(message)
        # above all numbers that are asked for
        high = [fcntl.fcntl(file, fcntl.F_DUPFD, 500) for file in received]
        for file in (*received, theirs.detach()):
            os.close(file)
        for file, number in zip(high, request["files"], strict=True):
            os.dup2(file, number)
            os.close(file)  # whoever has the other end is to see this one closed
        os.environ.clear()
        os.environ.update(request["env"])
        sys.argv = ["-c", request["arguments"][-1]]
        exec(request["arguments"][-2])
        os._exit(0)
    theirs.close()

    def lend(path, arguments, files):
        arguments = [os.fsdecode(argument) for argument in arguments]
        if arguments[-1] != "--multiprocessing-fork":  # multiprocess's resource tracker
            return spawn(path, arguments, files)
        util.spawnv_passfds = spawn
        request = {"arguments": arguments, "files": list(files), "env": dict(os.environ)}
        socket.send_fds(ours, [json.dumps(request).encode()], list(files))
        ours.close()
        return pid

    util.spawnv_passfds = lend


def become(words: list[str], cwd: str, env: dict[str, str]) -> None:
    """Makes this process that of a command, and runs it."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    multiprocessing.process.ORIGINAL_DIR = cwd  # where spawned workers begin
    with suppress(ModuleNotFoundError):
        importlib.import_module("multiprocess.process").ORIGINAL_DIR = cwd
    first, *rest = words
    sys.path[: len(OWN_PATH)] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    folders = {"-c": "", "-m": cwd}
    sys.path.insert(0, folders.get(first, str(Path(cwd, first).parent)))
    if Path(first).name == "prepare_data.py" or words[:3] == ["-m", "tokenmill", "prepare"]:
        lend_a_child()
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), sys.modules["__main__"].__dict__)
    else:
        sys.argv = words
        runpy.run_path(first, run_name="__main__")


def end(status: int) -> None:
    """Ends this process as Python does, but for its modules: threads are waited for, and `atexit`
    has its turn.
    """
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    # the script's folder, and PYTHONPATH
    OWN_PATH = [str(ROOT / "tests"), str(ROOT), str(ROOT / "tests")]
    assert sys.path[: len(OWN_PATH)] == OWN_PATH, sys.path
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the tests' own
    for name in IMPORTED.split():
        importlib.import_module(name)
    importlib.import_module("pyarrow").array([])  # imports pandas, where it is installed
    gc.freeze()
    asked = serve(socket.socket(fileno=int(sys.argv[1])))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    status = 0
    try:
        become(asked["words"], asked["cwd"], asked["env"])
    except SystemExit as left:
        if not isinstance(left.code, int | None):
            raise
        status = left.code or 0
    end(status)
