"""Makes torch tensors of rows of token ids: (inputs, targets), each (B, T) int64, on a device.

    cpu           NumPy widens rows into both tensors
    cuda, ROCm    one copy of (B, T + 1) uint16, 2 bytes a token instead of 16, through pinned
                  memory and on a stream of its own, widened on the device, while the device
                  computes
    all others    widened on the CPU, and copied when `next` is called

- Each batch has pinned memory of its own. torch's allocator hands that out again only when the
  copies from it are done (pytorch issue 130785).
- Each batch has an event, recorded on the copy stream after widening. The stream that is current
  where `next` is called waits for it. The host does not.
- `record_stream` tells the allocator that this stream uses the batch. Otherwise its memory, which
  belongs to the copy stream, would be used for a later batch as soon as the caller drops this one,
  before its step has read it.

A CUDA graph capture in "global" mode forbids other threads some of these calls: capture with
capture_error_mode="thread_local", or use prefetch=0.
"""

from typing import Any

import numpy as np
import torch

from tokenmill.batches.arrays import Places, widen

# by bytes per token, as torch has few operations on unsigned numbers
SIGNED = {2: torch.int16, 4: torch.int32}
Pair = tuple[torch.Tensor, torch.Tensor]


class TorchArrays:
    """Tensors on the CPU, or on a device for which `Tensor.to` is enough."""

    def __init__(self, device: torch.device, ignore_index: int):
        self._device = device
        self._ignore_index = ignore_index

    def send(self, rows: np.ndarray, mask: np.ndarray | None, places: Places) -> Pair:
        inputs, targets = widen(rows, mask, places, np.dtype(np.int64), self._ignore_index)
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    def receive(self, sent: Pair) -> Pair:
        if self._device.type == "cpu":
            return sent
        inputs, targets = sent
        return inputs.to(self._device), targets.to(self._device)


class Cuda:
    """What StreamArrays needs of a device with streams: tests/simulated_device.py has another."""

    def __init__(self, device: torch.device):
        self.device = device
        self.copy_stream = torch.cuda.Stream(device)

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory on the host that the device can copy from while the host continues."""
        with torch.cuda.device(self.device):  # pinning creates a context on the current device
            return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)

    def copy(self, pinned: torch.Tensor) -> torch.Tensor:
        """Queues a copy to the device on the current stream, and returns at once."""
        return pinned.to(self.device, non_blocking=True)

    def on_copy_stream(self) -> Any:
        return torch.cuda.stream(self.copy_stream)

    def recorded_event(self) -> Any:
        """An event after all that is queued on the copy stream now."""
        event = torch.cuda.Event()
        event.record(self.copy_stream)
        return event

    def current_stream(self) -> Any:
        return torch.cuda.current_stream(self.device)

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        """Keeps a freed tensor's memory until what is queued on the stream by then is done."""
        tensor.record_stream(stream)


class StreamArrays:
    """Copies rows to a device with streams, without waiting for it."""

    def __init__(self, device: Any, ignore_index: int):
        self._device = device
        self._ignore_index = ignore_index

    def send(self, rows: np.ndarray, mask: np.ndarray | None, places: Places) -> Any:
        narrow = self._device.pinned(rows.shape, SIGNED[rows.itemsize])
        narrow.numpy().view(rows.dtype)[places] = rows
        if mask is not None:
            ignored = self._device.pinned(mask.shape, torch.bool)
            ignored.numpy()[places] = ~mask
        with self._device.on_copy_stream():
            on_device = self._device.copy(narrow)
            inputs = widened(on_device[:, :-1])
            targets = widened(on_device[:, 1:])
            if mask is not None:
                is_ignored = self._device.copy(ignored)[:, 1:]
                targets.masked_fill_(is_ignored, self._ignore_index)
        return inputs, targets, self._device.recorded_event()

    def receive(self, sent: Any) -> Pair:
        """The tensors of a batch, for work on the current stream. Only the device waits."""
        inputs, targets, ready = sent
        stream = self._device.current_stream()
        stream.wait_event(ready)
        for tensor in (inputs, targets):
            self._device.keep(tensor, stream)
        return inputs, targets


def widened(narrow: torch.Tensor) -> torch.Tensor:
    """Unsigned numbers, held as signed ones of as many bytes, as int64 in contiguous memory."""
    mask = (1 << 8 * narrow.element_size()) - 1
    return narrow.to(torch.int64, memory_format=torch.contiguous_format).bitwise_and_(mask)


def arrays_for(device: torch.device, ignore_index: int) -> TorchArrays | StreamArrays:
    """What makes tensors on a device."""
    if device.type == "cuda":
        return StreamArrays(Cuda(device), ignore_index)
    return TorchArrays(device, ignore_index)


def find_device(name: str | int | torch.device) -> torch.device:
    """The device with this name, and with an index.

    The loader's thread may have another current device. ValueError if torch does not know it, or
    cannot use it here.
    """
    try:
        device = torch.device(name)
        is_cpu = device.type == "cpu"
        return torch.device("cpu") if is_cpu else torch.empty(0, device=device).device
    except (RuntimeError, TypeError, AssertionError, ImportError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise ValueError(f"torch cannot use device {name!r} here: {reason}") from error
