"""Says what a device waits for: `tokenmill bench TOKENS --device cuda --batch-size 32 --seq-len 2048 --step-ms 20`

It runs the same training step on batches of the loader and on one constant batch, in turns, and prints how much longer
the first takes. The step is a chain of matrix products that lasts --step-ms. Pass the step time of your own training: a
loader that is fast enough for 20 ms may not be for 1 ms. Nothing else should run on the machine meanwhile.
batches/step_times.py has the method.
"""

import os
import statistics
import time
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console

from tokenmill.batches.loader import RowLoader
from tokenmill.batches.step_times import ROUNDS, Times, measure
from tokenmill.batches.torch_transfer import how_copied
from tokenmill.feed.loader_config import LoaderConfig, Packing


@dataclass(frozen=True)
class Bench:
    """Measure what a device waits for: training steps on a loader's batches and on one constant batch, in turns."""

    tokens: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TOKENS")]]  # a token set, or a mixture's TOML
    device: str = LoaderConfig.device  # where batches go, as torch names it
    batch_size: int = 32  # rows of a batch
    seq_len: int = 2048  # tokens of an input
    step_ms: float = 20  # how long a training step takes, in milliseconds
    packing: Packing = LoaderConfig.packing  # as in training
    documents: bool = False  # add document_ids to batches, as in training
    prefetch: int = LoaderConfig.prefetch  # how many batches a thread makes ahead
    seconds: float = 15  # how long to measure


def report(config: Bench, times: Times, first: float) -> list[str]:
    """What was measured, in lines."""
    tokens = config.batch_size * config.seq_len
    alone, constant, fed = (statistics.median(found) for found in times[:3])
    waited = statistics.median(times.waited)
    low, middle, high = statistics.quantiles([b / a - 1 for a, b in zip(times.constant, times.fed, strict=True)])

    def line(what: str, seconds: float, of: str) -> str:
        return f"{what:<30}{tokens / seconds / 1e6:>9,.1f}M tokens/s {seconds * 1e3:>9,.3f} ms a {of}"

    return [
        f"{'first batch':<30}{first:>9.2f} s",
        line("loader alone", alone, "batch"),
        line("steps on one constant batch", constant, "step"),
        f"{line('steps on batches of the loader', fed, 'step')}, of which {waited * 1e3:,.3f} ms in next(loader)",
        f"The difference is {middle:+.2%} of a step of {constant * 1e3:.1f} ms (the median of {ROUNDS} rounds; half of "
        f"them were between {low:+.2%} and {high:+.2%}).",
    ]


def bench(config: Bench, console: Console) -> None:
    """Measures, and prints what was found. Raises ValueError if a setting is invalid."""
    for name in ("step_ms", "seconds"):
        if not 0 < getattr(config, name) < 1e5:
            raise ValueError(f"--{name.replace('_', '-')} must be more than 0 and below 100,000")
    started = time.perf_counter()
    with RowLoader(
        config.tokens,
        batch_size=config.batch_size,
        seq_len=config.seq_len,
        device=config.device,
        packing=config.packing,
        documents=config.documents,
        prefetch=config.prefetch,
    ) as loader:
        next(loader)
        first = time.perf_counter() - started
        console.print(
            f"batches of {config.batch_size:,} x {config.seq_len:,} tokens on {loader.device}, {config.packing}, "
            f"prefetch {config.prefetch}; {how_copied(loader.device)}; {os.cpu_count()} cores"
        )
        with console.status("measuring"):
            times = measure(loader, config.step_ms / 1e3, config.seconds)
    console.print("\n".join(report(config, times, first)))


def main(arguments: list[str], prog: str) -> None:
    """Measures for these command-line arguments."""
    config = tyro.cli(Bench, prog=prog, args=arguments, description=__doc__)
    bench(config, Console(soft_wrap=True, highlight=False, markup=False))
