"""examples/train_gpt_jax.py: killed at some moment and continued, on other numbers of processes,
with the same rows.
"""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from jax_processes import free_port
from making import ROOT

SIZES = {
    "layers": 1,
    "width": 32,
    "heads": 2,
    "seq-len": 64,
    "total-rows": 8,
    "steps": 16,
    "save-every": 4,
}
FLAGS = [
    str(word)
    for name, size in (SIZES | {"val-every": 8, "val-batches": 2}).items()
    for word in (f"--{name}", size)
]
STEP = re.compile(r"^step +(\d+)  loss ([\d.]+) .* rows (\w+)$", re.MULTILINE)


class Run:
    """A run of the example on some processes."""

    def __init__(self, tokens, folder, processes=1):
        command = [
            sys.executable,
            ROOT / "examples" / "train_gpt_jax.py",
            "--tokens",
            tokens,
            *FLAGS,
            "--checksums",
        ]
        command += ["--checkpoint", folder / "checkpoints"]
        if processes > 1:
            command += ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", processes]
        env = dict(os.environ, JAX_PLATFORMS="cpu", OMP_NUM_THREADS="1", XLA_FLAGS="")
        self.log, self.processes = folder / f"log of {processes}", []
        for number in range(processes):
            words = [*command, *(["--process", number] if processes > 1 else [])]
            with open(self.log if number == 0 else os.devnull, "w") as out:
                self.processes.append(
                    subprocess.Popen([*map(str, words)], stdout=out, stderr=out, env=env)
                )

    def kill_after(self, step):
        """Kills all processes at once, a moment after they took a step."""
        while not re.search(rf"^step +{step} ", self.log.read_text(), re.MULTILINE):
            assert all(process.poll() is None for process in self.processes), self.log.read_text()
            time.sleep(0.01)
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()
        return self

    def finish(self):
        for process in self.processes:
            assert process.wait(timeout=240) == 0, self.log.read_text()
        return self

    def steps(self):
        """{step: (loss, checksum of its rows)}"""
        return {
            int(step): (float(loss), rows)
            for step, loss, rows in STEP.findall(self.log.read_text())
        }

    def validations(self):
        found = re.findall(r"step +(\d+)  validation ([\d.]+) bits", self.log.read_text())
        return {int(step): float(bits) for step, bits in found}


@pytest.mark.slow
def test_a_run_that_is_killed_on_two_processes_continues_on_one_as_if_undisturbed(
    prepared, tmp_path
):
    tokens = prepared[1]
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    whole = Run(tokens, tmp_path / "whole").finish()
    expected = whole.steps()
    assert list(expected) == list(range(1, 17))
    runs = [Run(tokens, tmp_path / "killed", 2).kill_after(10)]
    runs.append(Run(tokens, tmp_path / "killed").finish())
    firsts = [min(run.steps()) for run in runs]
    assert firsts[0] == 1
    assert 5 <= firsts[1] <= 11
    for run in runs:
        for step, (loss, rows) in run.steps().items():
            assert rows == expected[step][1]
            assert loss == pytest.approx(
                expected[step][0], abs=1e-3
            )  # other sums of the same numbers
    assert runs[-1].validations()[16] == pytest.approx(whole.validations()[16], abs=1e-3)
