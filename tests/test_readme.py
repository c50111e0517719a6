"""The README's commands and Python blocks run."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from making import ROOT, run_prepare

import config
import prepare_data

README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands():
    return [shlex.split(line, comments=True) for block in blocks("bash") for line in block.splitlines()]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A folder in which the README's offline preparation was run."""
    cwd = tmp_path_factory.mktemp("newcomer")
    (flags,) = [command[2:] for command in commands() if "stdlib" in command]
    done = run_prepare(*flags, cwd=cwd)
    assert "0 null and" in done.stdout
    return cwd


def run(code, cwd):
    env_code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + code
    done = subprocess.run([sys.executable, "-c", env_code], cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_the_python_blocks_run_after_the_demo(demo, number):
    run(blocks("python")[number], demo)


def test_the_demo_draws_and_decodes_a_batch(demo):
    command = [sys.executable, "-m", "tokenmill.show", *map(str, (demo / "data" / "tokens").iterdir())]
    flags = ["--batch", "0", "--batch-size", "3", "--seq-len", "512"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    shown = subprocess.run(
        [*command, *flags], cwd=demo, env=env, capture_output=True, text=True, timeout=120, check=True
    ).stdout
    assert len(re.findall(r"^row \d, at 0:0:\d, rank 0  A+", shown, re.MULTILINE)) == 3
    assert shown.count("    <|bos|>") >= 3
    assert "\x1b" not in shown, "plain where it is no terminal"


@pytest.mark.parametrize("command", [c for c in commands() if "prepare_data.py" in c], ids=" ".join)
def test_the_preparing_commands_are_understood(command):
    flags = command[2:]
    if flags != ["--help"]:
        assert isinstance(prepare_data._parse(flags), config.PrepareConfig)


def test_the_demo_preset_is_the_command_it_is_said_to_be():
    (flags,) = [command[2:] for command in commands() if "stdlib" in command]
    assert prepare_data._parse(["demo"]) == prepare_data._parse(flags)


def test_the_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for command in commands():
        if command[0] == "make":
            assert f"\n{command[1]}:" in makefile


@pytest.mark.parametrize(
    ("report", "first_column"),
    [("loader.md", "int64 batches of 32 x 2,048 on the CPU"), ("prepare.md", "whole command")],
)
def test_the_readme_s_speeds_are_those_of_the_last_benchmark(report, first_column):
    parts = (ROOT / "benchmarks" / report).read_text().split("\n\n")
    table = next(part for part in parts if part.startswith(f"| {first_column} |"))
    assert table in README
