"""Rows of whole documents: nothing is cut but by windows, and each token is some row's own exactly once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.rows.packers import Past, count_window, plan_window
from tokenmill.rows.whole_documents import WholeDocuments

many_lengths = st.lists(st.integers(1, 40), max_size=30)
ways = st.sampled_from(["drop", "crop", "window"])
stages = st.lists(st.tuples(st.integers(2, 24), st.floats(0, 1), st.integers(0, 2)), max_size=3)


def rows_of(plan):
    """Rows as lists of (document, first token, last + 1, tokens of context, padding)."""
    columns = (plan.document, plan.start, plan.start + plan.length, plan.context, plan.filler)
    pieces = list(zip(*(column.tolist() for column in columns), strict=True))
    return [pieces[a:b] for a, b in zip(plan.row_offsets[:-1], plan.row_offsets[1:], strict=True)]


def own_tokens(rows):
    """(document, token) that the rows have as their own, without padding and context."""
    return sorted(
        (document, token)
        for row in rows
        for document, first, end, context, is_padding in row
        if not is_padding
        for token in range(first + context, end)
    )


def expected_tokens(lengths, row_len, way):
    kept = {"drop": lambda n: n if n <= row_len else 0, "crop": lambda n: min(n, row_len), "window": lambda n: n}[way]
    return [(document, token) for document, length in enumerate(lengths) for token in range(kept(length))]


@given(many_lengths, st.integers(2, 24), ways, st.integers(0, 3))
@settings(max_examples=300)
def test_every_token_that_is_kept_is_some_row_s_own_once_and_rows_are_full(lengths, row_len, way, seed):
    packer = WholeDocuments(np.array(lengths, np.int64), way)
    plan = plan_window(packer, row_len, (seed,))
    rows = rows_of(plan)
    assert len(rows) == count_window(packer, row_len, (seed,))
    assert own_tokens(rows) == expected_tokens(lengths, row_len, way)
    for row in rows:
        assert sum(end - first + (first > 0) for _, first, end, *_ in row) == row_len
        assert all(is_padding == (document == len(lengths)) for document, *_, is_padding in row)
        assert sum(piece[-1] for piece in row) <= 1, "one piece of padding at most, the last"
        assert not any(piece[-1] for piece in row[:-1])
    if way != "window":
        assert not plan.context.any()
        assert not plan.start.any(), "every piece begins with its document's own BOS"


@given(many_lengths, st.integers(2, 24), st.integers(0, 3))
def test_a_window_repeats_what_comes_before_it_up_to_half_a_row(lengths, row_len, seed):
    plan = plan_window(WholeDocuments(np.array(lengths, np.int64), "window"), row_len, (seed,))
    for row in rows_of(plan):
        for document, first, end, context, is_padding in row:
            if not is_padding:
                assert context == min(first + context, (row_len - 1) // 2) if first + context else not context
                assert end <= lengths[document]


@given(many_lengths, ways, stages, st.integers(2, 24), st.integers(0, 3))
@settings(max_examples=300)
def test_changes_of_the_row_length_use_every_token_at_most_once_and_lose_none(lengths, way, stages, last, seed):
    packer, past, dealt = WholeDocuments(np.array(lengths, np.int64), way), [], []
    for row_len, share, skipped in stages:
        plan = plan_window(packer, row_len, (seed,), past)
        assert plan.num_rows == count_window(packer, row_len, (seed,), past)
        count = int(plan.num_rows * share)
        gone = range(count, min(count + skipped, plan.num_rows))
        dealt += own_tokens(rows_of(plan)[: gone.stop if gone else count])
        past.append(Past(row_len, count, (gone,) if gone else ()))
    plan = plan_window(packer, last, (seed,), past)
    dealt += own_tokens(rows_of(plan))
    assert len(dealt) == len(set(dealt))
    touched = {document for document, _ in dealt}
    if way == "window":
        assert sorted(dealt) == expected_tokens(lengths, last, way)
    else:  # a document that was too long for every row so far may be too long for the last ones
        left_out = {document for document, length in enumerate(lengths) if length > last and way == "drop"}
        assert touched | left_out == set(range(len(lengths)))


def test_a_document_that_is_longer_than_a_row_is_an_error_by_default():
    packer = WholeDocuments(np.array([5, 9, 30]), "split")
    with pytest.raises(ValueError, match=r"2 documents are longer than a row of 7 \+ 1 tokens, the longest with 30"):
        packer.plan(8, (0,), None)
    assert packer.count(30, (0,), None) == 2


def slow_best_fit_decreasing(lengths, row_len):
    """The number of rows of best-fit decreasing, as TRL's `bfd` packs: each document into the fullest row it fits."""
    free = []
    for length in sorted(lengths, reverse=True):
        fitting = [row for row, left in enumerate(free) if left >= length]
        if fitting:
            free[min(fitting, key=lambda row: free[row])] -= length
        else:
            free.append(row_len - length)
    return len(free)


@pytest.mark.parametrize("middle", [50, 250, 500])
def test_there_is_no_more_padding_than_best_fit_decreasing_leaves(middle):
    """Few short documents, as in UltraChat, leave gaps that nothing fills; bundles must not make that worse."""
    lengths = np.clip(np.random.default_rng(0).lognormal(np.log(middle), 0.6, 2_000), 5, 1_025).astype(np.int64)
    found = WholeDocuments(lengths, "split").count(1_025, (0,), None)
    assert found <= slow_best_fit_decreasing(lengths.tolist(), 1_025) * 1.005
