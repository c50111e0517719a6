"""plan_rows keeps its promises for any lengths, and packs as the slow, obvious best fit does."""

import contextlib
import sys
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.rows.order import permutation, random_bits
from tokenmill.rows.packing import count_rows, plan_rows

many_lengths = st.lists(st.integers(1, 60), max_size=60)
row_lens = st.integers(2, 24)


def pieces_of_rows(plan):
    """Rows as lists of (document, start, length, filler)."""
    pieces = list(
        zip(plan.document.tolist(), plan.start.tolist(), plan.length.tolist(), plan.filler.tolist(), strict=True)
    )
    return [pieces[a:b] for a, b in zip(plan.row_offsets[:-1], plan.row_offsets[1:], strict=True)]


@contextlib.contextmanager
def tracing_steps():
    """Counts the lines of Python that are run: a cost that no other process changes."""
    lines = 0

    def trace(frame, event, argument):
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lambda: lines
    finally:
        sys.settrace(before)


def size(piece):
    _, start, length, _ = piece
    return length + (start > 0)


def slow_best_fit(lengths, row_len, seed):
    """Rows as lists of piece sizes: each takes the longest piece in the pool that fits, again and again.

    Where sizes have few pieces, the second pick is drawn from about the 24 longest pieces that fit.
    """
    pool = []
    for length in lengths:
        pool.append(min(length, row_len))
        length -= row_len
        while length > 0:  # later pieces spend one place on an inserted BOS
            pool.append(min(length, row_len - 1) + 1)
            length -= row_len - 1
    luck = (bits for part in count() for bits in random_bits(4096, "close", part, seed).tolist())
    rows = [[row_len]] * pool.count(row_len)
    pool = [piece for piece in pool if piece < row_len]
    while pool:
        row, free, close = [], row_len, 24 * len(set(pool)) // len(pool)
        drawn = next(luck) if close > 1 else None
        while fitting := sorted({piece for piece in pool if piece <= free}, reverse=True):
            second = len(row) == 1 and close > 1
            pick = fitting[min(drawn % close, len(fitting) - 1)] if second else fitting[0]
            pool.remove(pick)
            row.append(pick)
            free -= pick
        rows.append(row)
    return sorted(sorted(row) for row in rows)


@given(many_lengths, row_lens, st.sampled_from(["split", "crop"]), st.integers(0, 3))
def test_every_row_holds_exactly_row_len_tokens_and_begins_with_bos(lengths, row_len, long_documents, seed):
    plan = plan_rows(lengths, row_len, long_documents=long_documents, seed=seed)
    for row in pieces_of_rows(plan):
        assert sum(size(piece) for piece in row) == row_len
        # a piece begins with its document's BOS (start 0) or with an inserted one (start > 0)
        assert all(length > 0 and start >= 0 for _, start, length, _ in row)


@given(many_lengths, row_lens, st.integers(0, 3))
def test_split_covers_every_token_of_every_document_exactly_once(lengths, row_len, seed):
    plan = plan_rows(lengths, row_len, seed=seed)
    seen = [np.zeros(length, int) for length in lengths]
    for document, start, length, filler in sum(pieces_of_rows(plan), []):
        if not filler:
            seen[document][start : start + length] += 1
    assert all((count == 1).all() for count in seen)


@given(many_lengths, row_lens, st.integers(0, 3))
def test_crop_keeps_the_first_row_of_every_document_and_nothing_else(lengths, row_len, seed):
    plan = plan_rows(lengths, row_len, long_documents="crop", seed=seed)
    kept = sorted((d, s, n) for d, s, n, filler in sum(pieces_of_rows(plan), []) if not filler)
    assert kept == [(document, 0, min(length, row_len)) for document, length in enumerate(lengths)]


@given(many_lengths, row_lens)
def test_no_document_that_fits_a_row_is_cut(lengths, row_len):
    for document, start, length, filler in sum(pieces_of_rows(plan_rows(lengths, row_len, seed=0)), []):
        if not filler and lengths[document] <= row_len:
            assert (start, length) == (0, lengths[document])


@given(st.one_of(many_lengths, st.lists(st.integers(1, 4), max_size=200)), row_lens, st.integers(0, 3))
def test_rows_are_those_of_the_slow_best_fit_and_as_many_as_were_counted(lengths, row_len, seed):
    plan = plan_rows(lengths, row_len, seed=seed)
    rows = [sorted(size(piece) for piece in row if not piece[3]) for row in pieces_of_rows(plan)]
    assert sorted(rows) == slow_best_fit(lengths, row_len, seed)
    assert plan.num_rows == count_rows(lengths, row_len, seed=seed)


@given(many_lengths, row_lens, st.sampled_from(["split", "crop"]))
def test_filler_is_the_beginning_of_a_document_that_is_not_in_the_row_where_another_can_be_had(
    lengths, row_len, long_documents
):
    plan = plan_rows(lengths, row_len, long_documents=long_documents, seed=2)
    for row in pieces_of_rows(plan):
        documents = [piece[0] for piece in row]
        filled = [piece for piece in row if piece[3]]
        assert [piece[3] for piece in row] == [False] * (len(row) - len(filled)) + [True] * len(filled), (
            "filler closes a row"
        )
        for document, start, length, _ in filled:
            assert start == 0
            assert length <= lengths[document]
            if documents.count(document) > 1:  # repeated: then every document of the shard is in the row
                assert set(documents) == set(range(len(lengths)))


@given(many_lengths, row_lens, st.integers(0, 5))
def test_a_plan_is_a_pure_function_of_its_arguments(lengths, row_len, seed):
    one, two = (plan_rows(np.array(lengths, dtype=int), row_len, seed=(seed, 7)) for _ in range(2))
    for field in ("row_offsets", "document", "start", "length", "filler"):
        assert np.array_equal(getattr(one, field), getattr(two, field))


@pytest.mark.parametrize("documents", [1_000, 4_000])
def test_neighbours_do_not_meet_again_however_few_documents_there_are(documents):
    rng = np.random.default_rng(documents)
    lengths = (50 + rng.lognormal(np.log(990) - 1.132**2 / 2, 1.132, documents)).astype(int)
    plans = [plan_rows(lengths, 2049, seed=(1337, epoch, 0)) for epoch in (0, 1)]
    one, two = ({frozenset(p[:2] for p in row if not p[3]) for row in pieces_of_rows(plan)} for plan in plans)
    one = {row for row in one if len(row) > 1}
    assert len(one & two) < 0.07 * len(one), "without the draw 57% and 26%"
    assert sum(plan.length[plan.filler].sum() for plan in plans) < 0.008 * 2 * lengths.sum()


def test_a_row_of_many_short_documents_is_closed_in_no_time():
    with tracing_steps() as steps:
        plan = plan_rows([5] * 28_000, 131_073, seed=0)
    assert plan.num_rows == 2
    assert steps() < 3_000_000, "lines of Python; with a search for each filler there were 100 times as many"


def test_documents_of_equal_length_meet_other_neighbours_under_another_seed():
    lengths = [4] * 100
    one, two = (plan_rows(lengths, 8, seed=(1337, epoch, 0)) for epoch in (0, 1))
    neighbours = [{frozenset(p[0] for p in row) for row in pieces_of_rows(plan)} for plan in (one, two)]
    assert len(neighbours[0] & neighbours[1]) < 10


def test_length_says_nothing_about_a_row_s_or_a_piece_s_place():
    rng = np.random.default_rng(0)
    lengths = (20 + rng.lognormal(4, 1, 20_000)).astype(int)
    plan = plan_rows(lengths, 513, seed=0)
    row = np.repeat(np.arange(plan.num_rows), np.diff(plan.row_offsets))
    kept = ~plan.filler
    place = np.arange(len(row)) - plan.row_offsets[row]
    together = np.isin(row, np.flatnonzero(np.bincount(row[kept]) == 4)) & kept  # rows of four pieces
    assert abs(np.corrcoef(row[kept], lengths[plan.document[kept]])[0, 1]) < 0.02
    assert abs(np.corrcoef(place[together], plan.length[together])[0, 1]) < 0.05


def test_hardly_any_filler_on_lengths_like_fineweb_edu_s():
    rng = np.random.default_rng(0)
    lengths = (50 + rng.lognormal(np.log(990) - 1.132**2 / 2, 1.132, 60_000)).astype(int)
    plan = plan_rows(lengths, 2049, seed=0)
    assert plan.length[plan.filler].sum() < 0.001 * plan.num_rows * 2049


def test_the_order_is_the_same_in_every_numpy():
    # Philox's raw stream under a hashed key: these numbers were written down once and must never change
    assert permutation(8, "rows", 1337, 0, 0).tolist() == [3, 6, 4, 5, 1, 7, 2, 0]
    plan = plan_rows([11, 5, 3, 3, 2], 8, seed=(1337, 0, 0))
    assert pieces_of_rows(plan) == [
        [(2, 0, 3, False), (0, 0, 5, True)],
        [(1, 0, 5, False), (4, 0, 2, False), (0, 0, 1, True)],
        [(0, 8, 3, False), (3, 0, 3, False), (1, 0, 1, True)],
        [(0, 0, 8, False)],
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": [3], "row_len": 1}, "row_len must be at least 2"),
        ({"lengths": [3, 0], "row_len": 4}, "at least 1"),
        ({"lengths": [3], "row_len": 4, "long_documents": "drop"}, "long_documents must be one of"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        plan_rows(**arguments, seed=0)
