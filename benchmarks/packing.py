"""What happens to your tokens, for each packing: the README's table, and the speed of planning.

    python benchmarks/packing.py [TOKENS]        lengths of a token set, besides simulated FineWeb-Edu

Only lengths are needed. nanochat's loader is simulated as it is described in its dataloader.py (one
rank), in its steady state: after 100,000 rows, the next 50,000 are measured.
"""

import sys
import time
from bisect import bisect_left, bisect_right, insort
from itertools import cycle
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tokenmill.packing import plan_rows
from tokenmill.shards import TokenSet

ROW_LEN = 2049
NANOCHAT_ROWS, NANOCHAT_MEASURED = 150_000, 50_000


def fineweb_edu_lengths(count: int = 64_000, seed: int = 0) -> np.ndarray:
    """50 + lognormal, sigma 1.132, mean 1,040 in all."""
    sigma, mean = 1.132, 990
    return (50 + np.random.default_rng(seed).lognormal(np.log(mean) - sigma**2 / 2, sigma, count)).astype(np.int64)


def share(part, whole) -> float:
    return 100 * float(np.sum(part)) / float(np.sum(whole))


def tokenmill(lengths, long_documents: str) -> list[float]:
    plan = plan_rows(lengths, ROW_LEN, long_documents=long_documents, seed=0)
    kept, total = ~plan.filler, plan.num_rows * ROW_LEN
    dropped = 100 - share(plan.length[kept], lengths)
    whole = lengths[plan.document[kept]]
    cut = (whole <= ROW_LEN) & (plan.length[kept] < whole)
    with_beginning = plan.length[plan.start == 0]
    # every piece begins with BOS, its document's or an inserted one, and so does every row
    return [
        dropped,
        share(plan.length[plan.filler], total),
        100.0,
        share(cut, lengths <= ROW_LEN),
        share(with_beginning, total),
    ]


def concat(lengths) -> list[float]:
    ends = np.cumsum(lengths)
    begins = ends - lengths
    body = ROW_LEN - 1  # each window starts on the last token of the one before
    starts = np.arange((ends[-1] - 1) // body) * body
    on_bos = np.isin(starts, begins)
    cut = (begins // body != (ends - 1) // body) & (lengths <= ROW_LEN)
    # tokens of a row that belong to the document it begins in the middle of
    first_end = ends[np.searchsorted(ends, starts, side="right")]
    headless = np.where(on_bos, 0, np.minimum(first_end - starts, ROW_LEN))
    dropped = 100 * (1 - (len(starts) * body + 1) / ends[-1])
    return [
        dropped,
        0.0,
        100 * on_bos.mean(),
        share(cut, lengths <= ROW_LEN),
        100 - share(headless, len(starts) * ROW_LEN),
    ]


def nanochat(lengths) -> list[float]:
    """The steady state; the buffer is a sorted list of (length, document number)."""
    stream, number = cycle(lengths.tolist()), 0
    buffer, taken, kept, cropped_short, short = [], 0, 0, 0, 0
    for row in range(NANOCHAT_ROWS):
        if row == NANOCHAT_ROWS - NANOCHAT_MEASURED:
            taken = kept = cropped_short = short = 0
        free = ROW_LEN
        while free:
            while len(buffer) < 1000:
                for _ in range(128):
                    insort(buffer, (next(stream), number))
                    number += 1
            fit = bisect_right(buffer, (free, number))
            index = bisect_left(buffer, (buffer[fit - 1][0], -1)) if fit else 0  # of equally long ones the first
            length, _ = buffer.pop(index)
            used = min(length, free)
            taken, kept, free = taken + length, kept + used, free - used
            if length <= ROW_LEN:
                short += 1
                cropped_short += used < length
    return [100 * (1 - kept / taken), 0.0, 100.0, 100 * cropped_short / max(1, short), 100.0]


def table(name: str, lengths: np.ndarray) -> None:
    print(f"\n{name}: {len(lengths):,} documents, mean {lengths.mean():,.0f} tokens, rows of {ROW_LEN:,}\n")
    print("| packing | dropped | filler | rows on BOS | documents cut that would fit | tokens with their beginning |")
    print("| --- | --- | --- | --- | --- | --- |")
    rows = [
        ("nanochat's loader", nanochat(lengths)),
        ("concat (build-nanogpt, llm.c)", concat(lengths)),
        ("**tokenmill** `best_fit`", tokenmill(lengths, "split")),
        ("**tokenmill** `best_fit`, `crop`", tokenmill(lengths, "crop")),
    ]
    for packing, (dropped, filler, bos, cut, beginning) in rows:
        print(f"| {packing} | {dropped:.1f}% | {filler:.2f}% | {bos:.1f}% | {cut:.1f}% | {beginning:.1f}% |")


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
    simulated = fineweb_edu_lengths()
    table("FineWeb-Edu-like lengths (simulated)", simulated)
    for path in sys.argv[1:]:
        token_set = TokenSet(path)
        table(path, np.concatenate([token_set.open(entry).lengths for entry in token_set.split("train")]))
    planning_speed(simulated)
