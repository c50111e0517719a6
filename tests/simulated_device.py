"""A simulated device: it obeys the rules of CUDA's streams, events and allocators, and promises no
more.

    arrays = StreamArrays(device := SimulatedDevice(seed), ignore_index=-100)      as with Cuda (torch_arrays.py)
    device.run(10)                           runs up to 10 queued operations, of streams at random

- An operation is queued on the current stream of its thread, and the call returns. Those of one stream run in order;
  those of different streams in any order, unless one waits for an event of the other.
- A copy from pinned memory reads it when the copy runs. Pinned memory that is dropped is used for something else once
  the copies from it are done: here it is poisoned then.
- Memory of the device belongs to the stream that was current when it was made. Once it is dropped, later operations of
  that stream use it for something else, as soon as what `keep` names is done: here it is poisoned
  then.
"""

import contextlib
import random
import threading
import weakref
from collections import deque
from threading import Event

import torch


def poison(memory):
    memory.view(-1).view(torch.uint8).fill_(
        0xAA
    )  # token 43,690, which the tests' token sets do not have
    return memory


class Stream:
    """A queue of operations, which are functions, and of events that it waits for."""

    def __init__(self, device, operations=()):
        self.device, self.queue = device, deque(operations)
        device.streams.append(self)

    def add(self, what):
        self.queue.append(what)
        self.device.run(self.device.random.choice([0, 0, 1, 5]))

    wait_event = add

    def is_ready(self):
        return self.queue and (not isinstance(self.queue[0], Event) or self.queue[0].is_set())

    def mark(self):
        """An event after what is queued now."""
        event = Event()
        self.queue.append(event.set)
        return event


class SimulatedDevice:
    """What StreamArrays asks of a device, and `on`, a context in which a stream is the current one."""

    def __init__(self, seed=0):
        self.random, self.streams, self._running = random.Random(seed), [], False
        self._lock, self._local = threading.RLock(), threading.local()
        self.default, self.copy_stream = Stream(self), Stream(self)

    def run(self, operations):
        with self._lock:
            busy, self._running = (
                self._running,
                True,
            )  # an operation may drop memory, and so come here
            while (
                not busy
                and operations > 0
                and (ready := [one for one in self.streams if one.is_ready()])
            ):
                what, operations = self.random.choice(ready).queue.popleft(), operations - 1
                if not isinstance(what, Event):
                    what()
            self._running = busy

    def finish(self):
        self.run(1 << 30)
        assert not any(stream.queue for stream in self.streams), (
            "a stream waits for what will never happen"
        )

    @contextlib.contextmanager
    def on(self, stream):
        before, self._local.current = self.current_stream(), stream
        yield
        self._local.current = before

    def empty(self, shape, dtype):
        return SimulatedTensor(poison(torch.empty(shape, dtype=dtype, device="cpu")), self)

    def drop(self, memory, users):
        """Uses memory for something else once these events, and what these streams have queued by
        now, are done.
        """
        events = [one if isinstance(one, Event) else one.mark() for one in users]
        Stream(self, [*events, lambda: poison(memory)])

    def pinned(self, shape, dtype):
        memory = poison(torch.empty(shape, dtype=dtype, device="cpu"))
        tensor = memory.view(shape)
        tensor.memory, tensor.copies = memory, []
        weakref.finalize(tensor, self.drop, memory, tensor.copies).atexit = False
        return tensor

    def copy(self, pinned):
        found, copied = self.empty(pinned.shape, pinned.dtype), Event()
        pinned.copies.append(copied)
        source, target = pinned.memory, found.memory
        self.current_stream().add(lambda: (target.copy_(source), copied.set()))
        return found

    def on_copy_stream(self):
        return self.on(self.copy_stream)

    def recorded_event(self):
        return self.copy_stream.mark()

    def current_stream(self):
        return getattr(self._local, "current", self.default)

    def keep(self, tensor, stream):
        tensor.lease.users.add(stream)


class Lease:
    """The hold of a tensor and its views on memory; queued operations have none."""

    def __init__(self, device, memory):
        self.users = {device.current_stream()}
        weakref.finalize(self, device.drop, memory, self.users).atexit = False


class SimulatedTensor(torch.Tensor):
    """Views are made at once; everything else is queued, and reads and writes `memory`, on the CPU,
    when it runs.
    """

    @staticmethod
    def __new__(cls, memory, device, lease=None):
        how = {"strides": memory.stride(), "dtype": memory.dtype, "device": "meta"}
        return torch.Tensor._make_wrapper_subclass(cls, memory.shape, **how)

    def __init__(self, memory, device, lease=None):
        self.memory, self.simulated, self.lease = memory, device, lease or Lease(device, memory)

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), settings=None):
        first = next(one for one in arguments if isinstance(one, cls))
        device, memories = (
            first.simulated,
            [one.memory if isinstance(one, cls) else one for one in arguments],
        )
        call = lambda: function(*memories, **settings or {})  # noqa: E731
        if function._schema.is_mutable:
            device.current_stream().add(call)
            return first
        if any(result.alias_info for result in function._schema.returns):
            return cls(call(), device, first.lease)
        on_meta = [one.to("meta") if isinstance(one, torch.Tensor) else one for one in memories]
        form = function(*on_meta, **settings or {})
        result = device.empty(form.shape, form.dtype)
        target = result.memory
        device.current_stream().add(lambda: target.copy_(call()))
        return result
