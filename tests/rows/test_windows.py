"""The windows of an epoch, of a set and of a view. tests/reference.py makes a set's slowly."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.rows.windows import WindowSize, cut_slices, epoch_of_shards, epoch_of_view

sizes = st.tuples(st.integers(1, 20), st.integers(1, 6)).map(
    lambda g: WindowSize(slice=g[0], window=g[0] * g[1])
)
keys = st.one_of(st.none(), st.integers(0, 5).map(lambda seed: (seed, "", 0)))


def slices_of(epoch):
    """The (shard, begin, end) of each window's slices."""
    window_slices = map(epoch.window, range(len(epoch)))
    return [
        list(zip(w.shard.tolist(), w.begin.tolist(), w.end.tolist(), strict=True))
        for w in window_slices
    ]


def test_the_order_is_the_same_in_every_numpy_and_for_numbers_of_every_library():
    # written down once: a position would mean other rows
    expected = [[(0, 10, 15)], [(0, 5, 10), (1, 0, 5), (1, 5, 7)], [(0, 0, 5), (0, 15, 20)]]
    for seed in (1337, np.int64(1337)):
        assert (
            slices_of(epoch_of_shards([20, 7], (seed, "", 0), WindowSize(slice=5, window=10)))
            == expected
        )
    with pytest.raises(TypeError):
        epoch_of_shards([90], (1337.0, "", 0), WindowSize(5, 20))


# ---------------------------------------------------------------------------- views

documents = st.lists(
    st.tuples(st.integers(1, 30), st.integers(0, 3)), max_size=25
)  # (length, how often it counts)


def view_of(shards, size):
    """The slices of shards of (length, count), and their document offsets."""
    slices = []
    offsets = []
    for number, shard in enumerate(shards):
        lengths, counts = np.array(shard, np.int64).reshape(-1, 2).T
        offsets.append(np.cumsum([0, *lengths]))
        slices.append(cut_slices(number, offsets[-1], counts.astype(np.uint8), size.slice))
    return np.concatenate(slices), offsets


@given(st.lists(documents, min_size=1, max_size=4), sizes, keys)
def test_every_document_is_in_as_many_slices_of_a_view_as_it_counts(shards, size, key):
    slices, offsets = view_of(shards, size)
    epoch = epoch_of_view(slices, key, size)
    counted = Counter()
    for window in map(epoch.window, range(len(epoch))):
        columns = (window.shard, window.begin, window.end, *window.copies)
        for shard, begin, end, first, last, copy in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            copied = [number for number in range(first, last) if shards[shard][number][1] > copy]
            counted.update((shard, number) for number in copied)
            assert (begin, end) == (offsets[shard][first], offsets[shard][last])
    expected = Counter()
    tokens = 0
    for number, shard in enumerate(shards):
        for document, (length, times) in enumerate(shard):
            expected[number, document] = times
            tokens += length * times
    assert counted == +expected
    assert int(epoch.tokens.sum()) == tokens


@given(st.lists(documents, min_size=1, max_size=4), sizes, st.integers(0, 5))
def test_a_view_in_which_all_count_once_has_the_slices_and_the_order_of_the_set(shards, size, seed):
    slices, offsets = view_of([[(length, 1) for length, _ in shard] for shard in shards], size)
    of_view = epoch_of_view(slices, (seed, "", 0), size)
    of_set = epoch_of_shards([int(of_shard[-1]) for of_shard in offsets], (seed, "", 0), size)
    assert [w.shard.tolist() for w in map(of_view.window, range(len(of_view)))] == [
        w.shard.tolist() for w in map(of_set.window, range(len(of_set)))
    ]
