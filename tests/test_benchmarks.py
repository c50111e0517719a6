"""Benchmarks are run by hand; here, that each says how."""

import importlib
import subprocess
import sys

import pytest
from making import ROOT

from tokenmill import RowLoader

COMMANDS = [path for path in sorted((ROOT / "benchmarks").glob("*.py")) if "__main__" in path.read_text()]


@pytest.mark.parametrize("path", COMMANDS, ids=[path.stem for path in COMMANDS])
def test_help_says_what_it_does_and_runs_nothing(path, tmp_path):
    done = subprocess.run([sys.executable, path, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {path.name} [-h]")
    assert path.read_text().splitlines()[0].strip('"') in done.stdout, "its docstring"
    assert not list(tmp_path.iterdir())


def test_the_sets_that_they_make_are_token_sets(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    sets = importlib.import_module("sets")
    folder = sets.sparse(tmp_path / "sparse", num_shards=3, shard_tokens=100_000)
    assert next(RowLoader(folder, batch_size=2, seq_len=64))[0].shape == (2, 64)
    (tmp_path / "random").mkdir()
    sets.random_set(tmp_path / "random", shards=2, tokens=100_000)
    assert next(RowLoader(tmp_path / "random", batch_size=2, seq_len=64))[0].shape == (2, 64)
