"""To devices without streams, tokens are copied as they are and widened there. For streams: test_stream_transfer.py."""

import numpy as np
import pytest
import torch
from making import make_token_set
from reference import SEQ_LEN, make_loader
from torch.utils._python_dispatch import TorchDispatchMode

from tokenmill.batches.torch_batch import Form
from tokenmill.batches.torch_transfer import NarrowTransfer, WideTransfer, make_transfer

CPU, ELSEWHERE = torch.device("cpu"), torch.device("meta")  # a device of every torch, which keeps no values
ROWS = 3


def rows_of(dtype):
    """Rows with ids past 32,767, where a signed number would be negative."""
    return np.random.default_rng(0).integers(0, min(np.iinfo(dtype).max, 200_000), (ROWS, 9)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("bos_id", [None, 5])
@pytest.mark.parametrize("rows", [ROWS, 0])
@pytest.mark.parametrize("masked", [False, True])
def test_tokens_that_are_widened_on_the_device_are_those_of_the_cpu(dtype, bos_id, rows, masked):
    tokens = rows_of(dtype)[:rows]
    tokens[:, ::4] = 5
    mask = np.random.default_rng(1).random(tokens.shape) < 0.5 if masked else None
    sources = np.arange(rows)
    found = NarrowTransfer(CPU, Form(bos_id, -1)).send(tokens, sources, mask).receive()
    expected = WideTransfer(CPU, Form(bos_id, -1)).send(tokens, sources, mask).receive()
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
        assert (one.dtype, one.is_contiguous()) == (other.dtype, True)


class Copies(TorchDispatchMode):
    """How many bytes were copied from the CPU to another device. Operations named in `lacks` do not exist there."""

    def __init__(self, lacks=""):
        super().__init__()
        self.bytes, self.lacks = 0, lacks

    def __torch_dispatch__(self, function, types, arguments=(), settings=None):
        settings = settings or {}
        first = arguments[0] if arguments and isinstance(arguments[0], torch.Tensor) else None
        if self.lacks and self.lacks in str(function) and first is not None and first.device == ELSEWHERE:
            raise NotImplementedError(f"{function} on {first.device}")
        if first is not None and first.device == CPU and settings.get("device", CPU) == ELSEWHERE:
            self.bytes += first.numel() * first.element_size()
        return function(*arguments, **settings)


@pytest.mark.parametrize(("dtype", "size"), [(np.uint16, 2), (np.uint32, 4)])
def test_two_bytes_a_token_are_copied_to_a_device(dtype, size):
    transfer = make_transfer(ELSEWHERE, (ROWS, 9), np.dtype(dtype), Form(5), 2)
    with Copies() as copies:
        tensors = transfer.send(rows_of(dtype)).receive()
    assert copies.bytes == ROWS * 9 * size
    assert all(tensor.device == ELSEWHERE for tensor in tensors)


def test_a_device_that_cannot_widen_gets_wide_tokens():
    with Copies(lacks="bitwise_and") as copies:
        transfer = make_transfer(ELSEWHERE, (ROWS, 9), np.dtype(np.uint16), Form(None), 2)
        inputs, targets = transfer.send(rows_of(np.uint16)).receive()
    assert copies.bytes == 2 * ROWS * 8 * 8
    assert (inputs.device, inputs.dtype, targets.shape) == (ELSEWHERE, torch.int64, (ROWS, 8))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_device_without_streams_is_used_where_next_is_called_and_nowhere_else(tmp_path, prefetch):
    wide_set = make_token_set(tmp_path / "set", [[100] * 50], [[50]])
    loader = make_loader(wide_set, device="meta", prefetch=prefetch)
    for _ in range(5):
        with Copies() as copies:  # it sees its own thread only
            inputs, _ = next(loader)
        assert copies.bytes == 2 * (SEQ_LEN + 1) * 2
        assert inputs.device == ELSEWHERE
