"""Runs code on several processes of JAX, each with some devices, all on this machine's CPU."""

import json
import os
import re
import socket
import subprocess
import sys
from itertools import chain
from pathlib import Path

from making import ROOT

BEGIN = f"""
import json, os, sys
sys.path.insert(0, {str(ROOT)!r})
process, processes, port, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
if processes > 1:
    jax.distributed.initialize(f"127.0.0.1:{{port}}", processes, process)
from tokenmill.jax import RowLoader, position_ids

def tell(value):
    open(f"{{folder}}/{{process}}.json", "w").write(json.dumps(value))

def held(array):
    '''A global array's rows on this process's devices, by their place in it, and their columns.'''
    parts = []
    for part in array.addressable_shards:
        place = [axis.start or 0 for axis in part.index]
        parts.append([*place, np.asarray(part.data).tolist()])
    return parts

def tried(make):
    try:
        make()
    except ValueError as error:
        return str(error)
    return ""
"""
END = """
if processes > 1:
    jax.distributed.shutdown()
"""


def on_jax(
    code: str, folder: Path, processes: int = 1, devices: int = 1, **environment: str
) -> list:
    """What each process gave to `tell`. Raises AssertionError if one fails or tells of an error."""
    script = folder / "program.py"
    script.write_text(BEGIN + code + END)
    env = dict(
        os.environ,
        XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}",
        JAX_PLATFORMS="cpu",
    )
    env |= {"OMP_NUM_THREADS": "1"} | environment
    for done in run_processes([sys.executable, script], processes, [folder], env=env):
        assert done.returncode == 0, done.stderr
        assert not re.search("Traceback|Fatal", done.stderr), done.stderr
    return [json.loads((folder / f"{process}.json").read_text()) for process in range(processes)]


def run_processes(
    command: list, processes: int, arguments: list, **settings
) -> list[subprocess.CompletedProcess]:
    """Runs COMMAND PROCESS PROCESSES PORT ARGUMENTS in each process at once.

    They meet at the port.
    """
    port = free_port()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    begun = []
    for number in range(processes):
        words = map(str, [*command, number, processes, port, *arguments])
        begun.append(subprocess.Popen([*words], **pipes, **settings))
    try:
        return [done(process) for process in begun]
    finally:
        for process in begun:
            process.kill()


def done(process: subprocess.Popen) -> subprocess.CompletedProcess:
    out, err = process.communicate(timeout=180)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def global_array(told: list) -> list[list[int]]:
    """The rows of a global array from what `held` gave on each process, whose copies must agree."""
    cells: dict[tuple[int, int], list[int]] = {}
    for row, column, values in chain(*told):
        for number, value in enumerate(values, row):
            assert cells.setdefault((number, column), value) == value
    rows: dict[int, list[int]] = {}
    for row, column in sorted(cells):
        assert len(rows.setdefault(row, [])) == column
        rows[row] += cells[row, column]
    assert list(rows) == list(range(len(rows)))
    return list(rows.values())
