"""Batches are exactly the rows of the slow, obvious reference, on any number of ranks, from any step on."""

import json
import subprocess
import sys
from itertools import count, islice

import numpy as np
import pytest
import torch
from making import BOS, ROOT, make_token_set

import data
from data import RowLoader, get_batch
from tokenmill.packing import permutation, plan_rows, plan_windows
from tokenmill.shards import TokenSet

PACKINGS = [
    {"packing": "best_fit"},
    {"packing": "best_fit", "long_documents": "crop"},
    {"packing": "concat"},
    {"packing": "random"},
    {"packing": "best_fit", "shuffle": False},
    {"packing": "concat", "shuffle": False},
]
SEQ_LEN, SEED = 16, 1337


def reference_rows(path, split="train", packing="best_fit", long_documents="split", shuffle=True, seed=SEED):
    """All rows of the global order, one list of row_len ids after the other, for ever."""
    token_set = TokenSet(path)
    shards = [token_set.open(entry) for entry in token_set.split(split)]
    shuffle, seed = (shuffle, seed) if split == "train" else (False, data.VAL_SEED)
    for epoch in count():
        order = permutation(len(shards), "shards", seed, epoch) if shuffle else range(len(shards))
        for number in order:
            stream = shards[number].tokens.tolist()
            key = (seed, epoch if shuffle else 0, int(number))
            if packing == "best_fit":
                yield from packed(stream, shards[number].offsets.tolist(), long_documents, key)
            else:
                for start in plan_windows(len(stream), SEQ_LEN + 1, seed=key if packing == "random" else None):
                    yield stream[start : start + SEQ_LEN + 1]


def packed(stream, offsets, long_documents, key):
    documents = [stream[a:b] for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
    plan = plan_rows([len(d) for d in documents], SEQ_LEN + 1, long_documents=long_documents, seed=key)
    for first, last in zip(plan.row_offsets[:-1], plan.row_offsets[1:], strict=True):
        row = []
        for piece in range(first, last):
            start, length = int(plan.start[piece]), int(plan.length[piece])
            row += [BOS] * (start > 0) + documents[plan.document[piece]][start : start + length]
        yield row


def rows_of(batch):
    """A batch as rows again: inputs and the last target."""
    inputs, targets = batch
    return torch.cat([inputs, targets[:, -1:]], dim=1).tolist()


def make_loader(path, batch_size=2, **settings):
    return RowLoader(path, batch_size=batch_size, seq_len=SEQ_LEN, seed=SEED, **settings)


@pytest.mark.parametrize("settings", PACKINGS)
@pytest.mark.parametrize("split", ["train", "val"])
def test_batches_are_the_rows_of_the_reference_over_several_epochs(token_set, settings, split):
    loader = make_loader(token_set, split=split, **settings)
    dealt = [row for batch in islice(loader, 40) for row in rows_of(batch)]
    assert dealt == list(islice(reference_rows(token_set, split, **settings), len(dealt)))
    assert loader.epoch > 1


def test_batches_are_contiguous_int64_and_targets_are_inputs_shifted_by_one(token_set):
    inputs, targets = next(make_loader(token_set, batch_size=3))
    assert (inputs.dtype, inputs.shape, targets.shape) == (torch.int64, (3, SEQ_LEN), (3, SEQ_LEN))
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert targets.view(-1).shape == (3 * SEQ_LEN,)  # as tutorials write the loss


def test_every_best_fit_row_begins_with_bos_and_an_epoch_drops_nothing(token_set):
    loader, seen = make_loader(token_set, batch_size=1), []
    while loader.epoch == 0:
        seen += rows_of(next(loader))
    assert all(row[0] == BOS for row in seen)
    opened = [loader.token_set.open(entry) for entry in loader.token_set.split("train")]
    all_ids = np.sort(np.concatenate([shard.tokens for shard in opened]))
    counted = np.bincount(np.concatenate(seen), minlength=1000)
    assert (counted >= np.bincount(all_ids, minlength=1000)).all()


def test_batches_stay_valid_while_they_are_held(token_set):
    loader = make_loader(token_set)
    held = [(batch, rows_of(batch)) for batch in islice(loader, 10)]
    assert all(rows_of(batch) == then for batch, then in held)


@pytest.mark.parametrize("settings", PACKINGS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_all_ranks_together_see_the_rows_of_one(token_set, settings, world_size):
    loaders = [make_loader(token_set, rank=r, world_size=world_size, **settings) for r in range(world_size)]
    dealt = []
    for _ in range(12):
        batches = [rows_of(next(loader)) for loader in loaders]
        dealt += [batch[i] for i in range(2) for batch in batches]
        assert all(loader.state_dict() == loaders[0].state_dict() for loader in loaders)
    assert dealt == list(islice(reference_rows(token_set, **settings), len(dealt)))


@pytest.mark.parametrize("settings", PACKINGS)
def test_resuming_from_every_step_equals_the_unbroken_run(token_set, settings):
    loader, states, batches = make_loader(token_set, **settings), [], []
    for _ in range(25):
        states.append(json.loads(json.dumps(loader.state_dict())))  # plain numbers and strings
        batches.append(rows_of(next(loader)))
    for step, state in enumerate(states):
        resumed = make_loader(token_set, **settings)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert [rows_of(batch) for batch in islice(resumed, 3)] == batches[step : step + 3] or step > 22


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_a_checkpoint_of_four_ranks_goes_on_with_any_other_number(token_set, world_size):
    four = [make_loader(token_set, rank=r, world_size=4, batch_size=1) for r in range(4)]
    for _ in range(5):
        for loader in four:
            next(loader)
    others = [make_loader(token_set, rank=r, world_size=world_size, batch_size=1) for r in range(world_size)]
    for loader in others:
        loader.load_state_dict(four[2].state_dict())
    dealt = [row for _ in range(3) for loader in others for row in rows_of(next(loader))]
    assert dealt == list(islice(reference_rows(token_set), 20, 20 + len(dealt)))


def test_another_seed_and_another_epoch_give_another_order(token_set):
    orders = [list(islice(reference_rows(token_set, seed=seed), 20)) for seed in (1, 2)]
    loader = RowLoader(token_set, batch_size=20, seq_len=SEQ_LEN, seed=2)
    assert rows_of(next(loader)) == orders[1] != orders[0]


def test_validation_does_not_depend_on_the_seed_and_is_the_same_every_epoch(token_set):
    one, two = (RowLoader(token_set, "val", batch_size=1, seq_len=SEQ_LEN, seed=seed) for seed in (1, 2))
    epochs = [[], []]
    while one.epoch < 2:
        epochs[one.epoch] += rows_of(next(one))
    assert epochs[0] == epochs[1]
    assert epochs[0] == [rows_of(next(two))[0] for _ in epochs[0]]


# ---------------------------------------------------------------------------- what a user can get wrong


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seq_len": 0}, "seq_len must be a whole number of at least 1, not 0"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, not 0"),
        ({"packing": "worst_fit"}, "packing must be one of best_fit, nanochat, concat, random, not 'worst_fit'"),
        ({"long_documents": "drop"}, "long_documents must be one of"),
        ({"split": "test"}, "split must be one of train, val, not 'test'"),
        ({"rank": 2, "world_size": 2}, "rank must be from 0 to world_size - 1"),
        ({"rank": 1}, "rank and world_size go together"),
        ({"batch_size": 1000}, "fewer than one batch of 1000 on each of 1 ranks"),
        (
            {"seq_len": 111, "packing": "concat"},
            "shard train_1.000 has 60 tokens, fewer than a row of 111 .* use packing='best_fit'",
        ),
        ({"packing": "random", "documents": True}, "documents need a packing that knows them"),
        ({"packing": "nanochat", "epochs": 1}, "epochs cannot be counted with packing 'nanochat'"),
        ({"prefetch": -1}, "prefetch must be a whole number of at least 0, not -1"),
        ({"epochs": 0}, "epochs must be a whole number of at least 1, not 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(token_set, settings, message):
    with pytest.raises(ValueError, match=message):
        RowLoader(token_set, **({"batch_size": 2, "seq_len": SEQ_LEN} | settings))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_where_there_is_none_is_refused(token_set):
    with pytest.raises(ValueError, match="no CUDA; use device='cpu'"):
        make_loader(token_set, device="cuda")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"seq_len": 8}, "seq_len is 16 in the position, 8 here"),
        ({"packing": "concat"}, "packing is 'best_fit' in the position, 'concat' here"),
        ({"seed": 1}, "seed is 1337 in the position, 1 here"),
        ({"split": "val"}, "split is 'train' in the position, 'val' here"),
    ],
)
def test_a_position_of_other_settings_is_refused_with_both_values(token_set, other, message):
    state = make_loader(token_set).state_dict()
    loader = RowLoader(token_set, **({"batch_size": 1, "seq_len": SEQ_LEN, "seed": SEED} | other))
    with pytest.raises(ValueError, match=message):
        loader.load_state_dict(state)


def test_a_position_of_another_token_set_or_version_is_refused(token_set, tmp_path):
    state = make_loader(token_set).state_dict()
    loader = make_loader(make_token_set(tmp_path / "other", train=[[50] * 9], val=[[40]]))
    with pytest.raises(ValueError, match=r"shards is '\w{16}' in the position, '\w{16}' here"):
        loader.load_state_dict(state)
    with pytest.raises(ValueError, match="fingerprint is 'eeee' in the position, 'ffff"):
        make_loader(token_set).load_state_dict(state | {"fingerprint": "eeee"})
    with pytest.raises(ValueError, match="version is 99 in the position, 1 here"):
        make_loader(token_set).load_state_dict(state | {"version": 99})
    with pytest.raises(ValueError, match="no such row: epoch 0, shard 0 of 3, row 12345"):
        make_loader(token_set).load_state_dict(state | {"row": 12345})


# ---------------------------------------------------------------------------- get_batch


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """The module's loaders as in a new process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    data._loaders.clear()
    data._positions.clear()
    yield tmp_path
    data._loaders.clear()
    data._positions.clear()


def test_get_batch_keeps_one_loader_for_each_distinct_set_of_arguments(token_set, fresh):
    train = RowLoader(token_set, "train", batch_size=2, seq_len=SEQ_LEN)
    val = RowLoader(token_set, "val", batch_size=1, seq_len=SEQ_LEN)
    for _ in range(5):
        assert rows_of(get_batch("train", 2, SEQ_LEN, tokens=token_set)) == rows_of(next(train))
        assert rows_of(get_batch("val", 1, SEQ_LEN, tokens=token_set)) == rows_of(next(val))
    assert len(data._loaders) == 2


def test_get_batch_finds_the_one_token_set_under_data_tokens(fresh):
    with pytest.raises(
        FileNotFoundError, match=r"data/tokens: expected a token set, found none; run `python prepare_data"
    ):
        get_batch("train", batch_size=1, seq_len=4)
    make_token_set(fresh / "data" / "tokens" / "one", train=[[9, 9]], val=[[9]])
    inputs, _ = get_batch("train", batch_size=1, seq_len=4, device="cpu")
    assert inputs.shape == (1, 4)


def test_state_dict_covers_all_loaders_of_get_batch_also_with_another_batch_size(token_set, fresh):
    def step(batch_size=2):
        train = [rows_of(get_batch("train", batch_size, SEQ_LEN, tokens=token_set)) for _ in range(2 // batch_size)]
        return sum(train, []), rows_of(get_batch("val", 1, SEQ_LEN, tokens=token_set))

    for _ in range(3):
        step()
    state = json.loads(json.dumps(data.state_dict()))
    expected = step()
    data.load_state_dict(state)
    assert data.state_dict() == state, "also before the loaders are made anew"
    assert step() == expected
    data.load_state_dict(state)
    assert step(batch_size=1) == expected


def test_a_loaded_position_that_fits_no_loader_is_refused_not_ignored(token_set, fresh):
    get_batch("train", 2, SEQ_LEN, tokens=token_set)
    data.load_state_dict(data.state_dict())
    with pytest.raises(ValueError, match="seq_len is 16 in the position, 8 here"):
        get_batch("train", 2, 8, tokens=token_set)
    with pytest.raises(ValueError, match=r"expected what data\.state_dict\(\) returned"):
        data.load_state_dict({"epoch": 3})


# ---------------------------------------------------------------------------- ranks and imports


def test_ranks_come_from_torchrun_s_environment(token_set, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = make_loader(token_set)
    assert (loader.rank, loader.world_size) == (1, 2)
    assert rows_of(next(loader)) == list(islice(reference_rows(token_set), 4))[1::2]


def test_torchrun_deals_every_row_once_in_the_global_order(token_set, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import json, torch.distributed as dist\n"
        "from data import RowLoader\n"
        "dist.init_process_group('gloo')\n"
        f"loader = RowLoader({str(token_set)!r}, batch_size=2, seq_len={SEQ_LEN}, seed={SEED})\n"
        "batches = [next(loader) for _ in range(8)]\n"
        "rows = [[x.tolist() + [y.tolist()[-1]] for x, y in zip(*batch)] for batch in batches]\n"
        "open(f'{sys.argv[1]}/{dist.get_rank()}.json', 'w').write(json.dumps(rows))\n"
        "dist.destroy_process_group()\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", script, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    dealt = [row for batches in zip(*ranks, strict=True) for rows in zip(*batches, strict=True) for row in rows]
    assert dealt == list(islice(reference_rows(token_set), 32))


def test_importing_data_loads_neither_tokenizer_nor_pyarrow():
    code = "import sys, data; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not {"tiktoken", "pyarrow", "rustbpe", "multiprocess", "tyro", "rich", "huggingface_hub"} & set(
        loaded.split()
    )
    assert {"numpy", "torch", "data"} <= set(loaded.split())
