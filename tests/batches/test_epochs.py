"""Epochs end, are counted before they begin, and can be had again."""

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
def test_the_rows_of_an_epoch_are_known_before_it_and_are_the_same_at_every_epoch(token_set, settings, split):
    loader = make_loader(token_set, split=split, batch_size=3, **settings)
    assert loader.rows == len(epoch_of(token_set, split, **settings))
    assert loader.batches_per_epoch() == loader.rows // 3
    assert loader.batches_per_epoch(world_size=2) == loader.rows // 6
    both = make_loader(token_set, split=split, batch_size=1, epochs=2, **settings)
    assert len(list(both)) == 2 * loader.rows


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


def test_an_ended_loader_stays_ended_until_it_is_iterated_over_again(token_set):
    loader = make_loader(token_set, split="val", batch_size=1, epochs=1)
    first = [rows_of(batch) for batch in loader]
    end = loader.state_dict()
    assert (loader.epoch, next(loader, None), next(loader, None)) == (1, None, None)
    assert [rows_of(batch) for batch in loader] == first
    loader.load_state_dict(end)
    assert next(loader, None) is None
    assert len(list(loader)) == loader.rows


def test_a_position_at_the_end_of_one_epoch_goes_on_where_there_is_a_second(token_set):
    one = make_loader(token_set, batch_size=1, epochs=1)
    assert len(list(one)) == one.rows
    two = make_loader(token_set, batch_size=1, epochs=2)
    two.load_state_dict(one.state_dict())
    assert len(list(two)) == one.rows
