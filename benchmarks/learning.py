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
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from learning_rows import VARIANTS, Rows, Text, make_rows

from tokenmill.store.token_sets import TokenSet

REGIMES = ("fresh", "repeated")
EPOCHS = 4  # of best_fit, in the repeated regime
MEASURES = ("whole", "beginnings", "middles", "token 1", "2-16", "17-128", "129-T")
SPARE = 0.98  # of the rows of the variant that has fewest: another seed may have fewer


class Size(NamedTuple):
    """Of the model, and of training."""

    layers: int = 8
    width: int = 512
    heads: int = 8
    seq_len: int = 1024
    batch_size: int = 64
    learning_rate: float = 1e-3
    warmup: int = 50
    held_out: int = 1_000_000  # documents, at most


SMALL = Size(2, 128, 4, seq_len=256, batch_size=32, learning_rate=2e-3, held_out=500)


class Job(NamedTuple):
    """One run, which has a line in the results."""

    regime: str
    seed: int
    variant: str


# ---------------------------------------------------------------------------- the model


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.norm_2 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        is_causal = mask is None
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, vocab_size: int, size: Size):
        super().__init__()
        self.token = nn.Embedding(vocab_size, size.width)
        self.position = nn.Embedding(size.seq_len, size.width)
        self.blocks = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)

    def begin(self, seed: int) -> None:
        """The first weights of a seed, in place: what is compiled stays compiled."""
        torch.manual_seed(seed)
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
        for parameter in self.parameters():
            if parameter.ndim > 1:
                fresh = torch.randn(parameter.shape) * 0.02  # on the CPU: the same on every card
                parameter.data.copy_(fresh)
        for block in self.blocks:
            nn.init.zeros_(block.up.bias)
            nn.init.zeros_(block.down.bias)

    def forward(
        self, inputs: torch.Tensor, targets: torch.Tensor, piece: torch.Tensor | None
    ) -> torch.Tensor:
        """The loss of every target, 0 where it is -100: (B, T)."""
        length = inputs.shape[1]
        x = self.token(inputs) + self.position.weight[:length]
        mask = None if piece is None else _mask_within(piece)
        for block in self.blocks:
            x = block(x, mask)
        logits = (self.norm(x) @ self.token.weight.t()).float()
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return losses.view_as(targets)


def _mask_within(piece: torch.Tensor) -> torch.Tensor:
    """What each position may see of its row: (B, 1, T, T) bool."""
    is_same = piece[:, :, None] == piece[:, None, :]
    return is_same.tril()[:, None]


# ---------------------------------------------------------------------------- training


class Trainer:
    """One model, which begins anew with each run."""

    def __init__(self, vocab_size: int, size: Size, device: str):
        self.size = size
        self.device = torch.device(device)
        padded = -(-vocab_size // 64) * 64
        self.model = GPT(padded, size).to(self.device)
        self.is_cuda = self.device.type == "cuda"
        self.losses = torch.compile(self.model) if self.is_cuda else self.model

    def train(self, rows: Rows, seed: int, steps: int, is_within: bool) -> float:
        """Trains from the first weights on: tokens a second."""
        size = self.size
        self.model.begin(seed)
        optimizer = self._optimizer()
        tokens = torch.from_numpy(rows.tokens.astype(np.int32)).to(self.device)
        in_loss = torch.from_numpy(rows.in_loss).to(self.device)
        piece = torch.from_numpy(rows.piece).to(self.device) if is_within else None
        started = time.perf_counter()
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = self._learning_rate(step, steps)
            batch = slice(step * size.batch_size, (step + 1) * size.batch_size)
            row = tokens[batch].long()
            targets = row[:, 1:].masked_fill(~in_loss[batch], -100)
            with self._precision():
                losses = self.losses(row[:, :-1], targets, None if piece is None else piece[batch])
            loss = losses.sum() / (targets >= 0).sum()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        loss.item()  # waits for the device
        return steps * size.batch_size * size.seq_len / (time.perf_counter() - started)

    def _optimizer(self) -> torch.optim.Optimizer:
        decayed = [weight for weight in self.model.parameters() if weight.ndim > 1]
        plain = [weight for weight in self.model.parameters() if weight.ndim <= 1]
        groups = [
            {"params": decayed, "weight_decay": 0.1},
            {"params": plain, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=self.is_cuda)

    def _learning_rate(self, step: int, steps: int) -> float:
        """Rises over the first steps, and falls to a tenth along a cosine."""
        rise = min(1.0, (step + 1) / self.size.warmup)
        return self.size.learning_rate * rise * (0.55 + 0.45 * math.cos(math.pi * step / steps))

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.is_cuda)

    @torch.no_grad()
    def measure(self, windows: list[tuple[np.ndarray, int]]) -> dict[str, float]:
        """The mean loss of held-out windows, by what is measured."""
        seq_len = self.size.seq_len
        first_sum = torch.zeros(seq_len, device=self.device)
        first_count = torch.zeros_like(first_sum)
        middle_sum = torch.zeros((), device=self.device)
        middle_count = torch.zeros_like(middle_sum)
        for begin in range(0, len(windows), self.size.batch_size):
            chosen = windows[begin : begin + self.size.batch_size]
            inputs, targets = _padded(chosen, self.size.batch_size, seq_len)
            targets = targets.to(self.device)
            with self._precision():
                losses = self.losses(inputs.to(self.device), targets, None)
            is_first = torch.tensor([counted == 0 for _, counted in chosen], device=self.device)
            losses = losses[: len(chosen)]
            counts = (targets[: len(chosen)] >= 0).float()
            first_sum += losses[is_first].sum(0)
            first_count += counts[is_first].sum(0)
            middle_sum += losses[~is_first].sum()
            middle_count += counts[~is_first].sum()
        sums = {"whole": first_sum.sum() + middle_sum, "middles": middle_sum}
        counts = {"whole": first_count.sum() + middle_count, "middles": middle_count}
        stretches = {
            "beginnings": slice(None),
            "token 1": slice(0, 1),
            "2-16": slice(1, 16),
            "17-128": slice(16, 128),
            "129-T": slice(128, None),
        }
        for name, stretch in stretches.items():
            sums[name] = first_sum[stretch].sum()
            counts[name] = first_count[stretch].sum()
        return {name: round(float(sums[name] / counts[name]), 5) for name in MEASURES}


def windows_of(text: Text, seq_len: int, most: int) -> list[tuple[np.ndarray, int]]:
    """Windows over documents, and the first target of each that counts, so that each counts once."""
    windows = []
    half = seq_len // 2
    offsets = text.offsets.tolist()
    for begin, end in zip(offsets[:most], offsets[1 : most + 1], strict=False):
        document = text.stream[begin:end]
        windows.append((document[: seq_len + 1], 0))
        windows += [
            (document[place : place + seq_len + 1], half)
            for place in range(half, len(document) - half - 1, half)
        ]
    return windows


def _padded(
    windows: list[tuple[np.ndarray, int]], batch_size: int, seq_len: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of always one shape: (B, T) int64. Targets that do not count are -100."""
    inputs = np.zeros((batch_size, seq_len), np.int64)
    targets = np.full((batch_size, seq_len), -100)
    for row, (window, counted) in enumerate(windows):
        last = len(window) - 1
        inputs[row, :last] = window[:-1]
        targets[row, counted:last] = window[counted + 1 :]
    return torch.from_numpy(inputs), torch.from_numpy(targets)


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
