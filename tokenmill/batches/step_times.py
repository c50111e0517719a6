"""Measures what a device waits for: the same training step with batches of a loader, and with one constant batch.

Megatron's --mock-data trains on batches that cost nothing, which is the most that any loader could reach. Here both
loops take turns, and each turn runs many steps and then waits once for the device:

    constant batch   step step step ... wait      20.01 ms a step
    loader           step step step ... wait      20.03 ms a step: 0.1% longer
    constant batch   ...

Before each turn of the loader, the batches that its thread made ahead are taken and not counted: otherwise a loader
that is too slow would use in its own turn what it made in the other's. A turn is several times as long as those.

A step is a chain of matrix products, as many as take the time that you ask for. The first one depends on every token of
the batch, so a device cannot begin before it has it. Left out: the memory, the network and the Python of your own step.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

ROUNDS = 21  # at most
FEWEST = 5  # rounds, however long they take
PRODUCTS = 64  # about how many matrix products a step has
SIZES = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)  # of their matrices

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of inputs and targets
Chain = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]  # and a number of matrix products


class Times(NamedTuple):
    """Seconds, one for each turn: a batch of the loader alone; a step on one batch; a step on batches of the loader."""

    alone: list[float]
    constant: list[float]
    fed: list[float]
    waited: list[float]  # in `next`, of each step on batches of the loader


def measure(loader: Any, step_seconds: float, seconds: float) -> Times:
    """Measures a loader of torch batches. A step takes about `step_seconds`.

    It stops after `seconds`, but not before it has made a few rounds.
    """
    ahead, started = loader.config.prefetch, time.perf_counter()
    batch = next(loader)
    step = make_step(batch[0].device, step_seconds)
    turn = seconds / (3 * ROUNDS)
    times = Times([], [], [], [])
    fewest = 1 + 3 * ahead
    steps = max(fewest, round(turn / _seconds_a_step(step, lambda: batch, 3)))
    _take(loader, ahead)
    batches = max(fewest, round(turn / _seconds_a_step(_read, lambda: next(loader), fewest)))
    while len(times.fed) < FEWEST or (len(times.fed) < ROUNDS and time.perf_counter() - started < seconds):
        times.constant.append(_seconds_a_step(step, lambda: batch, steps))
        _take(loader, ahead)
        before = loader.waited
        times.fed.append(_seconds_a_step(step, lambda: next(loader), steps))
        times.waited.append((loader.waited - before) / steps)
        _take(loader, ahead)
        times.alone.append(_seconds_a_step(_read, lambda: next(loader), batches))
    return times


def _take(loader: Any, batches: int) -> None:
    for _ in range(batches):
        next(loader)


def _seconds_a_step(step: Step, next_batch: Callable[[], tuple[torch.Tensor, ...]], steps: int) -> float:
    """The time of a step, over so many. Nothing waits for the device before the last one is done."""
    started = time.perf_counter()
    for _ in range(steps):
        inputs, targets = next_batch()[:2]
        result = step(inputs, targets)
    result.item()  # waits for the device
    return (time.perf_counter() - started) / steps


def _read(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The least that a step does: it needs the batch."""
    return inputs[-1:, -1].sum()


def make_step(device: torch.device, seconds: float) -> Step:
    """A step of about so many seconds, with matrices as large as that takes."""
    for size in SIZES:
        chain = _make_chain(size, device)
        product = _seconds_a_product(chain, device)
        if product * PRODUCTS >= seconds:
            break
    products = max(1, round(seconds / product))
    tokens = torch.ones((1, 1), dtype=torch.int64, device=device)
    found = min(
        _seconds_a_step(lambda inputs, targets: chain(inputs, targets, products), lambda: (tokens, tokens), 1)
        for _ in range(5)
    )
    products = max(1, round(products * seconds / found))  # a chain is rarely as slow as its parts
    return lambda inputs, targets: chain(inputs, targets, products)


def _make_chain(size: int, device: torch.device) -> Chain:
    """Any number of matrix products, the first of which needs the batch."""
    left = torch.randn(size, size, device=device)
    right = torch.randn(size, size, device=device) / size**0.5  # so that products do not grow

    def chain(inputs: torch.Tensor, targets: torch.Tensor, products: int) -> torch.Tensor:
        x = left * (inputs.sum() + targets.sum()).sign()
        for _ in range(products):
            x = x @ right
        return x.sum()

    return chain


def _seconds_a_product(chain: Chain, device: torch.device) -> float:
    """The time of one matrix product: what a chain of 24 takes longer than one of 4."""
    tokens = torch.ones((1, 1), dtype=torch.int64, device=device)

    def seconds(products: int) -> float:
        return _seconds_a_step(lambda inputs, targets: chain(inputs, targets, products), lambda: (tokens, tokens), 1)

    seconds(4)  # the first call sets libraries up
    return max(1e-7, (min(seconds(24) for _ in range(3)) - min(seconds(4) for _ in range(3))) / 20)
