"""Benchmarks are run by hand; here, that each says how."""

import subprocess
import sys

import pytest
from making import ROOT

COMMANDS = [path for path in sorted((ROOT / "benchmarks").glob("*.py")) if "__main__" in path.read_text()]


@pytest.mark.parametrize("path", COMMANDS, ids=[path.stem for path in COMMANDS])
def test_help_says_what_it_does_and_runs_nothing(path, tmp_path):
    done = subprocess.run([sys.executable, path, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {path.name} [-h]")
    assert path.read_text().splitlines()[0].strip('"') in done.stdout, "its docstring"
    assert not list(tmp_path.iterdir())
