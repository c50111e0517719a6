"""Rows that are to be skipped are left out, and a position knows which."""

from itertools import count, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import BOS
from reference import SEQ_LEN, changed, make_loader, of_source, reference_rows, rows_of

from tokenmill.feed.loader_config import LoaderConfig
from tokenmill.look.trace import Tracer
from tokenmill.rows.row_stream import RowStream
from tokenmill.rows.skip_rows import format_skipped, parse_skipped

places = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 3), st.integers(0, 2)), max_size=6)


def named(skipped):
    return {(epoch, window, row) for (epoch, window), ranges in skipped.items() for rows in ranges for row in rows}


@given(places)
def test_places_read_back_as_they_were_written_in_order_and_apart(places):
    texts = [f"{epoch}:{shard}:{first}-{first + more}" for epoch, shard, first, more in places]
    skipped = parse_skipped(texts)
    expected = {(e, s, row) for e, s, first, more in places for row in range(first, first + more + 1)}
    assert named(skipped) == expected
    assert parse_skipped(format_skipped(skipped)) == skipped
    for ranges in skipped.values():
        assert all(a.stop < b.start for a, b in zip(ranges, ranges[1:], strict=False))


@pytest.mark.parametrize("wrong", ["0:1", "a:0:1", "0:1:5-4", "0:1:-1", 7, ""])
def test_what_names_no_rows_is_refused(token_set, wrong):
    with pytest.raises(ValueError, match="skip_rows must name rows as 'epoch:window:first-last'"):
        make_loader(token_set, skip_rows=[wrong])


def test_a_text_instead_of_a_list_is_refused(token_set):
    with pytest.raises(ValueError, match=r"write \['0:0:1'\]"):
        make_loader(token_set, skip_rows="0:0:1")


@given(places, st.lists(st.integers(0, 6), min_size=3, max_size=3), st.integers(1, 4))
def test_the_rows_that_are_left_keep_their_order(places, rows, size):
    texts = [f"{e}:{w}:{a}-{b - 1}" for e, w, a, more in places if (b := min(a + more + 1, rows[w])) > a]
    rows[0] += 1  # at least one window has some
    skipped = parse_skipped(texts)
    stream = RowStream(lambda _: 3, lambda _, w: rows[w], skipped=skipped)
    order = ((e, w, row) for e in count() for w in range(3) for row in range(rows[w]))
    expected = islice((place for place in order if place not in named(skipped)), 4 * size)
    dealt = []
    for _ in range(4):
        for some, place in stream.walk(size):  # noqa: B007 (the last one counts)
            dealt += [(some.epoch, some.window, number) for number in some.numbers]
        stream.place = place
    assert dealt == list(expected)


@pytest.mark.parametrize("wrong", ["0:0:5000", "0:99:0", "3:0:5000-5001"])
def test_rows_that_there_are_not_are_refused_when_they_are_given(token_set, wrong):
    with pytest.raises(ValueError, match=rf"skip_rows {wrong}: window \d+ of epoch \d has \d+ rows"):
        make_loader(token_set, skip_rows=[wrong])
    loader = make_loader(token_set)
    before = loader.state_dict()
    with pytest.raises(ValueError, match=rf"skip_rows {wrong}: window \d+ of epoch \d has \d+ rows"):
        loader.load_state_dict(changed(before, skip_rows=[wrong]))
    assert loader.state_dict() == before, "what is refused changes nothing"
    assert rows_of(next(loader)) == list(islice(reference_rows(token_set), 2))


def skip_of(path, first, number):
    """The places of rows of the global order, as `show` prints them."""
    config = LoaderConfig(tokens=path, batch_size=1, seq_len=SEQ_LEN)
    return [row.place for row in Tracer.of(config).rows(first, number)]


def test_a_loader_leaves_out_what_show_named(token_set, windows):
    expected = list(islice(reference_rows(token_set), 60))
    loader = make_loader(token_set, batch_size=3, skip_rows=skip_of(token_set, 7, 6))
    dealt = [row for _ in range(18) for row in rows_of(next(loader))]
    assert dealt == (expected[:7] + expected[13:])[:54]
    assert all(row[0] == BOS for row in dealt)


def test_a_spike_is_left_out_after_the_checkpoint_before_it_and_the_position_says_so(token_set, windows):
    expected = list(islice(reference_rows(token_set), 60))
    before = make_loader(token_set)
    for _ in range(3):  # six rows
        next(before)
    assert of_source(before.state_dict(), "skip_rows") == []

    places = skip_of(token_set, 8, 4)
    without = make_loader(token_set, skip_rows=places)
    without.load_state_dict(before.state_dict())
    assert rows_of(next(without)) == expected[6:8]
    state = without.state_dict()
    assert of_source(state, "skip_rows") == format_skipped(parse_skipped(places))
    rest = [row for _ in range(5) for row in rows_of(next(without))]
    assert rest == expected[12:22]

    forgotten = make_loader(token_set)  # without naming them again
    forgotten.load_state_dict(state)
    assert [row for _ in range(5) for row in rows_of(next(forgotten))] == rest
    assert forgotten.state_dict() == without.state_dict()


def test_a_row_that_only_a_position_could_have_is_refused_where_none_comes(token_set):
    rows = make_loader(token_set).rows
    loader = make_loader(token_set, skip_rows=[f"0:0:{rows}"])  # a window that was packed anew may have some more
    with pytest.raises(ValueError, match=f"skip_rows 0:0:{rows}: window 0 of epoch 0 has {rows} rows"):
        next(loader)


def test_a_loader_that_is_given_rows_to_skip_skips_these_and_no_others(token_set, windows):
    expected = list(islice(reference_rows(token_set), 60))
    loader = make_loader(token_set, skip_rows=skip_of(token_set, 8, 4))
    first = [row for _ in range(2) for row in rows_of(next(loader))]
    state = loader.state_dict()
    assert first == expected[:4]
    for skip_rows, left in [([], expected[4:]), (skip_of(token_set, 6, 1), expected[4:6] + expected[7:])]:
        again = make_loader(token_set, skip_rows=skip_rows)
        again.load_state_dict(state)
        assert [row for _ in range(10) for row in rows_of(next(again))] == left[:20]
        assert of_source(again.state_dict(), "skip_rows") == skip_rows


def test_nanochat_s_rows_have_no_places_to_skip(token_set):
    with pytest.raises(ValueError, match="skip_rows is not supported with packing='nanochat'"):
        make_loader(token_set, packing="nanochat", skip_rows=["0:0:1"])
