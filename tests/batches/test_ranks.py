"""Ranks come from torch.distributed, a mesh or the environment; all together deal every row once;
they agree.
"""

import re
from itertools import chain, islice

import pytest
from making import make_token_set, on_ranks
from reference import SEQ_LEN, make_loader, reference_rows, rows_of

from tokenmill import RowLoader

# ---------------------------------------------------------------------------- which rank


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 and WORLD_SIZE=2"),
        ({"RANK": "", "WORLD_SIZE": "1"}, "RANK= and WORLD_SIZE=1"),
        ({"RANK": "0"}, "RANK=0 and WORLD_SIZE=None"),
        ({"WORLD_SIZE": "2"}, "RANK=None and WORLD_SIZE=2 .* call .*init_process_group first"),
    ],
)
def test_an_environment_that_does_not_tell_the_rank_is_refused(
    token_set, monkeypatch, environment, message
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        make_loader(token_set)
    assert make_loader(token_set, rank=0, world_size=1).world_size == 1


def test_ranks_come_from_torchrun_s_environment_and_one_that_changes_is_noticed(
    token_set, monkeypatch
):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = make_loader(token_set)
    assert (loader.rank, loader.world_size) == (1, 2)
    assert rows_of(next(loader)) == list(islice(reference_rows(token_set), 4))[2:]
    monkeypatch.setenv("RANK", "0")
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(
        ValueError, match="rank 1 of 2 .*but this process is now rank 0 of 2; make loaders after"
    ):
        next(loader)


def inputs_of(loader, count):
    """The inputs of its next batches."""
    return [inputs.tolist() for inputs, _ in islice(loader, count)]


def test_ranks_deal_every_row_of_an_epoch_once_in_the_global_order(prepared, tmp_path):
    code = f"""
loader = RowLoader({str(prepared[1])!r}, batch_size=2, seq_len={SEQ_LEN}, epochs=1, drop_last=False)
tell([[x.tolist() + [y.tolist()[-1]] for x, y in zip(*batch)] for batch in loader])
"""
    dealt = []
    for batches in zip(*on_ranks(code, tmp_path), strict=True):
        dealt += chain.from_iterable(batches)
    assert dealt == list(
        islice(
            reference_rows(prepared[1]), RowLoader(prepared[1], batch_size=2, seq_len=SEQ_LEN).rows
        )
    )
    assert len(dealt) > 1000


MESH = """
from torch.distributed.device_mesh import init_device_mesh
from tokenmill import PackedRows
from torch.utils.data import DataLoader
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
how = {"tokens": TOKENS, "batch_size": 2, "seq_len": 16}
loader = RowLoader(**how, mesh=mesh["dp"])
rows = [next(loader)[0].tolist() for _ in range(3)]
again = RowLoader(**how, mesh=mesh["dp"])
again.load_state_dict(loader.state_dict())
both = RowLoader(**how, mesh=mesh)
spawned = DataLoader(PackedRows(**how, mesh=mesh["dp"]), batch_size=None, num_workers=1,
                     multiprocessing_context="spawn")
if mesh.get_coordinate() == [1, 1]:  # one is enough: each starts a Python of its own
    assert next(iter(spawned))[0].tolist() == rows[0]
tell([mesh.get_coordinate(), rows, next(again)[0].tolist() == next(loader)[0].tolist(),
      [both.rank, both.world_size]])
"""


def test_the_ranks_of_one_data_parallel_place_of_a_mesh_get_the_same_rows(token_set, tmp_path):
    ranks = on_ranks(MESH.replace("TOKENS", repr(str(token_set))), tmp_path, ranks=4, spawned=True)
    expected = [make_loader(token_set, rank=place, world_size=2) for place in range(2)]
    expected = [inputs_of(loader, 3) for loader in expected]
    assert [coordinate for coordinate, *_ in ranks] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    for (place, _), rows, is_resumed, _ in ranks:
        assert (rows, is_resumed) == (expected[place], True)
    assert [both for *_, both in ranks] == [[rank, 4] for rank in range(4)], (
        "two dimensions, both data-parallel"
    )
    with pytest.raises(ValueError, match="mesh determines rank and world_size; leave these out"):
        make_loader(token_set, mesh=object(), rank=0, world_size=1)


TOGETHER = """
from tokenmill import Mixture, PackedRows, get_batch, state_dict
import tokenmill.numpy
rank, told = dist.get_rank(), {}
def tried(make, *tokens, **settings):
    try:
        make(*(tokens or (TOKENS,)), **{"batch_size": 2, "seq_len": 16} | settings)
    except ValueError as error:
        return str(error)
    return ""
"""
DISAGREE = """
told["seed"] = tried(RowLoader, seed=rank)
told["epochs"] = tried(RowLoader, epochs=1 + rank)
told["batch_size"] = tried(RowLoader, batch_size=1 + rank)
told["seq_len"] = tried(RowLoader, seq_len=16 + rank)
told["seed, numpy"] = tried(tokenmill.numpy.RowLoader, seed=rank)
told["seed, packed"] = tried(PackedRows, seed=rank)
told["batch_size, packed"] = tried(PackedRows, batch_size=1 + rank)
told["sets"] = tried(RowLoader, OTHER if rank else TOKENS)
told["stages"] = tried(RowLoader, Mixture({TOKENS: 1, OTHER: 1 + rank}))
tell(told)
"""


def test_ranks_that_differ_in_what_the_order_follows_from_are_told_and_nobody_waits(
    token_set, tmp_path
):
    other_set = make_token_set(tmp_path / "other", train=[[9] * 30, [9] * 30], val=[[9]])
    code = (
        (TOGETHER + DISAGREE)
        .replace("TOKENS", repr(str(token_set)))
        .replace("OTHER", repr(str(other_set)))
    )
    ranks = on_ranks(code, tmp_path)
    assert len(ranks[0]) == 9
    for what in ranks[0]:
        messages = sorted(by_rank[what] for by_rank in ranks)
        assert messages[0] == "", "the first to come is right"
        key = what.partition(",")[0]
        pattern = rf"all ranks must ask for the same rows.*{key}.* on rank [01], .* on rank [01]"
        assert re.search(pattern, messages[1]), (what, messages)


AGREE = """
told["said"] = [tried(RowLoader, seed=5)]
if rank == 0:
    told["said"].append(tried(RowLoader, split="val", rank=0, world_size=1, seed=7))
loader = RowLoader(TOKENS, batch_size=2, seq_len=16)
for _ in range(3):
    next(loader)
    if rank == 0:
        loader.state_dict()  # once more than others, and at other moments
state = loader.state_dict()
again = RowLoader(TOKENS, batch_size=2, seq_len=16)
again.load_state_dict(state)
tell([set(told["said"]) == {""}, next(loader)[0].tolist() == next(again)[0].tolist(), state])
"""


def test_one_rank_alone_disturbs_nobody_and_may_save_as_often_as_it_likes(token_set, tmp_path):
    ranks = on_ranks((TOGETHER + AGREE).replace("TOKENS", repr(str(token_set))), tmp_path)
    assert ranks[0] == ranks[1] == [True, True, ranks[0][2]]


EVALUATING = """
rows = []
for step in range(4):
    rows.append(get_batch("train", 2, 16, tokens=TOKENS)[0].tolist())
    if rank == 0:
        for split in ("train", "val"):
            get_batch(split, 2, 16, tokens=TOKENS, purpose="eval")
        state_dict()
tell([rows, tried(RowLoader, seed=3)])
"""


def test_get_batch_evaluates_on_one_rank_alone_and_moves_no_training(token_set, tmp_path):
    ranks = on_ranks((TOGETHER + EVALUATING).replace("TOKENS", repr(str(token_set))), tmp_path)
    expected = [make_loader(token_set, rank=rank, world_size=2) for rank in range(2)]
    assert ranks == [[inputs_of(loader, 4), ""] for loader in expected]
