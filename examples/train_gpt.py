"""A small GPT, trained on a token set: `make train`, or on CUDA or several ranks

    torchrun --nproc-per-node 8 examples/train_gpt.py --layers 12 --width 768 --batch-size 32 --seq-len 2048 ...

One optimizer step takes `total_rows` rows, whatever the number of ranks, so that a checkpoint of 8 ranks goes on
with 1, 2 or 4 as if nothing had happened: the rows of every step are the same. `--checksums` prints, with every step, a
checksum of its rows: two runs that print the same ones saw the same rows.

`--tokens` may be a chat set (docs/chat.md), and `--start-from` a checkpoint whose weights are fine-tuned: `make chat`.
The loss of a step is the mean over its targets that are in the loss, on all ranks and in all passes.

Ctrl-C, or a scheduler's SIGTERM, ends after the step that is under way, with a checkpoint.
"""

import contextlib
import gc
import math
import os
import pickle
import shlex
import signal
import sys
import time
import traceback
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # noqa: F401 (before a process group is there: see process_group)
import torch.nn.functional as F
import tyro
from torch import nn

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # a clone's tokenmill, where none is installed

from tokenmill import Mixture, RowLoader, Tokenizer, find_token_set


@dataclass(frozen=True)
class TrainConfig:
    """Trains a small GPT on a token set."""

    tokens: Path | None = None  # the token set's folder; by default the one under data/tokens
    # or a mixture's TOML file: several token sets, and how much of each when
    mixture: Path | None = None
    layers: int = 3  # transformer blocks
    width: int = 128  # of the residual stream
    heads: int = 4  # of attention
    seq_len: int = 256  # tokens of an input
    batch_size: int = 8  # rows of one rank in one forward pass
    total_rows: int = 16  # of one optimizer step, over all ranks and passes
    steps: int = 140  # optimizer steps, those before the checkpoint counted
    learning_rate: float = 2e-3  # at its highest; then down to a tenth along a cosine
    warmup: int = 20  # steps
    val_every: int = 70  # steps between validations, which take val_batches batches
    val_batches: int = 8  # of one validation
    start_from: Path | None = None  # another run's checkpoint, whose weights are fine-tuned
    # a file; written with each validation and at the end, gone on from if there
    checkpoint: Path | None = None
    stop_at: int | None = None  # end after this step of all `steps`
    sample: int = 100  # tokens of text to write at the end; 0 writes none
    checksums: bool = False  # print a checksum of every step's rows, to compare runs by
    # where it trains, as torch names it
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    seed: int = 1337  # of the model's first weights


# ---------------------------------------------------------------------------- the model


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = (
            nn.Linear(width, 3 * width, bias=False),
            nn.Linear(width, width, bias=False),
        )
        self.up, self.down = (
            nn.Linear(width, 4 * width, bias=False),
            nn.Linear(4 * width, width, bias=False),
        )

    def forward(self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )
        mixed = F.scaled_dot_product_attention(
            rotate(q, rotation), rotate(k, rotation), v, is_causal=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.relu(self.up(self.norm_2(x))).square())


def rotate(x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary positions (Su et al., 2021), halves paired."""
    (cos, sin), (a, b) = rotation, x.chunk(2, dim=-1)
    cos, sin = cos[: x.shape[-2]].to(x.dtype), sin[: x.shape[-2]].to(x.dtype)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class GPT(nn.Module):
    def __init__(self, vocab_size: int, config: TrainConfig):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config.width, config.heads) for _ in range(config.layers))
        self.norm, self.head = (
            nn.RMSNorm(config.width),
            nn.Linear(config.width, vocab_size, bias=False),
        )
        half = config.width // config.heads // 2
        angles = torch.outer(torch.arange(config.seq_len), 10_000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                last = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / (math.sqrt(2 * config.layers) if last else 1))

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Logits (B, T, vocab_size), or with targets the loss of every token, in nats: (B, T)."""
        x = self.embedding(inputs)
        for block in self.blocks:
            x = block(x, (self.cos, self.sin))
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(
            logits.float().flatten(0, 1), targets.flatten(), reduction="none"
        ).view_as(targets)


# ---------------------------------------------------------------------------- training


def learning_rate(step: int, config: TrainConfig) -> float:
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=0.1
    )


def precision(config: TrainConfig) -> torch.autocast:
    return torch.autocast(config.device, torch.bfloat16, enabled=config.device == "cuda")


@torch.no_grad()
def bits_per_byte(model: nn.Module, config: TrainConfig, amp, tokens: Path | None) -> float:
    """The loss on a set's first validation batches, in bits a byte of text: comparable whatever the tokenizer."""
    loader = RowLoader(
        tokens, "val", batch_size=config.batch_size, seq_len=config.seq_len, device=config.device
    )
    token_bytes = torch.from_numpy(np.load(loader.token_set.path / "token_bytes.npy")).to(
        config.device
    )
    sums = torch.zeros(2, dtype=torch.float64, device=config.device)  # nats, bytes
    for _ in range(config.val_batches):
        inputs, targets = next(loader)
        with amp:
            losses = model(inputs, targets)
        counts = token_bytes[targets.clamp(min=0)] * (
            targets >= 0
        )  # 0 for special tokens, and what is not in the loss
        sums += torch.stack([(losses * (counts > 0)).sum(), counts.sum()])
    if dist.is_initialized():
        dist.all_reduce(sums)
    return (sums[0] / sums[1]).item() / math.log(2)


def validate(model: nn.Module, config: TrainConfig, amp) -> str:
    """Bits a byte, of each source where there are several."""
    if config.mixture is None:
        return f"{bits_per_byte(model, config, amp, config.tokens):.4f} bits per byte"
    folders = Mixture.load(config.mixture).paths
    found = {name: bits_per_byte(model, config, amp, folder) for name, folder in folders.items()}
    return "bits per byte: " + ", ".join(f"{name} {bits:.4f}" for name, bits in found.items())


def checksum(inputs: torch.Tensor) -> int:
    """Of a batch's rows, in whatever order."""
    return sum(zlib.crc32(row.tobytes()) for row in inputs.cpu().numpy()) % (1 << 32)


@contextlib.contextmanager
def process_group(config: TrainConfig) -> Iterator[tuple[int, int]]:
    """(rank, number of ranks), as torchrun says, talking to each other until the end.

    Whoever lets go of the group last ends gloo's threads, and two of torch 2.13's ways to do so are wrong:

    DDP's reducer does it with Python's lock held, for which one of these threads may wait: a hang. So DDP goes first,
    with all that holds it: the caller's variables, a reference cycle that the first DDP of a process is left in, and
    after an error the frames of its traceback.

    `torch.distributed.nn.functional`, which torch imports when it needs it, keeps the group of that moment in its
    default arguments, so that nobody ends the threads; one that lets go of a tensor while Python ends aborts the
    process (pytorch/pytorch issue 190489). So it is imported before there is a group.
    """
    ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if config.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    if ranks > 1:
        dist.init_process_group("nccl" if config.device == "cuda" else "gloo")
    try:
        yield rank, ranks
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        if ranks > 1:
            gc.collect()
            dist.destroy_process_group()


def load(path: Path, config: TrainConfig, model: GPT) -> dict:
    """A checkpoint, of a model of this shape."""
    try:
        saved = torch.load(path, map_location=config.device, weights_only=True)
    except (EOFError, OSError, RuntimeError, pickle.UnpicklingError) as error:
        raise SystemExit(f"{path}: is no checkpoint that can be read ({error!r})") from error
    if (there := saved["shape"]) != (here := shape(config, model)):
        raise SystemExit(f"{path}: is of a model with {there}, this one has {here}")
    return saved


def resume(
    config: TrainConfig, model: GPT, optimizer: torch.optim.Optimizer, loader: RowLoader
) -> int:
    """Goes on from the checkpoint, if there is one, on any number of ranks; else starts from `start_from`'s weights.
    The steps that are done.
    """
    if config.checkpoint is None or not config.checkpoint.exists():
        if config.start_from is not None:
            model.load_state_dict(load(config.start_from, config, model)["model"])
        return 0
    saved = load(config.checkpoint, config, model)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    try:
        loader.load_state_dict(saved["data"])  # the exact next row
    except ValueError as error:
        raise SystemExit(f"{config.checkpoint}: {error}") from error
    return saved["step"]


def save(
    config: TrainConfig, model: GPT, optimizer: torch.optim.Optimizer, loader: RowLoader, step: int
) -> None:
    """Writes the checkpoint whole, or not at all, on the first rank: the position is the same on all."""
    if loader.rank:
        return
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    saved["data"] = loader.state_dict()
    unfinished = config.checkpoint.with_name(f".{config.checkpoint.name}.{os.getpid()}.tmp")
    with open(unfinished, "wb") as file:
        torch.save(saved | {"shape": shape(config, model)}, file)
        file.flush()
        os.fsync(file.fileno())  # before it gets its name
    unfinished.replace(config.checkpoint)


def shape(config: TrainConfig, model: GPT) -> dict[str, int]:
    """What a checkpoint's model must have in common with the one that goes on from it."""
    vocab_size = model.embedding.num_embeddings
    return {
        "layers": config.layers,
        "width": config.width,
        "heads": config.heads,
        "vocab_size": vocab_size,
    }


class Ending:
    """Whether Ctrl-C or a scheduler asked for the end: `signal` is 0 until then. To ask again ends at once, unsaved."""

    AT_ONCE = 2.0  # seconds: what comes sooner is the same request, which torchrun passes on

    def __init__(self) -> None:
        self.signal, self._asked = 0, math.inf
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: object) -> None:
        if self.signal and time.monotonic() - self._asked > self.AT_ONCE:
            raise SystemExit("ended at once: the steps since the last checkpoint are lost")
        if (
            not self.signal and os.environ.get("RANK", "0") == "0"
        ):  # by write: a handler may interrupt a print
            os.write(
                2,
                b"\nending after this step, with a checkpoint if there is to be one; again ends at once\n",
            )
        self.signal, self._asked = number, min(self._asked, time.monotonic())


class Step:
    """One optimizer step after the other: `passes` batches of every rank each."""

    def __init__(
        self,
        config: TrainConfig,
        model: GPT,
        optimizer: torch.optim.Optimizer,
        loader: RowLoader,
        ranks: int,
    ):
        self.config, self.optimizer, self.batches, self.ranks = config, optimizer, loader, ranks
        self.model = nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
        self.passes, rest = divmod(config.total_rows, config.batch_size * ranks)
        if rest or not self.passes:
            raise SystemExit(
                f"total_rows {config.total_rows} is no multiple of {config.batch_size} rows x {ranks} ranks"
            )
        self.amp = precision(config)

    def take(self, step: int, ending: Ending) -> tuple[float, int, bool]:
        """Loss, checksum of the rows if it is asked for, and whether any rank is to end: over all ranks."""
        sums = self.learn(step)
        sums[2] = bool(ending.signal)
        if self.ranks > 1:
            dist.all_reduce(sums)
        return sums[0].item(), int(sums[1].item()) % (1 << 32), bool(sums[2])

    def learn(self, step: int) -> torch.Tensor:
        """What this rank adds to the sums over all: its share of the loss, its rows' checksum, and 0: (3,) float64."""
        sums = torch.zeros(3, dtype=torch.float64, device=self.config.device)
        in_loss = 0  # targets, on all ranks and in all passes
        for number in range(self.passes):
            inputs, targets = next(self.batches)
            in_loss += self.batches.targets
            if self.ranks > 1:
                self.model.require_backward_grad_sync = number == self.passes - 1
            with self.amp:
                loss = self.model(inputs, targets).sum()
            loss.backward()
            rows = checksum(inputs) if self.config.checksums else 0
            sums += torch.tensor([loss.item(), rows, 0], dtype=torch.float64, device=sums.device)
        sums[0] /= max(1, in_loss)
        for parameter in self.model.parameters():
            parameter.grad *= self.ranks / max(1, in_loss)  # DDP has divided by the ranks
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, self.config)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return sums


def train(config: TrainConfig) -> None:
    """Trains as one of the ranks that torchrun started, or alone."""
    ending = Ending()
    with process_group(config) as (rank, ranks):
        train_as(
            rank, ranks, config, ending
        )  # a function of its own: when it is left, nothing holds DDP
    if ending.signal:
        sys.exit(128 + ending.signal)


def train_as(rank: int, ranks: int, config: TrainConfig, ending: Ending) -> None:
    if config.tokens and config.mixture:
        raise SystemExit("give --tokens or --mixture, not both")
    if config.checkpoint:
        if config.checkpoint.is_dir():
            raise SystemExit(
                f"--checkpoint {config.checkpoint}: expected the name of a file, found a folder"
            )
        try:
            config.checkpoint.parent.mkdir(parents=True, exist_ok=True)  # now, and not in an hour
        except OSError as error:
            raise SystemExit(
                f"--checkpoint {config.checkpoint}: its folder cannot be made ({error})"
            ) from error
    settings = {"batch_size": config.batch_size, "seq_len": config.seq_len, "device": config.device}
    loader = RowLoader(config.mixture or config.tokens, "train", **settings)
    torch.manual_seed(config.seed)
    model = GPT(loader.vocab_size, config).to(config.device)
    optimizer = make_optimizer(model, config)
    first = resume(config, model, optimizer, loader)
    steps = Step(config, model, optimizer, loader, ranks)
    say = print if rank == 0 else lambda *_, **__: None
    size = sum(parameter.numel() for parameter in model.parameters())
    last = config.steps if config.stop_at is None else config.stop_at
    many = f"{ranks} rank{'s' * (ranks > 1)}, {steps.passes} pass{'es' * (steps.passes > 1)} a step"
    say(f"{size / 1e6:.1f}M parameters, {many}, from step {first} to {last}")
    if config.checkpoint and first >= last:
        say(
            f"{config.checkpoint} has all of these steps; give more --steps, or another --checkpoint to begin anew"
        )
    began, spent, to_end = time.perf_counter(), 0.0, False
    for step in range(first, last):
        started = time.perf_counter()
        loss, rows, to_end = steps.take(step, ending)
        spent += time.perf_counter() - started
        done = step + 1 - first
        facts = [
            f"loss {loss:.6f}",
            f"{done * config.total_rows * config.seq_len / spent:,.0f} tokens/s",
        ]
        facts += [
            f"waited for data {loader.waited / spent:.2%}",
            f"{left(began, done, last - step - 1)} left",
        ]
        say(
            "  ".join([f"step {step + 1:4}", *facts, *[f"rows {rows:08x}"] * config.checksums]),
            flush=True,
        )
        to_validate = (step + 1) % config.val_every == 0 or step + 1 == config.steps
        if to_validate and not to_end:
            say(f"step {step + 1:4}  validation {validate(model, config, steps.amp)}", flush=True)
            if config.mixture is not None:
                seen = [
                    f"{name} {one.tokens:,} tokens, {one.epochs:.2f} epochs"
                    for name, one in loader.seen().items()
                ]
                say(f"step {step + 1:4}  seen {'; '.join(seen)}", flush=True)
        if config.checkpoint and (to_validate or to_end or step + 1 == last):
            save(config, model, optimizer, loader, step + 1)
        if to_end:
            if config.checkpoint:
                say(how_to_look(config, step, loader.step, steps.passes))
            say(how_to_go_on(step + 1, config, ranks), flush=True)
            return
    if config.checkpoint and loader.step:
        say(how_to_look(config, last - 1, loader.step, steps.passes))
    if config.sample and rank == 0:
        say("\n" + write(model, Tokenizer.load(loader.token_set.path / "tokenizer.json"), config))


def left(began: float, done: int, ahead: int) -> str:
    """As long as the steps ahead take, as those before did, with their validations: "1:05" is a minute and five."""
    seconds = round((time.perf_counter() - began) / done * ahead)
    return f"{seconds // 60}:{seconds % 60:02}"


def how_to_go_on(step: int, config: TrainConfig, ranks: int) -> str:
    if config.checkpoint is None:
        return f"ended after step {step} of {config.steps}; nothing is kept of it: --checkpoint FILE would have kept it"
    told = f"saved after step {step} of {config.steps}"
    if ranks > 1:
        return (
            f"{told}; run torchrun again to continue, on any number of ranks "
            "(what it prints next is about the signal)"
        )
    python = (
        os.path.relpath(sys.executable)
        if sys.executable.startswith(os.getcwd() + os.sep)
        else "python"
    )
    again = os.environ.get("AGAIN") or shlex.join([python, *sys.argv])  # `make train` says so
    return f"{told}; to continue, run\n  {again}"


def how_to_look(config: TrainConfig, step: int, calls: int, passes: int) -> str:
    """The command that shows the rows of the optimizer step that was taken last, `passes` of the loader's `calls`."""
    tokens = config.mixture or config.tokens or find_token_set("data/tokens")
    several = (
        f" (its {passes} passes are steps {calls - passes} to {calls - 1} of the loader)"
        if passes > 1
        else ""
    )
    command = f"tokenmill show {tokens} --step {calls - passes} --checkpoint {config.checkpoint}"
    return f"to see what step {step + 1} trained on{several}, run\n  {command}"


@torch.no_grad()
def write(model: GPT, tokenizer: Tokenizer, config: TrainConfig) -> str:
    """A text of the model's own."""
    ids = torch.tensor([[tokenizer.bos_id]], device=config.device)
    generator = torch.Generator(config.device).manual_seed(config.seed)
    for _ in range(config.sample):
        logits = model(ids[:, -config.seq_len :])[:, -1].float()
        best = logits.topk(50).values[:, -1:]
        chances = logits.masked_fill(logits < best, -math.inf).softmax(-1)
        ids = torch.cat([ids, torch.multinomial(chances, 1, generator=generator)], dim=1)
    return tokenizer.decode(ids[0].tolist())


if __name__ == "__main__":
    train(tyro.cli(TrainConfig))
