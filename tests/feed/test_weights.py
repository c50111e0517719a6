"""Weights: whole numbers in the same ratio, and weights from sizes."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.feed.weights import TURNS, powers, tokens_of, whole_weights

NAMES = st.text("abcdefgh", min_size=1, max_size=3)


@pytest.mark.parametrize(
    ("weights", "whole"),
    [
        ({"web": 0.6, "code": 0.25, "math": 0.15}, {"code": 5, "math": 3, "web": 12}),
        ({"a": 0.1, "b": 0.2, "c": 0.7}, {"a": 1, "b": 2, "c": 7}),
        ({"a": np.float32(0.1), "b": np.int64(1)}, {"a": 1, "b": 10}),
        ({"a": Decimal("0.3"), "b": Fraction(1, 3)}, {"a": 9, "b": 10}),
    ],
)
def test_small_whole_numbers_are_exact(weights, whole):
    assert whole_weights(weights) == whole
    assert list(whole_weights(weights)) == sorted(weights)


@given(st.dictionaries(NAMES, st.floats(1e-1, 1e2), min_size=1, max_size=40))
def test_no_share_is_off_by_more_than_one_turn(weights):
    whole = whole_weights(weights)
    total = sum(map(Fraction, map(str, weights.values())))
    turns = sum(whole.values())
    assert turns <= TURNS
    for name, weight in weights.items():
        assert whole[name] >= 1
        assert abs(Fraction(whole[name], turns) - Fraction(str(weight)) / total) < Fraction(
            1, TURNS
        )


@pytest.mark.parametrize(
    "weight", [0, -1, float("nan"), float("inf"), Decimal("NaN"), "5", True, None]
)
def test_a_weight_that_is_no_positive_number_is_refused(weight):
    with pytest.raises(ValueError, match="the weight of 'b' must be a positive number"):
        whole_weights({"a": 1, "b": weight})


def test_weights_from_sizes():
    assert powers({"web": 900, "code": 100}) == {"web": 900, "code": 100}
    weights = powers({"web": 900, "code": 100}, temperature=2)
    assert weights["web"] / weights["code"] == pytest.approx(3)
    assert powers({"web": 9e12, "code": 1}, temperature=1e9)["code"] == pytest.approx(1)
    with pytest.raises(ValueError, match="temperature must be a positive number, not 0"):
        powers({"web": 1}, temperature=0)
    with pytest.raises(ValueError, match="the size of 'web' must be a positive number"):
        powers({"web": 0})


def test_a_number_of_tokens_below_0_is_not_taken_for_a_weight():
    with pytest.raises(ValueError, match="^tokens must be a positive number, or 0, not -5$"):
        tokens_of("tokens", -5)
