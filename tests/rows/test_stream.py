"""The rows dealt are one global order, whatever the number of ranks, and any place in it can be returned to."""

import tracemalloc
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.rows.stream import End, Place, RowStream

# rows of each window; at least one window has some
window_rows = st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any)


def make_stream(rows, **settings):
    # in odd epochs a window has one row more, and there is one window more: the set has grown
    counts = lambda epoch: [*(n + (epoch % 2 if n else 0) for n in rows), *([2] if epoch % 2 else [])]  # noqa: E731
    return RowStream(lambda epoch: len(counts(epoch)), lambda epoch, window: counts(epoch)[window], **settings)


def flat(dealt):
    return [(some.epoch, some.window, number) for some in dealt.rows for number in some.numbers]


def global_order(rows):
    """The slow, obvious order: epoch by epoch, window by window, row by row."""
    stream, epoch = make_stream(rows), 0
    while True:
        for window in range(stream.count_windows(epoch)):
            yield from ((epoch, window, row) for row in range(stream.count_rows(epoch, window)))
        epoch += 1


@given(window_rows, st.integers(1, 5), st.integers(1, 4))
def test_each_rank_takes_consecutive_rows_and_all_together_the_global_order(rows, world_size, count):
    streams = [make_stream(rows, rank=r, world_size=world_size) for r in range(world_size)]
    dealt = []
    for _ in range(6):
        parts = [flat(stream.take(count)) for stream in streams]
        assert all(len(part) == count for part in parts)
        dealt += sum(parts, [])
        assert len({stream.place for stream in streams}) == 1
    assert dealt == list(islice(global_order(rows), len(dealt)))


@given(window_rows, st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), max_size=6))
def test_a_place_goes_on_with_the_next_row_at_any_batch_size_on_any_number_of_ranks(rows, calls):
    place, dealt = Place(), []
    for world_size, count in calls:
        places = set()
        for rank in range(world_size):
            stream = make_stream(rows, rank=rank, world_size=world_size)
            stream.seek(place)
            dealt += flat(stream.take(count))
            places.add(stream.place)
        (place,) = places
    assert dealt == list(islice(global_order(rows), len(dealt)))


@given(window_rows, st.integers(1, 5), st.integers(1, 4))
def test_the_last_rows_are_shared_evenly(rows, world_size, count):
    streams = [make_stream(rows, rank=r, world_size=world_size, until=End(1)) for r in range(world_size)]
    dealt = []
    while True:
        parts = [stream.take(count) for stream in streams]
        assert len({part.total for part in parts}) == 1
        sizes = [len(flat(part)) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        dealt += sum(map(flat, parts), [])
        if not parts[0].total:
            break
    assert dealt == [place for place in islice(global_order(rows), 99) if place[0] == 0]


def test_an_epoch_may_have_no_rows_in_some_windows():
    stream = RowStream(lambda _: 3, lambda _, window: [0, 2, 0][window])
    assert flat(stream.take(3)) == [(0, 1, 0), (0, 1, 1), (1, 1, 0)]


@pytest.mark.parametrize("place", [Place(-1, 0, 0), Place(0, 2, 0), Place(0, 0, 2), Place(0, 0, -1), Place(0, -1, 0)])
def test_a_place_where_there_is_no_row_is_refused(place):
    with pytest.raises(ValueError, match="no such row"):
        make_stream([2, 2]).seek(place)


def test_skipping_far_holds_no_more_than_skipping_near():
    stream = RowStream(lambda _: 3, lambda epoch, window: 1)
    tracemalloc.start()
    try:
        stream.skip(30_000)
        assert tracemalloc.get_traced_memory()[1] < 100_000, "bytes; a record of every window would be megabytes"
    finally:
        tracemalloc.stop()
    assert stream.place.epoch == 10_000
    assert stream.passed == 30_000
