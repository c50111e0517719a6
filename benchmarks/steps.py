"""Measures what a training step takes longer with a loader than with one constant batch.

    python benchmarks/steps.py [TOKENS] --device cuda --batch-size 32 --seq-len 2048 --step-ms 20

A constant batch costs nothing, as with Megatron's --mock-data. Both loops take turns, and each turn runs many steps and
then waits once for the device. Before each turn of the loader, the batches that its thread has made ahead are taken and
not counted. Otherwise a slow loader would use in its own turn what it made in the other's.

A step is a chain of matrix products that takes about --step-ms; the first one depends on every token of the batch. Your
model is not run, so pass the step time of your own training. Nothing else should run on the machine meanwhile.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tokenmill import RowLoader

ROUNDS, FEWEST = 21, 5
PRODUCTS = 64  # about how many matrix products a step has
SIZES = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)  # of their matrices
NOISE = 0.2  # of a step: if half of the rounds spread more than this, they say nothing


def seconds_a_step(step, next_batch, steps: int) -> float:
    """The time of a step, over so many. Nothing waits for the device before the last one is done."""
    started = time.perf_counter()
    for _ in range(steps):
        result = step(*next_batch())
    result.item()  # waits for the device
    return (time.perf_counter() - started) / steps


def make_chain(size: int, device: torch.device):
    """Any number of matrix products, the first of which needs the batch."""
    left = torch.randn(size, size, device=device)
    right = torch.randn(size, size, device=device) / size**0.5  # so that products do not grow

    def chain(inputs, targets, products):
        x = left * (inputs.sum() + targets.sum()).sign()
        for _ in range(products):
            x = x @ right
        return x.sum()

    return chain


def make_step(device: torch.device, seconds: float):
    """A step of about so many seconds, with matrices as large as that takes."""
    one = torch.ones((1, 1), dtype=torch.int64, device=device)

    def best(chain, products, runs):
        return min(
            seconds_a_step(lambda x, y: chain(x, y, products), lambda: (one, one), 1)
            for _ in range(runs)
        )

    for size in SIZES:
        chain = make_chain(size, device)
        best(chain, 4, 1)  # the first call sets libraries up
        product = max(1e-7, (best(chain, 24, 3) - best(chain, 4, 3)) / 20)
        if product * PRODUCTS >= seconds:
            break
    products = max(1, round(seconds / product))
    products = max(
        1, round(products * seconds / best(chain, products, 5))
    )  # a chain is rarely as slow as its parts
    return lambda inputs, targets: chain(inputs, targets, products)


def measure(
    loader: RowLoader, step_seconds: float, seconds: float
) -> list[tuple[float, float, float, float]]:
    """(a batch alone, a step on one batch, a step on the loader's batches, its wait in `next`) in seconds, by round."""
    batch, ahead, started, found = next(loader), loader.config.prefetch, time.perf_counter(), []
    step, turn = make_step(batch[0].device, step_seconds), seconds / (3 * ROUNDS)

    def read(inputs, targets):
        return inputs[-1:, -1].sum()  # the least that a step does: it needs the batch

    def fed(some_step, steps):
        for _ in range(ahead):
            next(loader)
        before = loader.waited
        return seconds_a_step(some_step, lambda: next(loader), steps), (
            loader.waited - before
        ) / steps

    fewest = 1 + 3 * ahead
    steps = max(fewest, round(turn / seconds_a_step(step, lambda: batch, 3)))
    batches = max(fewest, round(turn / fed(read, fewest)[0]))
    while len(found) < FEWEST or (len(found) < ROUNDS and time.perf_counter() - started < seconds):
        constant = seconds_a_step(step, lambda: batch, steps)
        found.append((fed(read, batches)[0], constant, *fed(step, steps)))
    return found


def main(given: argparse.Namespace) -> None:
    sizes, tokens = (
        {"batch_size": given.batch_size, "seq_len": given.seq_len},
        given.batch_size * given.seq_len,
    )
    with RowLoader(given.tokens, **sizes, device=given.device, prefetch=given.prefetch) as loader:
        print(f"{loader}, on {loader.device}, prefetch {given.prefetch}; {os.cpu_count()} cores")
        found = measure(loader, given.step_ms / 1e3, given.seconds)
    alone, constant, fed, waited = (
        statistics.median(column) for column in zip(*found, strict=True)
    )
    names = (
        "loader alone, no training",
        "steps on one constant batch",
        "steps on batches of the loader",
    )
    for name, seconds in zip(names, (alone, constant, fed), strict=True):
        print(f"{name:<32}{tokens / seconds / 1e6:>9,.3f}M tokens/s {seconds * 1e3:>11,.3f} ms")
    print(f"{'of which in next(loader)':<32}{'':>19} {waited * 1e3:>11,.3f} ms")
    low, _, high = statistics.quantiles([b / a - 1 for _, a, b, _ in found])
    print(
        f"a step takes {fed / constant - 1:+.1%} ({(fed - constant) * 1e3:+,.3f} ms) longer with the loader; half of "
        f"{len(found)} rounds were between {low:+.1%} and {high:+.1%}"
        f"{'; the machine was too busy to tell' if high - low > NOISE else ''}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "tokens",
        nargs="?",
        help="a token set or a mixture's TOML; by default the set in data/tokens",
    )
    parser.add_argument("--device", default="cpu", help="[%(default)s]")
    parser.add_argument("--batch-size", type=int, default=32, help="[%(default)s]")
    parser.add_argument("--seq-len", type=int, default=2048, help="[%(default)s]")
    parser.add_argument(
        "--step-ms", type=float, default=20, help="how long a training step takes [%(default)s]"
    )
    parser.add_argument("--prefetch", type=int, default=2, help="[%(default)s]")
    parser.add_argument(
        "--seconds", type=float, default=15, help="about how long to measure [%(default)s]"
    )
    main(parser.parse_args())
