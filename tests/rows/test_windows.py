"""An epoch's windows hold every slice once, in an order that neighbours say nothing about."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.rows.windows import DEFAULT_WINDOW_SIZE, Epoch, WindowSize

shard_tokens = st.lists(st.integers(0, 60), min_size=1, max_size=8)
grains = st.tuples(st.integers(1, 20), st.integers(1, 6)).map(lambda g: WindowSize(slice=g[0], window=g[0] * g[1]))


def slices_of(epoch):
    return [
        list(zip(w.shard.tolist(), w.begin.tolist(), w.end.tolist(), strict=True))
        for w in map(epoch.window, range(len(epoch)))
    ]


@given(shard_tokens, grains, st.one_of(st.none(), st.integers(0, 5)))
def test_every_token_is_in_one_slice_of_one_window(tokens, grain, seed):
    epoch = Epoch(tokens, None if seed is None else (seed, "", 0), grain)
    counted = [np.zeros(n, int) for n in tokens]
    for number, window in enumerate(slices_of(epoch)):
        assert window == sorted(window)
        for shard, begin, end in window:
            counted[shard][begin:end] += 1
            assert begin % grain.slice == 0
            assert end - begin <= grain.slice
            assert {epoch.window_of(shard, token) for token in range(begin, end)} == {number}
    assert all((count == 1).all() for count in counted)


@given(shard_tokens, grains, st.integers(0, 5))
def test_windows_have_as_many_tokens_as_they_should_but_for_a_slice(tokens, grain, seed):
    windows = slices_of(Epoch(tokens, (seed, "", 0), grain))
    assert len(windows) == max(1, round(sum(tokens) / grain.window))
    for window in windows:
        assert abs(sum(end - begin for _, begin, end in window) - sum(tokens) / len(windows)) <= grain.slice


def test_another_seed_name_or_epoch_is_another_order_and_without_a_key_it_is_the_shards():
    tokens = [100] * 5
    grain = WindowSize(slice=10, window=100)
    orders = [slices_of(Epoch(tokens, key, grain)) for key in [(1, "", 0), (1, "", 1), (2, "", 0), (1, "web", 0)]]
    assert len({str(order) for order in orders}) == 4
    assert sum(slices_of(Epoch(tokens, None, grain)), []) == [
        (i, a, a + 10) for i in range(5) for a in range(0, 100, 10)
    ]


def test_a_window_has_slices_from_all_over_the_split():
    epoch = Epoch(
        [20_000_000] * 100, (1337, "", 0), DEFAULT_WINDOW_SIZE
    )  # of 20 slices a shard, 2,000 in all, in 7 windows
    for window in map(epoch.window, range(len(epoch))):
        assert len(set(window.shard.tolist())) > 85


def test_thousands_of_tiny_shards_make_one_window():
    assert len(Epoch([3_000] * 5_000, (0, "", 0), DEFAULT_WINDOW_SIZE)) == 1


def test_the_order_is_the_same_in_every_numpy():
    # written down once: a position would mean other rows
    windows = slices_of(Epoch([20, 7], (1337, "", 0), WindowSize(slice=5, window=10)))
    assert windows == [[(0, 10, 15)], [(0, 5, 10), (1, 0, 5), (1, 5, 7)], [(0, 0, 5), (0, 15, 20)]]


def test_a_key_of_other_numbers_is_the_same_and_of_others_refused():
    plain, numpy = (slices_of(Epoch([90], (seed, "", 0), WindowSize(5, 20))) for seed in (1337, np.int64(1337)))
    assert plain == numpy
    with pytest.raises(TypeError):
        Epoch([90], (1337.0, "", 0), WindowSize(5, 20))
