"""Every recipe of docs/clients.md in its framework's own loop: stopped, resumed through its own
checkpoint, exact.

nanoGPT's, nanochat's and torchtitan's own code is not here; their loops' shape is
(loops/by_nanogpt.py), with the lines of the diffs. What was run by hand of them is told on that
page.
"""

import os
import random
import re
import subprocess
import sys
from itertools import product

import pytest
import warm
from making import ROOT, make_chat_set, make_token_set

LOOPS = ROOT / "tests" / "loops"
PAGE = (ROOT / "docs" / "clients.md").read_text()
EXPECTED = {  # what each rank tells, and what the first alone
    "nanogpt": (["best_fit", "nanochat"], {}),
    "lightning": (
        ["the recipe", "at an epoch's end", "accumulating", "with a worker", "epochs"],
        {},
    ),
    "accelerate": (["register_for_checkpointing"], {1: ["prepared"]}),
    "trainer": (
        ["Trainer", "Trainer, accumulating", "Trainer, its position saved", "SFTTrainer"],
        {1: ["loss"]},
    ),
    "chat-trainer": (["Trainer", "SFTTrainer"], {1: ["loss"]}),
}
FAST = ("nanogpt", 1)  # others take frameworks of others, or torchrun: half a minute each


def glue(name):
    """The block of the page of that name."""
    return re.search(rf"```python {name}\n(.*?)```", PAGE, re.DOTALL)[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with one token set: epochs of some 80 batches."""
    cwd = tmp_path_factory.mktemp("clients")
    train = random_lengths(0, 5, 150, documents=70)
    make_token_set(cwd / "data" / "tokens" / "one", train=train, val=[[40, 50, 60, 70, 80, 90] * 3])
    return cwd


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    """A folder with one chat set, some of whose conversations are longer than a row."""
    cwd = tmp_path_factory.mktemp("chatting")
    train = random_lengths(1, 9, 90, documents=90)
    make_chat_set(cwd / "data" / "tokens" / "CHATS", train=train, val=[[40, 50, 60] * 6])
    return cwd


def random_lengths(seed, least, most, documents):
    """Of two shards."""
    rng = random.Random(seed)
    lengths = [rng.randint(least, most) for _ in range(2 * documents)]
    return [lengths[:documents], lengths[documents:]]


ELSEWHERE = [
    ("lightning", 1),
    ("accelerate", 1),
    ("trainer", 1),
    ("chat-trainer", 2),
]  # what is in them is in others too
SLOW = [pair for pair in product(EXPECTED, (1, 2)) if pair not in (FAST, *ELSEWHERE)]


@pytest.mark.parametrize(
    ("name", "ranks"), [FAST, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in SLOW)]
)
def test_a_resumed_run_sees_exactly_the_rows_of_the_unbroken_one(
    folder, chats, tmp_path, name, ranks
):
    (tmp_path / "glue.py").write_text(glue(name) if name != "nanogpt" else "")
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    if name.startswith("chat-"):
        cwd = chats
        script = f"chat_by_{name.removeprefix('chat-')}.py"
    else:
        cwd = folder
        script = f"by_{name}.py"
    command += [LOOPS / script, tmp_path / "glue.py", str(ranks), tmp_path]
    env = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    if (name, ranks) == FAST:
        done = warm.run(*command[1:], cwd=cwd, env=env)
    else:  # frameworks start threads while they are imported, and look at how they were started
        done = subprocess.run(
            command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    of_each, of_first = EXPECTED[name]
    outputs = [(tmp_path / f"told.{rank}").read_text() for rank in range(ranks)]
    for what in of_each:
        line = rf"^{re.escape(what)}(?:, after \d+)?: (.*)$"
        for output in outputs:
            results = re.findall(line, output, re.MULTILINE)
            assert results, f"{what} was not run\n{output}"
            assert set(results) == {"exact"}, what
    for what in of_first.get(ranks, []):
        line = rf"^{what}: (True|\[True, True\])$"
        assert re.findall(line, outputs[0], re.MULTILINE), f"{what}\n{outputs[0]}"


LINES = ["if purpose == 'train': data = tokenmill.state_dict()", "purpose='eval'"]
LINES += ["tokenmill.load_state_dict(checkpoint['data'])"]


@pytest.mark.parametrize("line", LINES)
def test_the_loop_of_nanogpt_s_shape_has_the_lines_of_the_diff(line):
    assert line in PAGE
    assert line in (LOOPS / "by_nanogpt.py").read_text()
