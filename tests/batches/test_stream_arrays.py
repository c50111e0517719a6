"""On a device with streams, every batch is that of the CPU, whatever its streams do; and every rule
of that is needed.

The device is simulated_device.py. A history is what a loader and its caller do, at random; each
line of StreamArrays that makes a stream or the allocator wait is removed in turn, and histories
find that.
"""

import inspect
import random

import numpy as np
import pytest
import torch
from simulated_device import SimulatedDevice, Stream

from tokenmill.batches import torch_arrays
from tokenmill.batches.torch_arrays import StreamArrays, TorchArrays

ROWS = 3
LENGTH = 5
VOCAB = 40_000  # ids past 32,767, where a signed number would be negative


def total(batch):
    inputs, targets = batch
    return inputs * 3 + targets * 5


def history(arrays_class, seed, steps=60):
    """What a loader and its caller do; compares everything that they computed. The number of
    batches.
    """
    rng = random.Random(seed)
    device = SimulatedDevice(seed)
    arrays = arrays_class(device, -100)
    reference = TorchArrays(torch.device("cpu"), -100)
    numbers = np.random.default_rng(seed)
    streams = [device.default, Stream(device), Stream(device)]
    dtype = rng.choice([np.uint16, np.uint32])
    sent = []
    held = []
    sums = []

    def send():
        rows = numbers.integers(0, VOCAB, (rng.choice([ROWS, ROWS, 1, 0]), LENGTH + 1)).astype(
            dtype
        )
        mask = numbers.random(rows.shape) < 0.5 if seed % 2 else None
        places = numbers.permutation(len(rows)) if seed % 3 else slice(None)
        sent.append(
            (arrays.send(rows, mask, places), reference.receive(reference.send(rows, mask, places)))
        )

    def receive():
        if sent:
            batch, expected = sent.pop(0)
            stream = rng.choice(streams)
            with device.on(stream):
                held.append((arrays.receive(batch), stream, expected))

    def use():
        if held:
            batch, stream, expected = rng.choice(held)
            with device.on(stream):
                sums.append((total(batch), total(expected)))

    def drop():
        if held:
            del held[rng.randrange(len(held))]

    for _ in range(steps):
        rng.choice(
            [
                send,
                send,
                receive,
                receive,
                use,
                use,
                drop,
                lambda: device.run(rng.randrange(20)),
                sent.clear,
            ]
        )()
    sent.clear()
    held.clear()
    device.finish()
    for found, expected in sums:
        assert torch.equal(found.memory, expected)
    return len(sums)


def test_every_batch_is_that_of_the_cpu_whatever_the_streams_do():
    assert sum(history(StreamArrays, seed) for seed in range(60)) > 200


COPIED = "        with self._device.on_copy_stream():\n"
RETURN = "        return inputs, targets, self._device.recorded_event()\n"
NARROW = "        narrow = self._device.pinned("
IGNORED = "            ignored = self._device.pinned("
KEEP = "        for tensor in (inputs, targets):\n            self._device.keep(tensor, stream)\n"
BROKEN = {  # what is not so: what is written instead of what
    "a batch is read after its event": {"        stream.wait_event(ready)\n": ""},
    "it is an event after the widening": {
        COPIED: "        ready = self._device.recorded_event()\n" + COPIED,
        RETURN: "        return inputs, targets, ready\n",
    },
    "copies are on the stream of the event": {
        COPIED: "        with self._device.on(self._device.default):\n"
    },
    "the stream that is current waits": {"self._device.current_stream()": "self._device.default"},
    "memory is kept until it was read": {KEEP: ""},
    "that of inputs too": {KEEP: KEEP.replace("(inputs, targets)", "(targets,)")},
    "that of targets too": {KEEP: KEEP.replace("(inputs, targets)", "(inputs,)")},
    "memory is kept for the stream that reads it": {
        KEEP: KEEP.replace(", stream)", ", self._device.copy_stream)")
    },
    "no pinned memory is filled while a copy reads it": {
        NARROW: "        narrow = self.__dict__.setdefault((rows.shape, 'narrow'), None)\n"
        "        if narrow is None:\n            narrow = self.__dict__[rows.shape, 'narrow'] = "
        "self._device.pinned("
    },
    "nor that of the mask": {
        IGNORED: "            ignored = self.__dict__.setdefault((mask.shape, 'ignored'), None)\n"
        "            if ignored is None:\n                "
        "ignored = self.__dict__[mask.shape, 'ignored'] = self._device.pinned("
    },
}


def broken(changes):
    """StreamArrays with other lines."""
    code = inspect.getsource(StreamArrays)
    for old, new in changes.items():
        assert code.count(old) == 1, f"StreamArrays has no longer once: {old}"
        code = code.replace(old, new)
    names = dict(vars(torch_arrays))
    exec(code, names)
    return names["StreamArrays"]


@pytest.mark.parametrize("rule", BROKEN)
def test_every_rule_is_needed(rule):
    with pytest.raises(AssertionError):  # noqa: PT012
        for seed in range(150):
            history(broken(BROKEN[rule]), seed)
