"""plan_rows keeps its promises for any lengths, and packs as the slow, obvious best fit does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.rows.order import permutation
from tokenmill.rows.packing import plan_rows, plan_windows

many_lengths = st.lists(st.integers(1, 60), max_size=60)
row_lens = st.integers(2, 24)


def pieces_of_rows(plan):
    """Rows as lists of (document, start, length, filler)."""
    pieces = list(
        zip(plan.document.tolist(), plan.start.tolist(), plan.length.tolist(), plan.filler.tolist(), strict=True)
    )
    return [pieces[a:b] for a, b in zip(plan.row_offsets[:-1], plan.row_offsets[1:], strict=True)]


def size(piece):
    _, start, length, _ = piece
    return length + (start > 0)


def slow_best_fit(lengths, row_len):
    """Rows as sorted lists of piece sizes: each takes the longest piece in the pool that fits, again and again."""
    pool = []
    for length in lengths:
        pool.append(min(length, row_len))
        length -= row_len
        while length > 0:  # later pieces spend one place on an inserted BOS
            pool.append(min(length, row_len - 1) + 1)
            length -= row_len - 1
    rows = []
    while pool:
        row, free = [], row_len
        while fitting := [piece for piece in pool if piece <= free]:
            pool.remove(max(fitting))
            row.append(max(fitting))
            free -= max(fitting)
        rows.append(sorted(row))
    return sorted(rows)


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


@given(many_lengths, row_lens)
def test_rows_are_those_of_the_slow_best_fit(lengths, row_len):
    plan = plan_rows(lengths, row_len, seed=1)
    rows = [sorted(size(piece) for piece in row if not piece[3]) for row in pieces_of_rows(plan)]
    assert sorted(rows) == slow_best_fit(lengths, row_len)


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
        [(4, 0, 2, False), (0, 0, 6, True)],
        [(3, 0, 3, False), (1, 0, 5, False)],
        [(2, 0, 3, False), (0, 8, 3, False), (1, 0, 1, True)],
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


@given(st.integers(0, 200), row_lens)
def test_concat_windows_each_start_on_the_last_token_of_the_one_before(num_tokens, row_len):
    stream, expected, at = list(range(num_tokens)), [], 0
    while at + row_len <= len(stream):
        expected.append(at)
        at += row_len - 1
    assert plan_windows(num_tokens, row_len).tolist() == expected


@given(st.integers(0, 200), row_lens, st.integers(0, 3))
@settings(max_examples=50)
def test_random_windows_lie_within_the_stream_and_are_as_many(num_tokens, row_len, seed):
    starts = plan_windows(num_tokens, row_len, seed=(seed,))
    assert len(starts) == len(plan_windows(num_tokens, row_len))
    assert all(0 <= start <= num_tokens - row_len for start in starts)
    assert np.array_equal(starts, plan_windows(num_tokens, row_len, seed=(seed,)))


def test_random_windows_begin_anywhere():
    starts = plan_windows(5000, 11, seed=(0, 0, 0))
    assert len(set(starts.tolist())) > 400
    assert starts.min() < 100 < 4800 < starts.max()
