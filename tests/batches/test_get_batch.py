"""get_batch keeps its loaders, and one state covers them all."""

import json

import pytest
from making import make_token_set
from reference import SEQ_LEN, rows_of

from tokenmill import RowLoader, get_batch, load_state_dict, state_dict
from tokenmill.batches import get_batch as module
from tokenmill.batches.get_batch import KeptLoaders


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """The module's loaders as in a new process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "_loaders", KeptLoaders())
    return tmp_path


def test_get_batch_keeps_one_loader_for_each_distinct_set_of_arguments(token_set, fresh):
    train = RowLoader(token_set, "train", batch_size=2, seq_len=SEQ_LEN)
    val = RowLoader(token_set, "val", batch_size=1, seq_len=SEQ_LEN)
    for _ in range(5):
        assert rows_of(get_batch("train", 2, SEQ_LEN, tokens=token_set)) == rows_of(next(train))
        assert rows_of(get_batch("val", 1, SEQ_LEN, tokens=token_set)) == rows_of(next(val))
    assert len(state_dict()["loaders"]) == 2


def test_get_batch_finds_the_one_token_set_under_data_tokens(fresh):
    with pytest.raises(
        FileNotFoundError, match=r"data/tokens: expected a token set, found none; run `tokenmill prepare`"
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
    state = json.loads(json.dumps(state_dict()))
    expected = step()
    load_state_dict(state)
    assert state_dict() == state, "also before the loaders are made anew"
    assert step() == expected
    load_state_dict(state)
    assert step(batch_size=1) == expected


def test_a_loaded_position_that_fits_no_loader_is_refused_not_ignored(token_set, fresh):
    get_batch("train", 2, SEQ_LEN, tokens=token_set)
    load_state_dict(state_dict())
    with pytest.raises(ValueError, match="seq_len is 16 in the position, 8 here"):
        get_batch("train", 2, 8, tokens=token_set)
    with pytest.raises(ValueError, match="get_batch is endless"):
        get_batch("train", 2, 8, tokens=token_set, epochs=1)
    with pytest.raises(ValueError, match=r"expected what tokenmill\.state_dict\(\) returned"):
        load_state_dict({"epoch": 3})
