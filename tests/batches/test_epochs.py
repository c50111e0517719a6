"""Epochs end, are counted before they begin, and can be had again; what each form of iterating
means; skip.
"""

from itertools import chain, islice

import pytest
from reference import SEQ_LEN, make_loader, rows_in, rows_of

from tokenmill import Mixture


def epochs_of(token_set, count, **settings):
    """The rows of each epoch, slowly: those of the endless loader while its epoch is that."""
    loader = make_loader(token_set, batch_size=1, **settings)
    epochs = [[] for _ in range(count)]
    while loader.epoch < count:
        epochs[loader.epoch] += rows_of(next(loader))
    return epochs


@pytest.mark.parametrize(("world_size", "prefetch"), [(1, 0), (1, 2), (3, 2)])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("epochs", [1, 2])
def test_the_last_rows_are_dropped_or_shared_among_the_ranks(
    token_set, world_size, prefetch, drop_last, epochs
):
    settings = {"batch_size": 4, "epochs": epochs, "drop_last": drop_last, "world_size": world_size}
    loaders = [
        make_loader(token_set, rank=rank, prefetch=prefetch, **settings)
        for rank in range(world_size)
    ]
    lengths = {len(loader) for loader in loaders}
    ranks = [list(map(rows_of, loader)) for loader in loaders]
    assert {len(batches) for batches in ranks} == lengths, "every rank makes as many calls"
    dealt = []
    for batches in zip(*ranks, strict=True):
        assert max(map(len, batches)) - min(map(len, batches)) <= 1
        dealt += chain.from_iterable(batches)
    expected = list(chain.from_iterable(epochs_of(token_set, epochs)))
    assert dealt == (
        expected[: len(expected) // (4 * world_size) * 4 * world_size] if drop_last else expected
    )


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_after_the_last_batch_a_position_s_first_for_is_the_next_iteration(
    token_set, batch_size, drop_last
):
    settings = {"batch_size": batch_size, "epochs": 1, "drop_last": drop_last}
    unbroken = make_loader(token_set, **settings)
    states = [unbroken.state_dict() for _ in unbroken]
    expected = rows_in(unbroken)
    resumed = make_loader(token_set, **settings)
    resumed.load_state_dict(states[-1])
    assert resumed.state_dict() == states[-1]
    assert rows_in(resumed) == expected
    resumed.load_state_dict(states[-2])
    assert len(list(resumed)) == 1


def test_each_for_is_the_next_epoch_also_after_a_break(token_set, windows):
    loader = make_loader(token_set, batch_size=1, epochs=1)
    epochs = epochs_of(token_set, 4)
    assert epochs[0] != epochs[1]
    seen = [
        rows_in(loader),
        rows_in(islice(loader, 4)),
        rows_in(islice(loader, 4)),
        rows_in(loader),
    ]
    assert seen == [epochs[0], epochs[1][:4], epochs[2][:4], epochs[3]]
    assert loader.tokens_seen == (len(epochs[0]) + 4 + 4 + len(epochs[3])) * SEQ_LEN
    two = make_loader(token_set, batch_size=1, epochs=2)
    assert [rows_in(two), rows_in(two)] == [epochs[0] + epochs[1], epochs[2] + epochs[3]]
    val = make_loader(token_set, split="val", batch_size=1, epochs=1)
    assert rows_in(islice(val, 3)) == rows_in(islice(val, 3)) == rows_in(val)[:3], (
        "an evaluation sees the same"
    )


def test_set_epoch_goes_to_the_beginning_of_any_epoch(token_set, windows):
    epochs = epochs_of(token_set, 4)
    loader = make_loader(token_set, batch_size=1, epochs=1)
    for epoch in (2, 0, 3, 3):
        loader.set_epoch(epoch)
        assert loader.epoch == epoch
        assert rows_in(loader) == epochs[epoch]
    loader.set_epoch(1)
    next(loader)
    loader.set_epoch(1)
    assert rows_in(loader) == epochs[1], "again from its beginning"
    loader.set_epoch(2)
    assert next(loader, None) is not None, "next too, at the end of the epoch before"
    endless = make_loader(token_set, batch_size=1)
    endless.skip(3)
    endless.set_epoch(0)
    assert rows_in(islice(endless, 3)) == epochs[0][:3], "skipped rows too"
    endless.set_epoch(2)
    assert rows_in(islice(endless, len(epochs[2]) + 3)) == epochs[2] + epochs[3][:3]


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("step", [5, 1000], ids=["within", "at its end"])
def test_a_resumed_iteration_has_the_rest_whether_its_epoch_is_set_or_not(
    token_set, windows, step, says
):
    epochs = epochs_of(token_set, 4)
    loader = make_loader(token_set, batch_size=1, epochs=1)
    loader.set_epoch(1)
    state = [state for _, state in islice(loader.with_state(), step)][-1]
    resumed = make_loader(token_set, batch_size=1, epochs=1)
    seen = []
    resumed.load_state_dict(state)
    for epoch in (1, 2):
        if says:
            resumed.set_epoch(epoch)
        seen.append(rows_in(resumed))
    assert seen == ([epochs[1][step:], epochs[2]] if says or step == 5 else [epochs[2], epochs[3]])
    for former in ({}, {"epochs": 1}):  # an endless run, or one of other epochs, becomes one of two
        state = [
            state
            for _, state in islice(make_loader(token_set, batch_size=1, **former).with_state(), 5)
        ][-1]
        resumed = make_loader(token_set, batch_size=1, epochs=2)
        resumed.load_state_dict(state)
        assert rows_in(resumed) == epochs[0][5:] + epochs[1]


def test_set_epoch_of_what_is_no_beginning_is_refused_and_moves_nothing(token_set):
    for loader, epoch, message in (
        (
            make_loader(token_set, epochs=2),
            3,
            r"set_epoch\(3\): iterations of 2 epochs begin at multiples of 2",
        ),
        (make_loader(token_set, packing="nanochat"), 1, "of nanochat continue from one epoch"),
        (make_loader(Mixture({str(token_set): 1})), 0, "a mixture .* continue from one epoch"),
        *(
            (make_loader(token_set), wrong, "epoch must be a whole number")
            for wrong in (-1, 1.0, True)
        ),
    ):
        next(loader)
        before = loader.state_dict()
        with pytest.raises(ValueError, match=message):
            loader.set_epoch(epoch)
        assert loader.state_dict() == before


@pytest.mark.parametrize("batch_size", [1, 4])
def test_an_ended_loader_stays_ended_until_it_is_iterated_over_again(token_set, batch_size):
    loader = make_loader(token_set, split="val", batch_size=batch_size, epochs=1)
    first = rows_in(loader)
    end = loader.state_dict()
    assert (loader.epoch, next(loader, None), next(loader, None)) == (1, None, None)
    assert rows_in(loader) == first
    loader.load_state_dict(end)
    assert next(loader, None) is None
    assert len(list(loader)) == len(loader) == loader.rows // batch_size
    more = make_loader(token_set, split="val", batch_size=1, epochs=2)
    more.load_state_dict(end)
    assert (more.epoch, rows_in(more)[: len(first)]) == (1, first), (
        "where an iteration has two epochs, the second"
    )


def test_within_an_iteration_what_is_skipped_is_not_counted_and_no_more_is_than_there_is(token_set):
    expected = rows_in(make_loader(token_set, epochs=1))
    loader = make_loader(token_set, epochs=1)
    loader.skip(3)
    assert len(loader) == len(expected) // 2, "those that are skipped too"
    assert rows_in(loader) == expected[6:]
    for batch in loader:
        loader.skip(len(loader) - 1)  # all that are left
        before = loader.state_dict()
        rows = rows_of(batch)
    assert rows == rows_of(batch), "one batch, and the end"
    loader.load_state_dict(before)
    with pytest.raises(ValueError, match=r"skip\(1\): only 0 batches are left"):
        loader.skip(1)
    assert loader.state_dict() == before
    nanochat = make_loader(token_set, packing="nanochat")
    with pytest.raises(ValueError, match="skip is not supported with packing='nanochat'"):
        nanochat.skip(1)
