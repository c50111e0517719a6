"""On CUDA, batches are those of the CPU and stay what they are, whatever the streams do. Skipped without CUDA."""

import subprocess
import sys
from itertools import islice

import pytest
import torch
from making import ROOT, make_token_set
from reference import SEQ_LEN, make_loader

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="this machine, or this build of torch, has no CUDA"
)


@pytest.fixture(params=[65_536, 100_000], ids=["uint16", "uint32"])
def wide_set(tmp_path, request):
    """Its ids go past 32,767, where a signed number would be negative."""
    return make_token_set(tmp_path / "set", train=[[100] * 50, [7] * 300], val=[[50]], vocab=request.param)


@pytest.mark.parametrize("prefetch", [0, 1, 2, 5])
@pytest.mark.parametrize("packing", ["best_fit", "nanochat"])
def test_batches_are_those_of_the_cpu_over_an_epoch(wide_set, packing, prefetch):
    settings = {"packing": packing, "prefetch": prefetch, "documents": True, "batch_size": 4}
    on_cuda, on_cpu = make_loader(wide_set, device="cuda", **settings), make_loader(wide_set, **settings)
    while on_cpu.epoch < 1:
        for got, expected in zip(next(on_cuda), next(on_cpu), strict=True):
            assert (got.device.type, got.dtype, got.is_contiguous()) == ("cuda", expected.dtype, True)
            assert torch.equal(got.cpu(), expected)
        assert on_cuda.state_dict() == on_cpu.state_dict()


def busy(milliseconds=5):
    """Work that keeps the device busy while the caller goes on."""
    torch.cuda._sleep(int(milliseconds * 1e6))


@pytest.mark.parametrize("accumulation", [1, 4])
def test_a_step_that_holds_several_batches_sees_what_was_dealt(wide_set, accumulation):
    on_cuda, on_cpu = make_loader(wide_set, device="cuda"), make_loader(wide_set)
    sums, expected = [], []
    for _ in range(20):
        held = [next(on_cuda) for _ in range(accumulation)]
        busy()  # the device reads the batches long after the host has gone on
        sums += [(inputs * 3 + targets).sum() for inputs, targets in held]
        expected += [int((inputs * 3 + targets).sum()) for inputs, targets in islice(on_cpu, accumulation)]
        del held  # their memory may be used again only when the sums are done
    assert [int(value) for value in sums] == expected


def test_batches_may_be_used_on_another_stream_that_is_current(wide_set):
    on_cuda, on_cpu, stream = make_loader(wide_set, device="cuda"), make_loader(wide_set), torch.cuda.Stream()
    sums = []
    with torch.cuda.stream(stream):
        for inputs, _ in islice(on_cuda, 20):
            busy(1)
            sums.append(inputs.sum())
    assert [int(value) for value in sums] == [int(inputs.sum()) for inputs, _ in islice(on_cpu, 20)]


def test_the_default_device_of_a_program_changes_nothing(wide_set):
    expected = [int(inputs.sum()) for inputs, _ in islice(make_loader(wide_set), 5)]
    torch.set_default_device("cuda")
    try:
        assert [int(inputs.sum()) for inputs, _ in islice(make_loader(wide_set, device="cuda"), 5)] == expected
    finally:
        torch.set_default_device(None)


def test_restarts_take_no_further_streams(wide_set):
    """CUDA has 32, and gives them out in turns: training's own would be given out again."""
    loader = make_loader(wide_set, device="cuda")
    taken = set()
    for _ in range(40):
        next(loader)
        loader.load_state_dict(loader.state_dict())
        taken.add(loader._transfer()._stream.cuda_stream)
    assert len(taken) == 1


def test_leaving_the_process_hangs_nothing(wide_set):
    code = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from tokenmill import RowLoader
next(RowLoader({str(wide_set)!r}, batch_size=2, seq_len={SEQ_LEN}, device="cuda"))
loader = RowLoader({str(wide_set)!r}, batch_size=2, seq_len={SEQ_LEN}, device="cuda")
next(loader)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
