"""The rows of a window, also after parts of it were used as rows of other lengths: no token is lost
or comes twice.
"""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokenmill.rows.plan import Content, Packing, count_window, plan_window
from tokenmill.rows.windows import WindowSize, epoch_of_shards

many_lengths = st.lists(st.integers(1, 40), max_size=30)
stages = st.lists(
    st.tuples(st.integers(1, 23), st.floats(0, 1)), max_size=4
)  # the seq_len, and which share is used
last_lens = st.integers(1, 23)
SPLIT = Packing("best_fit", "split")
CROP = Packing("best_fit", "crop")


def content_of(lengths, first_target=None):
    slices = epoch_of_shards([sum(lengths)], (7, "", 0), WindowSize(16, 1000)).window(0)
    return Content(np.array(lengths, np.int64), slices, np.array([sum(lengths)]), first_target)


def used_rows(packing, content, stages, seed=(0,)):
    """The pieces of each stage's rows that are used, the last stage's all: (row_len, [(document,
    start, length)]).
    """
    past = []
    for seq_len, share in stages:
        plan = plan_window(packing, content, seq_len, seed, past)
        assert plan.num_rows == count_window(packing, content, seq_len, seed, past)
        sizes = (
            np.add.reduceat(plan.length + plan.bos, plan.row_offsets[:-1])
            if plan.num_rows
            else np.array([])
        )
        assert (sizes == seq_len + 1).all()
        assert np.array_equal(plan.bos, plan.start > 0)
        assert plan.length.all(), "no BOS without a token of its document"
        used = int(plan.num_rows * share)
        pieces = np.flatnonzero(~plan.filler[: plan.row_offsets[used]])
        columns = (plan.document[pieces], plan.start[pieces], plan.length[pieces])
        yield seq_len + 1, list(zip(*(column.tolist() for column in columns), strict=True))
        past.append((seq_len, used))


def counted(content, stages_used):
    """How often each token of each document was used."""
    times_seen = [np.zeros(length, int) for length in content.lengths]
    for _, pieces in stages_used:
        for document, start, length in pieces:
            times_seen[document][start : start + length] += 1
    return times_seen


@given(many_lengths, stages, last_lens, st.integers(0, 3))
@example([9, 9, 9, 9], [(13, 0.5), (7, 0.0)], 17, 0)
@settings(max_examples=60)
def test_every_token_is_used_once_over_any_changes_of_the_row_length(lengths, stages, last, seed):
    content = content_of(lengths)
    used = used_rows(SPLIT, content, [*stages, (last, 1)], (seed,))
    assert all((count == 1).all() for count in counted(content, used))


@given(many_lengths, stages, last_lens)
@example([9, 9, 9, 9], [(13, 0.5), (7, 0.0)], 17)
@example([20] * 31, [(34, 0.1), (28, 0.6), (31, 0.5), (12, 0.05)], 24)
@settings(max_examples=40)
def test_crop_uses_the_beginning_of_every_document_once_and_no_token_twice(lengths, stages, last):
    content = content_of(lengths)
    shortest = 1 + min(
        [last, *(seq_len for seq_len, share in stages if share)]
    )  # what is unused is whole again
    for count in counted(content, used_rows(CROP, content, [*stages, (last, 1)])):
        assert (count[:shortest] == 1).all()
        assert (count <= 1).all()


@pytest.mark.parametrize("long_documents", ["crop", "drop"])
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 50)), max_size=30), stages, last_lens)
@settings(max_examples=40)
def test_a_whole_document_is_used_once_if_it_fits_and_a_target_of_it_is_kept(
    long_documents, documents, stages, last
):
    lengths = [length for length, _ in documents]
    content = content_of(lengths, np.array([target for _, target in documents], np.int64))
    times = [0] * len(lengths)
    for row_len, pieces in used_rows(
        Packing("best_fit", long_documents, keep_whole=True), content, [*stages, (last, 1)]
    ):
        for document, start, length in pieces:
            assert (start, length) == (0, min(lengths[document], row_len)), "never cut but by crop"
            assert documents[document][1] < row_len, "a row of it would have no target"
            assert long_documents == "crop" or lengths[document] <= row_len
            times[document] += 1
    fits = [
        target <= last and (length <= last + 1 or long_documents == "crop")
        for length, target in documents
    ]
    assert max(times, default=0) <= 1
    assert all(was_found for was_found, fit in zip(times, fits, strict=True) if fit), (
        "what fits at the end is not lost"
    )


def test_a_past_of_rows_that_do_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"no such row: a window of 2 rows of 7 \+ 1, row 2"):
        plan_window(SPLIT, content_of([5, 5]), 8, (0,), [(7, 3)])


@pytest.mark.parametrize("function", [plan_window, count_window])
def test_what_has_no_plan_is_refused(function):
    with pytest.raises(ValueError, match="rows of 'nanochat' have no plan"):
        function(Packing("nanochat"), content_of([5, 5]), 8, (0,))
    for name in ("concat", "random"):
        with pytest.raises(ValueError, match=f"the row length of '{name}' cannot change"):
            function(Packing(name), content_of([5, 5]), 8, (0,), [(7, 1)])
