"""The figures of packings are those of a slow count, piece by piece; and what the project promises
is in them.
"""

from itertools import chain, count, cycle, groupby, islice, pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from reference import nanochat_row
from stream_rows import starts

from tokenmill.look import packing_stats
from tokenmill.look.packing_stats import Tally, tally, variants
from tokenmill.rows.donors import MOST_FILLER, DonorsAndReceivers
from tokenmill.rows.packing import plan_rows

PACKINGS = list(variants())
PLANNED = [packing for packing in PACKINGS if packing != "nanochat"]
lengths_lists = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def rows_of(packing, lengths, row_len, seed):
    """Every row as a list of (document, start, length, filler)."""
    if packing in ("best_fit", "crop"):
        long_documents = "crop" if packing == "crop" else "split"
        plan = plan_rows(lengths, row_len, long_documents=long_documents, seed=seed)
        pieces = list(
            zip(
                plan.document.tolist(),
                plan.start.tolist(),
                plan.length.tolist(),
                plan.filler.tolist(),
                strict=True,
            )
        )
        return [pieces[begin:end] for begin, end in pairwise(plan.row_offsets)]
    stream = []
    for document, length in enumerate(lengths):
        stream += [(document, place) for place in range(length)]
    rows = []
    for start in starts(len(stream), row_len, seed if packing == "random" else None):
        row = []
        for document, place in stream[start : start + row_len]:
            if row and row[-1][0] == document:
                row[-1] = (document, row[-1][1], row[-1][2] + 1, False)
            else:
                row.append((document, place, 1, False))
        rows.append(row)
    return rows


def slow_tally(packing, lengths, row_len, seed):
    rows = rows_of(packing, lengths, row_len, seed)
    kept = set()
    unbroken = set()
    in_row = headed = 0
    for document, start, length, filler in chain(*rows):
        in_row += length
        if start == 0:
            headed += length
        if filler:
            continue
        kept.update((document, place) for place in range(start, start + length))
        if length == lengths[document]:
            unbroken.add(document)
    shared = len(rows) - 1 if packing == "concat" and rows else 0
    short = [document for document, length in enumerate(lengths) if length <= row_len]
    inside = sum(row[0][1] > 0 for row in rows)  # in best_fit, such a piece has an inserted BOS
    return Tally(
        tokens=sum(lengths),
        kept=len(kept),
        row_tokens=len(rows) * row_len,
        repeated=in_row - len(kept) - shared,
        headed=headed,
        rows=len(rows),
        at_start=len(rows) - inside,
        inserted=inside if packing in ("best_fit", "crop") else 0,
        short=len(short),
        short_cut=sum(document not in unbroken for document in short),
        tokens_of_cut=sum(lengths) - sum(lengths[document] for document in unbroken),
    )


@given(
    st.lists(lengths_lists, min_size=1, max_size=3),
    st.integers(2, 24),
    st.sampled_from(PLANNED),
    st.integers(0, 3),
)
def test_a_tally_is_what_a_slow_count_finds(shards, row_len, packing, seed):
    together = shards
    if packing in ("best_fit", "crop"):
        together = [sum(shards, [])]  # all of them are one window
    expected = Tally()
    for number, lengths in enumerate(together):
        expected += slow_tally(packing, lengths, row_len, (seed, 0, number))
    assert tally(variants()[packing], [np.array(s) for s in shards], row_len, seed) == expected


def slow_nanochat(lengths, row_len, settled, measured):
    """Of rows whose tokens say the number and the length of their document."""
    numbers = count()

    def refills():
        stream = cycle(lengths)
        while True:
            yield [[(next(numbers), length)] * length for length in islice(stream, 128)]

    stream = refills()
    buffer = []
    taken = []
    picked = rows = 0
    while len(taken) < measured:
        row = nanochat_row(buffer, stream, row_len)
        pieces = [(length, len([*tokens])) for (_, length), tokens in groupby(row)]
        picked += len(pieces)
        if picked > settled:
            rows += 1
            taken += pieces
    short = [(length, kept) for length, kept in taken if length <= row_len]
    kept = sum(kept for _, kept in taken)
    return Tally(
        tokens=sum(length for length, _ in taken),
        kept=kept,
        row_tokens=kept,
        headed=kept,
        rows=rows,
        at_start=rows,
        short=len(short),
        short_cut=sum(kept < length for length, kept in short),
        tokens_of_cut=sum(length for length, kept in taken if kept < length),
    )


@pytest.mark.parametrize("row_len", [7, 33])
def test_nanochat_s_tally_is_that_of_a_slow_buffer(row_len, monkeypatch):
    monkeypatch.setattr(packing_stats, "NANOCHAT_SETTLED", 900)
    monkeypatch.setattr(packing_stats, "NANOCHAT_MEASURED", 300)
    lengths = np.random.default_rng(0).integers(1, 50, 200)
    measured = tally(variants()["nanochat"], [lengths[:90], lengths[90:]], row_len)
    assert measured == slow_nanochat(lengths.tolist(), row_len, 900, 300)


def filler_without_cuts(lengths, row_len):
    """The filler of rows in which no document is cut that fits into one."""
    nobody = lambda free, row_len: DonorsAndReceivers(free[:0], free[:0])  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenmill.rows.packing.choose_rows", nobody)
        plan = plan_rows(lengths, row_len, seed=(0, 0, 0))
    return packing_stats._of_documents(plan, np.array(lengths)).filler


@given(lengths_lists, st.integers(2, 24))
@example([1, 1, 1, 1, 1, 3, 5, 6, 10, 14, 40, 1, 1, 1, 2, 7, 38], 20)
def test_best_fit_keeps_its_promises(lengths, row_len):
    best_fit = tally(variants()["best_fit"], [np.array(lengths)], row_len)
    assert (best_fit.dropped, best_fit.at_start + best_fit.inserted) == (0, best_fit.rows)
    assert not best_fit.cut or filler_without_cuts(lengths, row_len) > MOST_FILLER / 100
