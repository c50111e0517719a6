"""What is asked of torch for a device with streams: the calls themselves, since no such device may be here."""

import threading
from types import SimpleNamespace

import pytest
import torch
from torch.overrides import TorchFunctionMode

from tokenmill.batches import torch_devices
from tokenmill.batches.torch_devices import Accelerator, _generic_stream, find_device

DEVICE = torch.device("cuda", 1)  # not the current one


class Calls(TorchFunctionMode):
    """Records the calls of torch's functions, and makes none on a device."""

    def __init__(self):
        self.made = []

    def __torch_function__(self, function, types, arguments=(), settings=None):
        self.made.append((function.__name__, settings or {}))
        return arguments[0] if arguments and isinstance(arguments[0], torch.Tensor) else None


def test_each_operation_names_its_device_and_does_not_block():
    asked = []

    class Here:
        def __enter__(self):
            asked.append("current device set")

        def __exit__(self, *error):
            asked.append("current device set back")

    module = SimpleNamespace(
        Stream=lambda device: asked.append(("Stream", device)),
        Event=lambda **settings: asked.append(("Event", settings)),
        current_stream=lambda device: asked.append(("current_stream", device)),
        device=lambda device: asked.append(("device", device)) or Here(),
    )
    accelerator = Accelerator(DEVICE, module)
    accelerator.current_stream()
    accelerator.event()
    assert asked == [("Stream", DEVICE), ("current_stream", DEVICE), ("Event", {"blocking": True})]
    asked.clear()
    memory = torch.empty(2)
    with Calls() as calls:
        accelerator.pinned((2, 3), torch.int16)
        accelerator.copy(memory)
    assert asked == [("device", DEVICE), "current device set", "current device set back"]
    pinned, copied = calls.made
    assert pinned == ("empty", {"dtype": torch.int16, "device": "cpu", "pin_memory": True})
    assert copied == ("to", {"non_blocking": True})


class FakeAccelerators:
    """torch.accelerator, with a current device and streams for each thread."""

    def __init__(self):
        self._local = threading.local()

    def _of_thread(self):
        if not hasattr(self._local, "streams"):
            self._local.streams, self._local.index = {}, 0
        return self._local

    def current_device_index(self):
        return self._of_thread().index

    def set_device_index(self, index):
        self._of_thread().index = index

    def current_stream(self, device):
        return self._of_thread().streams.get(device.index, SimpleNamespace(name="default", device=device))

    def set_stream(self, stream):
        self._of_thread().streams[stream.device.index] = stream
        self._of_thread().index = stream.device.index


def test_two_threads_on_one_generic_stream_do_not_disturb_each_other():
    accelerators, copy = FakeAccelerators(), SimpleNamespace(name="copy", device=DEVICE)
    inside, leave = threading.Barrier(2), threading.Event()

    def other():
        with _generic_stream(accelerators, copy):
            inside.wait(10)
            leave.wait(10)

    own = SimpleNamespace(name="own", device=DEVICE)
    accelerators.set_stream(own)
    accelerators.set_device_index(0)
    thread = threading.Thread(target=other)
    thread.start()
    with _generic_stream(accelerators, copy):
        inside.wait(10)
        assert accelerators.current_stream(DEVICE) is copy
    leave.set()
    thread.join()
    assert accelerators.current_stream(DEVICE) is own
    assert accelerators.current_device_index() == 0


def test_the_generic_streams_are_used_where_a_device_has_no_module_of_its_own(monkeypatch):
    found = SimpleNamespace(current_accelerator=lambda: torch.device("privateuseone"), current_stream=None)
    monkeypatch.setattr(torch, "accelerator", found, raising=False)
    module = torch_devices._module_of(torch.device("privateuseone", 0))
    assert module.stream.func is _generic_stream


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_device("cuda:1") == DEVICE
    with pytest.raises(ValueError, match=r"device 'cuda:2': this machine has 2 CUDA devices"):
        find_device("cuda:2")


@pytest.mark.parametrize("device", [None, 1.5, "gpu"])
def test_what_is_no_device_is_refused(device):
    with pytest.raises(ValueError, match="device must be one that torch knows"):
        find_device(device)
