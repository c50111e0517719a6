"""What happens to your tokens, for each packing: the README's table, and the speed of planning.

    python benchmarks/packing.py [TOKENS]        lengths of a token set, besides simulated FineWeb-Edu

Only lengths are needed; how each packing is run is told in tokenmill/look/packing_stats.py.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tokenmill.look.packing_stats import tally
from tokenmill.look.report_text import MEASURES
from tokenmill.rows.packing import plan_rows
from tokenmill.store.token_sets import TokenSet

ROW_LEN = 2049
NAMES = {
    "nanochat": "nanochat's loader",
    "concat": "concat (build-nanogpt, llm.c)",
    "random": "random (nanoGPT)",
    "best_fit": "**tokenmill** `best_fit`",
    "best_fit, crop": "**tokenmill** `best_fit`, `crop`",
}


def fineweb_edu_lengths(count: int = 64_000, seed: int = 0) -> np.ndarray:
    """50 + lognormal, sigma 1.132, mean 1,040 in all."""
    sigma, mean = 1.132, 990
    return (50 + np.random.default_rng(seed).lognormal(np.log(mean) - sigma**2 / 2, sigma, count)).astype(np.int64)


def table(name: str, shards: list[np.ndarray]) -> None:
    lengths = np.concatenate(shards)
    print(f"\n{name}: {len(lengths):,} documents, mean {lengths.mean():,.0f} tokens, rows of {ROW_LEN:,}\n")
    print("\n".join(table_lines(shards)))


def table_lines(shards: list[np.ndarray]) -> list[str]:
    """What each packing does to shards of documents of these lengths, as Markdown."""
    lines = [
        f"| packing | {' | '.join(MEASURES)} |",
        f"| --- |{' --- |' * len(MEASURES)}",
    ]
    for packing, shown in NAMES.items():
        shares = tally(packing, shards, ROW_LEN).shares()
        lines.append(f"| {shown} | {' | '.join(f'{share:.2%}' for share in shares)} |")
    return lines


def planning_speed(lengths: np.ndarray, runs: int = 9) -> None:
    seconds = []
    for run in range(runs):
        started = time.perf_counter()
        plan_rows(lengths, ROW_LEN, seed=run)
        seconds.append(time.perf_counter() - started)
    median = np.median(seconds)
    speed = lengths.sum() / median / 1e6
    print(f"\nplanning {len(lengths):,} documents, median of {runs}: {median * 1e3:.0f} ms, {speed:,.0f}M tokens/s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", nargs="*", help="token sets whose lengths are packed too")
    simulated, arguments = fineweb_edu_lengths(), parser.parse_args()
    table("FineWeb-Edu-like lengths (simulated)", [simulated])
    for path in arguments.tokens:
        token_set = TokenSet(path)
        table(path, [token_set.open(entry).lengths for entry in token_set.split("train")])
    planning_speed(simulated)
