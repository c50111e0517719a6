"""What torch calls a device, and the streams and events that one has.

stream_transfer.py copies batches asynchronously. It needs seven operations of a device, those of `Accelerator`:

    pinned(shape, dtype)       memory on the host that the device can read while the host continues
    copy_stream                the stream that copies batches, one for each device
    on(stream)                 a context: operations of this thread are queued on the stream
    copy(pinned)               queues a copy to the device on the current stream, and returns at once
    event()                    event.record(stream), event.synchronize() on the host, stream.wait_event(event)
    current_stream()           the stream of this thread's operations
    keep(tensor, stream)       the tensor's memory is not reused before the stream's present work is done

    CUDA, ROCm, XPU, MTIA, HPU, NPU      from torch.cuda, torch.xpu and so on
    other backends with streams          from torch.Stream, torch.Event and torch.accelerator
    MPS, XLA and all others              none: batches are copied synchronously
"""

import contextlib
from collections.abc import Iterator
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

import torch

NEEDED = ("Stream", "Event", "stream", "current_stream")  # of a device's module
# torch.cpu has streams that do nothing. Metal has one queue, which two threads must not use at once: torch crashes
# (pytorch issue 197805).
WITHOUT_STREAMS = {"cpu", "mps"}


class Accelerator:
    """The streams, events and pinned memory of one device."""

    def __init__(self, device: torch.device, module: Any):
        self.device, self._module = device, module
        self.copy_stream = module.Stream(device)

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Uninitialized memory on the host that the device can copy from asynchronously."""
        with self._current():  # pinning creates a context on the current device, which may be another one
            # "cpu" is explicit because the default device may be another one
            return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)

    def copy(self, pinned: torch.Tensor) -> torch.Tensor:
        """Copies pinned memory to the device, on the current stream. It is read when the stream reaches the copy."""
        return pinned.to(self.device, non_blocking=True)

    def on(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """A context in which this thread's operations are queued on a stream."""
        context: contextlib.AbstractContextManager[Any] = self._module.stream(stream)
        return context

    def current_stream(self) -> Any:
        """The stream on which this thread's operations are queued now."""
        return self._module.current_stream(self.device)

    def event(self) -> Any:
        """An event. Until it is recorded, nothing waits for it."""
        # a host that waits for a blocking event sleeps; for any other, it keeps a core busy
        return self._module.Event(blocking=True) if self.device.type == "cuda" else self._module.Event()

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        """Once the tensor is freed, its memory is not reused before what is queued on the stream then is done."""
        tensor.record_stream(stream)

    def _current(self) -> contextlib.AbstractContextManager[Any]:
        device = getattr(self._module, "device", None)
        return contextlib.nullcontext() if device is None else device(self.device)


@lru_cache(None)
def find_accelerator(device: torch.device) -> Accelerator | None:
    """The streams of a device, or None if it has none that stream_transfer.py can use.

    One for each device, for all loaders: CUDA has 32 streams, and a restarted loader needs no new one.
    """
    module = None if device.type in WITHOUT_STREAMS else _module_of(device)
    if module is None:
        return None
    if device.type == "cuda":
        return Accelerator(device, module)  # an error is not a reason to copy slowly
    try:
        accelerator = Accelerator(device, module)
        _try(accelerator)
    except (RuntimeError, TypeError, AttributeError, AssertionError):  # NotImplementedError is a RuntimeError
        return None
    return accelerator


def _module_of(device: torch.device) -> Any:
    """What has Stream, Event, stream and current_stream for a device, or None."""
    module = getattr(torch, device.type, None)
    if all(hasattr(module, name) for name in NEEDED):
        return module
    accelerators = getattr(torch, "accelerator", None)  # since torch 2.6
    found = None if accelerators is None else accelerators.current_accelerator()
    if accelerators is None or found is None or found.type != device.type:
        return None
    return SimpleNamespace(
        Stream=torch.Stream,
        Event=lambda: torch.Event(device),
        stream=partial(_generic_stream, accelerators),
        current_stream=accelerators.current_stream,
    )


@contextlib.contextmanager
def _generic_stream(accelerators: Any, stream: Any) -> Iterator[None]:
    """Makes a torch.Stream current. As a context of its own, it would remember the stream of only one thread."""
    index, before = accelerators.current_device_index(), accelerators.current_stream(stream.device)
    accelerators.set_stream(stream)  # makes its device current, too
    try:
        yield
    finally:
        accelerators.set_stream(before)
        accelerators.set_device_index(index)


def _try(accelerator: Accelerator) -> None:
    """Does everything once that a batch needs. Raises the error of the first operation that the device lacks."""
    stream, event = accelerator.copy_stream, accelerator.event()
    event.synchronize()  # of an event that was never recorded, returns at once
    with accelerator.on(stream):
        copied = accelerator.copy(accelerator.pinned((1,), torch.int16))
        event.record(stream)
    current = accelerator.current_stream()
    current.wait_event(event)
    accelerator.keep(copied, current)
    event.synchronize()


def find_device(name: str | int | torch.device) -> torch.device:
    """The device with this name, and with an index if its type has indexes.

    The index is that of the current device of this thread: threads that make batches later may have another. Raises
    ValueError if torch does not know the device, or cannot use it here.
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device must be one that torch knows, as 'cpu', 'cuda' or 'cuda:1', not {name!r}") from error
    if device.type == "cpu":
        return torch.device("cpu")  # "cpu:0" is the same
    if device.type != "cuda":
        return _usable(device)
    if not torch.cuda.is_available():
        raise ValueError(f"device {str(device)!r}: this machine, or this build of torch, has no CUDA; use device='cpu'")
    if device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    if device.index >= torch.cuda.device_count():
        raise ValueError(f"device {str(device)!r}: this machine has {torch.cuda.device_count()} CUDA devices")
    return device


def _usable(device: torch.device) -> torch.device:
    """A device of any type for which an empty tensor can be made, with its index."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise ValueError(
            f"device {str(device)!r} cannot be used on this machine, or with this build of torch: {reason}"
        ) from error
