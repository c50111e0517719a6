"""Packing, against its rule done slowly, and what holds of the rows of any documents."""

from itertools import chain, combinations, count

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokenmill.rows.donors import MOST_FILLER
from tokenmill.rows.order import random_bits, random_digits
from tokenmill.rows.packing import count_rows, plan_rows

many_alike = st.tuples(st.integers(5, 30), st.integers(0, 3), st.integers(0, 300)).map(
    lambda drawn: [drawn[0] + i % (drawn[1] + 1) for i in range(drawn[2])]
)
some_lengths = st.one_of(
    st.lists(st.integers(1, 60), max_size=60), st.lists(st.integers(1, 4), max_size=200), many_alike
)
row_lens = st.integers(2, 40)
seeds = st.tuples(st.integers(0, 3))
WAYS = [("split", False), ("crop", False), ("crop", True), ("drop", True)]  # long_documents, whole


def rows_of(plan):
    """Rows as lists of (document, start, length, filler)."""
    columns = (plan.document, plan.start, plan.length, plan.filler)
    pieces = list(zip(*(column.tolist() for column in columns), strict=True))
    return [pieces[a:b] for a, b in zip(plan.row_offsets[:-1], plan.row_offsets[1:], strict=True)]


def size(piece):
    """The tokens of a piece in its row, an inserted BOS included."""
    return piece[2] + (piece[1] > 0)


def sizes_of(plan):
    """Rows as lists of sizes, without filler."""
    rows = []
    for row in rows_of(plan):
        rows.append([size(piece) for piece in row if not piece[3]])
    return rows


def like_fineweb(documents, seed=0):
    """Lengths like FineWeb-Edu's."""
    rng = np.random.default_rng(seed)
    return (50 + rng.lognormal(np.log(990) - 1.132**2 / 2, 1.132, documents)).astype(int)


@pytest.mark.parametrize(("long_documents", "whole"), WAYS)
@given(some_lengths, row_lens, seeds)
def test_every_token_that_is_kept_is_in_one_piece_and_rows_are_full(
    long_documents, whole, lengths, row_len, seed
):
    plan = plan_rows(lengths, row_len, long_documents=long_documents, seed=seed, keep_whole=whole)
    seen = [np.zeros(length, int) for length in lengths]
    for row in rows_of(plan):
        assert sum(map(size, row)) == row_len
        assert [piece[3] for piece in row] == sorted(piece[3] for piece in row), (
            "filler and padding come last"
        )
        for document, start, length, filler in row:
            assert start >= 0 < length, "a piece begins with its document's BOS, or an inserted one"
            if not filler:
                seen[document][start : start + length] += 1
    for length, times in zip(lengths, seen, strict=True):
        kept = {
            "split": length,
            "crop": min(length, row_len),
            "drop": length if length <= row_len else 0,
        }
        assert times.tolist() == [1] * kept[long_documents] + [0] * (length - kept[long_documents])
    assert np.array_equal(plan.bos, plan.start > 0)
    again = plan_rows(
        np.array(lengths, int), row_len, long_documents=long_documents, seed=seed, keep_whole=whole
    )
    assert rows_of(again) == rows_of(plan), "a plan is a pure function of its arguments"
    assert plan.num_rows == count_rows(
        lengths, row_len, long_documents=long_documents, seed=seed, keep_whole=whole
    )


@pytest.mark.parametrize("long_documents", ["split", "crop"])
@given(some_lengths, row_lens)
def test_filler_is_the_beginning_of_a_document_that_is_not_in_the_row_if_there_is_one(
    long_documents, lengths, row_len
):
    for row in rows_of(plan_rows(lengths, row_len, long_documents=long_documents, seed=(2,))):
        documents = [piece[0] for piece in row]
        for document, start, length, is_filler in row:
            if is_filler:
                assert start == 0 < length <= lengths[document]
                assert documents.count(document) == 1 or set(documents) == set(range(len(lengths)))


def slow_best_fit(pool, row_len, seed):
    """Rows as lists of sizes: each takes the longest piece (or bundle) in the pool that fits, again
    and again.

    If sizes have few pieces, the second pick is drawn from about the 24 longest that fit. If they
    have many, the same row is made again for as long as there are pieces for it.
    """
    luck = chain.from_iterable(random_bits(4096, "close", n, *seed).tolist() for n in count())
    rows = [[row_len]] * pool.count(row_len)
    pool = [piece for piece in pool if piece < row_len]
    while pool:
        row = []
        free = row_len
        close = 24 * len(set(pool)) // len(pool)
        drawn = next(luck) if close > 1 else None
        while fitting := sorted({piece for piece in pool if piece <= free}, reverse=True):
            second = len(row) == 1 and close > 1
            pick = fitting[min(drawn % close, len(fitting) - 1)] if second else fitting[0]
            pool.remove(pick)
            row.append(pick)
            free -= pick
        rows.append(row)
        while close <= 1 and all(pool.count(piece) >= row.count(piece) for piece in row):
            for piece in row:
                pool.remove(piece)
            rows.append(row)
    return rows


def slow_bundles(sizes, row_len, seed):
    """Pieces in lists: the long ones and a few short ones alone, the other short ones one after the
    other.
    """
    short = [i for i, size in enumerate(sizes) if size <= row_len // 4]
    digits = random_digits(len(short), "short", *seed).tolist()
    short = [i for _, _, i in sorted(zip(digits, range(len(short)), short, strict=True))]
    rows = sum(sizes) // row_len
    alone = min(len(short), rows, max(len(short) // 5, rows // 8))
    bundles = [[size] for size in sizes if size > row_len // 4] + [
        [sizes[i]] for i in short[:alone]
    ]
    joined = [sizes[i] for i in short[alone:]]
    least = max(1, row_len // 8)
    end = 0
    bound = 0
    last = None
    drawn = iter(random_bits(sum(joined) // least + 1, "bundles", *seed).tolist())
    for size in joined:
        end += size
        if end > bound:
            last = []
            bundles.append(last)
        while end > bound:
            bound += least + next(drawn) % (3 * least)
        last.append(size)
    return bundles


def slow_donors(free, row_len):
    """How many of the emptiest rows are given up: the fewest that leave little filler, else as many
    as fit.
    """
    possible = 0
    if sum(free) * 100 <= len(free) * row_len * MOST_FILLER:
        return 0
    for donors in range(1, len(free)):
        content = sum(row_len - gap for gap in free[:donors])
        gaps = free[donors:]
        while content > 0 and gaps:
            content -= max(0, gaps.pop(0) - 1)
        if content > 0:
            continue
        possible = donors
        if (sum(gaps) - content) * 100 <= (len(free) - donors) * row_len * MOST_FILLER:
            return donors
    return possible


def slow_pieces(lengths, row_len):
    """The sizes of the pieces of documents; all but a document's first have an inserted BOS."""
    fillers = []
    for length in lengths:
        fillers.append(min(length, row_len))
        for left in range(length - row_len, 0, 1 - row_len):
            fillers.append(min(left, row_len - 1) + 1)
    return fillers


@given(some_lengths, row_lens, seeds)
@example([3, 3, 3, 1], 7, (0,))
def test_rows_are_the_slow_best_fit_of_bundles_and_then_cut(lengths, row_len, seed):
    plan = plan_rows(lengths, row_len, seed=seed)
    pieces = slow_pieces(lengths, row_len)
    packed = slow_best_fit(
        [sum(bundle) for bundle in slow_bundles(pieces, row_len, seed)], row_len, seed
    )
    free = sorted((row_len - sum(row) for row in packed), reverse=True)
    donors = slow_donors(free, row_len)
    assert plan.num_rows == len(packed) - donors
    kept = sizes_of(plan)
    if not donors:
        assert sorted(map(sum, kept)) == sorted(map(sum, packed))
        assert sorted(sum(kept, [])) == sorted(pieces)
    else:
        assert sum(free[donors:]) >= sum(row_len - sum(row) for row in kept)


@given(st.lists(st.integers(1, 40), max_size=60), row_lens, seeds)
def test_whole_documents_are_the_slow_best_fit_with_or_without_bundles(lengths, row_len, seed):
    fitting = [length for length in lengths if length <= row_len]
    bundled = slow_best_fit(
        [sum(bundle) for bundle in slow_bundles(fitting, row_len, seed)], row_len, seed
    )
    alone = slow_best_fit(list(fitting), row_len, seed)
    plan = plan_rows(lengths, row_len, long_documents="drop", seed=seed, keep_whole=True)
    expected = min(bundled, alone, key=len)
    assert sorted(map(sum, sizes_of(plan))) == sorted(map(sum, expected))


@pytest.mark.parametrize("row_len", [2049, 8193])
def test_pairs_that_share_a_row_seldom_share_one_in_the_next_epoch(row_len):
    plans = [plan_rows(like_fineweb(20_000), row_len, seed=(1337, epoch, 0)) for epoch in (0, 1)]
    pairs = [set(), set()]
    for plan, in_plan in zip(plans, pairs, strict=True):
        for row in rows_of(plan):
            in_plan.update(combinations(sorted(p[0] for p in row if not p[3]), 2))
    assert len(pairs[0] & pairs[1]) < 0.01 * len(pairs[0]), "without bundles 20 and 43%"


def test_length_says_nothing_about_the_place_of_a_row_or_a_piece():
    lengths = (20 + np.random.default_rng(0).lognormal(4, 1, 20_000)).astype(int)
    plan = plan_rows(lengths, 513, seed=(0,))
    row = np.repeat(np.arange(plan.num_rows), np.diff(plan.row_offsets))
    place = np.arange(len(row)) - plan.row_offsets[row]
    kept = ~plan.filler
    of_four = np.isin(row, np.flatnonzero(np.bincount(row[kept]) == 4)) & kept
    assert abs(np.corrcoef(row[kept], lengths[plan.document[kept]])[0, 1]) < 0.02
    assert abs(np.corrcoef(place[of_four], plan.length[of_four])[0, 1]) < 0.05


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": [3], "row_len": 1}, "row_len must be at least 2"),
        ({"lengths": [3, 0], "row_len": 4}, "at least 1"),
        ({"lengths": [3], "row_len": 4, "long_documents": "drop"}, "long_documents must be one of"),
        ({"lengths": [5, 9, 30], "row_len": 8, "keep_whole": True}, r"longer than a row, 7 \+ 1"),
    ],
)
def test_what_cannot_be_packed_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        plan_rows(**arguments, seed=(0,))
