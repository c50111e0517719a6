"""On a real Ray cluster of two raylets the bytes are those of one machine, though one of them is killed midway."""

import os
import subprocess
import sys

import psutil
import pytest
from making import ROOT, make_text, run_prepare, tree, wait_until, write_parquet

NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}
ray = pytest.importorskip("ray", reason="no ray: pip install -r requirements-test.txt")

pytestmark = pytest.mark.slow

ONE_A_FILE = ["--shard-text-bytes", "100000"]  # files are small


@pytest.fixture
def cluster():
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    yield cluster
    cluster.shutdown()


@pytest.fixture
def flags(tokenizer_json, tmp_path):
    for number in range(30):
        write_parquet(tmp_path / "corpus" / f"shard_{number:02d}.parquet", make_text(documents=700, seed=number))
    return ["--source", str(tmp_path / "corpus"), "--tokenizer", tokenizer_json, "--engine", "tiktoken", *ONE_A_FILE]


def environment(cluster):
    return {**os.environ, "RAY_ADDRESS": cluster.address}


def at_work(node) -> list[psutil.Process]:
    """The processes of a raylet that do one of our tasks."""
    (raylet,) = node.all_processes["raylet"]
    children = psutil.Process(raylet.process.pid).children(recursive=True)
    return [child for child in children if "_work" in " ".join(child.cmdline())]


def test_one_of_two_raylets_is_killed_midway(cluster, flags, tmp_path):
    doomed = cluster.add_node(**NODE)
    cwd = tmp_path / "cluster"
    cwd.mkdir()
    command = [sys.executable, str(ROOT / "prepare_data.py"), *flags, "--cluster", "ray"]
    process = subprocess.Popen(command, cwd=cwd, env=environment(cluster), stdout=-1, stderr=-1, text=True)
    wait_until(lambda: at_work(doomed) and list(cwd.glob("data/tokens/*/shards/*.json")), seconds=200)
    cluster.remove_node(doomed, allow_graceful=False)
    done = len(list(cwd.glob("data/tokens/*/shards/*.json")))
    printed, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert 0 < done < 30, "it was killed midway"
    assert "with Ray and tiktoken" in errors
    alone = tmp_path / "alone"
    alone.mkdir()
    expected = run_prepare(*flags, cwd=alone).stdout.splitlines()
    assert printed.splitlines()[-len(expected) :] == expected, "after what Ray says of its raylet"
    assert tree(cwd / expected[-1]) == tree(alone / expected[-1])


def test_who_is_told_of_the_progress_is_killed_midway(cluster, flags, tmp_path):
    cwd = tmp_path / "cluster"
    cwd.mkdir()
    command = [sys.executable, str(ROOT / "prepare_data.py"), *flags, "--cluster", "ray"]
    process = subprocess.Popen(command, cwd=cwd, env=environment(cluster), stdout=-1, stderr=-1, text=True)
    wait_until(lambda: list(cwd.glob("data/tokens/*/shards/*.json")), seconds=200)
    (raylet,) = cluster.head_node.all_processes["raylet"]
    told = [
        child
        for child in psutil.Process(raylet.process.pid).children(recursive=True)
        if "_Progress" in " ".join(child.cmdline())
    ]
    assert len(told) == 1
    told[0].kill()
    printed, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert len(list(cwd.glob("data/tokens/*/shards/*.json"))) == 30
    assert "made 21,000 documents" in errors, "what was made is counted whole, whoever was told"


DYING = """
import os
from tokenmill.prepare.outcomes import Failure

def setup(task):
    return None

def work(folder, state, task, report):
    report(1)
    with open(f"{folder}/{task}", "a") as file:
        file.write("tried,")
    if task == 3:
        os._exit(1)  # without a word, as what a memory monitor ends
    return task
"""
DRIVER = """
import functools, sys
import dying
from tokenmill.prepare import cluster
from tokenmill.prepare.workers import TaskQueue

queue, seen = TaskQueue(), []
queue.add(range(8))
queue.close()
outcomes = cluster.run_tasks(functools.partial(dying.work, sys.argv[1]), queue, dying.setup, 1, seen.append)
print("reported", sum(seen), [outcome for outcome in outcomes if not isinstance(outcome, dying.Failure)])
print(outcomes[3].reason)
"""


def test_a_task_that_always_dies_is_given_up_after_some_retries_and_the_others_are_done(tmp_path, monkeypatch, request):
    (tmp_path / "dying.py").write_text(DYING)
    (tmp_path / "tried").mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    cluster = request.getfixturevalue("cluster")  # whose workers find it too
    command = [sys.executable, "-c", DRIVER, tmp_path / "tried"]
    done = subprocess.run(command, env=environment(cluster), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    *_, reported, reason = done.stdout.splitlines()
    assert reported == "reported 7 [0, 1, 2, 4, 5, 6, 7]"
    assert reason.startswith("Ray gave it up after 5 retries: ")
    tries = {path.name: path.read_text().count("tried") for path in (tmp_path / "tried").iterdir()}
    assert tries == {str(task): 6 if task == 3 else 1 for task in range(8)}


def test_what_fails_on_the_cluster_is_told_as_on_one_machine(cluster, flags, tmp_path):
    good = write_parquet(tmp_path / "corpus" / "bad.parquet", make_text(documents=300, seed=0)).read_bytes()
    (tmp_path / "corpus" / "bad.parquet").write_bytes(good[:1000] + bytes(2000) + good[3000:])
    done = run_prepare(*flags, "--cluster", "ray", cwd=tmp_path, env=environment(cluster), check=False)
    assert done.returncode == 1
    assert "failed: shard bad.000: " in done.stderr
    assert "bad.parquet: expected a whole parquet file, found damage" in done.stderr
    assert len(list(tmp_path.glob("data/tokens/*/shards/*.json"))) == 30


def test_no_cluster_is_a_clear_error(flags, tmp_path):
    env = {**os.environ, "RAY_ADDRESS": "127.0.0.1:9"}
    done = run_prepare(*flags, "--cluster", "ray", cwd=tmp_path, env=env, check=False)
    assert done.returncode == 1
    assert "--cluster ray: no cluster could be reached" in done.stderr
    assert "Traceback" not in done.stderr
