"""Ranks come from torch.distributed or the environment, and agree."""

import copy
import os
import pickle
import re
import subprocess
import sys
from itertools import islice

import pytest
import warm
from making import ROOT, make_token_set, on_ranks
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


def test_ranks_deal_every_row_of_an_epoch_once_in_the_global_order(prepared, tmp_path):
    code = (
        f"loader = RowLoader({str(prepared[1])!r}, batch_size=2, seq_len={SEQ_LEN}, epochs=1, drop_last=False)\n"
        "tell([[x.tolist() + [y.tolist()[-1]] for x, y in zip(*batch)] for batch in loader])\n"
    )
    ranks = on_ranks(code, tmp_path)
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
    told = sorted(on_ranks(code, tmp_path))
    assert told[0] == ""
    said = r"all ranks must ask for the same rows.*batch_size is [23] on rank [01], [23] on rank [01]"
    assert re.match(said, told[1])


DISAGREE = """
def make(**settings):
    return RowLoader({tokens!r}, **({{"batch_size": 2, "seq_len": 16}} | settings))
def tried(**settings):
    try:
        make(**settings)
    except ValueError as error:
        return str(error)
    return ""
rank = dist.get_rank()
told = {{}}
told["seed"] = tried(seed=rank)
told["epochs"] = tried(epochs=1 + rank)
told["skip_rows"] = tried(skip_rows=["0:0:1"] if rank else [])
told["seq_len"] = tried(seq_len=16 + rank)
dist.barrier()
told["agreed"] = tried(seed=5)
if rank == 0:
    told["alone"] = tried(split="val", batch_size=1)
told["after it"] = tried(split="val", batch_size=2)
def packed(**settings):
    try:
        PackedRows({tokens!r}, **({{"batch_size": 2, "seq_len": 16}} | settings))
    except ValueError as error:
        return str(error)
    return ""
from tokenmill import PackedRows
told["packed seed"] = packed(seed=rank)
told["packed batch_size"] = packed(batch_size=1 + rank)
told["packed agreed"] = packed(seed=3)
try:
    make(epochs=1).set_epoch(rank)
    told["set_epoch"] = ""
except ValueError as error:
    told["set_epoch"] = str(error)
told["own ranks"] = tried(seed=rank, rank=0, world_size=1)
loader = make()
for _ in range(1 + rank):
    next(loader)
state = loader._position(0)
again = make()
try:
    again.load_state_dict(state)
    told["position"] = ""
except ValueError as error:
    told["position"] = str(error)
tell(told)
"""


def test_ranks_that_disagree_in_anything_the_order_follows_from_are_told(token_set, tmp_path):
    ranks = on_ranks(DISAGREE.format(tokens=str(token_set)), tmp_path)
    for key in ("seed", "epochs", "skip_rows", "seq_len", "packed seed", "packed batch_size", "set_epoch"):
        assert sorted(bool(told[key]) for told in ranks) == [False, True], key
        assert re.search(
            rf"all ranks must ask for the same rows, .*{key.split()[-1]} is .* on rank", "".join(t[key] for t in ranks)
        )
    assert re.search(r"row is \d+ on rank \d, \d+ on rank \d", "".join(told["position"] for told in ranks))
    for key in ("agreed", "alone", "after it", "own ranks", "packed agreed"):
        assert not any(told.get(key) for told in ranks), key


def test_a_rank_whose_set_has_grown_is_told_apart(tmp_path):
    for name, train in (("0", [[9] * 9]), ("1", [[9] * 9, [9] * 9])):
        make_token_set(tmp_path / name, train=train, val=[[9]])
    code = (
        f"import os; tokens = os.path.join({str(tmp_path)!r}, str(dist.get_rank()))\n"
        "try: RowLoader(tokens, batch_size=1, seq_len=4); tell('')\n"
        "except ValueError as error: tell(str(error))\n"
    )
    told = sorted(on_ranks(code, tmp_path))
    assert told[0] == ""
    assert re.search(r"manifest is '\w{16}' on rank [01], '\w{16}' on rank [01]", told[1])


def test_a_group_without_a_store_is_no_reason_to_fail(token_set):
    """As torch's `fake` backend, which models are planned with, has none."""
    code = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=8)
from tokenmill import RowLoader
loader = RowLoader({str(token_set)!r}, batch_size=1, seq_len=16)
next(loader)
print(loader.rank, loader.world_size)
"""
    done = warm.run("-c", code)
    assert (done.stdout, done.returncode) == ("3 8\n", 0), done.stderr


MESH = """
from torch.distributed.device_mesh import init_device_mesh
from tokenmill import PackedRows
from torch.utils.data import DataLoader
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
loader = RowLoader({tokens!r}, batch_size=2, seq_len=16, mesh=mesh["dp"])
rows = [next(loader)[0].tolist() for _ in range(3)]
state = loader.state_dict()
again = RowLoader({tokens!r}, batch_size=2, seq_len=16, mesh=mesh["dp"])
again.load_state_dict(state)
spawned = DataLoader(PackedRows({tokens!r}, batch_size=2, seq_len=16, mesh=mesh["dp"]), batch_size=None, num_workers=1,
                     multiprocessing_context="spawn")
both = RowLoader({tokens!r}, batch_size=1, seq_len=16, mesh=mesh)
if __name__ == "__main__":
    tell([mesh.get_coordinate(), rows, next(again)[0].tolist() == next(loader)[0].tolist(),
          next(iter(spawned))[0].tolist() == rows[0], [both.rank, both.world_size]])
"""


def test_the_ranks_of_one_data_parallel_place_of_a_mesh_get_the_same_rows(token_set, tmp_path):
    ranks = on_ranks(MESH.format(tokens=str(token_set)), tmp_path, ranks=4, spawned=True)
    expected = [make_loader(token_set, rank=place, world_size=2) for place in range(2)]
    expected = [[next(loader)[0].tolist() for _ in range(3)] for loader in expected]
    assert [coordinate for coordinate, *_ in ranks] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    for (place, _), rows, resumed, spawned, _ in ranks:
        assert rows == expected[place]
        assert resumed
        assert spawned
    assert [both for *_, both in ranks] == [[rank, 4] for rank in range(4)], (
        "a mesh of two dimensions, both data-parallel"
    )


@pytest.mark.slow
def test_the_fsdp2_example_gives_tensor_parallel_ranks_the_same_rows(prepared):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--standalone"]
    command = [*torchrun, str(ROOT / "examples" / "fsdp2_tp.py"), str(prepared[1]), "--tp", "2"]
    environment = dict(os.environ, PYTHONPATH=str(ROOT), CUDA_VISIBLE_DEVICES="")
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment)
    assert done.returncode == 0, done.stderr
    told = re.findall(r"step (\d) rank (\d) place \((\d), (\d)\) rows (\d+) loss ([\d.]+)\n", done.stdout)
    assert len(told) == 12
    expected = [RowLoader(prepared[1], batch_size=2, seq_len=64, rank=place, world_size=2) for place in range(2)]
    rows = [[str(int(next(loader)[0].sum())) for _ in range(3)] for loader in expected]
    for step, _, place, _, found, _ in told:
        assert found == rows[int(place)][int(step)]


def test_a_mesh_and_a_rank_are_refused(token_set):
    with pytest.raises(ValueError, match="mesh determines rank and world_size; leave these out"):
        make_loader(token_set, mesh=object(), rank=0, world_size=1)


LAUNCHED = """
import copy, pickle, sys
sys.path.insert(0, {root!r})
import torch.distributed as dist, torch.multiprocessing as mp
from torch.utils.data import DataLoader
from tokenmill import PackedRows
def main(rank, dataset, folder):
    dist.init_process_group("gloo", init_method=f"file://{{folder}}/store", rank=rank, world_size=2)
    copies = {{"as it came": dataset, "copied": copy.deepcopy(dataset), "pickled": pickle.loads(pickle.dumps(dataset))}}
    told = {{name: next(iter(one))[0].tolist() for name, one in copies.items()}}
    for context in ("fork", "spawn"):
        loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context)
        batches = iter(loader)
        told[context] = next(batches)[0].tolist()
        next(batches)  # of the other worker: torch kills one that has not begun when its iterator goes
        del batches
    open(f"{{folder}}/{{rank}}.txt", "w").write(repr(told))
    dist.barrier()
    dist.destroy_process_group()
if __name__ == "__main__":
    dataset = PackedRows({tokens!r}, batch_size=2, seq_len=16)
    next(iter(dataset))  # looked at before
    mp.spawn(main, args=(dataset, {folder!r}), nprocs=2)
"""


@pytest.mark.slow
def test_a_dataset_that_a_launcher_pickles_knows_each_rank_s_own(token_set, tmp_path):
    script = tmp_path / "launch.py"
    script.write_text(LAUNCHED.format(root=str(ROOT), tokens=str(token_set), folder=str(tmp_path)))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        expected = next(make_loader(token_set, rank=rank, world_size=2))[0].tolist()
        told = eval((tmp_path / f"{rank}.txt").read_text())
        assert told == dict.fromkeys(("as it came", "copied", "pickled", "fork", "spawn"), expected)


def test_a_loader_that_is_made_before_its_rank_is_known_raises(token_set, tmp_path):
    code = (
        "dist.destroy_process_group()\n"
        "import os; told = {name: os.environ.pop(name) for name in ('RANK', 'WORLD_SIZE')}\n"
        f"loader = RowLoader({str(token_set)!r}, batch_size=1, seq_len=4)\n"
        "next(loader)\n"
        "store = f'file://{sys.argv[1]}/store'\n"
        "dist.init_process_group('gloo', init_method=store, rank=int(told['RANK']), world_size=2)\n"
        "try: next(loader); tell('')\n"
        "except ValueError as error: tell(str(error))\n"
    )
    for rank, told in enumerate(on_ranks(code, tmp_path)):
        assert f"created by rank 0 of 1, but this process is now rank {rank} of 2" in told


def test_a_process_group_that_is_made_again_with_other_ranks_is_noticed(token_set, tmp_path):
    """Elastic training does so. Every rank would otherwise go on with the rows of the rank that it was."""
    code = (
        f"loader = RowLoader({str(token_set)!r}, batch_size=1, seq_len=4)\n"
        "next(loader); was = dist.get_rank()\n"
        "dist.destroy_process_group()\n"
        "store = f'file://{sys.argv[1]}/store'\n"
        "dist.init_process_group('gloo', init_method=store, rank=1 - was, world_size=2)\n"
        "try: next(loader); said = ''\n"
        "except ValueError as error: said = str(error)\n"
        "tell([was, said])\n"
    )
    for now, (was, said) in enumerate(on_ranks(code, tmp_path)):
        assert f"created by rank {was} of 2, but this process is now rank {now} of 2" in said


def test_a_sample_that_rank_0_prints_first_hides_no_rank_that_is_ahead(prepared, tmp_path):
    code = (
        "def make():\n"
        f"    return RowLoader({str(prepared[1])!r}, batch_size=2, seq_len=16)\n"
        "def position(loader):\n"
        "    try: loader.state_dict(); return ''\n"
        "    except ValueError as error: return str(error)\n"
        "if dist.get_rank() == 0:\n"
        "    sample = make()\n"
        "    next(sample)\n"
        "    sample.state_dict()\n"
        "loader = make()\n"
        "said = []\n"
        "for step in range(3):\n"
        "    for _ in range(1 if dist.get_rank() or step < 2 else 500): next(loader)\n"
        "    dist.barrier()\n"
        "    said.append(position(loader))\n"
        "    dist.barrier()\n"
        "tell(said)\n"
    )
    ranks = on_ranks(code, tmp_path)
    assert [said[:2] for said in ranks] == [["", ""]] * 2
    (ahead,) = [said[2] for said in ranks if said[2]]
    assert "all ranks must be at the same row when you take a position" in ahead


def test_a_loader_is_not_pickled(token_set):
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="a RowLoader has threads and memory maps, and cannot be pickled or copied"):
            attempt(make_loader(token_set))


def test_ranks_of_a_mixture_share_its_turns_and_refuse_other_weights(tmp_path):
    folders = [make_token_set(tmp_path / name, train=[[9] * 40], val=[], seed=n) for n, name in enumerate("ab")]
    mixture = f"Mixture({{{str(folders[0])!r}: 3, {str(folders[1])!r}: %s}})"
    code = (
        "from data import Mixture\n"
        f"loader = RowLoader({mixture % 1}, batch_size=2, seq_len={SEQ_LEN}, sources=True)\n"
        "found = [next(loader)[2].tolist() for _ in range(4)]\n"
        "try:\n"
        f"    RowLoader({mixture % '1 + dist.get_rank()'}, batch_size=2, seq_len={SEQ_LEN}); found.append('')\n"
        "except ValueError as error:\n"
        "    found.append(str(error))\n"
        "tell([found, loader.state_dict()])\n"
    )
    (first, state), (second, other) = on_ranks(code, tmp_path)
    assert state == other
    assert [*first[:4], *second[:4]] == [[0, 0]] * 4 + [[0, 1]] * 4, "a a a b"
    errors = [error for error in (first[4], second[4]) if error]
    assert len(errors) == 1, "whoever comes second"
    assert "all ranks must ask for the same rows" in errors[0]
    assert "mixture's stages is" in errors[0]
