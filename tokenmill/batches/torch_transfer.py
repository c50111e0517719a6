"""Copies rows of token ids to a torch device, as (inputs, targets) of int64.

On the CPU, NumPy widens each row twice, so that inputs and targets are both contiguous. To any other device, a batch
is one copy of (B, T + 1) uint16, 2 bytes a token instead of 16, and is widened there. On CUDA, batches pass through a
ring of pinned buffers, and are copied and widened asynchronously, on a separate stream:

    loader's thread    fill buffer 0   fill 1     wait: is buffer 0 copied?   fill 0 ...
    copy stream                        copy 0, widen   copy 1, widen
    training stream    .................... step ............  wait: is batch 0 widened?  step

Two events synchronize this. One guards each buffer until its copy is done; the other guards each batch until it is
widened. A batch stays valid for as long as the caller holds it: it owns its memory, and record_stream prevents the
memory from being reused before the caller's stream is done with it.

torch supports few operations on unsigned integers, so uint16 is copied as int16; after widening, `& 0xFFFF` removes the
sign. A manual CUDA graph capture in "global" mode forbids CUDA calls from other threads: capture with
capture_error_mode="thread_local", or use prefetch=0.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle

import numpy as np
import torch

from tokenmill.batches.documents import document_ids

SIGNED = {2: torch.int16, 4: torch.int32}  # by bytes per token


@dataclass
class TorchBatch:
    """`tensors` (inputs, targets[, document_ids][, sources]) and, on CUDA, the event that says when they are ready."""

    tensors: tuple[torch.Tensor, ...]
    ready: "torch.cuda.Event | None" = None

    def receive(self) -> tuple[torch.Tensor, ...]:
        """Returns the tensors for work on the current stream. Only the device waits, not the CPU."""
        if self.ready is not None:
            stream = torch.cuda.current_stream(self.tensors[0].device)
            stream.wait_event(self.ready)
            for tensor in self.tensors:
                tensor.record_stream(stream)
        return self.tensors


class TorchTransfer:
    """Widens rows on the CPU, and copies them to any device for which `Tensor.to` is enough.

    With a bos_id, adds document_ids. Targets that bear no loss become `ignore_index`.
    """

    def __init__(self, device: torch.device, bos_id: int | None, ignore_index: int = -100):
        self.device, self.bos_id, self.ignore_index = device, bos_id, ignore_index

    def send(self, rows: np.ndarray, sources: np.ndarray | None = None, mask: np.ndarray | None = None) -> TorchBatch:
        inputs = torch.from_numpy(rows[:, :-1].astype(np.int64))  # (B, T), contiguous: .view(-1) works
        wide = rows[:, 1:].astype(np.int64)  # (B, T)
        if mask is not None:
            np.copyto(wide, self.ignore_index, where=~mask[:, 1:])  # half the time of putmask
        targets = torch.from_numpy(wide)
        return self._batch(inputs.to(self.device), targets.to(self.device), sources)

    def _batch(self, inputs: torch.Tensor, targets: torch.Tensor, sources: np.ndarray | None) -> TorchBatch:
        tensors = self._with_documents(inputs, targets)
        return TorchBatch(tensors if sources is None else (*tensors, torch.from_numpy(sources.copy()).to(self.device)))

    def _with_documents(self, inputs, targets) -> tuple[torch.Tensor, ...]:
        return (inputs, targets) if self.bos_id is None else (inputs, targets, document_ids(inputs, self.bos_id))


class NarrowTransfer(TorchTransfer):
    """Copies rows to a device as they are, and widens them there."""

    def send(self, rows: np.ndarray, sources: np.ndarray | None = None, mask: np.ndarray | None = None) -> TorchBatch:
        narrow = torch.from_numpy(rows.view(f"i{rows.itemsize}")).to(self.device)
        targets = widen(narrow[:, 1:])
        if mask is not None:
            targets.masked_fill_(torch.from_numpy(~mask[:, 1:]).to(self.device), self.ignore_index)
        return self._batch(widen(narrow[:, :-1]), targets, sources)


def widen(narrow: torch.Tensor) -> torch.Tensor:
    """Unsigned numbers that are held as signed ones of as many bytes, as int64 in contiguous memory."""
    mask = (1 << 8 * narrow.element_size()) - 1
    return narrow.to(torch.int64, memory_format=torch.contiguous_format).bitwise_and_(mask)


def can_widen(device: torch.device) -> bool:
    """Whether a device has the operations that `NarrowTransfer` needs."""
    try:
        widen(torch.zeros((1, 2), dtype=torch.int16, device=device)[:, 1:]).masked_fill_(
            torch.ones((1, 1), dtype=torch.bool, device=device), -100
        )
    except (RuntimeError, TypeError):  # NotImplementedError is a RuntimeError
        return False
    return True


class CudaTransfer(NarrowTransfer):
    """Copies rows to a CUDA device through `buffers` pinned buffers, without waiting for the device."""

    def __init__(
        self,
        device: torch.device,
        shape: tuple[int, int],
        dtype: np.dtype,
        bos_id: int | None,
        buffers: int,
        ignore_index: int = -100,
    ):
        super().__init__(device, bos_id, ignore_index)
        self._dtype = dtype
        with torch.cuda.device(device):  # pinning creates a context on the current device, which may be another one
            narrow = SIGNED[dtype.itemsize]
            pinned = [
                # "cpu" is explicit because the default device may be another one
                [torch.empty(size, dtype=kind, device="cpu", pin_memory=True) for size, kind in sizes]
                for sizes in [[(shape, narrow), (shape[:1], torch.int64), (shape, torch.bool)]] * buffers
            ]
        self._ring = cycle([(a, b, c, torch.cuda.Event(blocking=True)) for a, b, c in pinned])
        self._stream = _copy_stream(device)

    def send(self, rows: np.ndarray, sources: np.ndarray | None = None, mask: np.ndarray | None = None) -> TorchBatch:
        pinned, numbers, bears, copied = next(self._ring)
        copied.synchronize()  # returns at once if this buffer was never copied
        pinned.numpy().view(self._dtype)[: len(rows)] = rows
        with torch.cuda.stream(self._stream):
            narrow = pinned[: len(rows)].to(self.device, non_blocking=True)
            source_numbers: tuple[torch.Tensor, ...] = ()
            if sources is not None:
                numbers.numpy()[: len(rows)] = sources
                source_numbers = (numbers[: len(rows)].to(self.device, non_blocking=True),)
            without: torch.Tensor | None = None
            if mask is not None:
                np.logical_not(mask, out=bears.numpy()[: len(rows)])
                without = bears[: len(rows)].to(self.device, non_blocking=True)
            copied.record(self._stream)
            targets = widen(narrow[:, 1:])
            if without is not None:
                targets.masked_fill_(without[:, 1:], self.ignore_index)
            tensors = self._with_documents(widen(narrow[:, :-1]), targets)
            ready = torch.cuda.Event()
            ready.record(self._stream)
        return TorchBatch((*tensors, *source_numbers), ready)


@lru_cache(None)
def _copy_stream(device: torch.device) -> "torch.cuda.Stream":
    """One copy stream per device for all loaders: CUDA has 32 streams, and a restarted loader needs no new one."""
    return torch.cuda.Stream(device)


def find_device(name: str | int | torch.device) -> torch.device:
    """The device with this name, and with an index if its type has indexes.

    The index is that of the current device of this thread: threads that make batches later may have another. Raises
    ValueError if torch does not know the device, or cannot use it here.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device must be one that torch knows, as 'cpu', 'cuda' or 'cuda:1', not {name!r}") from error
    if device.type == "cpu":
        return torch.device("cpu")  # "cpu:0" is the same
    if device.type != "cuda":
        return _usable(device)
    if not torch.cuda.is_available():
        raise ValueError(f"device {str(device)!r}: this machine, or this build of torch, has no CUDA; use device='cpu'")
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


def _usable(device: torch.device) -> torch.device:
    """A device of any type for which an empty tensor can be made, with its index."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"device {str(device)!r} cannot be used on this machine, or with this build of torch: {reason}"
        ) from error


def make_transfer(
    device: torch.device, shape: tuple[int, int], dtype: np.dtype, bos_id: int | None, buffers: int, ignore_index: int
) -> TorchTransfer:
    """The transfer for a device. `shape` is (B, T + 1). With a `bos_id`, batches include document_ids."""
    if device.type == "cuda":
        return CudaTransfer(device, shape, dtype, bos_id, buffers, ignore_index)
    kind = NarrowTransfer if device.type != "cpu" and can_widen(device) else TorchTransfer
    return kind(device, bos_id, ignore_index)
