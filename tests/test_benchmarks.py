"""Benchmarks are run by hand; here, that each says how."""

import runpy
import sys

import pytest
from making import ROOT

COMMANDS = [
    path for path in sorted((ROOT / "benchmarks").glob("*.py")) if "__main__" in path.read_text()
]


@pytest.mark.parametrize("path", COMMANDS, ids=[path.stem for path in COMMANDS])
def test_help_says_what_it_does_and_runs_nothing(path, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [path.name, "--help"])
    monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert not ended.value.code
    assert printed.startswith(f"usage: {path.name} [-h]")
    assert path.read_text().splitlines()[0].strip('"') in printed, "its docstring"
    assert not list(tmp_path.iterdir())
