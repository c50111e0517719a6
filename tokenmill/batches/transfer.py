"""From rows of token ids to a batch on a device: (inputs, targets), int64.

On the CPU rows are widened by NumPy, twice, so that both are contiguous. On CUDA a few pinned buffers
go round. Each batch is one asynchronous copy of (B, T + 1) uint16 on a stream of its own, 2 bytes a
token over the bus, widened there on that stream:

    loader's thread    fill buffer 0   fill 1     wait: is buffer 0 copied?   fill 0 ...
    its CUDA stream                    copy 0, widen   copy 1, widen
    training's stream  .................... step ............  wait: is batch 0 widened?  step

Two events say so: one guards a buffer until its copy is done, the other a batch until it is widened.
What training holds stays valid: its memory is its own, and record_stream keeps it from being used again
before training's stream is done with it.

uint16 travels as int16 and loses its sign by `& 0xFFFF` after widening, as torch knows few operations on
unsigned numbers. A manual CUDA graph capture in "global" mode forbids other threads' CUDA calls: capture
with capture_error_mode="thread_local", or take prefetch=0.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle

import numpy as np
import torch

from tokenmill.batches.documents import document_ids

SIGNED = {2: torch.int16, 4: torch.int32}  # by bytes of a token


@dataclass
class Batch:
    """`tensors` (inputs, targets[, document_ids][, sources]), and the event after which they may be read, on CUDA."""

    tensors: tuple[torch.Tensor, ...]
    ready: "torch.cuda.Event | None" = None

    def receive(self) -> tuple[torch.Tensor, ...]:
        """The tensors, for work on the stream that is current here; waits on the device only."""
        if self.ready is not None:
            stream = torch.cuda.current_stream(self.tensors[0].device)
            stream.wait_event(self.ready)
            for tensor in self.tensors:
                tensor.record_stream(stream)
        return self.tensors


class Transfer:
    """Takes rows to the CPU, or to a device that needs no more than `Tensor.to`. With a bos_id, document_ids too."""

    def __init__(self, device: torch.device, bos_id: int | None):
        self.device, self.bos_id = device, bos_id

    def send(self, rows: np.ndarray, sources: np.ndarray | None = None) -> Batch:
        """A batch of rows: (B, T + 1), of uint16 or uint32; perhaps with their sources: (B,) int64."""
        inputs = torch.from_numpy(rows[:, :-1].astype(np.int64))  # (B, T), contiguous: .view(-1) works
        targets = torch.from_numpy(rows[:, 1:].astype(np.int64))  # (B, T)
        tensors = self._with_documents(inputs.to(self.device), targets.to(self.device))
        return Batch(tensors if sources is None else (*tensors, torch.from_numpy(sources.copy()).to(self.device)))

    def _with_documents(self, inputs, targets) -> tuple[torch.Tensor, ...]:
        return (inputs, targets) if self.bos_id is None else (inputs, targets, document_ids(inputs, self.bos_id))


class CudaTransfer(Transfer):
    """Takes rows to a CUDA device through `buffers` pinned buffers, without waiting for it."""

    def __init__(self, device: torch.device, shape: tuple[int, int], dtype: np.dtype, bos_id: int | None, buffers: int):
        super().__init__(device, bos_id)
        self._dtype, self._mask = dtype, (1 << 8 * dtype.itemsize) - 1
        with torch.cuda.device(device):  # pinning makes a context on the current device, which may be another
            narrow = SIGNED[dtype.itemsize]  # and on the CPU, whatever the default device
            pinned = [
                [torch.empty(size, dtype=kind, device="cpu", pin_memory=True) for size, kind in sizes]
                for sizes in [[(shape, narrow), (shape[:1], torch.int64)]] * buffers
            ]
        self._ring = cycle([(rows, sources, torch.cuda.Event(blocking=True)) for rows, sources in pinned])
        self._stream = _copy_stream(device)

    def send(self, rows: np.ndarray, sources: np.ndarray | None = None) -> Batch:
        pinned, numbers, copied = next(self._ring)
        copied.synchronize()  # returns at once where nothing was copied yet
        pinned.numpy().view(self._dtype)[: len(rows)] = rows
        with torch.cuda.stream(self._stream):
            narrow = pinned[: len(rows)].to(self.device, non_blocking=True)
            more: tuple[torch.Tensor, ...] = ()
            if sources is not None:
                numbers.numpy()[: len(rows)] = sources
                more = (numbers[: len(rows)].to(self.device, non_blocking=True),)
            copied.record(self._stream)
            tensors = self._with_documents(self._widen(narrow[:, :-1]), self._widen(narrow[:, 1:]))
            ready = torch.cuda.Event()
            ready.record(self._stream)
        return Batch((*tensors, *more), ready)

    def _widen(self, narrow: torch.Tensor) -> torch.Tensor:
        return narrow.to(torch.int64, memory_format=torch.contiguous_format).bitwise_and_(self._mask)


@lru_cache(None)
def _copy_stream(device: torch.device) -> "torch.cuda.Stream":
    """One for all loaders of a device: CUDA has 32 of them, and a loader that is begun anew needs no other."""
    return torch.cuda.Stream(device)


def find_device(name: str | int | torch.device) -> torch.device:
    """The device of a name, CUDA's with its number. ValueError for a name that torch does not know, or without CUDA."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device must be one that torch knows, as 'cpu', 'cuda' or 'cuda:1', not {name!r}") from error
    if device.type != "cuda":
        return torch.device("cpu") if device.type == "cpu" else device  # "cpu:0" is the same
    if not torch.cuda.is_available():
        raise ValueError(f"device {str(device)!r}: this machine, or this build of torch, has no CUDA; use device='cpu'")
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


def make_transfer(
    device: torch.device, shape: tuple[int, int], dtype: np.dtype, bos_id: int | None, buffers: int
) -> Transfer:
    """The transfer for a device; `shape` is (B, T + 1), with a `bos_id` batches have document_ids."""
    if device.type == "cuda":
        return CudaTransfer(device, shape, dtype, bos_id, buffers)
    return Transfer(device, bos_id)
