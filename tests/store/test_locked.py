"""One process at a time changes a folder, and a second one is told who does."""

import contextlib
import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time

import pytest
import warm
from making import ROOT

from tokenmill.store.files import this_machine
from tokenmill.store.locked import TAKING, WRITER, locked


def no_locks(*_):
    raise OSError(errno.ENOLCK, "No locks available")


LOCKS = {"working": fcntl.flock, "none": no_locks, "lying": lambda *_: None}


@pytest.mark.parametrize("locks", LOCKS)
def test_a_second_process_is_refused_and_told_who_is_there(tmp_path, monkeypatch, locks):
    monkeypatch.setattr(fcntl, "flock", LOCKS[locks])
    with locked(tmp_path / "folder"):
        with (
            pytest.raises(
                OSError, match=rf"another preparation is writing here: process {os.getpid()} on .*, since 20"
            ),
            locked(tmp_path / "folder"),
        ):
            raise AssertionError("two at once")
        assert (tmp_path / "folder" / WRITER).exists(), "the second one leaves the first one's"
    assert not list((tmp_path / "folder").iterdir())
    with locked(tmp_path / "folder"):
        pass


@pytest.mark.parametrize("locks", LOCKS)
def test_what_a_killed_process_leaves_keeps_nobody_out(tmp_path, monkeypatch, locks):
    code = (
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path; from tokenmill.store.locked import locked\n"
        f"with locked(Path({str(tmp_path)!r})): os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert (tmp_path / WRITER).exists()
    monkeypatch.setattr(fcntl, "flock", LOCKS[locks])
    with locked(tmp_path):
        assert json.loads((tmp_path / WRITER).read_text())["process"] == os.getpid()


def test_a_later_process_with_the_same_number_is_not_the_one_that_was_killed(tmp_path):
    with locked(tmp_path):
        left = json.loads((tmp_path / WRITER).read_text())
    (tmp_path / WRITER).write_text(json.dumps(left | {"started": "1"}))
    with locked(tmp_path):
        pass


def test_a_writer_of_another_machine_counts_only_where_locks_do_not_work(tmp_path, monkeypatch):
    (tmp_path / WRITER).write_text(json.dumps({"machine": "other", "host": "node7", "process": 1, "since": "now"}))
    with locked(tmp_path):
        pass
    (tmp_path / WRITER).write_text(json.dumps({"machine": "other", "host": "node7", "process": 1, "since": "now"}))
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with (
        pytest.raises(
            OSError, match=r"process 1 on node7, since now; wait for it to end. If it has ended.*delete .*writer"
        ),
        locked(tmp_path),
    ):
        pass


HERE = json.dumps({"machine": this_machine(), "process": 7})[:-2].encode()  # and then the number
DAMAGED = [b"", b"{", b"[]", b'{"process": "x"}', b"\xff", b"[" * 4000]
DAMAGED += [HERE + b"%d}" % (1 << 70), HERE + b"-1}", HERE + b"0}"]


@pytest.mark.parametrize("left", DAMAGED)
def test_a_damaged_writer_file_keeps_nobody_out(tmp_path, left):
    (tmp_path / WRITER).write_bytes(left)
    with locked(tmp_path):
        pass


def test_a_writer_file_that_is_a_pipe_or_enormous_keeps_nobody_out(tmp_path):
    os.mkfifo(tmp_path / WRITER)
    with locked(tmp_path):
        pass
    with open(tmp_path / WRITER, "wb") as file:
        file.truncate(1 << 40)
    with locked(tmp_path):
        pass


def test_of_processes_that_find_a_dead_writer_at_once_without_locks_one_gets_in(tmp_path, monkeypatch):
    """Each looks, and then becomes the writer; no other one may do so in between."""
    monkeypatch.setattr(fcntl, "flock", no_locks)
    gone = {"machine": this_machine(), "process": os.getpid(), "started": "1"}
    begin, inside, most = threading.Barrier(4), [], []

    def enter():
        begin.wait()
        with contextlib.suppress(OSError), locked(tmp_path):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.02)
            inside.pop()

    for _ in range(20):
        (tmp_path / WRITER).write_text(json.dumps(gone))
        threads = [threading.Thread(target=enter) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert max(most) == 1


def test_a_process_that_was_killed_while_it_became_the_writer_is_waited_for_a_minute(tmp_path):
    (tmp_path / TAKING).mkdir()
    with pytest.raises(OSError, match="another preparation is writing here"), locked(tmp_path):
        pass
    os.utime(tmp_path / TAKING, (time.time() - 61,) * 2)
    with locked(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_shared_locks_admit_each_other_and_no_other(tmp_path):
    with locked(tmp_path, shared=True):
        with locked(tmp_path, shared=True):
            pass
        code = "from pathlib import Path; from tokenmill.store.locked import locked\n"
        done = warm.run("-c", f"{code}with locked(Path({str(tmp_path)!r})): pass")
        assert "another preparation is writing here" in done.stderr


def test_a_lock_of_a_process_that_is_just_ending_is_waited_for(tmp_path):
    """Its rerun may begin before the kernel has taken the lock from it."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    threading.Timer(0.3, os.close, [descriptor]).start()
    with locked(tmp_path):
        assert (tmp_path / ".writer").exists()


@pytest.mark.parametrize("moment", ["said", "made"])
def test_a_process_that_is_killed_while_it_becomes_the_writer_keeps_nobody_out(tmp_path, moment):
    """At any instant: here, right after the file that keeps others out was made, or while `.writer` is."""
    code = (
        f"import sys, os; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path; from tokenmill.store import locked\n"
        "real = locked._make\n"
        "def killed(path, content):\n"
        f"    if path.name == {TAKING if moment == 'said' else WRITER!r}:\n"
        f"        {'real(path, content)' if moment == 'said' else 'pass'}\n"
        "        os.kill(os.getpid(), 9)\n"
        "    real(path, content)\n"
        "locked._make = killed\n"
        f"with locked.locked(Path({str(tmp_path)!r})): pass\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert (tmp_path / TAKING).exists()
    with locked(tmp_path):
        assert not (tmp_path / TAKING).exists()
    assert not list(tmp_path.iterdir())


def test_a_folder_without_hard_links_is_locked_too(tmp_path, monkeypatch):
    def no_links(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with locked(tmp_path):
        assert json.loads((tmp_path / WRITER).read_text())["process"] == os.getpid()
    assert not list(tmp_path.iterdir())
