"""Tokens a second of the loader on the CPU, packing by packing: python benchmarks/loader.py [TOKENS]"""

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data import RowLoader

BATCH_SIZE, SEQ_LEN, SECONDS, RUNS = 32, 2048, 1.0, 5


def tokens_per_second(loader: RowLoader) -> float:
    started, batches = time.perf_counter(), 0
    while time.perf_counter() - started < SECONDS:
        next(loader)
        batches += 1
    return batches * BATCH_SIZE * SEQ_LEN / (time.perf_counter() - started)


def main(tokens: str | None = None) -> None:
    print(f"| packing | first batch, ms | tokens/s, int64 {BATCH_SIZE} x {SEQ_LEN:,} |\n| --- | --- | --- |")
    for packing in ("best_fit", "concat", "random"):
        started = time.perf_counter()
        loader = RowLoader(tokens, batch_size=BATCH_SIZE, seq_len=SEQ_LEN, packing=packing)
        next(loader)
        first = (time.perf_counter() - started) * 1e3
        speed = np.median([tokens_per_second(loader) for _ in range(RUNS)])
        print(f"| {packing} | {first:.0f} | {speed / 1e6:,.0f}M |")


if __name__ == "__main__":
    main(*sys.argv[1:])
