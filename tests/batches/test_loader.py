"""Batches are exactly the rows of the slow, obvious reference, on any number of ranks, from any step on."""

import json
from itertools import islice

import numpy as np
import pytest
import torch
from making import BOS
from reference import PACKINGS, SEQ_LEN, make_loader, reference_rows, rows_of

from tokenmill import RowLoader

pytestmark = pytest.mark.usefixtures("windows")


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
        dealt += [row for batch in batches for row in batch]
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


@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_a_thread_that_runs_ahead_changes_neither_batches_nor_positions(token_set, prefetch):
    loader, expected = make_loader(token_set, prefetch=prefetch), make_loader(token_set)
    for _ in range(30):
        assert loader.state_dict() == expected.state_dict()
        assert (rows_of(next(loader)), loader.epoch) == (rows_of(next(expected)), expected.epoch)


def test_a_running_loader_goes_back_and_forth_as_it_is_told(token_set):
    loader = make_loader(token_set)
    states = [loader.state_dict() for _ in islice(loader, 20)]
    following = [next(loader)]
    for state in states[::-1]:
        loader.load_state_dict(state)
        batch = next(loader)
        loader.load_state_dict(state)
        assert rows_of(next(loader)) == rows_of(batch)
    loader.load_state_dict(states[-1])
    assert rows_of(next(loader)) == rows_of(following[0])


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
