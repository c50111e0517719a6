"""Kills a real preparation again and again, at random moments: `make torture`.

Each round prepares a new token set. At a random moment of the run the parent, a worker, the server that forks workers,
or the whole process group gets SIGKILL; it is run again, and perhaps killed again, until it ends. The token set must
then equal an undisturbed one's, byte for byte, with nothing left over.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
from making import ROOT, make_text, run_prepare, tree, write_parquet

VICTIMS = ("parent", "worker", "server", "group")


def make_source(folder: Path) -> Path:
    for number in range(3):
        texts = make_text(documents=300, seed=number, words=500)
        write_parquet(folder / f"shard_{number}.parquet", texts, row_group_size=30)
    return folder


def torture(folder: Path, tokenizer: Path, kills: int, seed: int, say=lambda text: None) -> Counter:
    """Kills `kills` times in all; how often each victim was killed, and how many token sets were completed."""
    rng, counts = random.Random(seed), Counter()
    flags = ["--source", make_source(folder / "corpus"), "--tokenizer", tokenizer, "--workers", 2]
    flags += ["--shard-text-bytes", 200_000, "--tokens-root"]
    started = time.monotonic()
    expected = tree(folder / run_prepare(*flags, "undisturbed", cwd=folder).stdout.splitlines()[-1])
    whole = time.monotonic() - started
    while sum(counts[victim] for victim in VICTIMS) < kills:
        for attempt in range(rng.randint(1, 3)):
            victim = rng.choice(VICTIMS)
            if run_and_kill([*flags, "tortured"], folder, victim, rng.uniform(0, whole)):
                counts[victim] += 1
            counts["tries to complete it"] += attempt > 0
        done = run_prepare(*flags, "tortured", cwd=folder)
        found = tree(folder / done.stdout.splitlines()[-1])
        assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
        assert found == expected, "the same bytes as an undisturbed run's"
        shutil.rmtree(folder / "tortured")
        counts["token sets, all equal"] += 1
        say(", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
    return counts


def run_and_kill(flags: list, cwd: Path, victim: str, moment: float) -> bool:
    """Starts a preparation and kills the victim after `moment` seconds; whether there was one to kill."""
    command = [sys.executable, str(ROOT / "prepare_data.py"), *map(str, flags)]
    nothing = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=cwd, stdout=nothing, stderr=nothing, start_new_session=True) as process:
        time.sleep(moment)
        killed = process.poll() is None
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if not killed:
                pass  # it was done already
            elif victim == "group":
                os.killpg(process.pid, signal.SIGKILL)
            elif victim == "parent":
                process.kill()
            else:
                servers = [child for child in psutil.Process(process.pid).children() if is_server(child)]
                workers = [worker for server in servers for worker in server.children()]
                some = workers if victim == "worker" else servers
                killed = bool(some)
                for one in random.sample(some, min(1, len(some))):
                    one.kill()
        process.wait(timeout=120)
    wait_for_workers(process.pid)
    return killed


def is_server(child: psutil.Process) -> bool:
    return any("forkserver" in argument for argument in child.cmdline())  # and not multiprocess's resource tracker


def wait_for_workers(group: int) -> None:
    """A killed parent's workers end at their next report; a preparation that is run at once finds their lock free."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    raise AssertionError("a worker outlived its parent")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        from tokenmill.tokenize.tokenizer import train_tokenizer

        path = Path(name) / "bpe400.json"
        train_tokenizer(make_text(documents=200, seed=0), 400, "bpe400").save(path)
        chosen = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32)
        print(f"seed {chosen}", flush=True)
        print("done:", dict(torture(Path(name), path, int(sys.argv[1]), chosen, lambda text: print(text, flush=True))))
