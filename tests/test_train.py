"""The training example resumes bit for bit, and sees the same rows on any number of ranks."""

import os
import re
import shlex
import signal
import subprocess
import sys

import pytest
import warm
from making import ROOT, run_prepare

from tokenmill import RowLoader

SCRIPT = str(ROOT / "examples" / "train_gpt.py")
MINUTE = 60  # a run that hangs is told soon
SMALL = shlex.split("--layers 2 --width 32 --heads 2 --seq-len 32 --total-rows 8 --steps 20")
SMALL += ["--val-every", "10", "--val-batches", "2"]


def train(token_set, *flags, ranks=1, cwd):
    """What the first of all ranks printed."""
    script = [SCRIPT, "--tokens", token_set, *SMALL, "--checksums", *flags]
    run = (
        [warm.run(*script, cwd=cwd)]
        if ranks == 1
        else warm.run_ranks(ranks, *script, cwd=cwd, timeout=MINUTE)
    )
    assert not any(done.returncode for done in run), run
    return run[0].stdout


def column(printed, name):
    return re.findall(rf"^step +\d+  .*{name} (\S+)", printed, re.MULTILINE)


@pytest.fixture(scope="module")
def straight(prepared, tmp_path_factory):
    return train(prepared[1], cwd=tmp_path_factory.mktemp("straight"))


def test_ten_steps_and_ten_resumed_are_twenty_bit_for_bit(prepared, straight, tmp_path):
    flags = ("--checkpoint", "at.pt")
    first = train(prepared[1], *flags, "--stop-at", 10, "--sample", 0, cwd=tmp_path)
    second = train(prepared[1], *flags, cwd=tmp_path)
    for name in ("loss", "rows", "validation"):
        expected = column(straight, name)
        assert len(expected) == (2 if name == "validation" else 20)
        assert column(first, name) + column(second, name) == expected
    assert "from step 10" in second
    assert straight.split("\n\n", 1)[1] == second.split("\n\n", 1)[1], "the same text too"


@pytest.mark.slow
def test_two_ranks_resumed_as_one_and_one_as_two_see_the_same_rows(prepared, straight, tmp_path):
    rows = []
    losses = []
    flags = ("--batch-size", 2, "--sample", 0, "--checkpoint", "at.pt")
    for ranks, until in ((2, 7), (1, 14), (2, 20)):
        leg = train(prepared[1], *flags, "--stop-at", until, ranks=ranks, cwd=tmp_path)
        rows += column(leg, "rows")
        losses += map(float, column(leg, "loss"))
    assert rows == column(straight, "rows")
    assert losses == pytest.approx([*map(float, column(straight, "loss"))], rel=1e-3)
    assert losses[-1] < losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_ctrl_c_ends_with_a_checkpoint_and_the_line_that_goes_on(
    ranks, prepared, straight, tmp_path
):
    runner = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"] if ranks > 1 else []
    )
    flags = [
        "--tokens",
        str(prepared[1]),
        *SMALL,
        "--batch-size",
        "2",
        "--sample",
        "0",
        "--checksums",
    ]
    flags += ["--val-every", "1000", "--checkpoint", "new/folder/at.pt"]  # made at the beginning
    command = [sys.executable, *runner, SCRIPT, *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, **pipes)
    printed = ""
    for line in process.stdout:
        printed += line
        if "step    3" in line:
            break
    assert (tmp_path / "new" / "folder").is_dir()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to all of them
    printed += process.stdout.read()  # not communicate, which skips what the loop has buffered
    last = len(column(printed, "rows"))
    _, more = printed.split("ending after this step")
    assert len(column(more, "rows")) <= 2, (
        "the step that was under way, or the one that had just begun"
    )
    assert (process.wait(MINUTE) == 130) if ranks == 1 else process.wait(MINUTE)
    advice = "run torchrun again" if ranks > 1 else "to continue, run"
    assert f"saved after step {last} of 20; {advice}" in printed
    look = next(
        shlex.split(line)[1:]
        for line in printed.splitlines()
        if line.startswith("  tokenmill show ")
    )
    shown = warm.run("-m", "tokenmill", *look, cwd=tmp_path)
    rows = [
        f"row 0:0:{row}, rank" in shown.stdout
        for row in range(8 * last - 9, 8 * last - 8 + 2 * ranks + 1)
    ]
    assert rows == [False, *[True] * 2 * ranks, False], "those of the first pass of the last step"
    line = command if ranks > 1 else [sys.executable, *shlex.split(printed.splitlines()[-1])[1:]]
    assert line[-len(flags) :] == flags
    assert not list(tmp_path.rglob("*.tmp"))
    rest = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=MINUTE).stdout
    assert column(printed, "rows") + column(rest, "rows") == column(straight, "rows")


@pytest.fixture(scope="module")
def chats(tokenizer_json, tmp_path_factory):
    """The example's conversations as a chat set, in a folder of its own."""
    folder = tmp_path_factory.mktemp("chats")
    flags = ["--folder", "chats", "--conversations", "150", "--val-conversations", "40"]
    assert warm.run(str(ROOT / "examples" / "chat_data.py"), *flags, cwd=folder).returncode == 0
    flags = [
        "--source",
        "chats",
        "--val-file",
        "val.jsonl",
        "--chat",
        "nanochat",
        "--tokenizer",
        tokenizer_json,
    ]
    done = run_prepare(*flags, "--workers", 1, cwd=folder)
    return folder / done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_a_text_model_is_fine_tuned_on_chats_by_any_number_of_ranks(prepared, chats, tmp_path):
    train(prepared[1], "--checkpoint", "text.pt", "--stop-at", 1, "--sample", 0, cwd=tmp_path)
    flags = ("--start-from", "text.pt", "--sample", 0, "--seq-len", 256)
    straight = train(chats, *flags, cwd=tmp_path)
    split = train(
        chats, *flags, "--batch-size", 2, ranks=2, cwd=tmp_path
    )  # two ranks, two passes each
    assert column(split, "rows") == column(straight, "rows")
    losses = [*map(float, column(straight, "loss"))]
    assert [*map(float, column(split, "loss"))] == pytest.approx(losses, rel=1e-3), (
        "of the same targets"
    )
    anew = train(chats, *flags[2:], "--stop-at", 1, cwd=tmp_path)
    assert column(anew, "loss")[0] != column(straight, "loss")[0], "it starts from the text model"


@pytest.mark.slow
def test_the_fsdp2_example_gives_tensor_parallel_ranks_the_same_rows(prepared):
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "4",
        "--standalone",
    ]
    command = [*torchrun, str(ROOT / "examples" / "fsdp2_tp.py"), str(prepared[1]), "--tp", "2"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=180,
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
    )
    assert done.returncode == 0, done.stderr
    expected = set()
    for place in range(2):
        loader = RowLoader(prepared[1], batch_size=2, seq_len=64, rank=place, world_size=2)
        expected |= {(str(n), str(place), str(int(next(loader)[0].sum()))) for n in range(3)}
    line = r"step (\d) rank \d place \((\d), \d\) rows (\d+) loss [\d.]+\n"
    steps = re.findall(line, done.stdout)
    assert len(steps) == 12
    assert set(steps) == expected
