"""Turns: at every prefix each source is within a row of its share, and exact at every round."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from slow_turns import slow_turns

from tokenmill.rows.interleave import pattern_of

WEIGHTS = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=2), st.integers(1, 60), min_size=1, max_size=12
)


def letters(weights, count):
    pattern = pattern_of(weights)
    source, _ = pattern.at(np.arange(count))
    return " ".join(pattern.names[number][0].upper() for number in source)


def test_the_examples_of_the_design():
    assert (
        letters({"web": 12, "code": 5, "math": 3}, 20) == "W C W W M W C W W C W M W W C W W C M W"
    )
    weights = {"web": 8, "code": 5, "math": 5, "news": 2}
    assert letters(weights, 20) == "W C M W C M W N W C M W W C M W C M N W"


@given(WEIGHTS)
def test_it_is_the_rule_turn_by_turn_and_goes_round(weights):
    pattern = pattern_of(weights)
    total = sum(weights.values())
    source, row = pattern.at(np.arange(2 * total + 3))
    turns = [(pattern.names[s], r) for s, r in zip(source.tolist(), row.tolist(), strict=True)]
    assert turns == list(slow_turns(weights, 2 * total + 3))
    for turn, (number, own_row) in enumerate(zip(source.tolist(), row.tolist(), strict=True)):
        assert pattern.turn_of(number, own_row) == turn


@given(WEIGHTS, st.integers(0, 3))
def test_each_source_is_within_a_row_of_its_share_and_exact_at_rounds(weights, rounds):
    pattern = pattern_of(weights)
    total = sum(weights.values())
    source, _ = pattern.at(np.arange(rounds * total, (rounds + 1) * total))
    rows_before = {name: rounds * weight for name, weight in weights.items()}
    assert rows_before == dict(zip(pattern.names, pattern.counts(rounds * total), strict=True))
    for turn, number in enumerate(source.tolist(), rounds * total + 1):
        rows_before[pattern.names[number]] += 1
        assert all(
            abs(rows_before[name] - Fraction(turn * weight, total)) < 1
            for name, weight in weights.items()
        )
        if turn % 7 == 0:
            assert rows_before == dict(zip(pattern.names, pattern.counts(turn), strict=True))
