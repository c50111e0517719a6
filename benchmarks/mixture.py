"""Mixtures beside one source and beside others' rules, in one run; writes benchmarks/mixture.md.

    python benchmarks/mixture.py [--quick]

Speed: int64 batches of 32 x 2,048 on the CPU, of 8 sources and of one token set of the same size, taking turns.
Shares: Megatron-LM's blending rule (helpers.cpp, build_blending_indices) and grain's (mix.py, _counts_per_dataset)
on the same weights. Start-up: new processes, files in the page cache, 256 file descriptors.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import sets

from tokenmill import Mixture, RowLoader
from tokenmill.feed.weights import whole_weights
from tokenmill.rows.interleave import pattern_of

BATCH_SIZE, SEQ_LEN = 32, 2048
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds; prints, and writes nothing")
QUICK = parser.parse_args().quick
ROUNDS, SECONDS = (3, 0.2) if QUICK else (11, 0.5)


# ---------------------------------------------------------------------------- tokens/s, taking turns


def tokens_per_second(loader: RowLoader) -> float:
    started, steps = time.perf_counter(), 0
    while (seconds := time.perf_counter() - started) < SECONDS:
        next(loader)
        steps += 1
    return steps * BATCH_SIZE * SEQ_LEN / seconds


def speeds(folder: Path) -> list[str]:
    parts = [sets.sparse(folder / f"part{number}", 2, 25_000_000) for number in range(8)]
    whole = sets.sparse(folder / "whole", 9, 25_000_000)
    mixture = Mixture({part: number + 1 for number, part in enumerate(parts)})
    lines = [
        "| int64 batches of 32 x 2,048 on the CPU | one source | 8 sources | of one's |",
        "| --- | --- | --- | --- |",
    ]
    for name, settings in (("prefetch 2, as by default", {}), ("no thread (`prefetch=0`)", {"prefetch": 0})):
        loaders = [RowLoader(t, batch_size=BATCH_SIZE, seq_len=SEQ_LEN, **settings) for t in (whole, mixture)]
        for loader in loaders:
            for _ in range(6_000 if not QUICK else 500):  # all of the files are in the page cache by then
                next(loader)
        rounds = np.array([[tokens_per_second(loader) for loader in loaders] for _ in range(ROUNDS)])
        one, many = np.median(rounds, axis=0) / 1e6
        ratio = np.median(rounds[:, 1] / rounds[:, 0])
        lines.append(f"| {name} | {one:,.0f}M tokens/s | {many:,.0f}M tokens/s | {ratio:.2f} |")
        for loader in loaders:
            loader.close()
    return lines


# ---------------------------------------------------------------------------- shares


def megatron(weights: np.ndarray, count: int) -> np.ndarray:
    """Megatron-LM's rule: the source whose part lags most behind its share of the samples so far."""
    given, chosen = np.zeros(len(weights)), np.empty(count, np.int64)
    for sample in range(count):
        errors = weights * max(sample, 1) - given
        chosen[sample] = source = int(np.argmax(errors))
        given[source] += 1
    return chosen


def grain(weights: np.ndarray, prefixes: np.ndarray) -> np.ndarray:
    """grain's: what comes first takes its share rounded up, the rest shares what is left; (prefixes, sources)."""
    proportions = [int(weight * 100 / weights.min()) for weight in weights]
    left, remaining, counts = prefixes.copy(), sum(proportions), []
    for part in proportions:
        after = left * (remaining - part) // remaining
        counts.append(left - after)
        left, remaining = after, remaining - part
    return np.stack(counts, axis=1)


def kinds() -> dict[str, np.ndarray]:
    """Weights of 100 sources."""
    rng = np.random.default_rng(0)
    return {
        "drawn from a Pareto distribution": rng.pareto(1.2, 100) + 0.05,
        "60 of weight 1, 40 of 3": np.repeat([1.0, 3.0], [60, 40]),
        "33 of weight 1, 33 of 5, 34 of 25": np.repeat([1.0, 5.0, 25.0], [33, 33, 34]),
    }


def shares() -> list[str]:
    count = 10_000 if QUICK else 200_000
    rng = np.random.default_rng(1)
    lines = [
        f"| worst error in rows, 100 sources, 2,000 prefixes of up to {count:,} rows "
        "| tokenmill | Megatron-LM's rule | grain's |",
        "| --- | --- | --- | --- |",
    ]
    for name, weights in kinds().items():
        weights = weights / weights.sum()
        names = [f"s{number:03}" for number in range(100)]
        whole = whole_weights(dict(zip(names, weights.tolist(), strict=True)))
        pattern = pattern_of(whole)
        own = np.array([whole[one] for one in names]) / pattern.period
        prefixes = np.sort(rng.integers(1, count, 2_000))
        chosen = megatron(weights, count)
        theirs = np.stack([np.searchsorted(np.flatnonzero(chosen == one), prefixes) for one in range(100)], axis=1)
        ours = np.array([pattern.counts(int(prefix)) for prefix in prefixes])
        exact = np.array([int(weight * 100 / weights.min()) for weight in weights])
        errors = (
            np.abs(ours - prefixes[:, None] * own).max(),
            np.abs(theirs - prefixes[:, None] * weights).max(),
            np.abs(grain(weights, prefixes) - prefixes[:, None] * (exact / exact.sum())).max(),
        )
        lines.append(f"| {name} | {' | '.join(f'{error:.2f}' for error in errors)} |")
    return lines


# ---------------------------------------------------------------------------- start-up, in new processes

MEASURE = """
import sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from tokenmill import Mixture, RowLoader
def private():
    return int(next(line for line in open("/proc/self/status") if line.startswith("RssAnon")).split()[1]) / 1e3
imported, started = private(), time.perf_counter()
mixture = Mixture({{path: number % 7 + 1 for number, path in enumerate(sorted(Path({sets!r}).iterdir()))}})
loader = RowLoader(mixture, batch_size=32, seq_len=2048)
next(loader)
first = time.perf_counter() - started
for _ in range(50):
    next(loader)
state = loader.state_dict()
loader.close()
started = time.perf_counter()
loader = RowLoader(mixture, batch_size=32, seq_len=2048)
loader.load_state_dict(state)
next(loader)
resume = time.perf_counter() - started
for _ in range(500):
    next(loader)
print(first, resume, private() - imported)
"""


def start_up(folder: Path) -> list[str]:
    lines = ["| sources | first batch | resume | private memory after 550 batches |", "| --- | --- | --- | --- |"]
    for name, count, shards, tokens in (("large", 20, 1_000, 50_000_000), ("small", 200, 2, 1_000_000)):
        for number in range(count):
            sets.sparse(folder / name / f"s{number:03}", shards, tokens)
        program = MEASURE.format(root=str(sets.ROOT), sets=str(folder / name))
        command = ["bash", "-c", 'ulimit -n 256; exec "$0" -c "$1"', sys.executable, program]
        runs = [
            [
                float(number)
                for number in subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
            ]
            for _ in range(3 if QUICK else 6)
        ]
        first, resume, memory = np.median(runs[1:], axis=0)  # the first one warms the page cache
        lines.append(
            f"| {count} of {shards:,} shards, {count * shards * tokens:.0e} tokens | {first:.2f} s | {resume:.2f} s | "
            f"{memory:.0f} MB |"
        )
    return lines


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        tables = [speeds(Path(name) / "speed"), shares(), start_up(Path(name))]
    text = "\n\n".join("\n".join(table) for table in tables) + "\n"
    print(text)
    if not QUICK:
        Path(__file__).with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
