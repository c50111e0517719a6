"""PyTorch's DataLoader and torchdata's StatefulDataLoader get the rows of RowLoader, each once, and go on mid-epoch."""

import copy
import io
import json
import pickle
import shutil
import subprocess
import sys
from itertools import islice

import pytest
import torch
from making import ROOT, make_token_set
from torch.utils.data import ChainDataset, DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from tokenmill import PackedRows, RowLoader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker", "ignore:'set_vital'")
SEQ_LEN = 16
WORKERS = [0, 1, 2, 3]


def rows_of(batch):
    inputs, targets = batch
    return torch.cat([inputs, targets[..., -1:]], dim=-1).tolist()


def make_dataset(token_set, batch_size=2, **settings):
    return PackedRows(token_set, batch_size=batch_size, seq_len=SEQ_LEN, **settings)


def make_loader(token_set, batch_size=2, **settings):
    return RowLoader(token_set, batch_size=batch_size, seq_len=SEQ_LEN, **settings)


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("settings", [{}, {"packing": "nanochat"}, {"rank": 1, "world_size": 2}])
def test_batches_come_in_the_loader_s_order_with_any_number_of_workers(token_set, num_workers, settings):
    loader = DataLoader(make_dataset(token_set, **settings), batch_size=None, num_workers=num_workers)
    expected = make_loader(token_set, **settings)
    assert [rows_of(b) for b in islice(loader, 20)] == [rows_of(b) for b in islice(expected, 20)]


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("drop_last", [True, False])
def test_an_epoch_ends_with_nothing_twice_and_nothing_lost(token_set, num_workers, drop_last):
    dataset = make_dataset(token_set, batch_size=3, epochs=1, drop_last=drop_last)
    expected = make_loader(token_set, batch_size=3, epochs=1, drop_last=drop_last)
    batches = [rows_of(batch) for batch in DataLoader(dataset, batch_size=None, num_workers=num_workers)]
    assert batches == [rows_of(batch) for batch in expected]
    assert len(batches) == expected.batches_per_epoch()
    assert sum(map(len, batches)) == (expected.rows // 3 * 3 if drop_last else expected.rows)


@pytest.mark.parametrize("num_workers", WORKERS)
def test_without_a_batch_size_rows_come_one_by_one_for_the_dataloader_to_batch(token_set, num_workers):
    dataset = make_dataset(token_set, batch_size=None, epochs=1)
    ordered = [rows_of(batch)[0] for batch in make_loader(token_set, batch_size=1, epochs=1)]
    rows = [rows_of(row) for row in DataLoader(dataset, batch_size=None, num_workers=num_workers)]
    assert rows == ordered
    batched = [rows_of(batch) for batch in DataLoader(dataset, batch_size=4, num_workers=num_workers)]
    assert sorted(row for batch in batched for row in batch) == sorted(ordered)
    if num_workers < 2:
        assert [row for batch in batched for row in batch] == ordered
    else:
        assert batched[0] == ordered[0 : 4 * num_workers : num_workers], "worker 0 strides rows as a rank does"


SINGLE = {"batch_size": None, "epochs": 2}
NANOCHAT = {"packing": "nanochat"}


@pytest.mark.parametrize(
    ("num_workers", "settings"), [(0, {}), (0, SINGLE), (1, NANOCHAT), (2, {}), (2, SINGLE), (3, NANOCHAT)]
)
def test_a_stateful_dataloader_goes_on_mid_epoch(token_set, num_workers, settings):
    def make():
        return StatefulDataLoader(make_dataset(token_set, **settings), batch_size=None, num_workers=num_workers)

    unbroken = [rows_of(batch) for batch in islice(make(), 25)]
    for steps in (0, 1, 7):
        loader, taken = make(), []
        iterator = iter(loader)
        for _ in range(steps):
            taken.append(rows_of(next(iterator)))
        state = json.loads(json.dumps(loader.state_dict()))
        resumed = make()
        resumed.load_state_dict(state)
        assert taken + [rows_of(batch) for batch in islice(resumed, 25 - steps)] == unbroken


@pytest.mark.parametrize("change", [{"batch_size": 3}, {"world_size": 2, "rank": 0}, {"seq_len": 8}])
def test_two_workers_refuse_to_go_on_with_other_batches_which_one_does(soon_given_up, token_set, change):
    def make(workers, **settings):
        rows = PackedRows(token_set, **({"batch_size": 2, "seq_len": SEQ_LEN} | settings))
        return StatefulDataLoader(rows, batch_size=None, num_workers=workers)

    for workers in (0, 1, 2, 3):
        loader = make(workers)
        taken = sum((rows_of(batch) for batch in islice(loader, 4)), [])
        resumed = make(workers, **change)
        resumed.load_state_dict(loader.state_dict())
        if workers < 2:
            expected = make_loader(token_set)
            list(islice(expected, 4))
            state = expected.state_dict()
            expected = RowLoader(token_set, **({"batch_size": 2, "seq_len": SEQ_LEN} | change))
            expected.load_state_dict(state)
            assert [rows_of(batch) for batch in islice(resumed, 4)] == [rows_of(next(expected)) for _ in range(4)]
            assert len(taken) == 8
        else:
            with pytest.raises(ValueError, match=r"(rows_a_call|seq_len) is \d+ in the position, \d+ here"):
                next(iter(resumed))


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_set_epoch_reaches_the_workers(token_set, num_workers, persistent):
    if persistent and not num_workers:
        pytest.skip("no workers to persist")
    dataset = make_dataset(token_set, batch_size=1, epochs=1)
    loader = DataLoader(dataset, batch_size=None, num_workers=num_workers, persistent_workers=persistent)
    expected = make_loader(token_set, batch_size=1, epochs=1)
    epochs = [[rows_of(batch) for batch in expected] for _ in range(3)]
    for epoch in (0, 2, 1, 1):
        dataset.set_epoch(epoch)
        assert [rows_of(batch) for batch in loader] == epochs[epoch]


def test_set_epoch_reaches_a_worker_whose_first_batch_is_beyond_the_epoch(tmp_path):
    tiny = make_token_set(tmp_path / "tiny", train=[[17] * 7], val=[[17]])
    dataset = PackedRows(tiny, batch_size=2, seq_len=SEQ_LEN)
    dataset.set_epoch(1)
    expected = RowLoader(tiny, batch_size=2, seq_len=SEQ_LEN)
    expected.set_epoch(1)
    loader = DataLoader(dataset, batch_size=None, num_workers=3)
    assert [rows_of(batch) for batch in islice(loader, 12)] == [rows_of(batch) for batch in islice(expected, 12)]


def test_a_worker_s_position_is_no_loader_s(soon_given_up, token_set):
    loader = StatefulDataLoader(make_dataset(token_set), batch_size=None, num_workers=2)
    next(iter(loader))
    worker = PackedRows(token_set, batch_size=2, seq_len=SEQ_LEN)._loader.of(make_dataset(token_set).config, (1, 2))
    with pytest.raises(ValueError, match="rows_a_call is 2 in the position, None here"):
        make_loader(token_set).load_state_dict(worker.state_dict())


def test_workers_that_are_spawned_know_the_rank_of_their_parent(token_set, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    dataset = make_dataset(token_set)
    loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    iterator = iter(loader)
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    expected = make_loader(token_set, rank=1, world_size=2)
    assert [rows_of(next(iterator)) for _ in range(5)] == [rows_of(batch) for batch in islice(expected, 5)]


def test_settings_that_make_no_sense_are_refused(token_set):
    with pytest.raises(ValueError, match="PackedRows returns CPU tensors, found device='cuda'"):
        make_dataset(token_set, device="cuda")
    with pytest.raises(ValueError, match="batch_size must be a whole number of at least 1, not 0"):
        make_dataset(token_set, batch_size=0)


def test_an_error_in_a_worker_surfaces(soon_given_up, token_set, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(token_set, broken)
    for path in broken.glob("shards/*.bin"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match="no such file, though the manifest lists it"):
        next(iter(DataLoader(make_dataset(broken), batch_size=None, num_workers=1)))


# ---------------------------------------------------------------------------- what frameworks ask, and do


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_len_is_how_many_items_an_iteration_has(token_set, batch_size, drop_last, world_size):
    for rank in range(world_size):
        settings = {"drop_last": drop_last, "rank": rank, "world_size": world_size}
        dataset = make_dataset(token_set, batch_size, epochs=1, **settings)
        for epoch in (0, 2):
            dataset.set_epoch(epoch)
            assert len(dataset) == len(list(dataset)) == len(DataLoader(dataset, batch_size=None))


def test_an_endless_dataset_has_no_len_and_is_true_all_the_same(token_set):
    dataset = make_dataset(token_set)
    with pytest.raises(TypeError, match=r"this dataset is endless and has no len\(\); pass epochs="):
        len(dataset)
    assert dataset
    assert make_dataset(token_set, epochs=1)


def test_repr_says_set_split_and_items(token_set):
    assert repr(make_dataset(token_set)) == (
        f"PackedRows('{token_set}', 'train': rows of 16 + 1 tokens, best_fit; batches of 2, endless)"
    )
    assert "val': rows of 16 + 1 tokens, concat; single rows, 2 epochs from epoch 0)" in repr(
        make_dataset(token_set, batch_size=None, split="val", packing="concat", epochs=2)
    )


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_dataloader_that_batches_batches_is_refused(soon_given_up, token_set, num_workers):
    for dataset in (make_dataset(token_set), ChainDataset([make_dataset(token_set)])):
        loader = DataLoader(dataset, batch_size=8, num_workers=num_workers)
        with pytest.raises(ValueError, match="would make batches of batches: write DataLoader"):
            next(iter(loader))
    assert len(next(iter(DataLoader(make_dataset(token_set, None), batch_size=8, collate_fn=list)))) == 8


def test_a_batch_is_a_tuple_of_tensors_to_torch(token_set):
    batch = next(iter(make_dataset(token_set)))
    doubled = torch.utils._pytree.tree_map(lambda tensor: 2 * tensor, batch)
    assert torch.equal(doubled[0], 2 * batch[0])
    inputs, targets = batch
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


# ---------------------------------------------------------------------------- copies, and sets that change


def saved(dataset):
    file = io.BytesIO()
    torch.save(dataset, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda dataset: pickle.loads(pickle.dumps(dataset)),
    "torch.save": saved,
}


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", COPIES)
def test_set_epoch_of_a_copy_reaches_its_persistent_workers_and_no_other_dataset(token_set, kind, context):
    dataset = make_dataset(token_set, epochs=1)
    dataset.set_epoch(3)
    copied = COPIES[kind](dataset)
    expected = make_loader(token_set, epochs=1)
    loader = DataLoader(
        copied, batch_size=None, num_workers=1, persistent_workers=True, multiprocessing_context=context
    )
    for epoch in (None, 1, 2):  # first, the epoch that the dataset had when it was copied
        if epoch is not None:
            copied.set_epoch(epoch)
        expected.set_epoch(3 if epoch is None else epoch)
        assert [rows_of(batch) for batch in loader] == [rows_of(batch) for batch in expected]
    expected.set_epoch(3)
    assert rows_of(next(iter(dataset))) == rows_of(next(expected))


LAUNCHED = """
import sys
sys.path.insert(0, {root!r})
import torch.multiprocessing as mp
from tokenmill import PackedRows
def main(rank, dataset, done, folder):
    if rank == 0:
        dataset.set_epoch(5)
        done.set()
    done.wait(60)
    open(f"{{folder}}/{{rank}}.txt", "w").write(repr(dataset))
if __name__ == "__main__":
    dataset = PackedRows({tokens!r}, batch_size=2, seq_len=16, epochs=1)
    mp.spawn(main, args=(dataset, mp.get_context("spawn").Event(), {folder!r}), nprocs=2)
"""


@pytest.mark.slow
def test_ranks_that_a_launcher_spawns_have_an_epoch_each(token_set, tmp_path):
    script = tmp_path / "launch.py"
    script.write_text(LAUNCHED.format(root=str(ROOT), tokens=str(token_set), folder=str(tmp_path)))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "from epoch 5" in (tmp_path / "0.txt").read_text()
    assert "from epoch 0" in (tmp_path / "1.txt").read_text()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("packing", ["best_fit", "nanochat"])
def test_a_set_that_grows_between_two_ranks_epochs_is_read_as_it_was(tmp_path, num_workers, packing):
    """Each rank reads the manifest when its epoch begins, at another moment than the others."""
    lengths = [[5, 9, 17, 3, 30] * 6]
    small = make_token_set(tmp_path / "small", train=lengths, val=[[4]])
    large = make_token_set(tmp_path / "large", train=[*lengths, [7, 8, 9] * 20], val=[[4]])
    settings = {"rank": 0, "world_size": 2, "packing": packing}
    datasets = [make_dataset(small, **settings | {"rank": rank}) for rank in range(2)]
    expected = [
        [rows_of(batch) for batch in islice(make_loader(small, **settings | {"rank": rank}), 12)] for rank in range(2)
    ]

    def read(rank):
        return [rows_of(b) for b in islice(DataLoader(datasets[rank], batch_size=None, num_workers=num_workers), 12)]

    first = read(0)
    for path in (large / "shards").iterdir():
        shutil.copy(path, small / "shards")
    shutil.copytree(large / "manifests", small / "manifests", dirs_exist_ok=True)
    shutil.copy(large / "manifest.json", small / "manifest.json")
    assert [first, read(1)] == expected
    assert rows_of(next(iter(make_dataset(small, **settings)))) == rows_of(next(make_loader(small, **settings)))
