"""Whatever is damaged, every reader does its work or says in words what is wrong: a seeded while of `make fuzz`.

In a process of its own: it forks, and a fork hangs on what threads of other tests' libraries held at that moment.
"""

import os
import re
import subprocess
import sys

import pytest
from making import ROOT


@pytest.mark.parametrize("cases", [12, pytest.param(120, marks=pytest.mark.slow)])  # seconds; half a minute
def test_damage_at_random_ends_in_no_traceback_no_signal_and_touches_nothing_else(cases):
    command = [sys.executable, str(ROOT / "tests" / "fuzz.py"), "--cases", str(cases), "--seed", "16"]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500)
    assert ran.returncode == 0, f"python tests/fuzz.py --only SEED:NUMBER shows one\n{ran.stdout}\n{ran.stderr}"
    done, refused, wrong = map(int, re.findall(r"([\d,]+) (?:did|ended|went)", ran.stdout.splitlines()[-1]))
    assert done + refused == cases
    assert wrong == 0
    assert refused > cases // 3, "most damage is seen"
    assert done > cases // 10, "some is harmless"
