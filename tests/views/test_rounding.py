"""Fractions add up exactly, and a document whose fraction stays the same is rounded as before."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.views import rounding
from tokenmill.views.rounding import Rounding

TIMES = st.lists(st.one_of(st.integers(0, 5), st.floats(0, 5).map(lambda x: round(x, 3))), min_size=1, max_size=60)


def rounded(shards):
    found, own, first = [], Rounding(), 0
    for name, times in shards.items():
        found.append(own.round(name, np.array(times, float), first))
        first += len(times)
    counts = np.concatenate(found)
    up, down = own.corrections()
    counts[up] += 1
    counts[down] -= 1
    return counts


@given(st.dictionaries(st.sampled_from("abc"), TIMES, min_size=1))
def test_each_document_is_rounded_down_or_up_and_the_sum_is_right(shards):
    counts, times = rounded(shards), np.concatenate([np.array(some, float) for some in shards.values()])
    assert ((counts == np.floor(times)) | (counts == np.ceil(times))).all()
    fractions = (times - np.floor(times)).sum()
    assert abs(counts.sum() - (np.floor(times).sum() + fractions)) <= 0.5 + 1e-6


def test_who_is_rounded_up_is_drawn_by_fraction():
    times = np.repeat([0.1, 0.5, 0.9], 20_000)
    counts = rounded({"a": times})
    assert counts.sum() == 30_000
    for fraction in (0.1, 0.5, 0.9):
        assert abs(counts[times == fraction].mean() - fraction) < 0.01


def test_another_rule_changes_only_whom_it_must():
    times = np.full(50_000, 0.5)
    other = times.copy()
    other[:25_000] = 0.75
    before, after = rounded({"a": times}), rounded({"a": other})
    assert (before[25_000:] != after[25_000:]).mean() < 0.01
    assert (after[:25_000] >= before[:25_000]).mean() > 0.999, "a larger fraction takes nobody out"


def test_a_shard_that_is_added_changes_hardly_any_of_the_others():
    one, both = rounded({"a": [0.3] * 20_000}), rounded({"a": [0.3] * 20_000, "b": [0.3] * 20_000})
    assert (one != both[:20_000]).mean() < 0.01


def test_the_sum_is_right_where_only_the_closest_documents_are_held(monkeypatch):
    monkeypatch.setattr(rounding, "HELD", 500)
    shards = {f"s{n}": [0.5] * 1000 for n in range(20)}
    assert rounded(shards).sum() == 10_000


@pytest.mark.parametrize("times", [[0.0, 255.0], [254.5] * 10])
def test_the_ends_of_what_a_document_may_count(times):
    counts = rounded({"a": times})
    assert counts.max() <= 255
    assert counts.sum(dtype=int) == round(sum(times))
