"""The rows dealt are one global order, whatever the number of ranks, and any place in it can be returned to."""

import tracemalloc
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.rows.stream import Position, RowStream

# rows of each shard; at least one shard has some
shard_rows = st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any)


def make_stream(rows, **settings):
    # a shard has one row more in odd epochs, as a plan may
    settings = {"shuffle": True, "seed": 7} | settings
    return RowStream(len(rows), lambda epoch, shard: rows[shard] + (epoch % 2 if rows[shard] else 0), **settings)


def flat(taken):
    return [(some.epoch, some.shard, number) for some in taken for number in some.numbers]


def global_order(rows, **settings):
    """The slow, obvious order: epoch by epoch, shard by shard, row by row."""
    stream, epoch = make_stream(rows, **settings), 0
    while True:
        for shard in stream.order(epoch):
            yield from ((epoch, int(shard), row) for row in range(stream.count_rows(epoch, int(shard))))
        epoch += 1


@given(shard_rows, st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_all_ranks_together_take_the_global_order(rows, world_size, count, shuffle):
    streams = [make_stream(rows, rank=r, world_size=world_size, shuffle=shuffle) for r in range(world_size)]
    dealt = []
    for _ in range(6):
        parts = [flat(stream.take(count)) for stream in streams]
        assert all(len(part) == count for part in parts)
        dealt += [part[i] for i in range(count) for part in parts]
        assert len({stream.position for stream in streams}) == 1
    assert dealt == list(islice(global_order(rows, shuffle=shuffle), len(dealt)))


@given(shard_rows, st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(0, 6))
def test_a_position_goes_on_with_the_next_row_on_any_number_of_ranks(rows, before, after, count, steps):
    stream = make_stream(rows, world_size=before)
    for _ in range(steps):
        list(stream.take(count))
    dealt = before * count * steps
    parts = []
    for rank in range(after):
        resumed = make_stream(rows, rank=rank, world_size=after)
        resumed.seek(Position(**stream.position.as_dict()))
        parts.append(flat(resumed.take(count)))
    together = [part[i] for i in range(count) for part in parts]
    assert together == list(islice(global_order(rows), dealt, dealt + after * count))


def test_an_interrupted_take_does_not_move_the_position():
    stream = make_stream([2, 2])
    next(stream.take(4))
    assert stream.position == Position(0, 0, 0)


def test_shards_come_in_another_order_each_epoch_and_unshuffled_in_theirs():
    stream = make_stream([1] * 20)
    assert stream.order(0).tolist() != stream.order(1).tolist()
    assert sorted(stream.order(1)) == list(range(20))
    assert make_stream([1] * 20, shuffle=False).order(5).tolist() == list(range(20))


@pytest.mark.parametrize("position", [Position(-1, 0, 0), Position(0, 2, 0), Position(0, 0, 2), Position(0, 0, -1)])
def test_a_position_where_there_is_no_row_is_refused(position):
    with pytest.raises(ValueError, match="no such row"):
        make_stream([2, 2], shuffle=False).seek(position)


def test_skipping_far_holds_no_more_than_skipping_near():
    stream = RowStream(3, lambda epoch, shard: 1, shuffle=True, seed=0)
    tracemalloc.start()
    try:
        stream.skip(30_000)
        assert tracemalloc.get_traced_memory()[1] < 100_000, "bytes; a record of every shard would be megabytes"
    finally:
        tracemalloc.stop()
    assert stream.position.epoch == 10_000
    assert stream.passed == 30_000
