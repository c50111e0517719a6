"""On a Ray cluster, one of its two raylets killed midway, the bytes are those of one machine."""

import importlib.util
import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
from making import ROOT, make_text, run_prepare, tree, wait_until, write_parquet

from tokenmill.prepare import cluster as cluster_module
from tokenmill.prepare.failures import Failure

NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}
HAS_RAY = importlib.util.find_spec("ray")  # not imported where these tests are not run
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_RAY, reason="no ray: pip install -r requirements-test.txt"),
]


@pytest.fixture
def cluster():
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args=NODE | {"include_dashboard": False})
    yield cluster
    cluster.shutdown()


@pytest.fixture
def flags(tokenizer_json, tmp_path):
    for number in range(16):
        write_parquet(
            tmp_path / "corpus" / f"shard_{number:02d}.parquet",
            make_text(documents=700, seed=number),
        )
    fixed = [
        "--source",
        str(tmp_path / "corpus"),
        "--tokenizer",
        tokenizer_json,
        "--engine",
        "tiktoken",
    ]
    return [*fixed, "--shard-text-bytes", "100000"]  # a shard a file


def environment(cluster):
    return {**os.environ, "RAY_ADDRESS": cluster.address}


def at_work(node) -> list[psutil.Process]:
    """The processes of a raylet that do one of our tasks."""
    (raylet,) = node.all_processes["raylet"]
    children = psutil.Process(raylet.process.pid).children(recursive=True)
    return [child for child in children if "_make" in " ".join(child.cmdline())]


def test_one_of_two_raylets_is_killed_midway(cluster, flags, tmp_path):
    doomed = cluster.add_node(**NODE)
    cwd = tmp_path / "cluster"
    cwd.mkdir()
    command = [sys.executable, str(ROOT / "prepare_data.py"), *flags, "--cluster", "ray"]
    process = subprocess.Popen(
        command, cwd=cwd, env=environment(cluster), stdout=-1, stderr=-1, text=True
    )
    wait_until(
        lambda: at_work(doomed) and list(cwd.glob("data/tokens/*/shards/*.json")), seconds=200
    )
    cluster.remove_node(doomed, allow_graceful=False)
    done = len(list(cwd.glob("data/tokens/*/shards/*.json")))
    printed, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert 0 < done < 16, "it was killed midway"
    alone = tmp_path / "alone"
    alone.mkdir()
    expected = run_prepare(*flags, cwd=alone).stdout.splitlines()
    assert printed.splitlines()[-len(expected) :] == expected, "after what Ray says of its raylet"
    assert tree(cwd / expected[-1]) == tree(alone / expected[-1])


def test_no_cluster_is_a_clear_error(flags, tmp_path):
    env = {**os.environ, "RAY_ADDRESS": "127.0.0.1:9"}
    done = run_prepare(*flags, "--cluster", "ray", cwd=tmp_path, env=env, check=False)
    assert done.returncode == 1
    assert "--cluster ray: no cluster could be reached" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_failure_of_all_units_ends_the_run(monkeypatch):
    """Of a full disk, at which each unit would fail by itself."""
    import ray.exceptions

    task = SimpleNamespace(remote=lambda unit, work: unit)
    stand_in = SimpleNamespace(
        init=lambda **settings: None,
        put=lambda work: work,
        remote=lambda function: SimpleNamespace(options=lambda **settings: task),
        wait=lambda references, timeout: (references[:1], references[1:]),
        get=lambda unit: (Failure(unit, "the disk is full", is_for_all=True), []),
        shutdown=lambda: None,
        exceptions=ray.exceptions,
    )
    monkeypatch.setitem(sys.modules, "ray", stand_in)
    ignore = lambda *values: None  # noqa: E731
    failures = cluster_module.run(["a", "b", "c"], None, ignore, ignore, ignore)
    assert [failure.task for failure in failures] == ["a"]
