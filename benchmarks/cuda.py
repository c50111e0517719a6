"""What copies to a GPU cost: steps on batches of the loader, and on int64 batches that are copied when they are needed.

    python benchmarks/cuda.py [TOKENS]

Both take turns with steps on one constant batch (benchmarks/steps.py). It also prints tokens/s without any step, and
those that the bus carries in plain copies of pinned memory.
"""

if (
    __name__ != "__main__"
):  # torch looks for a package of this name, and from this folder finds this
    raise ImportError("this is a program, and not NVIDIA's package `cuda`")

import argparse
import statistics
import time

import torch
from steps import RowLoader, make_step, seconds_a_step

BATCH_SIZE, SEQ_LEN, ROUNDS, STEPS = 32, 2048, 9, 100
TOKENS = BATCH_SIZE * SEQ_LEN


def seconds(work) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def longer(next_batch, step) -> float:
    """The share by which a step takes longer than on one constant batch, the median of rounds."""
    same, found = next_batch(), []
    for _ in range(ROUNDS):
        alone = seconds_a_step(step, lambda: same, STEPS)
        found.append(seconds_a_step(step, next_batch, STEPS) / alone - 1)
    return statistics.median(found)


def main(tokens: str | None) -> None:
    if not torch.cuda.is_available():
        raise SystemExit("this machine, or this build of torch, has no CUDA: nothing was measured")
    sizes = {"batch_size": BATCH_SIZE, "seq_len": SEQ_LEN}
    on_cuda, on_cpu = (
        RowLoader(tokens, **sizes, device="cuda"),
        RowLoader(tokens, **sizes, prefetch=0),
    )
    print(
        f"{torch.cuda.get_device_name()}\n\n| step | loader | plain .to('cuda') of int64 |\n| --- | --- | --- |"
    )
    for milliseconds in (5, 20):
        step = make_step(on_cuda.device, milliseconds / 1e3)
        ours = longer(lambda: next(on_cuda), step)
        plain = longer(lambda: [x.to("cuda") for x in next(on_cpu)], step)
        print(f"| {milliseconds} ms | {ours:.2%} longer | {plain:.2%} longer |")
    alone = statistics.median(
        seconds(lambda: [next(on_cuda) for _ in range(1000)]) for _ in range(ROUNDS)
    )
    pinned = torch.zeros((BATCH_SIZE, SEQ_LEN + 1), dtype=torch.int16).pin_memory()
    copies = [
        seconds(lambda: [pinned.to("cuda", non_blocking=True) for _ in range(1000)])
        for _ in range(ROUNDS)
    ]
    bus = 1000 * pinned.numel() / statistics.median(copies)
    print(
        f"\nno steps: {1000 * TOKENS / alone / 1e6:,.0f}M tokens/s; bus: {bus / 1e6:,.0f}M tokens/s of 2 bytes"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "tokens", nargs="?", help="the token set's folder; by default the one under data/tokens"
    )
    main(parser.parse_args().tokens)
