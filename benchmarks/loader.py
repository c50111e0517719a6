"""The loader beside its rivals and the machine's limits, in one run; writes benchmarks/loader.md.

    python benchmarks/loader.py [--quick]

Int64 batches of 32 x 2,048 on the CPU, from a token set prepared of ../shared/corpus (or of the Python
library), in the page cache. All contenders take turns, and medians of the rounds are given.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import rivals
import sets
from packing import ROW_LEN, fineweb_edu_lengths

from tokenmill import Mixture, RowLoader
from tokenmill.numpy import RowLoader as ArrayLoader
from tokenmill.rows.packing import plan_rows
from tokenmill.store.token_sets import TokenSet
from tokenmill.tokenize.tokenizer import Tokenizer

BATCH_SIZE, SEQ_LEN = 32, ROW_LEN - 1
TOKENS = BATCH_SIZE * SEQ_LEN
parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument(
    "--quick", action="store_true", help="fewer and shorter rounds; prints, and writes nothing"
)
QUICK = parser.parse_args().quick
ROUNDS, SECONDS = (3, 0.2) if QUICK else (7, 0.5)
STEP_SECONDS, STEPS = 0.02, 20 if QUICK else 100
RANK_SPEED = 100_000  # tokens/s that a rank trains with
WINDOW_DOCUMENTS = 258_000  # about 2^28 tokens


# ---------------------------------------------------------------------------- tokens/s, taking turns


def loader_steps(token_set: Path | Mixture, **settings):
    loader = RowLoader(token_set, batch_size=BATCH_SIZE, seq_len=SEQ_LEN, **settings)
    return lambda: next(loader)


def widening_steps(num_tokens: int):
    """Widens a batch's tokens from an array of num_tokens, elsewhere each time."""
    tokens, out = np.zeros(num_tokens, np.uint16), np.empty((2, TOKENS), np.int64)
    places = count()

    def step():
        at = next(places) * TOKENS % (num_tokens - TOKENS)
        out[0] = tokens[at : at + TOKENS]
        out[1] = tokens[at + 1 : at + 1 + TOKENS]

    return step


def memcpy_steps():
    """Copies 64 MB, as if they were so many batches' uint16 tokens."""
    source, target = np.ones(64 << 20, np.uint8), np.empty(64 << 20, np.uint8)
    return lambda: np.copyto(target, source)


def contenders(files: list[Path], path: Path) -> dict:
    token_set = TokenSet(path)
    bins = [token_set.open(entry).path for entry in token_set.split("train")]
    tokenizer = Tokenizer.load(path / "tokenizer.json")
    steps = {"**tokenmill** `best_fit`, no thread (`prefetch=0`)": loader_steps(path, prefetch=0)}
    for packing in ("nanochat", "concat", "random"):
        steps[f"**tokenmill** `{packing}`, no thread"] = loader_steps(
            path, packing=packing, prefetch=0
        )
    for packing in ("best_fit", "nanochat", "concat", "random"):
        steps[f"**tokenmill** `{packing}`, prefetch 2"] = loader_steps(path, packing=packing)
    eight = {letter: path.parent / letter for letter in "abcdefgh"}
    for seed, folder in enumerate(eight.values()):
        folder.mkdir()
        sets.random_set(folder, 1, 4_000_000, seed)
    of_eight = Mixture(dict.fromkeys(eight, 1), sources=eight)
    steps["**tokenmill** `best_fit`, a mixture of 8 sources, no thread"] = loader_steps(
        of_eight, prefetch=0
    )
    for kind in ("int32", "uint16"):
        arrays = ArrayLoader(path, batch_size=BATCH_SIZE, seq_len=SEQ_LEN, prefetch=0, dtype=kind)
        steps[f"**tokenmill.numpy** `best_fit`, {kind}, no thread"] = lambda arrays=arrays: next(
            arrays
        )
    for name, batches in (
        ("nanoGPT's get_batch", rivals.nanogpt(bins[0], BATCH_SIZE, SEQ_LEN)),
        ("build-nanogpt's shard in a tensor", rivals.build_nanogpt(bins, BATCH_SIZE, SEQ_LEN)),
        (
            "nanochat's, tokenizing on the fly",
            rivals.nanochat(files, tokenizer.encoding, 0, BATCH_SIZE, SEQ_LEN),
        ),
    ):
        steps[name] = lambda batches=batches: next(batches)
    steps["limit: widening uint16 to two int64 arrays, in cache"] = widening_steps(2 * TOKENS)
    steps["limit: widening uint16 to two int64 arrays, from memory"] = widening_steps(1 << 28)
    return steps


def tokens_per_second(step) -> float:
    started, steps = time.perf_counter(), 0
    while (seconds := time.perf_counter() - started) < SECONDS:
        step()
        steps += 1
    return steps * TOKENS / seconds


def speeds(files: list[Path], path: Path) -> list[str]:
    steps = contenders(files, path)
    for step in steps.values():
        step()
    rounds = [
        {name: tokens_per_second(step) for name, step in steps.items()} for _ in range(ROUNDS)
    ]
    medians = {name: float(np.median([one[name] for one in rounds])) for name in steps}
    copy = memcpy_steps()
    memcpy = np.median([tokens_per_second(copy) for _ in range(ROUNDS)]) / TOKENS * (64 << 20)
    nanogpt = medians["nanoGPT's get_batch"]
    lines = [
        "| int64 batches of 32 x 2,048 on the CPU | tokens/s | of nanoGPT's |",
        "| --- | --- | --- |",
    ]
    lines += [
        f"| {name} | {speed / 1e6:,.1f}M | {speed / nanogpt:.2f} |"
        for name, speed in medians.items()
    ]
    return [*lines, f"| limit: memcpy | {memcpy / 1e9:.1f} GB/s | |"]


# ---------------------------------------------------------------------------- beside a training step


def train(step: Callable[[], object], seconds: float = STEP_SECONDS) -> tuple[float, float]:
    """A loop that takes a batch and multiplies matrices on all cores for a while: (waited, whole) of a step."""
    matrix, waited = torch.randn(512, 512), 0.0
    started = time.perf_counter()
    for _ in range(STEPS):
        asked = time.perf_counter()
        step()
        got = time.perf_counter()
        waited += got - asked
        while time.perf_counter() < got + seconds:
            matrix @ matrix
    return waited / STEPS, (time.perf_counter() - started) / STEPS


def beside_steps(path: Path) -> list[str]:
    """What share of a step of 20 ms is waited for."""
    token_set = TokenSet(path)
    bins = [token_set.open(entry).path for entry in token_set.split("train")]
    build_nanogpt, nanogpt = (
        rivals.build_nanogpt(bins, BATCH_SIZE, SEQ_LEN),
        rivals.nanogpt(bins[0], BATCH_SIZE, SEQ_LEN),
    )
    steps = {
        "**tokenmill** `best_fit`, prefetch 2 (default)": loader_steps(path),
        "**tokenmill** `best_fit`, prefetch 0": loader_steps(path, prefetch=0),
        "build-nanogpt's shard in a tensor": lambda: next(build_nanogpt),
        "nanoGPT's get_batch": lambda: next(nanogpt),
    }
    shares: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            waited, whole = train(step)
            shares[name].append(waited / whole)
    lines = [
        "| share waited for, beside steps of 20 ms of matrix products on all cores | |",
        "| --- | --- |",
    ]
    return [*lines, *(f"| {name} | {np.median(own):.2%} |" for name, own in shares.items())]


# ---------------------------------------------------------------------------- planning


def plan_seconds(lengths: np.ndarray) -> float:
    seconds = []
    for run in range(ROUNDS):
        started = time.perf_counter()
        plan_rows(lengths, ROW_LEN, seed=(run,))
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds))


def planning() -> list[str]:
    lengths = fineweb_edu_lengths(WINDOW_DOCUMENTS)
    seconds = plan_seconds(lengths)
    lines = [
        "| planning, FineWeb-Edu-like lengths | |",
        "| --- | --- |",
        f"| `best_fit`, {len(lengths):,} documents of {lengths.mean():,.0f} tokens | {seconds * 1e3:.0f} ms, "
        f"{lengths.sum() / seconds / 1e6:,.0f}M tokens/s |",
    ]
    for world_size in (8, 64, 1024):
        share = seconds * world_size * RANK_SPEED / lengths.sum()
        lines.append(
            f"| share of a core that every rank of {world_size:,} plans, at 100k tokens/s a rank | {share:.2%} |"
        )
    return lines


# ---------------------------------------------------------------------------- opening and memory, in new processes

MEASURE = """
import sys, time
sys.path.insert(0, {root!r})
from tokenmill import RowLoader
def private():
    return int(next(line for line in open("/proc/self/status") if line.startswith("RssAnon")).split()[1]) / 1e3
imported, started = private(), time.perf_counter()
loader = RowLoader({tokens!r}, batch_size={batch_size}, seq_len={seq_len})
{code}
"""
FIRST = "next(loader); print(time.perf_counter() - started)"
RESUME = """
from tokenmill.rows.run import Cursor
windows = loader._dealer.sources(loader.run)[""].count_windows(1)
cursors = {"": Cursor(1, windows // 2, 1_234)}
loader.run = loader.run._replace(now=loader.run.now._replace(cursors=cursors))
position = loader.state_dict()
started = time.perf_counter()
loader = RowLoader(loader.token_set.path, batch_size=loader.config.batch_size, seq_len=loader.config.seq_len)
loader.load_state_dict(position)
next(loader)
print(time.perf_counter() - started)
"""
GROWTH = """
for step in range({steps}):
    next(loader)
    if step == {steps} // 20:
        early = private()
print(imported, early, private())
"""


def measure(
    tokens: Path, code: str, batch_size: int = BATCH_SIZE, seq_len: int = SEQ_LEN
) -> list[float]:
    program = MEASURE.format(
        root=str(sets.ROOT), tokens=str(tokens), code=code, batch_size=batch_size, seq_len=seq_len
    )
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True
    )
    return [float(number) for number in done.stdout.split()]


def opening(folder: Path) -> list[str]:
    lines = [
        "| after `import tokenmill`, best_fit | first batch | resume mid-window |",
        "| --- | --- | --- |",
    ]
    for num_shards in (10, 20_000):
        tokens = sets.sparse(folder / str(num_shards), num_shards)
        first, resume = (
            np.median([measure(tokens, code) for _ in range(ROUNDS)]) for code in (FIRST, RESUME)
        )
        lines.append(
            f"| {num_shards:,} shards, {num_shards * 5e7:.0e} tokens | {first:.2f} s | {resume:.2f} s |"
        )
    return lines


def memory(path: Path, large: Path) -> list[str]:
    steps, few = (20_000, 200) if QUICK else (1_000_000, 5_000)
    imported, early, late = measure(path, GROWTH.format(steps=steps), batch_size=8, seq_len=256)
    large_imported, _, large_late = measure(large, GROWTH.format(steps=few))
    return [
        "| private memory (RssAnon; the page cache is not counted) | |",
        "| --- | --- |",
        f"| growth from batch {steps // 20:,} to {steps:,}, of 8 x 256 | {late - early:.1f} MB |",
        f"| of 20,000 shards, above the imports, after {few:,} batches | {large_late - large_imported:.0f} MB |",
    ]


def main() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files, path = sets.prepare(folder)
        documents = sum(pq.ParquetFile(file).metadata.num_rows for file in files)
        heading = f"{path.name}: {len(files)} training files, {documents:,} documents; {os.cpu_count()} cores."
        tables = [speeds(files, path), planning(), opening(folder), memory(path, folder / "20000")]
        torch.set_num_threads(threads)
        tables.insert(1, beside_steps(path))
    text = "\n\n".join([heading, *("\n".join(table) for table in tables)]) + "\n"
    print(text)
    if not QUICK:
        Path(__file__).with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
