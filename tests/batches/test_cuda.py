"""On CUDA, batches are those of the CPU and stay what they are, whatever the streams do. Skipped
without CUDA.
"""

import subprocess
import sys
from itertools import islice

import pytest
import torch
from making import ROOT, make_chat_set, make_token_set
from reference import SEQ_LEN, make_loader

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="this machine, or this torch, has no CUDA"
)


@pytest.fixture(params=[65_536, 100_000], ids=["uint16", "uint32"])
def wide_set(tmp_path, request):
    """Its ids go past 32,767, where a signed number would be negative."""
    return make_token_set(
        tmp_path / "set", train=[[100] * 50, [7] * 300], val=[[50]], vocab=request.param
    )


@pytest.mark.parametrize("prefetch", [0, 1, 2, 5])
@pytest.mark.parametrize("settings", [{}, {"packing": "nanochat"}, {"loss": "once"}], ids=str)
def test_batches_are_those_of_the_cpu_over_an_epoch(wide_set, settings, prefetch):
    settings = {"prefetch": prefetch, "batch_size": 4} | settings
    on_cuda = make_loader(wide_set, device="cuda", **settings)
    on_cpu = make_loader(wide_set, **settings)
    for _ in range(120):
        for got, expected in zip(next(on_cuda), next(on_cpu), strict=True):
            assert (got.device, got.dtype, got.is_contiguous()) == (
                on_cuda.device,
                expected.dtype,
                True,
            )
            assert torch.equal(got.cpu(), expected)
        assert (on_cuda.state_dict(), on_cuda.targets) == (on_cpu.state_dict(), on_cpu.targets)


def test_those_of_a_chat_set_and_the_last_short_ones(tmp_path):
    chats = make_chat_set(tmp_path / "chats", train=[[30, 9, 12, 5] * 20] * 2, val=[[9]])
    how = {"long_documents": "crop", "epochs": 1, "drop_last": False, "batch_size": 7}
    for got, expected in zip(
        make_loader(chats, device="cuda:0", **how), make_loader(chats, **how), strict=True
    ):
        assert all(
            torch.equal(on_device.cpu(), on_cpu)
            for on_device, on_cpu in zip(got, expected, strict=True)
        )


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("stream", [False, True])
def test_a_step_that_holds_several_batches_sees_what_was_dealt_on_any_stream(
    wide_set, accumulation, stream
):
    on_cuda = make_loader(wide_set, device="cuda")
    on_cpu = make_loader(wide_set)
    sums = []
    expected = []
    with torch.cuda.stream(torch.cuda.Stream() if stream else torch.cuda.default_stream()):
        for _ in range(20):
            held = [next(on_cuda) for _ in range(accumulation)]
            torch.cuda._sleep(
                5_000_000
            )  # the device reads the batches long after the host has gone on
            sums += [(inputs * 3 + targets).sum() for inputs, targets in held]
            expected += [
                int((inputs * 3 + targets).sum())
                for inputs, targets in islice(on_cpu, accumulation)
            ]
            del held  # their memory may be used again only when the sums are done
        assert [int(value) for value in sums] == expected


def test_the_default_device_of_a_program_changes_nothing(wide_set):
    expected = [int(inputs.sum()) for inputs, _ in islice(make_loader(wide_set), 5)]
    torch.set_default_device("cuda")
    try:
        for device in ("cuda", "cpu"):
            assert [
                int(inputs.sum()) for inputs, _ in islice(make_loader(wide_set, device=device), 5)
            ] == expected
    finally:
        torch.set_default_device(None)


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
