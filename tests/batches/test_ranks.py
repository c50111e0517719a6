"""Ranks come from torch.distributed or the environment, and agree."""

import json
import re
import subprocess
import sys
from itertools import islice

import pytest
from making import ROOT
from reference import SEQ_LEN, make_loader, reference_rows, rows_of

from tokenmill import RowLoader


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 and WORLD_SIZE=2"),
        ({"RANK": "0"}, "RANK=0 and WORLD_SIZE=None"),
        ({"WORLD_SIZE": "2"}, "RANK=None and WORLD_SIZE=2 .* call torch.distributed.init_process_group first"),
    ],
)
def test_an_environment_that_does_not_tell_the_rank_is_refused(token_set, monkeypatch, environment, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        make_loader(token_set)


def test_ranks_come_from_torchrun_s_environment(token_set, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = make_loader(token_set)
    assert (loader.rank, loader.world_size) == (1, 2)
    assert rows_of(next(loader)) == list(islice(reference_rows(token_set), 4))[2:]


def torchrun(code, tmp_path):
    """Runs code on two ranks; what each gave to `tell` in the end."""
    script = tmp_path / "train.py"
    script.write_text(
        f"import json, sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import torch.distributed as dist\n"
        "from data import RowLoader\n"
        "dist.init_process_group('gloo')\n"
        "def tell(value): open(f'{sys.argv[1]}/{dist.get_rank()}.json', 'w').write(json.dumps(value))\n"
        f"{code}"
        "dist.barrier(); dist.destroy_process_group()\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", script, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]


def test_torchrun_deals_every_row_of_an_epoch_once_in_the_global_order(prepared, tmp_path):
    code = (
        f"loader = RowLoader({str(prepared[1])!r}, batch_size=2, seq_len={SEQ_LEN}, epochs=1, drop_last=False)\n"
        "tell([[x.tolist() + [y.tolist()[-1]] for x, y in zip(*batch)] for batch in loader])\n"
    )
    ranks = torchrun(code, tmp_path)
    dealt = []
    for first, second in zip(*ranks, strict=True):
        dealt += first + second
    epoch = RowLoader(prepared[1], batch_size=2, seq_len=SEQ_LEN).rows
    assert dealt == list(islice(reference_rows(prepared[1]), epoch))
    assert len(dealt) > 1000


def test_batch_sizes_that_differ_between_ranks_are_refused_and_nobody_waits(token_set, tmp_path):
    code = (
        "def make(batch_size):\n"
        f"    return RowLoader({str(token_set)!r}, batch_size=batch_size, seq_len={SEQ_LEN})\n"
        "make(2); make(3)\n"  # the same on both
        "dist.barrier()\n"
        "try: make(2 + dist.get_rank()); told = ''\n"
        "except ValueError as error: told = str(error)\n"
        "tell(told)\n"
    )
    told = sorted(torchrun(code, tmp_path))
    assert told[0] == ""
    assert re.match(r"all ranks must ask for the same rows.*batch_size is [23] on rank [01], [23] on another", told[1])
