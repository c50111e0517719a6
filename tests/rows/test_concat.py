"""Rows cut from a stream: concat's tile it, random's lie anywhere, each belongs to the slice in
which it begins.
"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from stream_rows import starts

from tokenmill.rows.stream_packings import count_concat, plan_concat, plan_random
from tokenmill.rows.windows import WindowSize, epoch_of_shards

row_lens = st.integers(2, 24)
shard_tokens = st.lists(st.integers(0, 90), min_size=1, max_size=5)
sizes = st.tuples(st.integers(1, 30), st.integers(1, 4)).map(
    lambda g: WindowSize(slice=g[0], window=g[0] * g[1])
)


@given(st.integers(0, 200), row_lens)
def test_concat_rows_each_start_on_the_last_token_of_the_one_before(num_tokens, row_len):
    stream = list(range(num_tokens))
    expected = []
    at = 0
    while at + row_len <= len(stream):
        expected.append(at)
        at += row_len - 1
    assert starts(num_tokens, row_len).tolist() == expected


@given(st.integers(0, 200), row_lens, st.integers(0, 3))
def test_random_rows_lie_within_the_stream_and_are_as_many(num_tokens, row_len, seed):
    all_starts = starts(num_tokens, row_len, (seed,))
    assert len(all_starts) == len(starts(num_tokens, row_len))
    assert all(0 <= start <= num_tokens - row_len for start in all_starts)
    assert np.array_equal(all_starts, starts(num_tokens, row_len, (seed,)))


@given(shard_tokens, row_lens, sizes, st.integers(0, 3))
def test_the_windows_of_an_epoch_have_the_rows_of_the_whole_shards(tokens, row_len, size, seed):
    shards = np.array(tokens)
    concat = []
    random = []
    epoch = epoch_of_shards(tokens, (seed, "", 0), size)
    for window in map(epoch.window, range(len(epoch))):
        plans = [
            plan_concat(window, shards, row_len, None),
            plan_concat(window, shards, row_len, (seed,)),
        ]
        drawn = plan_random(window, shards, row_len, (seed,))
        assert {plan.num_rows for plan in [*plans, drawn]} == {
            int(count_concat(window, shards, row_len).sum())
        }
        in_order, shuffled = (
            [*zip(window.shard[p.document], window.begin[p.document] + p.start, strict=True)]
            for p in plans
        )
        assert in_order == sorted(shuffled)
        concat += in_order
        for slice_, start in zip(drawn.document, drawn.start, strict=True):
            begin = window.begin[slice_] + start
            assert window.begin[slice_] <= begin < window.end[slice_]
            assert begin + row_len <= shards[window.shard[slice_]]
            random.append(begin)
    expected = []
    for number, num_tokens in enumerate(tokens):
        expected += [(number, start) for start in starts(num_tokens, row_len).tolist()]
    assert sorted(concat) == expected
    assert len(random) == len(concat)
