"""What a GPU waits for: the share of a training step spent on data, and tokens/s over the bus.

    python benchmarks/cuda.py TOKENS

A step is a row of matrix products that takes 5 or 20 ms. Steps that ask the loader for their batch take turns
with steps that use one batch again and again; what the first take longer is the wait.
"""

if __name__ != "__main__":  # torch looks for a package of this name, and from this folder finds this
    raise ImportError("this is a program, and not NVIDIA's package `cuda`")

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tokenmill import RowLoader

BATCH_SIZE, SEQ_LEN, ROUNDS = 32, 2048, 9
TOKENS = BATCH_SIZE * SEQ_LEN
MATRIX = 4096


def seconds(work) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def make_step(milliseconds: float):
    """Matrix products of about so many milliseconds, that begin by reading the batch."""
    left = torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16)
    right = left / MATRIX
    embedding = torch.nn.Embedding(65_536, 64, device="cuda", dtype=torch.bfloat16)

    def step(inputs, targets, products):
        x = left + embedding(inputs).mean() + targets.sum()
        for _ in range(products):
            x = x @ right

    batch = torch.zeros((2, BATCH_SIZE, SEQ_LEN), dtype=torch.int64, device="cuda")
    seconds(lambda: step(*batch, 100))
    short, long = (min(seconds(lambda n=n: step(*batch, n)) for _ in range(5)) for n in (10, 110))
    products = max(1, round((milliseconds / 1e3 - short) / ((long - short) / 100)) + 10)
    return lambda inputs, targets: step(inputs, targets, products)


def wait_share(next_batch, milliseconds: float, steps: int) -> tuple[float, float]:
    """(milliseconds of a step on one batch, share by which it is longer with a batch of its own), medians."""
    step, same = make_step(milliseconds), next_batch()
    alone, fed = [], []
    for _ in range(ROUNDS):
        alone.append(seconds(lambda: [step(*same) for _ in range(steps)]))
        fed.append(seconds(lambda: [step(*next_batch()) for _ in range(steps)]))
    return np.median(alone) / steps * 1e3, float(np.median(fed) / np.median(alone) - 1)


def bus() -> float:
    """Bytes/s of asynchronous copies of pinned batches, (B, T + 1) uint16 each."""
    batch = torch.zeros((BATCH_SIZE, SEQ_LEN + 1), dtype=torch.int16).pin_memory()
    many = [seconds(lambda: [batch.to("cuda", non_blocking=True) for _ in range(1000)]) for _ in range(ROUNDS)]
    return 1000 * batch.numel() * 2 / float(np.median(many))


def main(tokens: str | None = None) -> None:
    if not torch.cuda.is_available():
        raise SystemExit("this machine, or this build of torch, has no CUDA: nothing was measured")
    on_cuda = RowLoader(tokens, batch_size=BATCH_SIZE, seq_len=SEQ_LEN, device="cuda")
    on_cpu = RowLoader(tokens, batch_size=BATCH_SIZE, seq_len=SEQ_LEN, prefetch=0)
    print(
        f"{torch.cuda.get_device_name()}\n\n| step | pinned, ahead | plain .to('cuda') of int64 |\n| --- | --- | --- |"
    )
    for milliseconds, steps in ((5, 200), (20, 50)):
        length, ours = wait_share(lambda: next(on_cuda), milliseconds, steps)
        _, plain = wait_share(lambda: [x.to("cuda") for x in next(on_cpu)], milliseconds, steps)
        print(f"| {length:.1f} ms | {ours:.2%} longer | {plain:.2%} longer |")
    speed = np.median([seconds(lambda: [next(on_cuda) for _ in range(1000)]) for _ in range(ROUNDS)])
    print(f"\nno compute: {1000 * TOKENS / speed / 1e6:,.0f}M tokens/s; bus: {bus() / 2e6:,.0f}M tokens/s of 2 bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", nargs="?", help="the token set's folder; by default the one under data/tokens")
    main(parser.parse_args().tokens)
