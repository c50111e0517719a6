"""The rows dealt are one global order, whatever the number of ranks, and any place in it can be returned to."""

import tracemalloc
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.rows.row_stream import Cursor, End, RowStream, range_of_rank

# rows of each window; at least one window has some
window_rows = st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any)


def make_stream(rows, **settings):
    # in odd epochs a window has one row more, and there is one window more: the set has grown
    counts = lambda epoch: [*(n + (epoch % 2 if n else 0) for n in rows), *([2] if epoch % 2 else [])]  # noqa: E731
    return RowStream(lambda epoch: len(counts(epoch)), lambda epoch, window: counts(epoch)[window], **settings)


def take(stream, count):
    """The next rows, one place after the other; moves past them."""
    found = []
    place = stream.place
    for some, place in stream.walk(count):  # noqa: B007 (the last one counts)
        found += [(some.epoch, some.window, number) for number in some.numbers]
    stream.place = place
    return found


def global_order(rows):
    """The slow, obvious order: epoch by epoch, window by window, row by row."""
    stream, epoch = make_stream(rows), 0
    while True:
        for window in range(stream.count_windows(epoch)):
            yield from ((epoch, window, row) for row in range(stream.count_rows(epoch, window)))
        epoch += 1


@given(window_rows, st.lists(st.integers(1, 9), max_size=8))
def test_walks_of_any_length_are_the_global_order(rows, counts):
    stream, found = make_stream(rows), []
    for count in counts:
        found += take(stream, count)
    assert found == list(islice(global_order(rows), sum(counts)))


@given(window_rows, st.lists(st.integers(1, 9), max_size=8))
def test_a_cursor_goes_on_with_the_next_row(rows, counts):
    place, found = Cursor(), []
    for count in counts:
        stream = make_stream(rows)
        stream.seek(place)
        found += take(stream, count)
        place = stream.place
    assert found == list(islice(global_order(rows), sum(counts)))


@given(window_rows)
def test_it_ends_before_an_epoch(rows):
    epoch = [place for place in islice(global_order(rows), 99) if place[0] == 0]
    assert take(make_stream(rows, until=End(1)), 99) == epoch


@given(st.integers(0, 20), st.integers(1, 6))
def test_the_last_rows_are_shared_evenly(total, world_size):
    shares = [range(*range_of_rank(total, rank, world_size)) for rank in range(world_size)]
    assert [row for share in shares for row in share] == list(range(total))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_an_epoch_may_have_no_rows_in_some_windows():
    stream = RowStream(lambda _: 3, lambda _, window: [0, 2, 0][window])
    assert take(stream, 3) == [(0, 1, 0), (0, 1, 1), (1, 1, 0)]


@pytest.mark.parametrize(
    "place", [Cursor(-1, 0, 0), Cursor(0, 2, 0), Cursor(0, 0, 2), Cursor(0, 0, -1), Cursor(0, -1, 0)]
)
def test_a_place_where_there_is_no_row_is_refused(place):
    with pytest.raises(ValueError, match="no such row"):
        make_stream([2, 2]).seek(place)


def test_walking_far_holds_no_more_than_walking_near():
    stream = RowStream(lambda _: 3, lambda epoch, window: 1)
    tracemalloc.start()
    try:
        for _, place in stream.walk(30_000):  # noqa: B007 (the last one counts)
            pass
        assert tracemalloc.get_traced_memory()[1] < 100_000, "bytes; a record of every window would be megabytes"
    finally:
        tracemalloc.stop()
    assert place.epoch == 10_000
