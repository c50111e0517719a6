"""The rows of one token set, against a slow reference, on any ranks and from any position; and what
that costs.
"""

import json
import warnings
from itertools import islice

import numpy as np
import pytest
from making import make_token_set, wait_until
from reference import PACKINGS, SEED, SEQ_LEN, cursor_of, reference_rows, rows_in

from tokenmill.feed import source as sources
from tokenmill.look.steps import RunRows
from tokenmill.numpy import RowLoader
from tokenmill.rows import windows as window_sizes
from tokenmill.rows.windows import WindowSize
from tokenmill.store.token_sets import TokenSet


def make_loader(path, batch_size=2, **settings):
    return RowLoader(path, batch_size=batch_size, **({"seq_len": SEQ_LEN, "seed": SEED} | settings))


def take(loader, calls):
    """The rows of the next batches."""
    return rows_in(islice(loader, calls))


# ---------------------------------------------------------------------------- which rows come


@pytest.mark.parametrize("settings", PACKINGS)
@pytest.mark.parametrize("split", ["train", "val"])
def test_rows_are_those_of_the_reference_over_several_epochs(token_set, windows, settings, split):
    loader = make_loader(token_set, split=split, **settings)
    assert take(loader, 40) == list(islice(reference_rows(token_set, split, **settings), 80))
    assert loader.epoch > 1


@pytest.mark.parametrize("settings", PACKINGS)
def test_ranks_deal_the_same_rows_and_resume_anywhere_as_others(token_set, windows, settings):
    expected = list(islice(reference_rows(token_set, **settings), 400))
    state = None
    done = 0
    for world_size, batch_size, calls in [
        (1, 1, 3),
        (3, 2, 5),
        (4, 1, 1),
        (2, 3, 7),
        (1, 64, 1),
        (8, 2, 4),
        (3, 1, 9),
    ]:
        ranks = [
            make_loader(
                token_set, batch_size, rank=r, world_size=world_size, prefetch=0, **settings
            )
            for r in range(world_size)
        ]
        for loader in ranks:
            if state is not None:
                loader.load_state_dict(state)
        for _ in range(calls):
            dealt = rows_in(map(next, ranks))
            assert dealt == expected[done : done + len(dealt)]
            done += len(dealt)
        state = json.loads(json.dumps(ranks[-1].state_dict()))
        assert all(loader.state_dict() == state for loader in ranks)


def test_a_skip_leaves_out_the_next_batches_and_counts_no_step(token_set, windows):
    expected = list(islice(reference_rows(token_set), 80))
    ranks = [make_loader(token_set, 1, rank=rank, world_size=2) for rank in range(2)]
    assert rows_in(map(next, ranks)) == expected[:2]
    for loader in ranks:
        loader.skip(3)
        assert (loader.step, loader.tokens_seen) == (1, 2 * SEQ_LEN)
    assert rows_in(map(next, 20 * ranks)) == expected[8:48]
    resumed = make_loader(token_set)
    resumed.load_state_dict(ranks[0].state_dict())
    assert take(resumed, 5) == expected[48:58]
    assert resumed.step == 26
    with pytest.raises(ValueError, match=r"skip\(1000\): only \d+ batches are left"):
        make_loader(token_set, epochs=1).skip(1000)


@pytest.mark.parametrize("packing", ["concat", "random"])
def test_rows_that_cut_the_stream_change_their_length_between_epochs_alone(token_set, packing):
    loader = make_loader(token_set, 1, packing=packing)
    take(loader, 3)
    longer = make_loader(token_set, 1, packing=packing, seq_len=20)
    with pytest.raises(ValueError, match="cannot change .*within an epoch.* set_epoch"):
        longer.load_state_dict(loader.state_dict())
    loader.set_epoch(2)
    longer.load_state_dict(loader.state_dict())
    fresh = make_loader(token_set, 1, packing=packing, seq_len=20)
    fresh.set_epoch(2)
    assert take(longer, 9) == take(fresh, 9)


# ---------------------------------------------------------------------------- a fair sample


@pytest.mark.parametrize("packing", ["best_fit", "concat", "random"])
@pytest.mark.parametrize("size", [WindowSize(), WindowSize(slice=128, window=16_384)])
def test_a_batch_has_documents_of_as_many_files_as_random_draws_would(
    tmp_path, monkeypatch, packing, size
):
    monkeypatch.setattr(window_sizes, "DEFAULT_WINDOW_SIZE", size)
    rng = np.random.default_rng(0)
    folder = make_token_set(
        tmp_path / "set", train=[rng.integers(2, 60, 120).tolist() for _ in range(20)], val=[[9]]
    )
    loader = make_loader(folder, 32, packing=packing)
    touched = []
    drawn = []
    take(loader, 40)
    for step in range(40):
        rows = RunRows.of_position(loader.state_dict(), {"": TokenSet(folder)}).step(step)
        most = None if packing == "best_fit" else 1
        files = []
        for row in rows:
            pieces = row.pieces[:most]
            files += [piece.shard.entry.name for piece in pieces if not piece.filler]
        touched.append(len(set(files)))
        drawn.append(len(set(rng.integers(20, size=len(files)).tolist())))
    assert np.mean(touched) > 0.95 * np.mean(drawn)


# ---------------------------------------------------------------------------- files and memory


def test_the_next_window_is_planned_while_one_is_read_and_no_other(
    tmp_path, small_windows, monkeypatch
):
    planned = []
    plan = sources.plan_window
    monkeypatch.setattr(
        sources, "plan_window", lambda *given: planned.append(given[3]) or plan(*given)
    )
    loader = make_loader(make_token_set(tmp_path / "set", train=[[17] * 200] * 3, val=[[9]]), 1)
    while cursor_of(loader.state_dict()).row < 2:
        next(loader)
    wait_until(lambda: len(planned) == 2)
    assert [window for _, _, window in planned] == [0, 1]


def test_too_little_text_for_rows_or_for_a_batch_is_a_warning_with_the_figures(tmp_path):
    folder = make_token_set(tmp_path / "set", train=[[30] * 4], val=[[9]])
    with pytest.warns(
        UserWarning,
        match=r"epoch of train has 1 row of 1,000 \+ 1 tokens, 88% of them filler; a glo",
    ):
        next(RowLoader(folder, batch_size=1, seq_len=1000, prefetch=0))
    with pytest.warns(
        UserWarning,
        match=r"has 4 rows of 29 \+ 1 tokens, 0% of them filler; a global batch takes 8",
    ):
        next(RowLoader(folder, batch_size=4, world_size=2, rank=0, seq_len=29, prefetch=0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(RowLoader(folder, batch_size=2, seq_len=29, prefetch=0))
        list(RowLoader(folder, batch_size=8, seq_len=29, prefetch=0, epochs=1, drop_last=False))
