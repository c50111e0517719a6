"""Training from an address, beside the same set on this disk, in one run; writes benchmarks/remote.md.

    python benchmarks/remote.py [--quick]

A server on loopback, in a process of its own, takes 20 ms for each request and sends 100 MB/s in all. Sets: 20,000
shards of a MiB of tokens, all with the same bytes (the server has them once); and one of random tokens that is on this
disk too. Each figure of a loader is taken in a process of its own.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from sets import random_set
from slow_server import DELAY, RATE, files_of, sent, serving

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tokenmill.store.files import Checksums
from tokenmill.store.json_files import header
from tokenmill.store.manifests import write_manifest
from tokenmill.store.shards import OFFSET, TEXT_COUNTS

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument(
    "--quick", action="store_true", help="smaller sets and shorter runs; prints, and writes nothing"
)
QUICK = parser.parse_args().quick

ROOT = Path(__file__).resolve().parent.parent
SHARDS, SHARD_TOKENS, DOCUMENT = (2_000 if QUICK else 20_000), 1 << 20, 1024
BATCH, SEQ_LEN = 32, 2048
ROUNDS = 3 if QUICK else 5
WAIT_SECONDS = 0.005  # for a batch: less is making it

LOADER = """
import sys, time, json
sys.path.insert(0, {root!r})
import torch
torch.set_num_threads(1)
started = time.perf_counter()
from tokenmill import RowLoader
loader = RowLoader({tokens!r}, batch_size={batch}, seq_len={seq_len}, cache_dir={cache!r}{more})
next(loader)
first = time.perf_counter() - started
told = dict(first=first)
{rest}
print(json.dumps(told), flush=True)
import os; os._exit(0)
"""
WARM = """
for _ in range(20): next(loader)
rates = []
for _ in range(3):
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < 2: next(loader); steps += 1
    rates.append(steps * {tokens_a_batch} / (time.perf_counter() - began))
told['rate'] = sorted(rates)[1]
"""
EPOCH = "told['batches'] = sum(1 for _ in loader)\n"
PACED = """
# at {pace} tokens a second: the rest of each step is the model's
share, waited, began = {tokens_a_batch} / {pace}, [], time.perf_counter()
while (now := time.perf_counter()) - began < {seconds}:
    next(loader)
    took = time.perf_counter() - now
    waited.append((now - began, took))
    time.sleep(max(0.0, share - took))
told['waited'] = waited
told['tokens'] = loader.tokens_seen
"""


def equal_shards(count):
    """A set of equal shards, by the paths of its files: what a server sends without having it."""
    tokens = np.full(SHARD_TOKENS, 7, "<u2")
    tokens[::DOCUMENT] = 0
    offsets = np.arange(0, SHARD_TOKENS + 1, DOCUMENT, dtype=OFFSET)
    facts = []
    for data in (tokens, offsets):
        checksums = Checksums()
        checksums.update(data)
        facts.append(checksums.facts())
    counts = {
        "documents": len(offsets) - 1,
        "tokens": SHARD_TOKENS,
        **dict.fromkeys(TEXT_COUNTS, 0),
    }
    vocabulary = {
        "name": "bench",
        "fingerprint": "f" * 64,
        "vocab_size": 1000,
        "bos_token": "<|bos|>",
        "bos_id": 0,
    }

    def record(name):
        made = {
            "name": name,
            "dtype": "uint16",
            **counts,
            "bin": facts[0],
            "idx": facts[1],
            "fingerprint": "f" * 64,
        }
        return header("shard") | made | {"source": {"file": f"{name}.parquet", "shards": 1}}

    folder = Path(tempfile.mkdtemp(prefix="tokenmill-bench-"))
    names = [f"shard_{number:05d}.000" for number in range(count)]
    (folder / "shards").mkdir()
    for name in names:  # so that the manifest lists them
        (folder / "shards" / f"{name}.json").write_text(json.dumps(record(name)))
    write_manifest(folder, "equal", vocabulary, [(record(name), "train") for name in names])
    manifest = (folder / "manifest.json").read_bytes()
    shutil.rmtree(folder)
    bin, idx = tokens.tobytes(), offsets.tobytes()

    def find(path):
        if path.endswith("manifest.json"):
            return manifest
        name, _, suffix = path.rpartition("/")[2].rpartition(".")
        return {"bin": bin, "idx": idx}.get(suffix) or json.dumps(record(name)).encode()

    return find


def start(tokens, cache, rest="", **more):
    told = "".join(f", {name}={value!r}" for name, value in more.items())
    numbers = {"tokens_a_batch": BATCH * SEQ_LEN, "pace": 4_000_000, "seconds": 20 if QUICK else 90}
    for name, value in numbers.items():
        rest = rest.replace(f"{{{name}}}", str(value))
    code = LOADER.format(
        root=str(ROOT),
        tokens=tokens,
        batch=BATCH,
        seq_len=SEQ_LEN,
        cache=str(cache),
        more=told,
        rest=rest,
    )
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def run(*asked, **more):
    return told_by(start(*asked, **more))


def told_by(process):
    out, _ = process.communicate(timeout=1800)
    return json.loads(out)


def median(values):
    return statistics.median(values)


def first_batches(work):
    """Seconds to the first batch of many shards: cold, and warm."""
    with serving(equal_shards(SHARDS)) as address:
        cold, warm = [], []
        for number in range(ROUNDS):
            cache = work / f"many{number}"
            cold.append(run(address, cache)["first"])
            warm.append(run(address, cache)["first"])
            shutil.rmtree(cache)
    return [
        f"| first batch of {SHARDS:,} shards, cold | {median(cold):.2f} s |",
        f"| the same, warm | {median(warm):.2f} s |",
    ]


def throughput(work, folder):
    """A warm cache beside the local set, in turn."""
    lines = []
    with serving(files_of(folder)) as address:
        for prefetch in (0, 2):
            rates = {"here": [], "there": []}
            for _ in range(ROUNDS):
                for name, tokens in (("here", str(folder)), ("there", address)):
                    rates[name].append(run(tokens, work / "warm", WARM, prefetch=prefetch)["rate"])
            here, there = median(rates["here"]), median(rates["there"])
            lines.append(
                f"| warm, prefetch={prefetch}: {there / 1e6:,.0f}M tokens/s, of the local set's "
                f"{here / 1e6:,.0f}M | {there / here:.2f} |"
            )
    return lines


def ranks(work, folder):
    """What eight ranks of a machine fetch in an epoch."""
    total = sum(path.stat().st_size for path in folder.rglob("*.bin"))
    with serving(files_of(folder)) as address:
        before = sent(address)
        told = [
            start(address, work / "ranks", EPOCH, epochs=1, rank=r, world_size=8) for r in range(8)
        ]
        for process in told:
            told_by(process)
        small = sum(path.stat().st_size for path in folder.rglob("*.idx")) + sum(
            path.stat().st_size for path in folder.rglob("*.json")
        )
        share = (sent(address) - before - 8 * (folder / "manifest.json").stat().st_size) / (
            total + small
        )
    return [
        f"| bytes that 8 ranks of a machine fetch in an epoch, of the set's {total / 1e6:,.0f} MB | {share:.3f} |"
    ]


def paced(work):
    """The share of time waited at 4M tokens a second, from ten seconds after the first batch on."""
    with serving(equal_shards(SHARDS)) as address:
        told = run(address, work / "paced", PACED)
    after = [(at, took) for at, took in told["waited"] if at > 10]
    share = sum(took for _, took in after if took > WAIT_SECONDS) / (after[-1][0] - after[0][0])
    early = sum(took for at, took in told["waited"] if at <= 10)
    return [
        f"| cold, 4M tokens/s, {told['tokens'] / 2**28:.1f} windows: seconds waited in the first 10 | {early:.1f} s |",
        f"| the same: share of time waited after these, over a window's border | {share:.4f} |",
    ]


def main():
    work = Path(tempfile.mkdtemp(prefix="tokenmill-remote-"))
    try:
        folder = work / "random"
        folder.mkdir()
        random_set(folder, *((4, 4_000_000) if QUICK else (20, 10_000_000)))
        lines = [
            *first_batches(work),
            *throughput(work, folder),
            *ranks(work, folder),
            *paced(work),
        ]
    finally:
        shutil.rmtree(work, ignore_errors=True)
    text = "\n".join(
        [
            f"A server on loopback: {1000 * DELAY:.0f} ms a request, {RATE / 1e6:.0f} MB/s in all; "
            f"medians of {ROUNDS}; batches of {BATCH} x {SEQ_LEN:,}; {os.cpu_count()} cores.",
            "",
            "| | |",
            "| --- | --- |",
            *lines,
            "",
        ]
    )
    print(text)
    if not QUICK:
        (ROOT / "benchmarks" / "remote.md").write_text(text)


if __name__ == "__main__":
    main()
