"""A simulated accelerator: it obeys the rules of CUDA's streams, events and allocator, and promises no more.

    simulation = Simulation(seed)
    device = SimulatedDevice(simulation)
    transfer = StreamTransfer(device.accelerator, ...)      # as on CUDA
    simulation.advance(10)                                  # runs up to 10 queued operations, at random

The rules, each of which CUDA's documentation states:

- An operation is queued on the current stream of its thread and device, and the call returns. The operations of one
  stream run in order; those of different streams in any order, unless one waits for an event of the other. Here a
  scheduler runs some of them at random at every call, more often on some streams than on others.
- A copy from pinned memory reads it when the copy runs, not when it is queued.
- event.record(stream) marks the end of what is queued there now. stream.wait_event(event) and event.synchronize() wait
  for the last record before the call; an event that was never recorded is done.
- A tensor's memory belongs to the stream that was current when it was made. When the last reference to it is dropped,
  whatever is queued then, the memory is reused by later operations of that stream: here it is poisoned by one at once.
  record_stream(stream) defers this until what is queued on that stream at the drop is done.
- New memory has poison in it. `.cpu()` waits for the current stream, and for no other.

Tensors are wrappers: `memory` is a CPU tensor that only queued operations read and write.
"""

import contextlib
import random
import threading
import weakref
from collections import defaultdict, deque
from types import SimpleNamespace

import torch

from tokenmill.batches.torch_devices import Accelerator

POISON = 0xAA  # in every byte: token 43,690, which the tests' token sets do not have
META = torch.device("meta")


class OutOfMemory(RuntimeError):
    """A copy that failed when it was queued."""


class Mark:
    """What one record of an event waits for."""

    done = False


class Stream:
    """A queue of operations: functions, marks to set, and marks to wait for."""

    def __init__(self, device):
        self.device, self.queue = device, deque()
        # how often the scheduler runs it: 0 is only when somebody waits for it
        self.weight = device.simulation.random.choice([0, 0.1, 1])
        device.simulation.streams.append(self)

    def add(self, operation):
        with self.device.simulation.lock:
            self.queue.append(operation)
        self.device.simulation.tick()

    def wait_event(self, event):
        if event.mark is not None:
            self.add(("wait", event.mark))

    @property
    def ready(self):
        return bool(self.queue) and (self.queue[0][0] != "wait" or self.queue[0][1].done)

    def run_one(self):
        kind, what = self.queue.popleft()
        if kind == "run":
            what()
        elif kind == "mark":
            what.done = True


class Event:
    def __init__(self, simulation):
        self.simulation, self.mark = simulation, None

    def record(self, stream):
        self.mark = Mark()
        stream.add(("mark", self.mark))

    def synchronize(self):
        if self.mark is not None:
            self.simulation.wait_for(self.mark)


class Simulation:
    """All devices and streams, and the scheduler."""

    def __init__(self, seed=0):
        self.random, self.lock = random.Random(seed), threading.RLock()
        self.streams, self.host_waits, self._busy = [], 0, False
        self.eagerness = self.random.choice([0, 0.5, 4])  # operations that run at a call, on average

    def tick(self):
        self.advance(int(self.random.expovariate(1 / self.eagerness)) if self.eagerness else 0)

    def advance(self, operations):
        """Runs up to so many operations, of streams at random."""
        with self.lock:
            if self._busy:  # an operation or the allocator has called this
                return
            self._busy = True
            try:
                for _ in range(operations):
                    ready = [stream for stream in self.streams if stream.ready and stream.weight]
                    if not ready:
                        break
                    self.random.choices(ready, [stream.weight for stream in ready])[0].run_one()
            finally:
                self._busy = False

    def wait_for(self, mark):
        """The host waits for a mark. Other streams run meanwhile, or do not."""
        with self.lock:
            self.host_waits += not mark.done
            while not mark.done:
                ready = [stream for stream in self.streams if stream.ready]
                assert ready, "the host waits for what will never happen"
                self.random.choice(ready).run_one()

    def finish(self):
        """Runs everything."""
        with self.lock:
            while ready := [stream for stream in self.streams if stream.ready]:
                self.random.choice(ready).run_one()
            assert not any(stream.queue for stream in self.streams), "a stream waits for what will never happen"


class Lease:
    """The host's hold on memory, shared by a tensor and its views. Queued operations do not have it."""

    def __init__(self, device, memory, owner):
        self.users = set()
        self._end = weakref.finalize(self, device.free, memory, owner, self.users)
        self._end.atexit = False


class SimulatedDevice:
    """One device: its memory, its default stream, and the current stream of every thread."""

    def __init__(self, simulation):
        self.simulation, self._local = simulation, threading.local()
        self.default = Stream(self)
        self._free = defaultdict(list)  # by owner and bytes
        self._pending = deque()  # freed memory whose users are not done: (marks, memory, owner)
        self.accelerator = SimulatedAccelerator(self)
        self.copies_until_error = None  # a copy that fails, as if memory were exhausted
        self.pinned = {}  # pinned memory by its address
        self.bytes_made = 0

    @property
    def current(self):
        return getattr(self._local, "current", self.default)

    @contextlib.contextmanager
    def on(self, stream):
        before = self.current
        self._local.current = stream
        try:
            yield
        finally:
            self._local.current = before

    # ------------------------------------------------------------------------ the allocator

    def empty(self, size, stride, dtype):
        """A tensor of poison, whose memory belongs to the current stream."""
        with self.simulation.lock:
            self._reclaim()
            length = sum((n - 1) * s for n, s in zip(size, stride, strict=True)) + 1 if all(size) else 0
            free = self._free[self.current, length * dtype.itemsize]
            self.bytes_made += 0 if free else length * dtype.itemsize
            memory = free.pop() if free else torch.full((length * dtype.itemsize,), POISON, dtype=torch.uint8)
            lease = Lease(self, memory, self.current)
        return SimulatedTensor(memory.view(dtype).as_strided(size, stride), lease, self)

    def free(self, memory, owner, users):
        with self.simulation.lock:
            marks = [Mark() for _ in users]
            for stream, mark in zip(users, marks, strict=True):
                stream.queue.append(("mark", mark))
            self._pending.append((marks, memory, owner))
            self._reclaim()

    def _reclaim(self):
        """Gives freed memory to its owner's later operations, the first of which poisons it."""
        for _ in range(len(self._pending)):
            if not self._pending:  # the garbage collector has freed a tensor here, and so called this
                return
            marks, memory, owner = self._pending.popleft()
            if all(mark.done for mark in marks):
                owner.queue.append(("run", lambda memory=memory: memory.fill_(POISON)))
                self._free[owner, len(memory)].append(memory)
            else:
                self._pending.append((marks, memory, owner))

    # ------------------------------------------------------------------------ copies

    def upload(self, pinned):
        """Queues a copy from the host, which reads `pinned` when it runs."""
        if self.copies_until_error is not None:
            self.copies_until_error -= 1
            if self.copies_until_error < 0:
                self.copies_until_error = None
                raise OutOfMemory
        address = pinned.untyped_storage().data_ptr()
        assert not len(pinned) or address in self.pinned, "the host waits for a copy from memory that is not pinned"
        tensor = self.empty(pinned.shape, pinned.stride(), pinned.dtype)
        memory = tensor.memory
        self.current.add(("run", lambda: memory.copy_(pinned)))
        return tensor

    def download(self, tensor, **settings):
        """A copy on the host. Waits for the current stream."""
        found, memory, event = [], tensor.memory, Event(self.simulation)
        self.current.add(("run", lambda: found.append(memory.to(**settings, copy=True))))
        event.record(self.current)
        event.synchronize()
        return found[0]


class SimulatedAccelerator(Accelerator):
    """What stream_transfer.py asks of a device. Only memory is made and copied otherwise than for other devices."""

    def __init__(self, device):
        self.simulated = device
        module = SimpleNamespace(
            Stream=lambda _: Stream(device),
            Event=lambda: Event(device.simulation),
            stream=device.on,
            current_stream=lambda _: device.current,
        )
        super().__init__(META, module)

    def pinned(self, shape, dtype):
        memory = torch.empty(shape, dtype=dtype, device="cpu")
        memory.view(torch.uint8).fill_(POISON)
        self.simulated.pinned[memory.untyped_storage().data_ptr()] = memory
        return memory

    def copy(self, pinned):
        return self.simulated.upload(pinned)


class SimulatedTensor(torch.Tensor):
    """A tensor of a simulated device. Views are made at once; everything else is queued on the current stream."""

    @staticmethod
    def __new__(cls, memory, lease, device):
        return torch.Tensor._make_wrapper_subclass(
            cls, memory.shape, strides=memory.stride(), dtype=memory.dtype, device=META
        )

    def __init__(self, memory, lease, device):
        self.memory, self.lease, self.simulated = memory, lease, device

    def record_stream(self, stream):
        self.lease.users.add(stream)

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), settings=None):
        settings = settings or {}
        first = next(a for a in arguments if isinstance(a, cls))
        device, schema = first.simulated, function._schema
        values = [a.memory if isinstance(a, cls) else a for a in arguments]

        def call():
            return function(*values, **settings)

        if settings.get("device") == torch.device("cpu"):
            return device.download(first, dtype=settings.get("dtype") or first.dtype, device="cpu")
        if schema.is_mutable:
            device.current.add(("run", call))
            return arguments[0]
        if any(result.alias_info for result in schema.returns):
            return cls(call(), first.lease, device)
        result = device.empty(*form_of_result(function, values, settings))
        into = result.memory
        device.current.add(("run", lambda: into.copy_(call())))
        return result


def form_of_result(function, values, settings, known={}):  # noqa: B006
    """(size, stride, dtype) of what a function returns."""
    forms = [(v.shape, v.stride(), v.dtype) if isinstance(v, torch.Tensor) else v for v in values]
    key = repr((function, forms, settings))
    if key not in known:
        on_meta = [
            torch.empty_strided(*form[:2], dtype=form[2], device=META) if isinstance(value, torch.Tensor) else value
            for value, form in zip(values, forms, strict=True)
        ]
        result = function(*on_meta, **settings)
        known[key] = (result.shape, result.stride(), result.dtype)
    return known[key]
