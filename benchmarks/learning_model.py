"""The small GPT of benchmarks/learning.py: the model, a run of training, and what it has learned.

    trainer = Trainer(vocab_size, Size(), "cuda")
    trainer.train(rows, seed=0, steps=400, is_within=False)
    held_out = trainer.held_out(windows_of(text, 1024, most=2000))
    trainer.measure(held_out)                       {"whole": 3.9, "beginnings": 3.5, ...}

One model begins anew with each run, with the first weights of its seed, so that it is compiled once.
"""

import time
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from learning_rows import Rows, Text
from torch import nn

MEASURES = (
    "whole",
    "beginnings",
    "middles",
    "short",
    "long",
    "token 1",
    "2-16",
    "17-128",
    "129-T",
)


KINDS = ("a short document", "the beginning of a long one", "a middle")  # of windows


class Size(NamedTuple):
    """Of the model, and of training."""

    layers: int = 8
    width: int = 512
    heads: int = 8
    seq_len: int = 1024
    batch_size: int = 32
    learning_rate: float = 2e-3  # best of 1e-3, 2e-3 and 4e-3 for best_fit
    warmup: int = 50
    held_out: int = 1_000_000  # documents, at most


SMALL = Size(2, 128, 4, seq_len=256, batch_size=32, learning_rate=2e-3, held_out=500)


class HeldOut(NamedTuple):
    """Windows over held-out documents."""

    inputs: torch.Tensor  # (windows, T) int64
    targets: torch.Tensor  # (windows, T) int64, -100 where a target does not count
    kinds: torch.Tensor  # (windows,) int64: places in KINDS


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
        """Rises over the first steps, and falls to nothing along a line."""
        rise = (step + 1) / self.size.warmup
        fall = (steps - step) / steps
        return self.size.learning_rate * min(1.0, rise, fall)

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.is_cuda)

    def held_out(self, windows: list[tuple[np.ndarray, int]]) -> "HeldOut":
        """Windows on the device. There are as many as fill batches: the last are empty."""
        batch_size = self.size.batch_size
        empty = [(np.zeros(1, np.int64), 0)] * (-len(windows) % batch_size)
        inputs, targets = _padded([*windows, *empty], self.size.seq_len)
        kinds = torch.tensor([_kind(*window, self.size.seq_len) for window in [*windows, *empty]])
        return HeldOut(inputs.to(self.device), targets.to(self.device), kinds.to(self.device))

    @torch.no_grad()
    def measure(self, held_out: "HeldOut") -> dict[str, float]:
        """The mean loss of held-out windows, by what is measured."""
        seq_len = self.size.seq_len
        sums = torch.zeros((len(KINDS), seq_len), dtype=torch.float64, device=self.device)
        counts = torch.zeros_like(sums)
        for begin in range(0, len(held_out.kinds), self.size.batch_size):
            batch = slice(begin, begin + self.size.batch_size)
            targets = held_out.targets[batch]
            with self._precision():
                losses = self.losses(held_out.inputs[batch], targets, None).double()
            kinds = held_out.kinds[batch]
            sums.index_add_(0, kinds, losses)
            counts.index_add_(0, kinds, (targets >= 0).double())
        first = slice(0, 2)  # of KINDS
        everything = slice(None)
        measured = {
            "whole": (everything, everything),
            "beginnings": (first, everything),
            "short": (slice(0, 1), everything),
            "long": (slice(1, 2), everything),
            "middles": (slice(2, 3), everything),
            "token 1": (first, slice(0, 1)),
            "2-16": (first, slice(1, 16)),
            "17-128": (first, slice(16, 128)),
            "129-T": (first, slice(128, None)),
        }
        return {
            name: round(float(sums[measured[name]].sum() / counts[measured[name]].sum()), 5)
            for name in MEASURES
        }


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


def _kind(window: np.ndarray, counted: int, seq_len: int) -> int:
    """The place in KINDS of a window; what is as long as a window counts as long."""
    if counted:
        return 2
    return int(len(window) > seq_len)


def _padded(
    windows: list[tuple[np.ndarray, int]], seq_len: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of one shape: (windows, T) int64. Targets that do not count are -100."""
    inputs = np.zeros((len(windows), seq_len), np.int64)
    targets = np.full((len(windows), seq_len), -100)
    for row, (window, counted) in enumerate(windows):
        last = len(window) - 1
        inputs[row, :last] = window[:-1]
        targets[row, counted:last] = window[counted + 1 :]
    return torch.from_numpy(inputs), torch.from_numpy(targets)
