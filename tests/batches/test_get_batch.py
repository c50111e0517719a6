"""get_batch keeps a loader for each set of arguments, and one state covers them all."""

import json
import os
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from making import make_token_set
from reference import SEQ_LEN, make_loader, rows_of

from tokenmill import RowLoader, get_batch, load_state_dict, state_dict


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def loaders_in(state):
    return json.loads(state["get_batch"])


# -------------------------------------------------------------------------- which loader a call has


def test_arguments_that_mean_the_same_have_one(token_set, monkeypatch, tmp_path):
    monkeypatch.chdir(token_set.parent)
    os.symlink(token_set, tmp_path / "link")
    expected = make_loader(token_set, batch_size=1)
    paths = [
        str(token_set),
        token_set.name,
        Path(token_set.name) / ".",
        f"{token_set}/",
        tmp_path / "link",
    ]
    ways = [{"tokens": path} for path in paths]
    more = [
        {"seed": 1337},
        {"packing": "best_fit"},
        {"device": torch.device("cpu")},
        {"device": "cpu:0"},
    ]
    ways += [
        {"tokens": token_set} | changed
        for changed in [*more, {"shuffle": np.bool_(True)}, {"view": None}]
    ]
    for way in ways:
        assert rows_of(get_batch("train", np.int64(1), SEQ_LEN, **way)) == rows_of(next(expected))
    assert len(loaders_in(state_dict())) == 1


def test_the_one_token_set_in_data_tokens_is_found(tmp_path):
    with pytest.raises(
        FileNotFoundError,
        match=r"data/tokens: expected a token set, found none; run `tokenmill prep",
    ):
        get_batch("train", batch_size=1, seq_len=4)
    folder = make_token_set(tmp_path / "data" / "tokens" / "one", train=[[9, 9]], val=[[9]])
    assert get_batch("train", batch_size=1, seq_len=4, device="cpu")[0].shape == (1, 4)
    assert rows_of(next(RowLoader(batch_size=1, seq_len=4))) == rows_of(
        next(RowLoader(folder, batch_size=1, seq_len=4))
    )


# ---------------------------------------------------------------------------- one state for all


def test_a_state_covers_all_loaders_whichever_is_asked_for_first(token_set, tmp_path):
    second = make_token_set(tmp_path / "other", train=[[17] * 9], val=[[17]], seed=5)
    ways = [
        (token_set, {}),
        (token_set, {"split": "val"}),
        (token_set, {"batch_size": 1}),
        (second, {}),
    ]
    ways += [(token_set, {"packing": "concat"}), (token_set, {"purpose": "eval"})]
    plain = [make_loader(tokens, **how) for tokens, how in ways[:-1]]

    def call(number):
        tokens, how = ways[number]
        return rows_of(
            get_batch(
                **{"split": "train", "batch_size": 2, "seq_len": SEQ_LEN, "tokens": tokens} | how
            )
        )

    def calls(number, count):
        return [call(number) for _ in range(count)]

    for number, loader in enumerate(plain):
        assert calls(number, number + 2) == list(map(rows_of, islice(loader, number + 2)))
    calls(len(plain), len(ways) + 1)
    state = json.loads(json.dumps(state_dict()))
    then = [calls(number, 3) for number in range(len(ways))]
    for order in (range(len(ways)), range(len(ways))[::-1]):
        load_state_dict(state)
        assert sorted(map(str, loaders_in(state_dict()))) == sorted(map(str, loaders_in(state))), (
            "none is forgotten"
        )
        for number in order:
            assert calls(number, 3) == then[number]


def test_a_call_whose_position_another_one_has_continued_is_refused(token_set):
    get_batch("train", 2, SEQ_LEN, tokens=token_set)
    load_state_dict(state_dict())
    get_batch("train", 2, SEQ_LEN, tokens=token_set, prefetch=0)
    with pytest.raises(
        ValueError, match=r"another call came first and continued the position of get_batch\("
    ):
        get_batch("train", 2, SEQ_LEN, tokens=token_set)


@pytest.mark.parametrize("kind", ["two positions", "another size", "another seed", "another set"])
def test_training_that_would_begin_anew_beside_a_loaded_position_is_refused(
    token_set, tmp_path, kind
):
    get_batch("train", 2, SEQ_LEN, tokens=token_set)
    if kind == "two positions":
        get_batch("train", 3, SEQ_LEN, tokens=token_set)
    state = state_dict()
    load_state_dict(state)
    expected = rows_of(get_batch("train", 2, SEQ_LEN, tokens=token_set))
    load_state_dict(state)
    second = make_token_set(tmp_path / "other", train=[[17] * 9], val=[[17]], seed=5)
    how = {
        "two positions": {"batch_size": 1},
        "another size": {"seq_len": 8},
        "another seed": {"seed": 1},
        "another set": {"tokens": second},
    }[kind]
    another = {"batch_size": 2, "seq_len": SEQ_LEN, "tokens": token_set} | how
    get_batch("val", 2, SEQ_LEN, tokens=token_set)
    with pytest.raises(
        ValueError, match=r"no loaded position.*first row.*get_batch\(split='train', batch_size=2, "
    ):
        get_batch("train", **another)
    assert rows_of(get_batch("train", 2, SEQ_LEN, tokens=token_set)) == expected
    if kind == "two positions":
        get_batch("train", 3, SEQ_LEN, tokens=token_set)
    assert rows_of(get_batch("train", **another)) == rows_of(next(RowLoader(**another)))
    state_dict()


@pytest.mark.parametrize(
    "wrong", [None, {}, {"epoch": 3}, {"get_batch": 1}, {"get_batch": "[1]"}, {"get_batch": "x"}]
)
def test_what_is_no_state_is_refused_and_changes_nothing(token_set, wrong):
    get_batch("train", 1, SEQ_LEN, tokens=token_set)
    before = state_dict()
    loader = make_loader(token_set)
    with pytest.raises(ValueError, match=r"expected what tokenmill\.state_dict\(\) returned"):
        load_state_dict(wrong)
    with pytest.raises(ValueError, match=r"expected what tokenmill\.state_dict\(\) returned"):
        load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="position|tokenmill.load_state_dict"):
        loader.load_state_dict(before)
    assert state_dict() == before


def test_calls_that_a_state_could_not_tell_apart_are_an_error(token_set):
    for view in (None, ""):
        get_batch("train", 2, SEQ_LEN, tokens=token_set, view=view)
    assert len(loaders_in(state_dict())) == 1
    get_batch("train", 2, SEQ_LEN, tokens=token_set, prefetch=0)
    with pytest.raises(
        ValueError,
        match=r"cannot tell two calls apart that agree in all of this: get_batch\(split='train'",
    ):
        state_dict()


# ---------------------------------------------------------------------------- evaluation


def test_evaluation_moves_no_training_and_goes_on_where_it_was(token_set):
    def train(steps):
        rows = []
        for _ in range(steps):
            rows.append(rows_of(get_batch("train", 2, SEQ_LEN, tokens=token_set)))
            seen.append(rows_of(get_batch("train", 2, SEQ_LEN, tokens=token_set, purpose="eval")))
        return rows

    seen = []
    rows = train(8)
    state = state_dict()
    rows += train(4)
    load_state_dict(state)
    assert train(4) == rows[8:]
    assert seen[8:12] == seen[12:], "an evaluation is continued too"
    loader = make_loader(token_set)
    assert rows == [rows_of(next(loader)) for _ in range(12)]
    assert seen[:12] != rows, "in an order of its own"
    with pytest.raises(ValueError, match="purpose must be one of train, eval, not 'test'"):
        get_batch("train", 2, SEQ_LEN, tokens=token_set, purpose="test")
    loader = make_loader(token_set, split="val")
    for purpose in ("eval", "train"):  # validation is evaluation whatever is said
        batch = get_batch("val", 2, SEQ_LEN, tokens=token_set, purpose=purpose)
        assert rows_of(batch) == rows_of(next(loader))
