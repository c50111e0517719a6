"""One process at a time writes in a folder, and whatever becomes of it keeps nobody out."""

import errno
import fcntl
import os
import subprocess
import sys
import threading

import pytest
import warm
from making import ROOT

from tokenmill.store.locks import held_for, locked


def enter(folder, then) -> str:
    """A program that enters a folder, and does something there."""
    code = f"import sys, os; sys.path.insert(0, {str(ROOT)!r}); from pathlib import Path\n"
    code += "from tokenmill.store.locks import locked\n"
    return f"{code}with locked(Path({str(folder)!r})): {then}\n"


def test_a_second_process_is_refused_and_told_to_wait(tmp_path):
    folder = tmp_path / "is/made"
    with locked(folder):
        done = warm.run("-c", enter(folder, "pass"))
        assert (
            f"{folder}: another process is writing in this folder; wait for it to end"
            in done.stderr
        )
        assert list(folder.iterdir()) == []
    with locked(folder):
        pass


def test_a_process_that_was_killed_keeps_nobody_out(tmp_path):
    assert (
        subprocess.run(
            [sys.executable, "-c", enter(tmp_path, "os.kill(os.getpid(), 9)")]
        ).returncode
        == -9
    )
    with locked(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_a_lock_of_a_process_that_is_just_ending_is_waited_for(tmp_path):
    """Its rerun may begin before the kernel has taken the lock from it."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    threading.Timer(0.3, os.close, [descriptor]).start()
    with locked(tmp_path):
        pass


def test_shared_locks_admit_each_other_and_no_other(tmp_path):
    with locked(tmp_path, shared=True), locked(tmp_path, shared=True):
        assert "another process is writing" in warm.run("-c", enter(tmp_path, "pass")).stderr


def test_a_file_system_without_locks_is_told_of(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.warns(UserWarning, match="has no locks"), locked(tmp_path), locked(tmp_path):
        pass


def test_a_file_is_held_by_processes_of_one_purpose(tmp_path):
    path = tmp_path / "is/made"
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pathlib import Path\n"
    code += "from tokenmill.store.locks import held_for\n"
    code += f"with held_for(Path({str(path)!r}), sys.argv[1]): print('held')\n"
    with held_for(path, "red"):
        with held_for(path, "red"):
            assert warm.run("-c", code, "red").stdout == "held\n"
            assert "for another purpose" in warm.run("-c", code, "blue").stderr
        assert "for another purpose" in warm.run("-c", code, "blue").stderr
    assert list(path.parent.iterdir()) == []
    assert warm.run("-c", code, "blue").stdout == "held\n"
    path.write_text("of a run that was killed")
    assert warm.run("-c", code, "blue").stdout == "held\n"


def test_what_is_in_the_place_of_a_lock_is_named(tmp_path):
    path = tmp_path / "lock"
    (tmp_path / "precious").write_text("kept")
    path.symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match=r"lock: cannot be opened \(.*\); delete it"):
        held_for(path, "red").__enter__()
    assert (tmp_path / "precious").read_text() == "kept"


def test_a_folder_that_is_read_only_needs_no_lock(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with held_for(tmp_path / "lock", "red"):
        pass
