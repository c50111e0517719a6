"""Weights: whole numbers in the same ratio, weights from sizes, shares that fit under caps."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.rows.weights import TURNS, fit, powers, whole_weights

NAMES = st.text("abcdefgh", min_size=1, max_size=3)


@pytest.mark.parametrize(
    ("weights", "whole"),
    [
        ({"web": 60, "code": 25, "math": 15}, {"code": 5, "math": 3, "web": 12}),
        ({"web": 0.6, "code": 0.25, "math": 0.15}, {"code": 5, "math": 3, "web": 12}),
        ({"a": 0.1, "b": 0.2, "c": 0.7}, {"a": 1, "b": 2, "c": 7}),
        ({"a": np.float32(0.1), "b": np.int64(1)}, {"a": 1, "b": 10}),
        ({"a": Decimal("0.3"), "b": Fraction(1, 3)}, {"a": 9, "b": 10}),
        ({"only": 0.3}, {"only": 1}),
        ({"a": 65_535, "b": 1}, {"a": 65_535, "b": 1}),
    ],
)
def test_small_whole_numbers_are_exact(weights, whole):
    assert whole_weights(weights) == whole
    assert list(whole_weights(weights)) == sorted(weights)


@given(st.dictionaries(NAMES, st.floats(1e-1, 1e2), min_size=1, max_size=40))
def test_no_share_is_off_by_more_than_one_turn(weights):
    whole = whole_weights(weights)
    total, turns = sum(map(Fraction, map(str, weights.values()))), sum(whole.values())
    assert turns <= TURNS
    for name, weight in weights.items():
        assert whole[name] >= 1
        assert abs(Fraction(whole[name], turns) - Fraction(str(weight)) / total) < Fraction(1, TURNS)


@given(st.dictionaries(NAMES, st.floats(1e-2, 1e2), min_size=1, max_size=9), st.randoms())
def test_in_whatever_order_they_are_named(weights, random):
    names = list(weights)
    random.shuffle(names)
    assert whole_weights({name: weights[name] for name in names}) == whole_weights(weights)


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), "5", True, None, 0.0, [1]])
def test_a_weight_that_is_no_positive_number_is_refused(weight):
    with pytest.raises(ValueError, match="the weight of 'b' must be a positive number"):
        whole_weights({"a": 1, "b": weight})


def test_a_weight_that_would_become_nothing_is_refused():
    with pytest.raises(ValueError, match="the weight of 'b' is 1.0e-06 of the whole, less than the smallest share"):
        whole_weights({"a": 1, "b": 1e-6})


def test_weights_from_sizes():
    assert powers({"web": 900, "code": 100}) == {"web": 900, "code": 100}
    found = powers({"web": 900, "code": 100}, temperature=2)
    assert found["web"] / found["code"] == pytest.approx(3)
    assert powers({"web": 9e12, "code": 1}, temperature=1e9)["code"] == pytest.approx(1)
    with pytest.raises(ValueError, match="temperature must be a positive number, not 0"):
        powers({"web": 1}, temperature=0)
    with pytest.raises(ValueError, match="the size of 'web' must be a positive number"):
        powers({"web": 0})


# ---------------------------------------------------------------------------- caps


def unimax(room, tokens):
    """UniMax's own loop (Chung et al., 2023): from the smallest on, an equal part of what is left, or all it has."""
    given, left = {}, tokens
    for number, name in enumerate(sorted(room, key=lambda name: room[name])):
        given[name] = min(room[name], Fraction(left) / (len(room) - number))
        left -= given[name]
    return given


@given(st.dictionaries(NAMES, st.integers(1, 1000), min_size=1, max_size=9), st.data())
def test_equal_weights_under_caps_are_unimax(room, data):
    tokens = data.draw(st.integers(1, sum(room.values())))
    given = fit(dict.fromkeys(room, 1), {name: Fraction(size) for name, size in room.items()}, Fraction(tokens))
    assert given == unimax(room, tokens)


@given(st.dictionaries(NAMES, st.tuples(st.integers(1, 50), st.integers(1, 1000)), min_size=1, max_size=9), st.data())
def test_what_goes_over_a_cap_goes_to_the_others_by_weight(sources, data):
    weights = {name: weight for name, (weight, _) in sources.items()}
    room = {name: Fraction(size) for name, (_, size) in sources.items()}
    tokens = data.draw(st.integers(1, int(sum(room.values()))))
    given = fit(weights, room, Fraction(tokens))
    assert sum(given.values()) == tokens
    assert all(given[name] <= room[name] for name in given)
    rates = {given[name] / weights[name] for name in given if given[name] < room[name]}
    assert len(rates) <= 1, "those that are not full share as they weigh"
    assert all(room[name] / weights[name] <= rate for name in given if given[name] == room[name] for rate in rates)


def test_more_tokens_than_there_is_room_for_is_refused():
    with pytest.raises(ValueError, match="a, b have 30 tokens left under their caps, fewer than the 31"):
        fit({"a": 1, "b": 1}, {"a": Fraction(10), "b": Fraction(20)}, Fraction(31))
