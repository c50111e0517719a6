"""What a model learns from each packing: bits a byte of validation text, with the spread over seeds.

    python benchmarks/quality.py TOKENS --runs runs.jsonl

Trains the model of examples/train_gpt.py once for every packing and seed: of one seed all begin with the same weights,
and all take the same number of steps, rows and tokens. Then each is measured on the same documents, by one protocol.
A document is cut into pieces of seq_len tokens, and every token but its BOS is a target once. The first piece begins
with the document's BOS, as every packing shows it. What a later one should begin with, they disagree about: rows of
best_fit begin with BOS, those of concat and random with whatever token comes. So later pieces are measured both ways.

It wants a GPU. Models that two CPU cores train in some minutes (1.8M parameters, 2M tokens) differed as much from seed
to seed as from packing to packing, so no figures of it are published yet.

Every run is a line of the file `--runs`; one that is there already, with the same settings, is not done again.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from train_gpt import GPT, Step, TrainConfig, make_optimizer, precision

from tokenmill import RowLoader
from tokenmill.look.packing_stats import tally, variants
from tokenmill.store.set_names import find_token_set
from tokenmill.store.token_sets import TokenSet

SETTINGS = {label: {"packing": one.name, "long_documents": one.long_documents} for label, one in variants().items()}
MEASURED = (
    "all, later pieces after BOS",
    "all, later pieces as they come",
    "first pieces",
    "later",
    "later, after BOS",
)
# what two runs must have in common to be compared, beside the set and the documents
SAME = ("layers", "width", "heads", "seq_len", "total_rows", "steps", "warmup", "learning_rate", "device")
Piece = tuple[np.ndarray, np.ndarray]  # inputs and as many targets
Sums = np.ndarray  # nats, and bytes of the targets: (2,) float64


# ---------------------------------------------------------------------------- what is measured


def documents(token_set: TokenSet, most: int | None) -> Iterator[np.ndarray]:
    """Tokens of the validation documents, or of the first `most`."""
    shards = (token_set.open(entry) for entry in token_set.split("val"))
    found = (shard.read(begin, end) for shard in shards for begin, end in pairwise(shard.offsets.tolist()))
    return islice(found, most)


def pieces(document: np.ndarray, seq_len: int) -> list[Piece]:
    """All tokens but the first, BOS, as targets, each after the one before it, in pieces of `seq_len`."""
    inputs, targets = document[:-1], document[1:]
    return [(inputs[cut : cut + seq_len], targets[cut : cut + seq_len]) for cut in range(0, len(targets), seq_len)]


def after_bos(piece: Piece, bos_id: int) -> Piece:
    """The same targets, the first of them after BOS."""
    inputs, targets = piece
    return np.concatenate([[bos_id], inputs[1:]]), targets


@torch.no_grad()
def measure(model: GPT, some: list[Piece], token_bytes: torch.Tensor, bos_id: int, config: TrainConfig) -> Sums:
    """Over all targets of the pieces, those of like length together, filled up with BOS, which has no bytes."""
    sums, some = np.zeros(2), sorted(some, key=lambda piece: len(piece[0]))
    for first in range(0, len(some), config.batch_size):
        together = some[first : first + config.batch_size]
        batch = torch.full((2, len(together), len(together[-1][0])), bos_id)
        for row, piece in enumerate(together):
            for kind, tokens in enumerate(piece):
                batch[kind, row, : len(tokens)] = torch.from_numpy(tokens.astype(np.int64))
        inputs, targets = batch.to(config.device)
        with precision(config):
            losses = model(inputs, targets)
        counts = token_bytes[targets]
        sums += [float((losses.double() * (counts > 0)).sum()), float(counts.sum())]
    return sums


def bits(sums: Sums) -> float:
    """Of nats and bytes, bits a byte."""
    nats, counts = sums.tolist()
    return nats / counts / math.log(2) if counts else math.nan


def bits_per_byte(model: GPT, token_set: TokenSet, config: TrainConfig, most: int | None) -> dict[str, float]:
    """Of the validation documents, as MEASURED names it."""
    cut = [pieces(document, config.seq_len) for document in documents(token_set, most)]
    first, later = [piece for one in cut for piece in one[:1]], [piece for one in cut for piece in one[1:]]
    token_bytes = torch.from_numpy(np.load(token_set.file("token_bytes.npy"))).to(config.device)
    begun = [after_bos(piece, token_set.bos_id) for piece in later]
    a, b, c = (measure(model, some, token_bytes, token_set.bos_id, config) for some in (first, later, begun))
    return {name: bits(sums) for name, sums in zip(MEASURED, (a + c, a + b, a, b, c), strict=True)}


# ---------------------------------------------------------------------------- training


def trained(token_set: TokenSet, packing: str, config: TrainConfig) -> GPT:
    """A model after `config.steps` steps on rows of this packing."""
    shape = {"batch_size": config.total_rows, "seq_len": config.seq_len, "device": config.device}
    loader = RowLoader(token_set.path, "train", seed=config.seed, **shape, **SETTINGS[packing])
    torch.manual_seed(config.seed)
    model = GPT(loader.vocab_size, config).to(config.device)
    torch._dynamo.reset()  # of the model before
    steps = Step(config, torch.compile(model), make_optimizer(model, config), loader, ranks=1)
    for step in range(config.steps):
        loss = steps.learn(step)[0]
        if step % 100 == 99:
            print(f"  step {step + 1} of {config.steps}, loss {loss:.4f}", file=sys.stderr, flush=True)
    return model


# ---------------------------------------------------------------------------- runs


def runs(token_set: TokenSet, file: Path, seeds: int, most: int | None, config: TrainConfig) -> list[dict]:
    """Those of all packings and seeds, from the file where they are there."""
    same = {name: getattr(config, name) for name in SAME} | {"set": token_set.digest, "val_documents": most}
    wanted = [same | {"seed": seed, "packing": packing} for seed in range(seeds) for packing in SETTINGS]
    done = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    for settings in wanted:
        if any(run["settings"] == settings for run in done):
            continue
        print(f"{settings['packing']}, seed {settings['seed']}", file=sys.stderr, flush=True)
        one, started = replace(config, seed=settings["seed"]), time.perf_counter()
        found = bits_per_byte(trained(token_set, settings["packing"], one), token_set, one, most)
        seconds = round(time.perf_counter() - started)
        done.append({"settings": settings, "bits_per_byte": found, "seconds": seconds})
        with open(file, "a") as lines:
            lines.write(json.dumps(done[-1]) + "\n")
        print(f"  {found} in {seconds} s", file=sys.stderr, flush=True)
    return [run for run in done if run["settings"] in wanted]


def table(found: list[dict], lengths: list[np.ndarray], row_len: int) -> list[str]:
    """Mean over seeds, and from the lowest to the highest of them, as Markdown."""
    lines = [f"| packing | dropped | {' | '.join(MEASURED)} |", f"| --- | --- |{' --- |' * len(MEASURED)}"]
    for packing in SETTINGS:
        ours = [run["bits_per_byte"] for run in found if run["settings"]["packing"] == packing]
        cells = [f"{tally(packing, lengths, row_len).dropped:.1%}"]
        for of_seeds in ([one[name] for one in ours] for name in MEASURED):
            cells.append(f"{np.mean(of_seeds):.4f} ({min(of_seeds):.4f} to {max(of_seeds):.4f})")
        lines.append(f"| {packing} | {' | '.join(cells)} |")
    return lines


def main(tokens: Path, file: Path, seeds: int, most: int | None, config: TrainConfig) -> None:
    token_set = TokenSet(tokens)
    found = runs(token_set, file, seeds, most, config)
    lengths = [token_set.open(entry).lengths for entry in token_set.split("train")]
    there, seen = sum(int(each.sum()) for each in lengths), config.steps * config.total_rows * config.seq_len
    size = sum(weight.numel() for weight in GPT(token_set.tokenizer["vocab_size"], config).parameters())
    print(f"{size / 1e6:.1f}M parameters; {config.steps:,} steps of {config.total_rows} x {config.seq_len:,} tokens,")
    print(f"{seen / 1e6:.1f}M of a corpus of {there / 1e6:.1f}M; bits a byte, mean of {seeds} seeds (their range)\n")
    print("\n".join(table(found, lengths, config.seq_len + 1)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", nargs="?", type=Path, help="the token set; by default the one under data/tokens")
    parser.add_argument("--runs", type=Path, default=Path("quality.jsonl"), help="a line a run, kept [%(default)s]")
    parser.add_argument("--seeds", type=int, default=3, help="[%(default)s]")
    parser.add_argument("--layers", type=int, default=8, help="[%(default)s]")
    parser.add_argument("--width", type=int, default=512, help="[%(default)s]")
    parser.add_argument("--heads", type=int, default=8, help="[%(default)s]")
    parser.add_argument("--seq-len", type=int, default=1024, help="[%(default)s]")
    parser.add_argument("--rows", type=int, default=32, help="of one step [%(default)s]")
    parser.add_argument("--steps", type=int, default=1000, help="[%(default)s]")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="[%(default)s]")
    parser.add_argument("--val-documents", type=int, help="measure on the first so many [all]")
    given = parser.parse_args()
    if given.seeds < 1 or (given.val_documents is not None and given.val_documents < 1):
        parser.error("--seeds and --val-documents must be 1 or more")
    sizes = ("layers", "width", "heads", "seq_len", "steps", "learning_rate")
    shape = {name: getattr(given, name) for name in sizes}
    config = TrainConfig(**shape, total_rows=given.rows, batch_size=given.rows, warmup=max(1, given.steps // 10))
    main(given.tokens or find_token_set("data/tokens"), given.runs, given.seeds, given.val_documents, config)
