"""Copies rows of token ids to a torch device, as (inputs, targets) of int64. There are three ways:

    device                     transfer          how
    cpu                        WideTransfer      NumPy widens each row twice: inputs and targets are both contiguous
    with streams (cuda, xpu)   StreamTransfer    one copy of (B, T + 1) uint16, 2 bytes a token instead of 16, through
                                                 pinned memory and on a separate stream; widened on the device
    without (mps)              NarrowTransfer    the same copy, when the batch is received
    that cannot widen          WideTransfer      widened by NumPy, and copied when the batch is received

A device without streams is used only where `next` is called, not in the loader's thread. On MPS, torch crashes if two
threads use the device at once (pytorch issue 197805), and XLA traces the operations of the thread that trains.
"""

from functools import partial
from typing import Any

import numpy as np
import torch

from tokenmill.batches.stream_transfer import StreamTransfer
from tokenmill.batches.torch_batch import Form, TorchBatch
from tokenmill.batches.torch_devices import find_accelerator
from tokenmill.batches.transfer import Transfer


class WideTransfer:
    """Widens rows on the CPU, and copies them to any device for which `Tensor.to` is enough."""

    def __init__(self, device: torch.device, form: Form):
        self._device, self._form, self._copies = device, form, device.type != "cpu"

    def send(self, rows: np.ndarray, sources: np.ndarray | None = None, mask: np.ndarray | None = None) -> TorchBatch:
        inputs = torch.from_numpy(rows[:, :-1].astype(np.int64))  # (B, T), contiguous: .view(-1) works
        wide = rows[:, 1:].astype(np.int64)  # (B, T)
        if mask is not None:
            np.copyto(wide, self._form.ignore_index, where=~mask[:, 1:])  # half the time of putmask
        tensors = self._form.join(inputs, torch.from_numpy(wide), _tensor_of(sources))
        return TorchBatch(partial(self._receive, tensors))

    def _receive(self, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.to(self._device) for tensor in tensors) if self._copies else tensors


class NarrowTransfer:
    """Copies rows to a device as they are, and widens them there, when the batch is received."""

    def __init__(self, device: torch.device, form: Form):
        self._device, self._form = device, form

    def send(self, rows: np.ndarray, sources: np.ndarray | None = None, mask: np.ndarray | None = None) -> TorchBatch:
        narrow = torch.from_numpy(rows.view(f"i{rows.itemsize}"))
        without = None if mask is None else torch.from_numpy(~mask)
        return TorchBatch(partial(self._receive, narrow, _tensor_of(sources), without))

    def _receive(
        self, narrow: torch.Tensor, sources: torch.Tensor | None, without: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        device = self._device
        return self._form.widen(
            narrow.to(device),
            None if sources is None else sources.to(device),
            None if without is None else without.to(device),
        )


def _tensor_of(array: np.ndarray | None) -> torch.Tensor | None:
    return None if array is None else torch.from_numpy(array.copy())


def can_widen(device: torch.device, form: Form) -> bool:
    """Whether a device has the operations that `Form.widen` needs."""
    try:
        narrow = torch.zeros((1, 2), dtype=torch.int16, device=device)
        form.widen(narrow, None, torch.ones((1, 2), dtype=torch.bool, device=device))
    except (RuntimeError, TypeError):  # NotImplementedError is a RuntimeError
        return False
    return True


def make_transfer(
    device: torch.device, shape: tuple[int, int], dtype: np.dtype[Any], form: Form, buffers: int
) -> Transfer:
    """The transfer for a device. `shape` is (B, T + 1); `buffers` is how many batches may be on their way."""
    if device.type == "cpu":
        return WideTransfer(device, form)
    accelerator = find_accelerator(device)
    if accelerator is not None:
        return StreamTransfer(accelerator, shape, dtype, form, buffers)
    return (NarrowTransfer if can_widen(device, form) else WideTransfer)(device, form)


HOW = {
    StreamTransfer: "copied through pinned memory on a separate stream",
    NarrowTransfer: "copied synchronously, as this device has no streams that torch can use",
    WideTransfer: "widened on the CPU and copied synchronously, as this device cannot widen tokens",
}


def how_copied(device: torch.device) -> str:
    """How batches reach a device, in words."""
    if device.type == "cpu":
        return "not copied"
    return HOW[type(make_transfer(device, (1, 2), np.dtype(np.uint16), Form(None), 1))]
