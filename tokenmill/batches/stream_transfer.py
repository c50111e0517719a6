"""Copies rows to a device with streams: through pinned buffers, and without waiting for the device.

    loader's thread    fill buffer 0   fill 1     wait: is buffer 0 copied?   fill 0 ...
    copy stream                        copy 0, widen   copy 1, widen
    caller's stream    .................... step ............  wait: is batch 0 widened?  step

Each rule below is one line of `StreamTransfer`, and the tests remove each of them in turn:

- Each buffer has an event, `copied`. It is recorded on the copy stream after the last copy from the buffer, and the
  host waits for it before it fills the buffer again.
- Copies and widening are queued on the copy stream, so they run while the caller's stream computes.
- Each batch has an event, `ready`. It is recorded on the copy stream after widening, and the caller's stream waits for
  it. The host does not.
- The caller's stream is the one that is current where and when `next` is called, not in the loader's thread.
- `keep` tells the allocator that the caller's stream uses the batch. Otherwise the memory, which belongs to the copy
  stream, would be reused for a later batch as soon as the caller drops this one, before its step has read it.

A batch owns its memory, so it stays valid for as long as the caller holds it. An error leaves a buffer without its
event; the loader then makes another transfer, with other buffers. torch itself keeps a pinned buffer that is dropped
until the copies from it are done. torch_devices.py has the operations, and tests/simulated_device.py a device that
obeys the rules of CUDA and no more.

A CUDA graph capture in "global" mode forbids other threads some of these calls: capture with
capture_error_mode="thread_local", or use prefetch=0.
"""

from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch

from tokenmill.batches.torch_batch import SIGNED, Form, TorchBatch
from tokenmill.batches.torch_devices import Accelerator


@dataclass
class Buffer:
    """Pinned memory for one batch, and the event that says that it was copied."""

    rows: torch.Tensor  # (B, T + 1) int16 or int32, the bits of unsigned ids
    sources: torch.Tensor  # (B,) int64
    without: torch.Tensor  # (B, T + 1) bool
    copied: Any


class StreamTransfer:
    """Copies rows to a device through `buffers` pinned buffers, without waiting for the device."""

    def __init__(
        self, accelerator: Accelerator, shape: tuple[int, int], dtype: np.dtype[Any], form: Form, buffers: int
    ):
        self._device, self._form, self._dtype = accelerator, form, dtype
        self._stream = accelerator.copy_stream
        pinned = accelerator.pinned
        self._ring = cycle(
            [
                Buffer(
                    pinned(shape, SIGNED[dtype.itemsize]),
                    pinned(shape[:1], torch.int64),
                    pinned(shape, torch.bool),
                    accelerator.event(),
                )
                for _ in range(buffers)
            ]
        )

    def send(self, rows: np.ndarray, sources: np.ndarray | None = None, mask: np.ndarray | None = None) -> TorchBatch:
        buffer = next(self._ring)
        buffer.copied.synchronize()  # returns at once if this buffer was never copied
        host = self._fill(buffer, rows, sources, mask)
        with self._device.on(self._stream):
            copies: list[Any] = [None if array is None else self._device.copy(array) for array in host]
            buffer.copied.record(self._stream)
            tensors = self._form.widen(*copies)
            ready = self._device.event()
            ready.record(self._stream)
        return TorchBatch(partial(self._receive, tensors, ready))

    def _fill(self, buffer: Buffer, rows: np.ndarray, sources: np.ndarray | None, mask: np.ndarray | None) -> Any:
        """Writes a batch to the first rows of a buffer, and returns these: (rows, sources, tokens without loss)."""
        many = len(rows)
        buffer.rows.numpy().view(self._dtype)[:many] = rows
        if sources is not None:
            buffer.sources.numpy()[:many] = sources
        if mask is not None:
            np.logical_not(mask, out=buffer.without.numpy()[:many])
        return (
            buffer.rows[:many],
            None if sources is None else buffer.sources[:many],
            None if mask is None else buffer.without[:many],
        )

    def _receive(self, tensors: tuple[torch.Tensor, ...], ready: Any) -> tuple[torch.Tensor, ...]:
        """The tensors of a batch, for work on the current stream. Only the device waits, not the host."""
        stream = self._device.current_stream()
        stream.wait_event(ready)
        for tensor in tensors:
            self._device.keep(tensor, stream)
        return tensors
