"""What Linux alone has is taken away: no test ran on macOS, but this runs the heart of the suite as there."""

import os
import subprocess
import sys

import pytest
from making import ROOT

# Python reads this file when it starts, in every process
WITHOUT = """
import builtins, errno, fcntl, io, os

for name in ("sched_getaffinity", "posix_fadvise", "posix_fallocate", "copy_file_range", "O_TMPFILE"):
    if hasattr(os, name):
        delattr(os, name)

def without_locks(*arguments):
    raise OSError(errno.ENOTSUP, "no locks in this file system")

def without_proc(file, *arguments, **more):
    if str(file).startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(errno.ENOENT, "not on this system", str(file))
    return opened(file, *arguments, **more)

fcntl.flock, opened = without_locks, io.open
builtins.open = io.open = without_proc
"""
HEART = ["tests/store/test_shards.py", "tests/prepare/test_prepare.py", "tests/batches/test_loader.py"]
NEEDS_LOCKS = "tests/prepare/test_prepare.py::test_two_preparations_of_one_set_at_once_write_the_same_bytes"


@pytest.mark.slow
def test_the_heart_of_the_suite_passes(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *HEART, "--deselect"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([*command, NEEDS_LOCKS], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
    assert "[100%]" in done.stdout
