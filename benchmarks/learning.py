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
from a document's own BOS, also by position; `middles`, all later ones, in windows of T that move by
T/2; and `whole`, both.

--small is the same with 2 layers of 128 and rows of 256, for a CPU.
"""

import argparse
import datetime
import json
import math
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from learning_model import MEASURES, SMALL, Size, Trainer, windows_of
from learning_rows import VARIANTS, Text, make_rows

from tokenmill.store.token_sets import TokenSet

REGIMES = ("fresh", "repeated")
EPOCHS = 4  # of best_fit, in the repeated regime
SPARE = 0.98  # of the rows of the variant that has fewest: another seed may have fewer


class Job(NamedTuple):
    """One run, which has a line in the results."""

    regime: str
    seed: int
    variant: str


# ---------------------------------------------------------------------------- the experiment


def jobs(regimes: list[str], variants: list[str]) -> Iterator[Job]:
    """Seed after seed, so that whatever was finished is balanced."""
    for seed in range(1_000):
        for regime in regimes:
            for variant in variants:
                yield Job(regime, seed, variant)


def count_steps(text: Text, size: Size) -> int:
    """The steps for which the variant that drops most has rows, without a token twice."""
    fewest = min(
        len(make_rows(variant, text, row_len=size.seq_len + 1, need=None, epochs=1, seed=0).tokens)
        for variant in ("nanochat", "crop")
    )
    return int(fewest * SPARE) // size.batch_size


def run(arguments: argparse.Namespace) -> None:
    """Runs what the results lack, until the time is up."""
    size = SMALL if arguments.small else Size()
    if arguments.learning_rate:
        size = size._replace(learning_rate=arguments.learning_rate)
    deadline = time.monotonic() + 60 * arguments.minutes
    text = Text.read(arguments.tokens, "train")
    held_out = windows_of(Text.read(arguments.tokens, "val"), size.seq_len, size.held_out)
    steps = min(count_steps(text, size), arguments.steps)
    row_tokens = steps * size.batch_size * (size.seq_len + 1)
    texts = {"fresh": text, "repeated": text.first(row_tokens // EPOCHS)}
    facts = {
        "steps": steps,
        "row_tokens": row_tokens,
        "set": TokenSet(arguments.tokens).digest,
        "size": list(size),
    }
    finished = {_key(line) for line in _lines(arguments.out)}
    trainer = Trainer(text.vocab_size, size, arguments.device)
    print(f"{text.lengths.sum():,} tokens, {steps:,} steps, {len(held_out):,} windows", flush=True)
    for job in jobs(arguments.regimes, arguments.variants):
        if (job, _frozen(facts)) in finished:
            continue
        if time.monotonic() > deadline or job.seed >= arguments.seeds:
            return
        base = job.variant.removeprefix("within:")
        rows = make_rows(
            base,
            texts[job.regime],
            row_len=size.seq_len + 1,
            need=steps * size.batch_size,
            epochs=1 if job.regime == "fresh" else None,
            seed=job.seed,
        )
        speed = trainer.train(rows, job.seed, steps, base != job.variant)
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
    cards = ", ".join(sorted({line["card"] for line in lines}))
    written = [
        f"{regime}: {first['steps']:,} steps, {first['row_tokens'] / 1e6:.1f}M row tokens, {cards}",
        "",
        f"| variant | n | {' | '.join(MEASURES)} | whole - best_fit | token 1 - best_fit |",
        f"| --- | ---: |{' ---: |' * (len(MEASURES) + 2)}",
    ]
    by_variant: dict[str, dict[int, dict[str, Any]]] = {}
    for line in lines:
        by_variant.setdefault(line["variant"], {})[line["seed"]] = line
    base = by_variant.get("best_fit", {})
    for variant, runs in sorted(by_variant.items(), key=lambda item: _mean(item[1], "whole")):
        means = " | ".join(f"{_mean(runs, measure):.4f}" for measure in MEASURES)
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
    if variant.removeprefix("within:") not in VARIANTS:
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
    parser.add_argument("--learning-rate", type=float, help="[1e-3; 2e-3 with --small]")
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
