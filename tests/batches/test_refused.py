"""Settings and positions that make no sense are refused, with both values."""

import pytest
import torch
from making import make_token_set
from reference import SEED, SEQ_LEN, changed, make_loader

from tokenmill import RowLoader
from tokenmill.batches.torch_devices import find_device


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seq_len": 0}, "seq_len must be a whole number of at least 1, not 0"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, not 0"),
        ({"packing": "worst_fit"}, "packing must be one of best_fit, nanochat, concat, random, not 'worst_fit'"),
        ({"long_documents": "cut"}, "long_documents must be one of"),
        ({"split": "test"}, "split must be one of train, val, not 'test'"),
        ({"rank": 2, "world_size": 2}, "rank must be from 0 to world_size - 1"),
        ({"rank": 1}, "rank and world_size go together"),
        ({"batch_size": 1000, "epochs": 1}, "fewer than one batch of 1000 on each of 1 ranks; .* pass drop_last=False"),
        (
            {"seq_len": 111, "packing": "concat"},
            "shard train_1.000 has 60 tokens, fewer than a row of 111 .* use packing='best_fit'",
        ),
        ({"packing": "random", "documents": True}, "documents=True is not supported with packing='random'"),
        ({"packing": "nanochat", "epochs": 1}, "epochs is not supported with packing='nanochat'"),
        ({"prefetch": -1}, "prefetch must be a whole number of at least 0, not -1"),
        ({"prefetch": 10**9}, "prefetch must be at most 1,000, not 1000000000"),
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


@pytest.mark.parametrize("device", ["xpu", "xpu:0", "mps", "hpu"])
def test_a_device_that_this_machine_lacks_is_refused_when_the_loader_is_made(token_set, device):
    with pytest.raises(ValueError, match=f"device '{device}' cannot be used on this machine, or with this build"):
        make_loader(token_set, device=device)


def test_a_device_has_the_index_that_it_had_where_the_loader_was_made():
    assert find_device("meta") == torch.empty(0, device="meta").device
    assert find_device("cpu:0") == torch.device("cpu")


@pytest.mark.parametrize(
    ("other", "message"),
    [
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
    with pytest.raises(ValueError, match=r"this was never the token set with manifest \w{16}: expected .*other/manif"):
        loader.load_state_dict(state)
    with pytest.raises(ValueError, match="fingerprint is 'eeee' in the position, 'ffff"):
        make_loader(token_set).load_state_dict(state | {"fingerprint": "eeee"})
    with pytest.raises(ValueError, match="version is 99 in the position, 3 here.*a newer tokenmill made it"):
        make_loader(token_set).load_state_dict(state | {"version": 99})
    with pytest.raises(ValueError, match="no such row: epoch 0, window 0, row 12345"):
        make_loader(token_set).load_state_dict(changed(state, row=12345))
    for lacking in ("sources", "segments", "turns"):
        with pytest.raises(ValueError, match=f"{lacking} is missing from the position"):
            make_loader(token_set).load_state_dict({key: value for key, value in state.items() if key != lacking})
    sources = {key: column for key, column in state["sources"].items() if key != "row"}
    with pytest.raises(ValueError, match="expected a position, as state_dict made it"):
        make_loader(token_set).load_state_dict(state | {"sources": sources})


def test_a_position_of_an_older_tokenmill_is_refused_with_what_to_do(token_set):
    state = make_loader(token_set).state_dict() | {"version": 1, "shards": "0" * 16, "shard": 0}
    with pytest.raises(
        ValueError, match=r"version is 1 in the position, 3 here .*shard by shard\): continue with tokenmill 0.2"
    ):
        make_loader(token_set).load_state_dict(state)


def test_an_endless_loader_needs_no_more_than_a_row(token_set):
    """As a validation split of 1,024 ranks may have less than one batch of all."""
    for rank in (0, 1023):
        loader = make_loader(token_set, split="val", batch_size=32, rank=rank, world_size=1024)
        assert next(loader)[0].shape == (32, SEQ_LEN)
    assert loader.epoch > 1000


@pytest.mark.parametrize("wrong", [-1, 1 << 80, 10**9, "0", None, [], {"a": 1}, 0.5, float("nan"), True, "9" * 5000])
@pytest.mark.parametrize(
    "key", ["seq_len", "epoch", "window", "row", "tokens_seen", "began", "pasts", "skip_rows", "manifest", "version"]
)
def test_a_position_with_numbers_that_no_row_has_is_refused(token_set, key, wrong):
    fresh = make_loader(token_set)
    state = fresh.state_dict()
    columns = {key: column[0] for key, column in state["sources"].items()}
    if wrong == (columns | state)[key] or wrong == columns.get(key) or (key == "epoch" and wrong == 10**9):
        return  # it is one
    with pytest.raises(ValueError, match="."):
        make_loader(token_set).load_state_dict(changed(state, **{key: wrong}))


@pytest.mark.parametrize(
    "pasts",
    [
        [3],
        [[0]],
        [[0, 0, 5]],
        [[0, 0, [32]]],
        [[0, 0, [32, -1]]],
        [[0, 99, [32, 1]]],
        [[0, 0, [1 << 40, 1]]],
        [[0, 0, [32, 1, "a"]]],
        [[0, 0, [32, 1, "0-99999999999999999999"]]],
        [[0, 0, [32, 10**15]]],
    ],
)
def test_pasts_that_no_window_has_are_refused(token_set, pasts):
    state = make_loader(token_set).state_dict()
    with pytest.raises(ValueError, match="."):
        make_loader(token_set).load_state_dict(changed(state, pasts=pasts))


@pytest.mark.parametrize("place", ["0:99:0", "0:0:99999", "9:0:0-999999", "0:0:0-99999999999999999999", "0:0"])
def test_rows_to_skip_that_are_not_there_are_refused(token_set, place):
    state = make_loader(token_set).state_dict()
    with pytest.raises(ValueError, match="skip_rows"):
        make_loader(token_set, skip_rows=[place])
    with pytest.raises(ValueError, match="skip_rows"):
        make_loader(token_set).load_state_dict(changed(state, skip_rows=[place]))
