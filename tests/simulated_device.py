"""A simulated device: it obeys the rules of CUDA's streams, events and allocators, and promises no
more.

    device = SimulatedDevice(seed)
    arrays = StreamArrays(device, ignore_index=-100)     as with Cuda (torch_arrays.py)
    device.run(10)                                       up to 10 operations, of streams at random

- An operation is queued on the current stream of its thread, and the call returns. Those of one
  stream run in order; those of different streams in any order, unless one waits for an event of
  the other.
- A copy from pinned memory reads it when the copy runs. Pinned memory that is dropped is used for
  something else once the copies from it are done: here it is poisoned then.
- Memory of the device belongs to the stream that was current when it was made. Once it is dropped,
  later operations of that stream use it for something else, as soon as what `keep` names is done:
  here it is poisoned then.
"""

import contextlib
import random
import threading
import weakref
from collections import deque
from threading import Event

import torch
from torch.utils._pytree import tree_map_only


def poison(memory):
    # token 43,690, which the tests' token sets do not have
    memory.view(-1).view(torch.uint8).fill_(0xAA)
    return memory


class Stream:
    """A queue of operations, which are functions, and of events that it waits for."""

    def __init__(self, device, operations=()):
        self.device = device
        self.queue = deque(operations)
        device.streams.append(self)

    def add(self, operation):
        self.queue.append(operation)
        self.device.run(self.device.random.choice([0, 0, 1, 5]))

    wait_event = add

    def is_ready(self):
        if not self.queue:
            return False
        first = self.queue[0]
        return not isinstance(first, Event) or first.is_set()

    def mark(self):
        """An event after what is queued now."""
        event = Event()
        self.queue.append(event.set)
        return event


class SimulatedDevice:
    """What StreamArrays asks of a device, and `on`, a context in which a stream is current."""

    def __init__(self, seed=0):
        self.random = random.Random(seed)
        self.streams = []
        self._is_running = False
        self._lock = threading.RLock()
        self._local = threading.local()
        self.default = Stream(self)
        self.copy_stream = Stream(self)

    def run(self, operations):
        with self._lock:
            if self._is_running:  # an operation may drop memory, and so come here
                return
            self._is_running = True
            for _ in range(operations):
                ready = [stream for stream in self.streams if stream.is_ready()]
                if not ready:
                    break
                operation = self.random.choice(ready).queue.popleft()
                if not isinstance(operation, Event):
                    operation()
            self._is_running = False

    def finish(self):
        self.run(1 << 30)
        assert not any(stream.queue for stream in self.streams), (
            "a stream waits for what will never happen"
        )

    @contextlib.contextmanager
    def on(self, stream):
        before = self.current_stream()
        self._local.current = stream
        yield
        self._local.current = before

    def empty(self, shape, dtype):
        return SimulatedTensor(poison(torch.empty(shape, dtype=dtype, device="cpu")), self)

    def drop(self, memory, users):
        """Uses memory for something else once these events, and what these streams have queued by
        now, are done.
        """
        events = [user.mark() if isinstance(user, Stream) else user for user in users]
        Stream(self, [*events, lambda: poison(memory)])

    def pinned(self, shape, dtype):
        memory = poison(torch.empty(shape, dtype=dtype, device="cpu"))
        tensor = memory.view(shape)
        tensor.memory = memory
        tensor.copies = []
        weakref.finalize(tensor, self.drop, memory, tensor.copies).atexit = False
        return tensor

    def copy(self, pinned):
        result = self.empty(pinned.shape, pinned.dtype)
        copied = Event()
        pinned.copies.append(copied)
        source = pinned.memory
        target = result.memory
        self.current_stream().add(lambda: (target.copy_(source), copied.set()))
        return result

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
        self.memory = memory
        self.simulated = device
        self.lease = lease or Lease(device, memory)

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), settings=None):
        first = next(argument for argument in arguments if isinstance(argument, cls))
        device = first.simulated
        memories = tree_map_only(cls, lambda tensor: tensor.memory, arguments)
        settings = settings or {}

        def call():
            return function(*memories, **settings)

        if function._schema.is_mutable:
            device.current_stream().add(call)
            return first
        if any(result.alias_info for result in function._schema.returns):
            return cls(call(), device, first.lease)
        on_meta = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), memories)
        form = function(*on_meta, **settings)
        result = device.empty(form.shape, form.dtype)
        target = result.memory
        device.current_stream().add(lambda: target.copy_(call()))
        return result
