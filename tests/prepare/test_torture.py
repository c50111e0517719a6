"""A preparation that is killed, or runs out of room, goes on to the bytes of an undisturbed one."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from itertools import chain

import psutil
import pytest
from making import ROOT, full_after, make_text, run_prepare, tree, wait_until, write_parquet

# root may write wherever it likes, unless it gives up that right
WITHOUT_ROOT_S_RIGHTS = (
    () if os.geteuid() else ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
)


@pytest.fixture
def flags(tokenizer_json, tmp_path):
    for number in range(3):
        texts = make_text(documents=120, seed=number, words=500)
        write_parquet(tmp_path / "corpus" / f"shard_{number}.parquet", texts, row_group_size=30)
    return (
        "--source",
        "corpus",
        "--tokenizer",
        tokenizer_json,
        "--workers",
        2,
        "--shard-text-bytes",
        80_000,
    )


@pytest.mark.parametrize("seed", range(int(os.environ.get("KILLED_SETS", "1"))))
def test_killed_at_random_moments_it_goes_on_to_the_same_bytes(flags, tmp_path, seed):
    """The parent, a worker, the server that forks them, or all, some times before it ends."""
    rng = random.Random(seed)
    began = time.monotonic()
    expected = tree(tmp_path / run_prepare(*flags, cwd=tmp_path).stdout.splitlines()[-1])
    seconds = time.monotonic() - began
    for victim in rng.sample(("parent", "worker", "server", "group"), 3):
        run_and_kill(
            [*flags, "--tokens-root", "killed"], tmp_path, victim, rng.uniform(0.2, 1) * seconds
        )
    made = {path: path.stat().st_ino for path in tmp_path.glob("killed/*/shards/*.json")}
    done = run_prepare(*flags, "--tokens-root", "killed", cwd=tmp_path)
    assert tree(tmp_path / done.stdout.splitlines()[-1]) == expected, "and nothing is left over"
    assert all(path.stat().st_ino == inode for path, inode in made.items()), (
        "what was done is not done again"
    )
    shutil.rmtree(tmp_path / "killed")


def run_and_kill(flags, cwd, victim, moment):
    """Starts a preparation and kills the victim after `moment` seconds, if there is one by then."""
    command = [sys.executable, str(ROOT / "prepare_data.py"), *map(str, flags)]
    with subprocess.Popen(
        command, cwd=cwd, stdout=-3, stderr=-3, start_new_session=True
    ) as process:
        time.sleep(moment)
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            servers = [
                child
                for child in psutil.Process(process.pid).children()
                if "--multiprocessing-fork" in child.cmdline()
            ]
            workers = list(chain.from_iterable(server.children() for server in servers))
            if victim == "group":
                os.killpg(process.pid, signal.SIGKILL)
            for child in {"parent": [process], "worker": workers, "server": servers}.get(
                victim, []
            )[:1]:
                child.kill()
        process.wait(timeout=120)
    wait_until(
        lambda: not alive(process.pid)
    )  # workers end at their next report, and have a lock until then


def alive(group):
    with suppress(ProcessLookupError):
        os.killpg(group, 0)
        return True


def test_a_full_disk_is_a_clear_error_and_the_next_run_goes_on(flags, tmp_path):
    full = run_prepare(*flags, cwd=tmp_path, check=False, **full_after(30_000))
    assert full.returncode == 1
    assert "File too large" in full.stderr
    assert "run the same command again" in full.stderr
    assert "Traceback" not in full.stderr
    assert not list(tmp_path.glob("data/tokens/*/manifest.json"))
    assert not list(tmp_path.rglob("*.tmp"))
    again = tree(tmp_path / run_prepare(*flags, cwd=tmp_path).stdout.splitlines()[-1])
    undisturbed = run_prepare(*flags, "--tokens-root", "undisturbed", cwd=tmp_path)
    assert again == tree(tmp_path / undisturbed.stdout.splitlines()[-1])


def test_a_read_only_token_set_is_used_as_it_is_and_refused_where_it_must_change(
    source, tokenizer_json, tmp_path
):
    flags = (
        "--source",
        source,
        "--tokenizer",
        tokenizer_json,
        "--shard-text-bytes",
        200_000,
        "--val-file",
        "last",
    )
    folder = tmp_path / run_prepare(*flags, cwd=tmp_path).stdout.splitlines()[-1]
    expected = tree(folder)
    with read_only(folder):
        again = run_prepare(*flags, cwd=tmp_path, prefix=WITHOUT_ROOT_S_RIGHTS)
        assert "all shards are made" in again.stderr
    (folder / "shards" / "shard_1.000.bin").unlink()
    with read_only(folder):
        refused = run_prepare(*flags, cwd=tmp_path, check=False, prefix=WITHOUT_ROOT_S_RIGHTS)
    assert refused.returncode == 1
    assert (
        "cannot be written (Permission denied); make room, or mend that, and run again"
        in refused.stderr
    )
    assert "Traceback" not in refused.stderr
    run_prepare(*flags, cwd=tmp_path)
    assert tree(folder) == expected


@contextmanager
def read_only(folder):
    """Takes away the right to write below a folder."""
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    yield
    for path in folders:
        path.chmod(0o755)
