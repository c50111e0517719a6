"""Measures whether training waits for the loader.

    tokenmill bench TOKENS --device cuda --batch-size 32 --seq-len 2048 --step-ms 20

The command runs the same training step on batches of the loader and on one constant batch, in turns, and prints how
much longer a step takes with the loader. The step is a chain of matrix products that takes about --step-ms: your model
is not run. Pass the step time of your own training, because a loader that is fast enough for 20 ms may not be for 1 ms.
Nothing else should run on the machine meanwhile.
"""

import os
import statistics
import time
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console

from tokenmill.batches.loader import RowLoader
from tokenmill.batches.step_times import Times, measure
from tokenmill.batches.torch_transfer import how_copied
from tokenmill.feed.loader_config import LoaderConfig, Packing

REST = "The rest of the gap comes from cores that the loader's thread uses too, or from late copies."
NOISE = 0.2  # of a step: if half of the rounds spread more than this, they say nothing


@dataclass(frozen=True)
class Bench:
    """Measure whether training waits for the loader: steps on its batches and on one constant batch, in turns."""

    tokens: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TOKENS")]]  # a token set, or a mixture's TOML
    device: str = LoaderConfig.device  # where batches go, as torch names it
    batch_size: int = 32  # rows of a batch
    seq_len: int = 2048  # tokens of an input
    step_ms: float = 20  # how long a training step takes, in milliseconds
    packing: Packing = LoaderConfig.packing  # that of your training
    documents: bool = False  # whether your training uses document_ids
    prefetch: int = LoaderConfig.prefetch  # how many batches a thread makes ahead
    seconds: float = 15  # about how long to measure; a few rounds of steps are made in any case


def report(config: Bench, times: Times, first: float) -> list[str]:
    """What was measured, in lines."""
    tokens = config.batch_size * config.seq_len
    alone, constant, fed = (statistics.median(found) for found in times[:3])
    waited = statistics.median(times.waited)

    def line(what: str, seconds: float, of: str) -> str:
        return f"{what:<34}{tokens / seconds / 1e6:>9,.3f}M tokens/s {seconds * 1e3:>11,.3f} ms a {of}"

    return [
        f"{'first batch':<34}{first:>9.2f} s",
        line("loader alone, no training", alone, "batch"),
        line("steps on one constant batch", constant, "step"),
        f"{line('steps on batches of the loader', fed, 'step')}, of which {waited * 1e3:,.3f} ms in next(loader)",
        *verdict(config, times),
    ]


def verdict(config: Bench, times: Times) -> list[str]:
    """What the times mean, in sentences."""
    constant, fed = statistics.median(times.constant), statistics.median(times.fed)
    low, _, high = statistics.quantiles([b / a - 1 for a, b in zip(times.constant, times.fed, strict=True)])
    found = (
        f"{fed / constant - 1:+.1%} ({(fed - constant) * 1e3:+,.3f} ms) a step; half of "
        f"{len(times.fed)} rounds were between {low:+.1%} and {high:+.1%}"
    )
    if high - low > NOISE:
        lines = [f"The machine was too busy to tell ({found}). Run again with nothing else running."]
    elif low <= 0:
        lines = [f"No difference was found: {found}."]
    else:
        lines = [f"Steps take longer with the loader: {found}. {REST}"]
    if not 1 / 2 < constant * 1e3 / config.step_ms < 2:
        lines.append(
            f"Steps took {constant * 1e3:,.3f} ms, not the {config.step_ms:,g} ms that you asked for: this is the "
            "answer for steps of that length."
        )
    return lines


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
        if loader.device.type == "meta":
            raise ValueError("--device meta holds no data, so there is nothing to measure")
        next(loader)
        first = time.perf_counter() - started
        console.print(
            f"batches of {config.batch_size:,} x {config.seq_len:,} tokens on {loader.device}, {config.packing}, "
            f"prefetch {config.prefetch}; {how_copied(loader.device)}; {os.cpu_count()} cores"
        )
        with console.status("measuring"):
            try:
                times = measure(loader, config.step_ms / 1e3, config.seconds)
            except StopIteration as error:
                raise ValueError(f"{config.tokens}: a source was used up before the measurement ended") from error
    console.print("\n".join(report(config, times, first)))


def main(arguments: list[str], prog: str) -> None:
    """Measures for these command-line arguments."""
    config = tyro.cli(Bench, prog=prog, args=arguments, description=__doc__)
    bench(config, Console(soft_wrap=True, highlight=False, markup=False))
