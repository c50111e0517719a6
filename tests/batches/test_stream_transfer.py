"""On a device with streams, every batch is that of the CPU, whatever its streams do, and nothing waits needlessly.

The device is simulated_device.py, which obeys the rules of CUDA and no more. A history is a list of what a loader and
its caller do, on several devices and streams. Each rule of the protocol is removed in turn, and histories find that.
"""

import random
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import ROOT
from simulated_device import POISON, Event, OutOfMemory, SimulatedDevice, Simulation, Stream

from tokenmill.batches import stream_transfer
from tokenmill.batches.stream_transfer import StreamTransfer
from tokenmill.batches.torch_batch import Form
from tokenmill.batches.torch_transfer import WideTransfer

BATCH, LENGTH, VOCAB, BOS = 3, 5, 40_000, 7  # no token is POISON POISON
assert VOCAB < POISON * 257
SETTINGS = [(bos_id, sources, mask) for bos_id in (None, BOS) for sources in (False, True) for mask in (False, True)]


class Batch:
    """A batch that the caller holds, the stream that it was received on, and what it should be."""

    def __init__(self, tensors, stream, expected):
        self.tensors, self.stream, self.expected = tensors, stream, expected


class Loader:
    """A transfer, and its batches that were sent and not received yet."""

    def __init__(self, device, transfer_class, choose):
        self.device, self.transfer_class = device, transfer_class
        self.bos_id, self.sources, self.mask = SETTINGS[choose(len(SETTINGS))]
        self.dtype, self.buffers = (np.uint16, np.uint32)[choose(2)], 1 + choose(3)
        self.numbers = np.random.default_rng(choose(1000))
        self.restart()

    def restart(self):
        form = Form(self.bos_id, -100)
        shape, dtype = (BATCH, LENGTH + 1), np.dtype(self.dtype)
        self.transfer = self.transfer_class(self.device.accelerator, shape, dtype, form, self.buffers)
        self.reference, self.sent = WideTransfer(torch.device("cpu"), form), []

    def send(self):
        many = self.numbers.choice([BATCH, BATCH, 1, 0])
        rows = self.numbers.integers(0, VOCAB, (many, LENGTH + 1)).astype(self.dtype)
        rows[self.numbers.random(rows.shape) < 0.3] = BOS
        sources = self.numbers.integers(0, 9, many) if self.sources else None
        mask = self.numbers.random(rows.shape) < 0.5 if self.mask else None
        expected = self.reference.send(rows.copy(), sources, mask).receive()
        self.sent.append((self.transfer.send(rows.copy(), sources, mask), expected))
        rows.fill(0)


class History:
    """Chooses what happens next, and compares everything that was computed with what it should be."""

    def __init__(self, choose, transfer_class=StreamTransfer):
        self.choose = choose
        self.simulation = Simulation(choose(1 << 30))
        self.devices = [SimulatedDevice(self.simulation) for _ in range(2)]
        self.streams = {device: [device.default, Stream(device), Stream(device)] for device in self.devices}
        self.loaders = [Loader(self.devices[number], transfer_class, choose) for number in (0, 0, 1)]
        self.held, self.results, self.statics = [], [], {}
        self.compared = 0

    def run(self, steps):
        for _ in range(steps):
            getattr(self, ACTIONS[self.choose(len(ACTIONS))])()
        del self.held[:], self.loaders[:]
        self.simulation.advance(self.choose(10))
        while self.results:
            self.read()
        self.simulation.finish()
        return self.compared

    def loader(self):
        return self.loaders[self.choose(len(self.loaders))]

    def send(self):
        self.loader().send()

    def receive(self):
        loader = self.loader()
        if not loader.sent:
            loader.send()
        batch, expected = loader.sent.pop(0)
        streams, waits = self.streams[loader.device], self.simulation.host_waits
        stream = streams[self.choose(len(streams))]
        with loader.device.on(stream):
            tensors = batch.receive()
        assert self.simulation.host_waits == waits, "the host waits for the device where a batch is received"
        self.held.append(Batch(tensors, stream, expected))

    def use(self):
        """Queues work on every tensor of a batch that is held, on the stream that it was received on."""
        if not self.held:
            return
        batch = self.held[self.choose(len(self.held))]
        with batch.stream.device.on(batch.stream):
            for tensor, expected in zip(batch.tensors, batch.expected, strict=True):
                self.results.append((tensor * 3, batch.stream, expected * 3))

    def copy_to_static_input(self):
        """What a CUDA graph needs: the batch in memory that was made before."""
        if not self.held:
            return
        batch = self.held[self.choose(len(self.held))]
        key, inputs = batch.stream, batch.tensors[0]
        with batch.stream.device.on(batch.stream):
            if key not in self.statics:
                self.statics[key] = batch.stream.device.empty((BATCH, LENGTH), (LENGTH, 1), torch.int64)
            static = self.statics[key][: len(inputs)]
            static.copy_(inputs)
            self.results.append((static * 5, batch.stream, batch.expected[0] * 5))

    def drop(self):
        if self.held:
            del self.held[self.choose(len(self.held))]

    def use_and_drop(self):
        self.use()
        self.drop()

    def drop_unreceived(self):
        self.loader().sent.clear()

    def restart(self):
        self.loader().restart()

    def fail(self):
        """An error in the loader's thread, after which the loader begins again."""
        loader = self.loader()
        loader.device.copies_until_error = self.choose(2)
        try:
            loader.send()
        except OutOfMemory:
            loader.restart()
        loader.device.copies_until_error = None

    def read(self):
        """Compares one result."""
        if not self.results:
            return
        tensor, stream, expected = self.results.pop(self.choose(len(self.results)))
        with stream.device.on(stream):
            found = tensor.cpu()
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected), (found, expected)
        self.compared += 1

    def advance(self):
        self.simulation.advance(self.choose(20))


ACTIONS = ["send", "send", "receive", "receive", "receive", "use", "use", "use_and_drop", "use_and_drop", "drop"]
ACTIONS += ["copy_to_static_input", "read", "advance", "restart", "drop_unreceived", "fail"]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_batch_is_that_of_the_cpu_whatever_the_streams_do(data):
    History(lambda options: data.draw(st.integers(0, options - 1))).run(data.draw(st.integers(1, 60)))


def run_histories(transfer_class, histories):
    """Runs histories of seeds 0, 1, 2 ... Returns how many results were compared."""
    return sum(History(random.Random(seed).randrange, transfer_class).run(60) for seed in range(histories))


def test_histories_compare_what_they_compute():
    assert run_histories(StreamTransfer, 100) > 2_000


@pytest.mark.slow
def test_thousands_of_histories():
    assert run_histories(StreamTransfer, 2_500) > 50_000


# ---------------------------------------------------------------------------- every rule is needed

SYNCHRONIZE = "        buffer.copied.synchronize()  # returns at once if this buffer was never copied\n"
FILL = "        host = self._fill(buffer, rows, sources, mask)\n"
ON_STREAM = "        with self._device.on(self._stream):\n"
COPY = "            copies: list[Any] = [None if array is None else self._device.copy(array) for array in host]\n"
COPIED = "            buffer.copied.record(self._stream)\n"
WIDEN = "            tensors = self._form.widen(*copies)\n"
READY = "            ready = self._device.event()\n            ready.record(self._stream)\n"
CURRENT = "        stream = self._device.current_stream()\n"
WAIT = "        stream.wait_event(ready)\n"
KEEP = "        for tensor in tensors:\n            self._device.keep(tensor, stream)\n"
RETURN = "        return TorchBatch(partial(self._receive, tensors, ready))\n"
PINNED = "        pinned = accelerator.pinned\n"

BROKEN = {  # a rule: what is written instead of what
    "the host waits until a buffer was copied": {SYNCHRONIZE: ""},
    "it waits before it fills the buffer": {SYNCHRONIZE: "", FILL: FILL + SYNCHRONIZE},
    "it waits for this buffer": {SYNCHRONIZE: SYNCHRONIZE.replace("buffer.", "next(self._ring).")},
    "each buffer has memory of its own": {PINNED: "        pinned = lru_cache(None)(accelerator.pinned)\n"},
    "copied is recorded": {COPIED: ""},
    "copied is recorded after the copies": {COPY: COPIED + COPY, COPIED: ""},
    "copied is recorded after all copies": {
        COPY: COPY.replace("in host", "in host[:1]") + COPIED + "            copies += "
        "[None if array is None else self._device.copy(array) for array in host[1:]]\n",
        COPIED: "",
    },
    "copied is recorded on the copy stream": {COPIED: COPIED.replace("self._stream", "self._device.simulated.default")},
    "copies are on the copy stream": {
        ON_STREAM + COPY: COPY.replace("            copies", "        copies", 1) + ON_STREAM
    },
    "widening is on the copy stream": {
        WIDEN: "            with self._device.on(self._device.simulated.default):\n    " + WIDEN
    },
    "ready is recorded": {READY: READY.replace("            ready.record(self._stream)\n", "")},
    "ready is recorded after widening": {WIDEN: READY + WIDEN, READY: ""},
    "ready is recorded on the copy stream": {
        READY: READY.replace("(self._stream)", "(self._device.simulated.default)")
    },
    "it waits for the event of this batch": {
        RETURN: "        self._last, ready = ready, self.__dict__.get('_last', ready)\n" + RETURN
    },
    "the caller's stream waits for ready": {WAIT: ""},
    "the stream that is current waits": {CURRENT: CURRENT.replace("current_stream()", "simulated.default")},
    "the stream of the caller, not of the thread": {
        RETURN: "        self._current = self._device.current_stream()\n" + RETURN,
        CURRENT: "        stream = self._current\n",
    },
    "the caller's stream keeps the tensors": {KEEP: ""},
    "it keeps all of them": {KEEP: KEEP.replace("in tensors", "in tensors[:2]")},
    "it keeps the targets": {KEEP: KEEP.replace("in tensors", "in tensors[::2]")},
    "the stream that is current keeps them": {KEEP: KEEP.replace("(tensor, stream)", "(tensor, self._stream)")},
    "a batch has memory of its own": {
        WIDEN: WIDEN + "            kept = self.__dict__.setdefault(('kept', len(rows)), tensors)\n"
        "            tensors = tuple(old.copy_(new) for old, new in zip(kept, tensors))\n"
    },
    "the host copies from pinned memory": {
        COPY: COPY.replace("copy(array)", "copy(array.clone())"),
    },
    "the host does not wait where a batch is received": {WAIT: "        ready.synchronize()\n"},
}


def broken(changes):
    """StreamTransfer with other lines."""
    code = (ROOT / "tokenmill/batches/stream_transfer.py").read_text()
    for old, new in changes.items():
        assert code.count(old) == 1, f"stream_transfer.py has no longer once: {old}"
        code = code.replace(old, new)
    names = {"__name__": stream_transfer.__name__, "lru_cache": lru_cache}
    exec(compile(code, "stream_transfer.py", "exec"), names)
    return names["StreamTransfer"]


@pytest.mark.parametrize("rule", BROKEN)
def test_every_rule_of_the_protocol_is_needed(rule):
    with pytest.raises(AssertionError):
        run_histories(broken(BROKEN[rule]), 300)


def test_the_copy_that_is_not_broken_passes():
    assert run_histories(broken({}), 50) == run_histories(StreamTransfer, 50)


# ---------------------------------------------------------------------------- what waits for what


def make_transfer(buffers=2, seed=0):
    device = SimulatedDevice(Simulation(seed))
    device.simulation.eagerness = 0  # nothing runs by itself
    shape = (BATCH, LENGTH + 1)
    return device, StreamTransfer(device.accelerator, shape, np.dtype(np.uint16), Form(None), buffers)


def rows():
    return np.arange(BATCH * (LENGTH + 1), dtype=np.uint16).reshape(BATCH, -1)


def test_the_host_waits_only_for_a_buffer_that_is_not_copied_yet():
    device, transfer = make_transfer(buffers=3)
    batches = [transfer.send(rows()) for _ in range(3)]
    assert device.simulation.host_waits == 0
    batches.append(transfer.send(rows()))
    assert device.simulation.host_waits == 1
    device.simulation.finish()
    batches.append(transfer.send(rows()))
    assert device.simulation.host_waits == 1


def test_batches_are_copied_while_the_callers_stream_is_busy():
    device, transfer = make_transfer()
    never = Event(device.simulation)
    never.mark = type("Never", (), {"done": False})()
    device.default.wait_event(never)  # a step that takes for ever
    for _ in range(10):
        transfer.send(rows()).receive()
    while device.accelerator.copy_stream.ready:
        device.accelerator.copy_stream.run_one()
    assert not device.accelerator.copy_stream.queue, "the copy stream waits for the caller's"


def test_a_batch_that_is_dropped_gives_its_memory_back():
    device, transfer = make_transfer()
    for number in range(50):
        transfer.send(rows()).receive()
        device.simulation.finish()
        if number == 5:
            made = device.bytes_made
    assert device.bytes_made == made, "later batches take the memory of earlier ones"


def test_the_callers_stream_waits_for_its_own_batch_alone():
    device, transfer = make_transfer(buffers=3)
    batches, copies = [], device.accelerator.copy_stream
    for _ in range(3):
        batches.append(transfer.send(rows()))
        if len(batches) == 1:
            first = len(copies.queue)
    tensors = batches[0].receive()
    for _ in range(first):
        copies.run_one()
    assert copies.queue, "the later batches are not copied yet"
    doubled = tensors[0] * 2
    while device.default.ready:
        device.default.run_one()
    assert not device.default.queue, "the caller's stream waits for later batches"
    del doubled


def test_a_buffer_is_free_once_it_is_copied_before_it_is_widened():
    device, transfer = make_transfer(buffers=1)
    transfer.send(rows())
    copied = next(transfer._ring).copied.mark
    queued = [what for _, what in device.accelerator.copy_stream.queue]
    assert queued.index(copied) == 1, "only the copy comes before"
