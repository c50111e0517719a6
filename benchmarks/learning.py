"""What a small GPT learns from the same text, packed in different ways.

    python benchmarks/web_like.py data/learning                 60M tokens of this machine's text
    python benchmarks/learning.py TOKENS --minutes 8 --out results.jsonl
    python benchmarks/learning.py --table results.jsonl

Trains variant after variant (learning_rows.py), seed after seed, until the time is up, and appends
a line to --out for each run. What is in the file already is not run again, so results of several
days add up. For one seed, every variant begins with the same weights, and all have the same number
of row tokens. `within:VARIANT` keeps attention inside pieces.

Regimes: `fresh`, in which no token is seen twice, so the variant that drops most says how many
steps there are; and `repeated`, as many steps over a quarter of that text, which are four epochs of
best_fit.

The losses are means over held-out documents, each target once: `beginnings`, the first T targets
from a document's own BOS, also by position, and those of `short` documents, which fit a row, and of
`long` ones; `middles`, all later ones, in windows of T that move by T/2; and `whole`, all.

--small is the same with 2 layers of 128 and rows of 256, for a CPU.
"""

import argparse
import datetime
import json
import math
import multiprocessing
import os
import platform
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from learning_model import MEASURES, SMALL, Size, Trainer, windows_of
from learning_rows import VARIANTS, Rows, Text, make_rows

from tokenmill.store.token_sets import TokenSet

REGIMES = ("fresh", "repeated")
EPOCHS = 4  # of best_fit, in the repeated regime
SPARE = 0.98  # of the rows of the variant that has fewest: another seed may have fewer
WITHIN = "within:"


class Job(NamedTuple):
    """One run, which has a line in the results."""

    regime: str
    seed: int
    variant: str

    @property
    def is_within(self) -> bool:
        return self.variant.startswith(WITHIN)


# ---------------------------------------------------------------------------- rows, made ahead


class RowMaker:
    """Other processes, which make the rows of the next jobs while one trains."""

    def __init__(self, tokens: str, size: Size, most_steps: int):
        self.workers = max(1, min(10, (os.cpu_count() or 1) - 2))
        context = multiprocessing.get_context("spawn")  # a fork would share the GPU's state
        self.pool = ProcessPoolExecutor(self.workers, context, _read_text, (tokens, "train"))
        self.size = size
        fewest = list(self.pool.map(_count_rows, ("nanochat", "crop"), [size.seq_len + 1] * 2))
        self.steps = min(int(min(fewest) * SPARE) // size.batch_size, most_steps)
        self.row_tokens = self.steps * size.batch_size * (size.seq_len + 1)

    def __enter__(self) -> "RowMaker":
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(cancel_futures=True)

    def rows_of(self, wanted: Iterator[Job]) -> Iterator[tuple[Job, Rows]]:
        """Each job with its rows, in order."""
        ahead = deque((job, self._submit(job)) for job in islice(wanted, self.workers))
        while ahead:
            job, rows = ahead.popleft()
            ahead.extend((later, self._submit(later)) for later in islice(wanted, 1))
            yield job, rows.result()

    def _submit(self, job: Job) -> Future[Rows]:
        need = self.steps * self.size.batch_size
        most_tokens = self.row_tokens // EPOCHS if job.regime == "repeated" else None
        return self.pool.submit(_make_rows, job, self.size.seq_len + 1, need, most_tokens)


def _read_text(tokens: str, split: str) -> None:
    """What a process begins with."""
    global _text
    _text = Text.read(tokens, split)


def _count_rows(variant: str, row_len: int) -> int:
    """The rows of all text, without a token twice."""
    return len(make_rows(variant, _text, row_len=row_len, need=None, epochs=1, seed=0).tokens)


def _make_rows(job: Job, row_len: int, need: int, most_tokens: int | None) -> Rows:
    variant = job.variant.removeprefix(WITHIN)
    epochs = 1 if job.regime == "fresh" else None
    text = _text if most_tokens is None else _text.first(most_tokens)
    return make_rows(variant, text, row_len=row_len, need=need, epochs=epochs, seed=job.seed)


# ---------------------------------------------------------------------------- the experiment


def jobs(regimes: list[str], variants: list[str], seeds: int) -> Iterator[Job]:
    """Seed after seed, so that whatever was finished is balanced."""
    for seed in range(seeds):
        for regime in regimes:
            for variant in variants:
                yield Job(regime, seed, variant)


def run(arguments: argparse.Namespace) -> None:
    """Runs what the results lack, until the time is up."""
    size = SMALL if arguments.small else Size()
    if arguments.learning_rate:
        size = size._replace(learning_rate=arguments.learning_rate)
    deadline = time.monotonic() + 60 * arguments.minutes
    val = Text.read(arguments.tokens, "val")
    trainer = Trainer(val.vocab_size + 1, size, arguments.device)  # and the marker
    held_out = trainer.held_out(windows_of(val, size.seq_len, size.held_out))
    with RowMaker(arguments.tokens, size, arguments.steps) as maker:
        facts = {
            "steps": maker.steps,
            "row_tokens": maker.row_tokens,
            "set": TokenSet(arguments.tokens).digest,
            "size": list(size),
        }
        finished = {_key(line) for line in _lines(arguments.out)}
        print(f"{maker.steps:,} steps, {len(held_out.kinds):,} windows", flush=True)
        wanted = (
            job
            for job in jobs(arguments.regimes, arguments.variants, arguments.seeds)
            if (job, _frozen(facts)) not in finished
        )
        for job, rows in maker.rows_of(wanted):
            if time.monotonic() > deadline:
                return
            speed = trainer.train(rows, job.seed, maker.steps, job.is_within)
            line = job._asdict() | facts | trainer.measure(held_out)
            line |= {"tokens_per_second": round(speed), **_machine(trainer.device)}
            with open(arguments.out, "a") as file:
                file.write(json.dumps(line) + "\n")
            print(
                f"{job.regime} {job.seed} {job.variant}: whole {line['whole']:.4f}, "
                f"beginnings {line['beginnings']:.4f}, {speed:,.0f} tokens/s",
                flush=True,
            )


def _machine(device: torch.device) -> dict[str, str]:
    is_cuda = device.type == "cuda"
    return {
        "card": torch.cuda.get_device_name() if is_cuda else platform.machine(),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
    }


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def _key(line: dict[str, Any]) -> tuple[Job, str]:
    """What makes two runs the same: the job, the text, the steps and the sizes."""
    facts = {name: line[name] for name in ("steps", "row_tokens", "set", "size")}
    return Job(line["regime"], line["seed"], line["variant"]), _frozen(facts)


def _frozen(facts: dict[str, Any]) -> str:
    return json.dumps(facts)


# ---------------------------------------------------------------------------- the table


def table(path: Path) -> str:
    """Means over seeds, and the difference of `whole` to best_fit with its standard error."""
    lines = _lines(path)
    sections = []
    experiments = {_key(line)[1] for line in lines}
    for experiment in sorted(experiments):
        for regime in REGIMES:
            own_lines = [
                line for line in lines if _key(line)[1] == experiment and line["regime"] == regime
            ]
            if own_lines:
                sections.append(_section(regime, own_lines))
    return "\n\n".join(sections)


def _section(regime: str, lines: list[dict[str, Any]]) -> str:
    first = lines[0]
    measures = [name for name in MEASURES if all(name in line for line in lines)]
    cards = ", ".join(sorted({line["card"] for line in lines}))
    written = [
        f"{regime}: {first['steps']:,} steps, {first['row_tokens'] / 1e6:.1f}M row tokens, "
        f"learning rate {first['size'][5]}, {cards}",
        "",
        f"| variant | n | {' | '.join(measures)} | whole - best_fit | token 1 - best_fit |",
        f"| --- | ---: |{' ---: |' * (len(measures) + 2)}",
    ]
    by_variant: dict[str, dict[int, dict[str, Any]]] = {}
    for line in lines:
        by_variant.setdefault(line["variant"], {})[line["seed"]] = line
    base = by_variant.get("best_fit", {})
    for variant, runs in sorted(by_variant.items(), key=lambda item: _mean(item[1], "whole")):
        means = " | ".join(f"{_mean(runs, measure):.4f}" for measure in measures)
        differences = " | ".join(_difference(runs, base, name) for name in ("whole", "token 1"))
        written.append(f"| {variant} | {len(runs)} | {means} | {differences} |")
    return "\n".join(written)


def _mean(runs: dict[int, dict[str, Any]], measure: str) -> float:
    return float(np.mean([line[measure] for line in runs.values()]))


def _difference(
    runs: dict[int, dict[str, Any]], base: dict[int, dict[str, Any]], measure: str
) -> str:
    """The mean difference of seeds that both have, and its standard error."""
    seeds = sorted(runs.keys() & base.keys())
    if runs is base or not seeds:
        return ""
    differences = [runs[seed][measure] - base[seed][measure] for seed in seeds]
    mean = np.mean(differences)
    if len(seeds) == 1:
        return f"{mean:+.4f}"
    error = np.std(differences, ddof=1) / math.sqrt(len(seeds))
    return f"{mean:+.4f} ± {error:.4f}"


def _named(variant: str) -> str:
    """A variant's name. ValueError, which argparse prints, if there is none of this name."""
    if variant.removeprefix(WITHIN) not in VARIANTS:
        raise ValueError(variant)
    return variant


def main(line: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tokens", nargs="?", help="a token set's folder")
    parser.add_argument("--table", type=Path, help="print the table of these results, and stop")
    parser.add_argument("--out", type=Path, default="results.jsonl", help="[%(default)s]")
    parser.add_argument("--minutes", type=float, default=8, help="begin no run after [%(default)s]")
    parser.add_argument("--seeds", type=int, default=1_000, help="at most so many")
    parser.add_argument("--steps", type=int, default=1 << 30, help="at most so many, of a run")
    parser.add_argument("--learning-rate", type=float, help="[2e-3]")
    parser.add_argument("--small", action="store_true", help="a size for a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--regimes", nargs="+", default=list(REGIMES), choices=REGIMES)
    parser.add_argument(
        "--variants",
        nargs="+",
        type=_named,
        default=[*VARIANTS, "within:best_fit", "within:nanochat"],
        help=f"{', '.join(VARIANTS)}, or within:VARIANT [all, and within: of two]",
    )
    arguments = parser.parse_args(line)
    torch.set_float32_matmul_precision("high")
    if arguments.table:
        print(table(arguments.table))
    elif arguments.tokens:
        run(arguments)
    else:
        parser.error("name a token set's folder; benchmarks/web_like.py makes one")


if __name__ == "__main__":
    main()
