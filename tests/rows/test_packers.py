"""Whenever the length of rows changes within a window, every token of it is dealt once, filler apart."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokenmill.rows.concat import inputs_of
from tokenmill.rows.packers import BestFit, Concat, Past, Random, count_window, joined, plan_window
from tokenmill.rows.packing import Stretches
from tokenmill.rows.windows import Epoch, WindowSize

shards = st.lists(st.lists(st.integers(1, 40), max_size=12), min_size=1, max_size=4)
# how rows go: their length, the share of them that is dealt, and of what is left the first ones that are skipped
stages = st.lists(st.tuples(st.integers(2, 24), st.floats(0, 1), st.integers(0, 2)), max_size=4)


def dealt_by(packer, plan, rows):
    """What of the documents these rows have: (document, token) of each, filler apart."""
    if isinstance(packer, Concat):
        return [(d, s + i) for d, s, n in zip(*inputs_of(plan, rows), strict=True) for i in range(n)]
    pieces = np.flatnonzero(~plan.filler & np.isin(row_of_pieces(plan), rows))
    return [(plan.document[p], plan.start[p] + i) for p in pieces for i in range(plan.length[p])]


def row_of_pieces(plan):
    return np.repeat(np.arange(plan.num_rows), np.diff(plan.row_offsets))


def packers(lengths):
    tokens = [sum(shard) for shard in lengths]
    window = Epoch(tokens, (7, "", 0), WindowSize(slice=16, window=1000)).window(0)
    documents = np.array(sum(lengths, []), dtype=np.int64)
    return BestFit(documents, "split"), Concat(window, np.array(tokens), True), Concat(window, np.array(tokens), False)


@given(shards, stages, st.integers(2, 24), st.integers(0, 3))
@settings(max_examples=300)
def test_every_token_is_dealt_once_over_any_changes_of_the_length_of_rows(lengths, stages, last, seed):
    for packer in packers(lengths):
        first = plan_window(packer, stages[0][0] if stages else last, (seed,))
        expected = sorted(dealt_by(packer, first, np.arange(first.num_rows)))
        past, dealt = [], []
        for row_len, share, skipped in stages:
            plan = plan_window(packer, row_len, (seed,), past)
            assert plan.num_rows == count_window(packer, row_len, (seed,), past)
            count = int(plan.num_rows * share)
            gone = range(count, min(count + skipped, plan.num_rows))
            dealt += dealt_by(
                packer, plan, np.arange(gone.stop if gone else count)
            )  # skipped: never dealt again either
            past.append(Past(row_len, count, (gone,) if gone else ()))
        plan = plan_window(packer, last, (seed,), past)
        assert plan.num_rows == count_window(packer, last, (seed,), past)
        if plan.num_rows:
            sizes = plan.length + plan.bos
            assert (np.add.reduceat(sizes, plan.row_offsets[:-1]) == last).all()
        assert sorted(dealt + dealt_by(packer, plan, np.arange(plan.num_rows))) == expected


@given(shards, stages, st.integers(2, 24))
def test_crop_deals_the_beginning_of_every_document_once(lengths, stages, last):
    packer = BestFit(np.array(sum(lengths, []), dtype=np.int64), "crop", order_version=1)
    past, dealt = [], []
    for row_len, share, _ in [*stages, (last, 1, 0)]:
        plan = plan_window(packer, row_len, (0,), past)
        rows = np.arange(int(plan.num_rows * share))
        kept = ~plan.filler & np.isin(row_of_pieces(plan), rows)
        assert (plan.start[kept] == 0).all()
        assert (plan.length[kept] == np.minimum(packer.lengths[plan.document[kept]], row_len)).all()
        dealt += plan.document[kept].tolist()
        past.append(Past(row_len, len(rows)))
    assert sorted(dealt) == list(range(len(packer.lengths)))


@given(shards, stages, st.integers(2, 24))
@example([[9, 9, 9, 9]], [(14, 0.5, 0), (8, 0.0, 0)], 18)
@example([[20] * 31], [(35, 0.1, 0), (29, 0.6, 0), (32, 0.5, 0), (13, 0.05, 0)], 25)
def test_crop_deals_no_token_twice_where_documents_are_cut_to_fill_gaps(lengths, stages, last):
    packer = BestFit(np.array(sum(lengths, []), dtype=np.int64), "crop")
    past, dealt = [], [np.zeros(length, int) for length in packer.lengths]
    for row_len, share, _ in [*stages, (last, 1, 0)]:
        plan = plan_window(packer, row_len, (0,), past)
        rows = np.arange(int(plan.num_rows * share))
        kept = np.flatnonzero(~plan.filler & np.isin(row_of_pieces(plan), rows))
        for document, start, length in zip(plan.document[kept], plan.start[kept], plan.length[kept], strict=True):
            dealt[document][start : start + length] += 1
        past.append(Past(row_len, len(rows)))
    shortest = min([last, *(row_len for row_len, *_ in stages)])
    assert all((count[:shortest] == 1).all() and (count <= 1).all() for count in dealt)


@given(shards, stages, st.integers(2, 24))
def test_random_has_the_share_that_is_left(lengths, stages, last):
    tokens = [sum(shard) for shard in lengths]
    packer = Random(Epoch(tokens, (7, "", 0), WindowSize(16, 1000)).window(0), np.array(tokens))
    past, left = [], 1.0
    for row_len, share, _ in stages:
        plan = plan_window(packer, row_len, (0,), past)
        count = int(plan.num_rows * share)
        left *= (plan.num_rows - count) / max(1, plan.num_rows)
        past.append(Past(row_len, count))
    whole, found = packer.count(last, (0,), None), plan_window(packer, last, (0,), past).num_rows
    assert found == count_window(packer, last, (0,), past)
    assert abs(found - whole * left) <= 1


def test_a_past_of_rows_that_there_are_not_is_refused():
    packer = BestFit(np.array([5, 5]), "split")
    with pytest.raises(ValueError, match=r"no such row: a window of 2 rows of 7 \+ 1, row 2"):
        plan_window(packer, 8, (0,), [Past(8, 3)])


def test_stretches_that_touch_are_joined():
    stretches = Stretches(*np.array([[1, 0, 0, 1, 0], [5, 4, 0, 0, 9], [2, 3, 4, 5, 1]]))
    assert [column.tolist() for column in joined(stretches)] == [[0, 0, 1], [0, 9, 0], [7, 1, 7]]
