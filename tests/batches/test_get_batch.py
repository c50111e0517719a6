"""get_batch keeps its loaders, and one state covers them all."""

import json

import pytest
from making import make_token_set
from reference import SEQ_LEN, rows_of

from tokenmill import RowLoader, get_batch, load_state_dict, state_dict
from tokenmill.batches import get_batch as module
from tokenmill.batches.get_batch import LoaderCache


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """The module's loaders as in a new process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "_loaders", LoaderCache())
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


def test_state_dict_covers_all_loaders_of_get_batch(token_set, fresh):
    def step():
        train = rows_of(get_batch("train", 2, SEQ_LEN, tokens=token_set))
        return train, rows_of(get_batch("val", 1, SEQ_LEN, tokens=token_set))

    for _ in range(3):
        step()
    state = json.loads(json.dumps(state_dict()))
    expected = step()
    load_state_dict(state)
    assert state_dict() == state, "also before the loaders are made anew"
    assert step() == expected


def test_the_positions_of_two_token_sets_find_their_own(token_set, fresh):
    other = make_token_set(fresh / "other", train=[[17] * 9], val=[[17]], seed=5)

    def step(*sets):
        return [rows_of(get_batch("train", 1, SEQ_LEN, tokens=tokens)) for tokens in sets]

    for _ in range(3):
        step(token_set, other)
    state = state_dict()
    expected = step(token_set, other)
    load_state_dict(state)
    assert step(other, token_set) == expected[::-1]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_evaluation_on_a_set_that_the_state_does_not_know_starts_over_in_any_order(token_set, fresh, order):
    other = make_token_set(fresh / "other", train=[[17] * 9], val=[[17, 9, 30]], seed=5)

    def step(tokens):
        return rows_of(get_batch("val", 1, SEQ_LEN, tokens=tokens))

    for _ in range(2):
        step(token_set)
    state = state_dict()
    expected = [step(token_set), rows_of(next(RowLoader(other, "val", batch_size=1, seq_len=SEQ_LEN)))]
    load_state_dict(state)
    sets = [token_set, other]
    with pytest.warns(UserWarning, match="starts over with .*other: the loaded state has no position for these"):
        assert {number: step(sets[number]) for number in order} == dict(enumerate(expected))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_training_does_not_start_over_on_a_set_that_the_state_does_not_know(token_set, fresh, order):
    other = make_token_set(fresh / "other", train=[[17] * 9], val=[[17]], seed=5)
    get_batch("train", 1, SEQ_LEN, tokens=token_set)
    state = state_dict()
    expected = rows_of(get_batch("train", 1, SEQ_LEN, tokens=token_set))
    load_state_dict(state)
    for number in order:
        if number:
            with pytest.raises(ValueError, match="this was never the token set with manifest"):
                get_batch("train", 1, SEQ_LEN, tokens=other)
        else:
            assert rows_of(get_batch("train", 1, SEQ_LEN, tokens=token_set)) == expected


def test_a_loader_s_state_and_that_of_all_are_told_apart(token_set, fresh):
    loader = RowLoader(token_set, batch_size=1, seq_len=SEQ_LEN)
    get_batch("train", 1, SEQ_LEN, tokens=token_set)
    with pytest.raises(ValueError, match="this is the state of one RowLoader: use its load_state_dict"):
        load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="this is the state of get_batch's loaders"):
        loader.load_state_dict(state_dict())
    loader.load_state_dict(json.loads(state_dict()["loaders"][0]))
    assert rows_of(next(loader)) == rows_of(get_batch("train", 1, SEQ_LEN, tokens=token_set))


def test_calls_that_differ_in_the_rows_they_skip_find_their_own(token_set, fresh):
    def step(skip_rows=None):
        return rows_of(get_batch("train", 1, SEQ_LEN, tokens=token_set, skip_rows=skip_rows))

    for _ in range(3):
        step()
    for _ in range(7):
        step(["0:0:20"])
    state = state_dict()
    plain, skipping = step(), step(["0:0:20"])
    load_state_dict(state)
    assert (step(["0:0:20"]), step()) == (skipping, plain)


def test_rows_to_skip_may_be_given_with_the_position_that_is_gone_back_to(token_set, fresh):
    for _ in range(3):
        get_batch("train", 1, SEQ_LEN, tokens=token_set)
    load_state_dict(state_dict())
    expected = RowLoader(token_set, batch_size=1, seq_len=SEQ_LEN, skip_rows=["0:0:3"])
    for _ in range(3):
        next(expected)
    assert rows_of(get_batch("train", 1, SEQ_LEN, tokens=token_set, skip_rows=["0:0:3"])) == rows_of(next(expected))


def test_a_call_that_no_loaded_position_is_of_begins_anew_and_says_so(token_set, fresh):
    get_batch("train", 2, SEQ_LEN, tokens=token_set)
    load_state_dict(state_dict())
    expected = rows_of(next(RowLoader(token_set, batch_size=2, seq_len=8)))
    with pytest.warns(UserWarning, match="starts over with .*'seq_len': 8.* only for .*'seq_len': 16"):
        assert rows_of(get_batch("train", 2, 8, tokens=token_set)) == expected


def test_what_is_no_state_is_refused(token_set, fresh):
    with pytest.raises(ValueError, match="get_batch is endless"):
        get_batch("train", 2, 8, tokens=token_set, epochs=1)
    with pytest.raises(ValueError, match=r"expected what tokenmill\.state_dict\(\) returned"):
        load_state_dict({"epoch": 3})
