"""The rows of several sources: a slow reference, stages, caps, and what stays the same through any change."""

from collections import Counter
from fractions import Fraction
from itertools import count, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_turns import slow_turns

from tokenmill.rows.mixed_stream import MixedStream, Schedule
from tokenmill.rows.row_stream import Cursor, End, RowStream
from tokenmill.rows.segments import MixtureState, SourceState, Stage
from tokenmill.rows.weights import whole_weights

T = 10  # tokens of a row
SIZES = {"a": [3, 1, 4], "b": [2, 2], "c": [5], "d": [1, 0, 2, 3]}  # rows of the windows of each source's epochs


def stream_of(name, end=None):
    return RowStream(lambda epoch: len(SIZES[name]), lambda epoch, window: SIZES[name][window], until=end)


def rows_of(name):
    """The places of a source's rows, for ever."""
    for epoch in count():
        for window, rows in enumerate(SIZES[name]):
            yield from (Cursor(epoch, window, row) for row in range(rows))


def end_of(name, epochs):
    """The place, as an end, of a number of epochs."""
    windows = epochs % 1 * len(SIZES[name])
    return End(int(epochs), int(windows), windows % 1)


def make(stages, mixture_state=None, *, caps=None, on_cap="error", tokens=None):
    """A stream of the sources of the stages."""
    names = sorted({name for _, weights in stages for name in weights})
    caps = {name: Fraction(str(cap)) for name, cap in (caps or {}).items()}
    ends = {name: end_of(name, cap) for name, cap in caps.items()}
    mixture_state = mixture_state or MixtureState({name: SourceState() for name in names})
    served = {name: mixture_state.sources.get(name, SourceState()) for name in {*names, *mixture_state.sources}}
    mixture_state = MixtureState(
        served, mixture_state.tokens_seen, mixture_state.weights_key, mixture_state.turns, mixture_state.segments
    )
    stages = [Stage(begin, {n: Fraction(w) for n, w in weights.items()}) for begin, weights in stages]
    streams = {name: stream_of(name, ends.get(name)) for name in names}
    room = lambda name, place: (caps[name] - share(name, place)) * sum(SIZES[name]) * T  # noqa: E731
    return MixedStream(streams, Schedule(stages, caps, on_cap, tokens), T, mixture_state, room)


def share(name, place):
    before = sum(SIZES[name][: place.window]) + place.row
    return place.epoch + Fraction(before, sum(SIZES[name]))


def dealt(spans):
    """The (source, place) of each turn of some spans."""
    for span in spans:
        segment = span.segment
        for turn in range(span.first, span.last):
            before, after = (segment.pattern.counts(t) for t in (turn, turn + 1))
            (name,) = [n for n, b, a in zip(segment.pattern.names, before, after, strict=True) if a > b]
            number = before[segment.pattern.names.index(name)]
            ((begin, rows),) = segment.tracks[name].rows(number, number + 1)
            yield name, Cursor(rows.epoch, rows.window, rows.numbers[number - begin])


def reference(stages, tokens=0, given=None):
    """Turn by turn: the rule of a stage, anew with every stage of other weights; each source goes on."""
    sources = {name: rows_of(name) for name in SIZES}
    for name, rows in (given or {}).items():
        list(islice(sources[name], rows))
    weights, turns = None, None
    while True:
        now = whole_weights([some for begin, some in stages if begin <= tokens][-1])
        if now != weights:
            weights, turns = now, slow_turns(now, 10**9)
        name, _ = next(turns)
        yield name, next(sources[name])
        tokens += T


STAGES = [(0, {"a": 2, "b": 1}), (95, {"a": 1, "c": 3}), (210, {"a": 1, "c": 3}), (333, {"d": 1, "b": 1, "a": 1})]


@pytest.mark.parametrize("step", [1, 2, 7, 50])
def test_stages_are_the_rule_turn_by_turn_whatever_is_asked_at_once(step):
    stream, found = make(STAGES), []
    while len(found) < 60:
        found += dealt(stream.take(step))
    assert found[:60] == list(islice(reference(STAGES), 60))


@pytest.mark.parametrize("taken", range(0, 60, 3))
def test_from_every_standing_it_goes_on_with_the_next_row(taken):
    stream = make(STAGES)
    stream.take(taken)
    mixture_state = stream.at.mixture_state()
    assert mixture_state.tokens_seen == taken * T == sum(served.tokens for served in mixture_state.sources.values())
    again = make(STAGES, mixture_state)
    assert list(dealt(again.take(60 - taken))) == list(islice(reference(STAGES), taken, 60))
    assert again.at.mixture_state() == make_and_take(STAGES, 60).at.mixture_state(), "the log of segments too"


def make_and_take(stages, count):
    stream = make(stages)
    stream.take(count)
    return stream


def test_a_stage_that_changes_nothing_begins_no_segment():
    lines = make_and_take(STAGES, 60).at.mixture_state().segments
    assert [line.tokens for line in lines] == [0, 100, 340], "with the first row that is past the boundary"
    assert [line.weights for line in lines][1] == {"a": 1, "c": 3}
    assert lines[1].places["a"] == Cursor(0, 2, 3)


def test_the_example_of_the_docstring():
    stream = make([(0, {"a": 2, "b": 1}), (60, {"a": 1, "b": 1})])
    assert "".join(name for name, _ in dealt(stream.take(13))) == "aabaab" + "abababa"
    assert [span.first for span in make([(0, {"a": 2, "b": 1}), (60, {"a": 1, "b": 1})]).take(13)] == [0, 0]


# ---------------------------------------------------------------------------- changes

HISTORY = st.lists(
    st.tuples(st.dictionaries(st.sampled_from(sorted(SIZES)), st.integers(1, 20), min_size=1), st.integers(0, 40)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=1000, deadline=None)
@given(HISTORY)
def test_through_any_history_each_source_gives_its_rows_in_order_once(history):
    mixture_state, given = None, {name: [] for name in SIZES}
    for weights, turns in history:
        stream = make([(0, weights)], mixture_state)
        for name, place in dealt(stream.take(turns)):
            given[name].append(place)
        mixture_state = stream.at.mixture_state()
    for name, places in given.items():
        assert places == list(islice(rows_of(name), len(places)))
        served = mixture_state.sources.get(name, SourceState())
        assert (served.rows, served.tokens) == (len(places), len(places) * T)
    assert mixture_state.tokens_seen == T * sum(map(len, given.values()))
    assert [line.tokens for line in mixture_state.segments] == sorted({line.tokens for line in mixture_state.segments})


def test_other_weights_of_the_same_ratio_go_on_with_the_segment():
    first = make([(0, {"a": 2, "b": 1})])
    first.take(5)
    again = make([(0, {"b": 0.5, "a": 1.0})], first.at.mixture_state())
    assert [(span.first, span.last) for span in again.take(4)] == [(5, 9)]


def test_another_order_or_other_sources_change_nobody_s_rows():
    one, other = make([(0, {"a": 2, "b": 1})]), make([(0, {"d": 5, "b": 1, "c": 1, "a": 2})])
    first, second = (Counter(), Counter())
    for stream, found in ((one, first), (other, second)):
        for name, place in dealt(stream.take(200)):
            found[name] += 1
            assert place == next(islice(rows_of(name), found[name] - 1, None))


# ---------------------------------------------------------------------------- caps


def test_a_source_past_its_cap_is_an_error_at_its_turn_and_not_before():
    stream = make([(0, {"a": 1, "c": 1})], caps={"c": 1})
    assert sum(map(len, stream.take(100))) == 11, "a 6 times, c 5 times: its epoch"
    assert "source 'c' is used up: it reaches its max_epochs after 110 tokens of the run" in str(stream.failed)
    assert stream.take(1) == []
    exact = make([(0, {"a": 1, "c": 1})], caps={"c": 1})
    assert sum(map(len, exact.take(10))) == 10
    assert exact.failed is None


@pytest.mark.parametrize("step", [1, 3, 100])
@pytest.mark.parametrize(("cap", "rows"), [(1, 5), (2, 10), (1.4, 7), (0.5, 2), (Fraction(1, 5), 1)])
def test_a_source_retires_with_its_last_row_and_the_others_go_on(cap, rows, step):
    stream, found = make([(0, {"a": 1, "c": 1, "d": 1})], caps={"c": cap}, on_cap="retire"), []
    while len(found) < 60:
        found += dealt(stream.take(step))
    names = [name for name, _ in found]
    last = max(turn for turn, name in enumerate(names) if name == "c")
    assert names.count("c") == rows
    assert names[: last + 1] == [name for name, _ in islice(slow_turns({"a": 1, "c": 1, "d": 1}, 60), last + 1)]
    assert names[last + 1 :] == [name for name, _ in slow_turns({"a": 1, "d": 1}, len(names) - last - 1)]
    assert stream.at.mixture_state().segments[-1].tokens == (last + 1) * T


@pytest.mark.parametrize("taken", range(14))
def test_resuming_around_a_retirement_is_the_unbroken_run(taken):
    stages, caps = [(0, {"a": 1, "c": 1, "d": 1})], {"c": 0.8}
    whole = list(dealt(make(stages, caps=caps, on_cap="retire").take(40)))
    stream = make(stages, caps=caps, on_cap="retire")
    stream.take(taken)
    again = make(stages, stream.at.mixture_state(), caps=caps, on_cap="retire")
    assert list(dealt(again.take(40 - taken))) == whole[taken:]


def test_when_all_are_used_up_it_ends_and_a_raised_cap_goes_on():
    stages = [(0, {"a": 1, "c": 1})]
    stream = make(stages, caps={"a": 1, "c": 1}, on_cap="retire")
    assert sum(map(len, stream.take(100))) == 8 + 5
    assert stream.take(5) == []
    assert stream.failed is None
    again = make(stages, stream.at.mixture_state(), caps={"a": 2, "c": 1}, on_cap="retire")
    assert [name for name, _ in dealt(again.take(100))] == ["a"] * 8


def test_all_used_up_before_the_next_stage_is_an_error():
    stream = make([(0, {"c": 1}), (400, {"a": 1})], caps={"c": 2}, on_cap="retire")
    assert sum(map(len, stream.take(20))) == 10, "what there is comes first"
    assert "all sources of stage 0 are used up after 100 tokens, before the next stage" in str(stream.failed)
    with pytest.raises(ValueError, match="all sources of stage 0 are used up after 100 tokens"):
        make([(0, {"c": 1}), (400, {"a": 1})], stream.at.mixture_state(), caps={"c": 2}, on_cap="retire").take(1)


def test_what_a_source_gave_in_a_window_is_kept_as_one_stretch():
    stream = make([(0, {"a": 2, "b": 1})])
    for _ in range(300):
        stream.take(1)
    track = stream.at.segment.tracks["a"]
    assert len(list(track.rows(0, 200))) == 200 * 3 // 8, "one for each of its windows"


@pytest.mark.parametrize("step", [1, 4, 1000])
def test_spread_uses_a_small_source_until_the_end_of_its_stage(step):
    """40 rows, half of them of c would be 20; 2 epochs are 10, so the others give 30."""
    stream, names = make([(0, {"a": 1, "b": 1, "c": 2})], caps={"c": 2}, on_cap="spread", tokens=400), []
    while len(names) < 40:
        names += [name for name, _ in dealt(stream.take(step))]
    assert Counter(names[:40]) == {"a": 15, "b": 15, "c": 10}
    assert names[:40].index("c") < 4
    assert max(turn for turn, name in enumerate(names[:40]) if name == "c") >= 36


def test_spread_counts_what_was_served_before_and_resumes_exactly():
    stages = [(0, {"a": 1, "c": 1}), (100, {"b": 1, "c": 3})]
    make_it = lambda mixture_state=None: make(stages, mixture_state, caps={"c": 2}, on_cap="spread", tokens=260)  # noqa: E731
    whole = list(dealt(make_it().take(26)))
    assert Counter(name for name, _ in whole) == {"a": 7, "c": 10, "b": 9}
    assert Counter(name for name, _ in whole[:10])["c"] == 3, "5 of the 17 rows of c that both stages ask for"
    for taken in range(26):
        stream = make_it()
        stream.take(taken)
        assert list(dealt(make_it(stream.at.mixture_state()).take(26 - taken))) == whole[taken:]


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(SIZES)), st.integers(1, 9), min_size=1),
    st.dictionaries(st.sampled_from(sorted(SIZES)), st.integers(1, 30)),
    st.lists(st.integers(0, 25), max_size=6),
)
def test_no_source_gives_more_than_its_cap_whatever_is_asked_and_resumed(weights, tenths, takes):
    caps = {name: Fraction(cap, 10) for name, cap in tenths.items() if name in weights}
    mixture_state, given = None, Counter()
    for turns in takes:
        stream = make([(0, weights)], mixture_state, caps=caps, on_cap="retire")
        given.update(name for name, _ in dealt(stream.take(turns)))
        mixture_state = stream.at.mixture_state()
    for name, cap in caps.items():
        end = end_of(name, cap)
        most = end.epoch * sum(SIZES[name]) + sum(SIZES[name][: end.window])
        most += int(SIZES[name][end.window] * end.share) if end.window < len(SIZES[name]) else 0
        assert given[name] <= most
