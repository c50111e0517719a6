"""Epochs end, are counted before they begin, and can be had again; and what each form of iterating means."""

from itertools import islice

import pytest
from reference import PACKINGS, SEQ_LEN, make_loader, rows_of


def epoch_of(token_set, split="train", **settings):
    """The rows of one epoch, slowly: those of the endless loader until its epoch changes."""
    loader, rows = make_loader(token_set, batch_size=1, split=split, **settings), []
    while loader.epoch == 0:
        rows += rows_of(next(loader))
    return rows


@pytest.mark.parametrize("settings", PACKINGS)
@pytest.mark.parametrize("split", ["train", "val"])
def test_the_rows_of_an_epoch_are_known_before_it(token_set, settings, split, windows):
    loader = make_loader(token_set, split=split, batch_size=3, **settings)
    assert loader.rows == len(epoch_of(token_set, split, **settings))
    assert loader.batches_per_epoch() == loader.rows // 3
    assert loader.batches_per_epoch(world_size=2) == loader.rows // 6
    both = make_loader(token_set, split=split, batch_size=1, epochs=2, **settings)
    counted = len(both)
    assert len(list(both)) == counted


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [True, False])
def test_one_epoch_ends_and_its_last_short_batch_is_dropped_or_returned(token_set, world_size, drop_last):
    settings = {"batch_size": 4, "epochs": 1, "drop_last": drop_last, "world_size": world_size}
    loaders = [make_loader(token_set, rank=rank, **settings) for rank in range(world_size)]
    ranks = [[rows_of(batch) for batch in loader] for loader in loaders]
    assert {len(batches) for batches in ranks} == {loaders[0].batches_per_epoch()}, "every rank makes as many calls"
    expected = epoch_of(token_set)
    dealt = []
    for batches in zip(*ranks, strict=True):
        assert max(map(len, batches)) - min(map(len, batches)) <= 1
        dealt += [row for batch in batches for row in batch]
    assert dealt == (expected[: len(expected) // (4 * world_size) * 4 * world_size] if drop_last else expected)


def test_a_rank_without_a_row_in_the_last_batch_gets_an_empty_one(token_set):
    rows = make_loader(token_set).rows
    settings = {"batch_size": 1, "epochs": 1, "drop_last": False, "world_size": rows - 1, "documents": True}
    loaders = [make_loader(token_set, rank=rank, **settings) for rank in range(rows - 1)]
    shapes = [[[tuple(tensor.shape) for tensor in batch] for batch in loader] for loader in loaders]
    assert all(first == [(1, SEQ_LEN)] * 3 for first, _ in shapes)
    assert [last for _, last in shapes] == [[(0, SEQ_LEN)] * 3] * (rows - 2) + [[(1, SEQ_LEN)] * 3]


# ---------------------------------------------------------------------------- what iterating means


def epochs_of(token_set, count, **settings):
    """The rows of each epoch, from the endless loader."""
    loader, epochs = make_loader(token_set, batch_size=1, **settings), [[] for _ in range(count)]
    while loader.epoch < count:
        epochs[loader.epoch] += rows_of(next(loader))
    return epochs


def all_of(batches):
    return [row for batch in batches for row in rows_of(batch)]


def test_each_for_is_the_next_epoch_as_a_dataloader_shuffles_anew(token_set, windows):
    loader, epochs = make_loader(token_set, batch_size=1, epochs=1), epochs_of(token_set, 3)
    assert [all_of(loader) for _ in range(3)] == epochs
    assert epochs[0] != epochs[1]
    assert loader.tokens_seen == sum(map(len, epochs)) * SEQ_LEN


def test_a_for_after_a_break_begins_the_next_epoch(token_set, windows):
    loader, epochs = make_loader(token_set, batch_size=1, epochs=1), epochs_of(token_set, 3)
    for epoch in range(3):
        assert all_of(islice(loader, 4)) == epochs[epoch][:4], "whether it ended or was left"


def test_evaluations_with_a_break_see_the_same_batches(token_set):
    loader = make_loader(token_set, split="val", batch_size=1, epochs=1)
    seen = [all_of(islice(loader, 3)) for _ in range(4)]
    assert [len(rows) for rows in seen] == [3] * 4
    assert all(rows == seen[0] for rows in seen)
    assert all_of(loader)[:3] == seen[0]


def test_two_epochs_an_iteration(token_set, windows):
    loader, epochs = make_loader(token_set, batch_size=1, epochs=2), epochs_of(token_set, 4)
    assert len(loader) == len(epochs[0] + epochs[1])
    assert all_of(loader) == epochs[0] + epochs[1]
    assert len(loader) == len(epochs[2] + epochs[3])
    assert all_of(loader) == epochs[2] + epochs[3]


def test_an_endless_loader_goes_on_after_a_break(token_set):
    loader, expected = make_loader(token_set, batch_size=1), make_loader(token_set, batch_size=1)
    for _ in range(4):
        assert all_of(islice(loader, 7)) == all_of(islice(expected, 7))


def test_set_epoch_goes_to_the_beginning_of_any_epoch(token_set, windows):
    epochs = epochs_of(token_set, 4)
    loader = make_loader(token_set, batch_size=1, epochs=1)
    for epoch in (2, 0, 3, 3):
        loader.set_epoch(epoch)
        assert loader.epoch == epoch
        assert all_of(loader) == epochs[epoch]
    endless = make_loader(token_set, batch_size=1)
    endless.set_epoch(2)
    assert all_of(islice(endless, 5)) == epochs[2][:5]
    loader.set_epoch(1)
    next(loader)
    loader.set_epoch(1)
    assert all_of(loader) == epochs[1], "again from its beginning"


def test_a_loop_over_epochs_that_resumes_within_one_may_set_it_again(token_set, windows):
    epochs = epochs_of(token_set, 3)
    loader = make_loader(token_set, batch_size=1, epochs=1)
    loader.set_epoch(1)
    for _ in range(5):
        next(loader)
    resumed = make_loader(token_set, batch_size=1, epochs=1)
    resumed.load_state_dict(loader.state_dict())
    seen = []
    for epoch in range(resumed.epoch, 3):
        resumed.set_epoch(epoch)
        seen.append(all_of(resumed))
    assert seen == [epochs[1][5:], epochs[2]]


def test_set_epoch_of_what_is_no_beginning_is_refused(token_set):
    with pytest.raises(ValueError, match=r"set_epoch\(3\): iterations of 2 epochs begin at multiples of 2"):
        make_loader(token_set, epochs=2).set_epoch(3)
    with pytest.raises(ValueError, match="packing 'nanochat' has no epochs to begin"):
        make_loader(token_set, packing="nanochat").set_epoch(1)
    for wrong in (-1, 1.0, True):
        with pytest.raises(ValueError, match="epoch must be a whole number of at least 0"):
            make_loader(token_set, epochs=1).set_epoch(wrong)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_an_ended_loader_stays_ended_until_it_is_iterated_over_again(token_set, batch_size):
    loader = make_loader(token_set, split="val", batch_size=batch_size, epochs=1)
    first = [rows_of(batch) for batch in loader]
    end = loader.state_dict()
    assert (loader.epoch, next(loader, None), next(loader, None)) == (1, None, None)
    assert [rows_of(batch) for batch in loader] == first
    loader.load_state_dict(end)
    assert next(loader, None) is None
    assert len(list(loader)) == len(loader) == loader.rows // batch_size


@pytest.mark.parametrize("step", range(0, 22, 7))
def test_an_iteration_that_is_resumed_has_the_rest_and_the_next_for_all_of_the_next_epoch(token_set, windows, step):
    epochs = epochs_of(token_set, 4)
    loader = make_loader(token_set, batch_size=1, epochs=1)
    list(loader)
    for _, _ in zip(range(step), loader, strict=False):
        pass
    resumed = make_loader(token_set, batch_size=1, epochs=1)
    resumed.load_state_dict(loader.state_dict())
    assert all_of(resumed) == epochs[1][step:]
    assert all_of(resumed) == epochs[2]


def test_a_position_at_the_end_of_one_epoch_goes_on_where_there_is_a_second(token_set):
    one = make_loader(token_set, batch_size=1, epochs=1)
    assert len(list(one)) == one.rows
    two = make_loader(token_set, batch_size=1, epochs=2)
    two.load_state_dict(one.state_dict())
    assert two.epoch == 1
    assert len(list(two)) == two.rows
