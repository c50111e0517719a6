"""PyTorch's DataLoader and torchdata's StatefulDataLoader get the rows of RowLoader, each once, and
go on mid-epoch.
"""

import json
import os
import shutil
import subprocess
import sys
from itertools import islice

import pytest
from making import ROOT, make_sources, make_token_set
from reference import SEQ_LEN, make_loader, rows_of
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from tokenmill import Mixture, PackedRows, RowLoader

pytestmark = pytest.mark.filterwarnings(
    "ignore:'set_vital'", "ignore:This DataLoader will create 2 worker"
)
WORKERS = [
    {"num_workers": 0},
    {"num_workers": 1, "multiprocessing_context": "fork"},
    {"num_workers": 1, "multiprocessing_context": "spawn"},
]
FAST = WORKERS[:2]  # spawned ones take seconds


def make_dataset(tokens, batch_size=2, **settings):
    return PackedRows(tokens, batch_size=batch_size, seq_len=SEQ_LEN, **settings)


def batches_of(loader, count=None):
    return [rows_of(batch) for batch in islice(loader, count)]


# ---------------------------------------------------------------------------- its rows


@pytest.mark.parametrize("workers", FAST, ids=[0, 1])
def test_batches_are_those_of_the_loader_in_its_order(token_set, tmp_path, workers):
    folder = make_sources(tmp_path, documents=20)
    mixture = Mixture(
        {"web": 2, "code": 1}, sources={name: folder / name for name in ("web", "code")}
    )
    for tokens, how in (
        (token_set, {"rank": 1, "world_size": 2}),
        (token_set, {"packing": "nanochat"}),
        (mixture, {}),
    ):
        loader = DataLoader(make_dataset(tokens, **how), batch_size=None, **workers)
        assert batches_of(loader, 20) == batches_of(make_loader(tokens, **how), 20)


@pytest.mark.parametrize("workers", FAST, ids=[0, 1])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("world_size", [1, 3])
def test_an_epoch_ends_with_as_many_batches_as_len_says(token_set, workers, drop_last, world_size):
    lengths = set()
    for rank in range(world_size):
        how = {
            "batch_size": 3,
            "epochs": 1,
            "drop_last": drop_last,
            "rank": rank,
            "world_size": world_size,
        }
        dataset = make_dataset(token_set, **how)
        expected = make_loader(token_set, **how)
        for epoch in (0, 2):
            dataset.set_epoch(epoch)
            expected.set_epoch(epoch)
            loader = DataLoader(dataset, batch_size=None, **workers)
            batches = batches_of(loader)
            assert batches == batches_of(expected)
            assert len(batches) == len(dataset) == len(loader)
        lengths.add(len(batches))
    assert len(lengths) == 1, "all ranks make as many steps"


@pytest.mark.parametrize("workers", FAST, ids=[0, 1])
def test_without_a_batch_size_rows_come_one_by_one_for_the_dataloader_to_batch(token_set, workers):
    dataset = make_dataset(token_set, batch_size=None, epochs=1)
    expected = [batch[0] for batch in batches_of(make_loader(token_set, batch_size=1, epochs=1))]
    rows = [(inputs.shape, [*inputs.tolist(), int(targets[-1])]) for inputs, targets in dataset]
    assert rows == [((SEQ_LEN,), row) for row in expected]
    assert len(dataset) == len(expected)
    batched = batches_of(DataLoader(dataset, batch_size=4, **workers))
    assert sum(batched, []) == expected
    assert [len(batch) for batch in batched[:-1]] == [4] * (len(batched) - 1)


# ---------------------------------------------------------------------------- epochs


@pytest.mark.parametrize(
    "workers", WORKERS, ids=lambda workers: "-".join(map(str, workers.values()))
)
def test_set_epoch_is_that_of_the_next_iteration_and_leaves_one_that_runs_alone(token_set, workers):
    dataset = make_dataset(token_set, batch_size=1, epochs=1)
    expected = make_loader(token_set, batch_size=1, epochs=1)
    epochs = [batches_of(expected) for _ in range(3)]
    loader = DataLoader(dataset, batch_size=None, **workers)
    turns = ((0, 2), (2, 1), (1, 1))
    for epoch, then in turns[: 1 if workers.get("multiprocessing_context") == "spawn" else 3]:
        running = iter(loader)
        dataset.set_epoch(then)  # at once, while a worker starts
        first = batches_of(running, 3)
        dataset.set_epoch(0)
        assert first + batches_of(running) == epochs[epoch]
        dataset.set_epoch(then)


# ---------------------------------------------------------------------------- what is refused


def test_what_would_deal_rows_twice_or_ranks_unequally_is_refused(token_set, soon_given_up):
    for kind in (DataLoader, StatefulDataLoader):
        with pytest.raises(ValueError, match="use num_workers=0 or 1, not 2"):
            next(iter(kind(make_dataset(token_set), batch_size=None, num_workers=2)))
    persistent = DataLoader(
        make_dataset(token_set, epochs=1), batch_size=None, num_workers=1, persistent_workers=True
    )
    assert batches_of(persistent) == batches_of(make_loader(token_set, epochs=1))
    with pytest.raises(
        ValueError,
        match="a worker that persists cannot be told its epoch: leave out persistent_work",
    ):
        next(iter(persistent))
    with pytest.raises(
        ValueError, match="drop_last=False needs a batch_size: ranks would have unequal numbers"
    ):
        make_dataset(token_set, batch_size=None, drop_last=False, epochs=1)
    with pytest.raises(
        TypeError, match=r"this dataset is endless and has no len\(\); pass epochs="
    ):
        len(make_dataset(token_set))
    assert make_dataset(token_set), "Python would ask for its len"


@pytest.mark.parametrize("workers", FAST, ids=[0, 1])
def test_a_set_that_has_changed_since_is_refused(tmp_path, workers, soon_given_up):
    """Each rank begins its epoch at another moment, and would go over another set."""
    lengths = [[5, 9, 17, 3, 30] * 6]
    small = make_token_set(tmp_path / "small", train=lengths, val=[[4]])
    large = make_token_set(tmp_path / "large", train=[*lengths, [7, 8, 9] * 20], val=[[4]])
    loader = DataLoader(make_dataset(small), batch_size=None, **workers)
    assert batches_of(loader, 5) == batches_of(make_loader(small), 5)
    shutil.copytree(large, small, dirs_exist_ok=True)
    with pytest.raises(
        ValueError, match="a token set has changed since this PackedRows was made; make another one"
    ):
        next(iter(loader))
    assert batches_of(make_dataset(small), 5) == batches_of(make_loader(large), 5)


# ---------------------------------------------------------------------------- positions


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "settings", [{}, {"batch_size": None, "epochs": 2}, {"packing": "nanochat"}], ids=str
)
def test_a_stateful_dataloader_goes_on_mid_epoch(token_set, num_workers, settings):
    def make():
        dataset = make_dataset(token_set, **settings)
        batch_size = 2 if settings.get("batch_size", 2) is None else None
        return StatefulDataLoader(dataset, batch_size=batch_size, num_workers=num_workers)

    unbroken = batches_of(make(), 20)
    for steps in (0, 1, 7):
        loader = make()
        assert steps == 0 or batches_of(loader, steps) == unbroken[:steps]
        resumed = make()
        resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        assert batches_of(resumed, 20 - steps) == unbroken[steps:]


# ---------------------------------------------------------------------------- ranks


LAUNCHED = """
import sys, torch.distributed as dist, torch.multiprocessing as mp
from torch.utils.data import DataLoader, IterableDataset
from tokenmill import PackedRows
def main(rank, dataset, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    told = [next(iter(dataset))[0].tolist()]
    for context in ("fork", "spawn"):
        settings = {"batch_size": None, "num_workers": 1, "multiprocessing_context": context}
        batches = iter(DataLoader(dataset, **settings))
        told.append(next(batches)[0].tolist())
    open(f"{folder}/{rank}.txt", "w").write(repr(told))
    dist.destroy_process_group()
if __name__ == "__main__":
    dataset = PackedRows(sys.argv[1], batch_size=2, seq_len=16)
    next(iter(dataset))  # looked at before
    mp.spawn(main, args=(dataset, sys.argv[2]), nprocs=2)
"""


@pytest.mark.slow
def test_a_dataset_that_a_launcher_pickles_knows_each_rank_s_own(token_set, tmp_path):
    (tmp_path / "launch.py").write_text(LAUNCHED)
    command = [sys.executable, tmp_path / "launch.py", token_set, tmp_path]
    subprocess.run(command, env=dict(os.environ, PYTHONPATH=str(ROOT)), check=True, timeout=180)
    for rank in range(2):
        expected = next(make_loader(token_set, rank=rank, world_size=2))[0].tolist()
        assert (tmp_path / f"{rank}.txt").read_text() == repr([expected] * 3)


class HoldingALoader(IterableDataset):
    def __init__(self, tokens):
        self.loader = RowLoader(tokens, batch_size=1, seq_len=16)

    def __iter__(self):
        yield next(self.loader)


class DividingRows(IterableDataset):
    def __init__(self, tokens):
        self.tokens = tokens

    def __iter__(self):
        worker = get_worker_info()
        share = {"rank": worker.id, "world_size": worker.num_workers}
        yield next(RowLoader(self.tokens, batch_size=1, seq_len=16, **share))[0]


def test_a_row_loader_in_several_workers_is_refused_unless_each_has_a_rank(token_set):
    dataset = HoldingALoader(token_set)
    assert next(iter(DataLoader(dataset, batch_size=None, num_workers=1)))[0].shape == (1, 16)
    with pytest.raises(ValueError, match="a RowLoader in 2 workers of a DataLoader would deal"):
        next(iter(DataLoader(dataset, batch_size=None, num_workers=2)))
    first, second = DataLoader(DividingRows(token_set), batch_size=None, num_workers=2)
    assert first.tolist() != second.tolist()
