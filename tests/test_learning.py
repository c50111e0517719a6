"""benchmarks/learning.py: each variant's rows, against their documents, and a run."""

import json
import sys
from collections import Counter

import numpy as np
import pytest
from making import BOS, ROOT, make_token_set

sys.path.insert(0, str(ROOT / "benchmarks"))

import learning
import learning_model
from learning_rows import VARIANTS, Text, make_rows

ROW_LEN = 33
KEEPS_ALL = ("best_fit", "previous", "unlearned_1", "unlearned_16", "unlearned_64", "context")


@pytest.fixture(scope="module")
def text():
    """Documents whose tokens are all different, but for BOS."""
    lengths = np.random.default_rng(0).integers(2, 120, 3_000)
    stream = np.arange(1, lengths.sum() + 1)
    stream[np.cumsum(lengths) - lengths] = BOS
    return Text(stream, lengths, BOS, len(stream) + 1)


def rows_of(variant, text, seed=0):
    return make_rows(variant, text, row_len=ROW_LEN, need=None, epochs=1, seed=seed)


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_hold_spans_of_documents(variant, text):
    rows = rows_of(variant, text)
    after = rows.tokens[:, 1:]
    before = rows.tokens[:, :-1]
    is_next = after == before + 1
    begins = (BOS, text.vocab_size) if variant == "marker" else (BOS,)
    joins = ~is_next & ~np.isin(after, begins) & ~np.isin(before, begins)
    if variant != "previous":
        first = rows.tokens[:, 0]
        assert variant in ("concat", "random") or np.isin(first, begins).all()
        assert not joins.any(), "a span ends where BOS is"
    else:
        assert joins.any(), "a piece follows another without BOS"


@pytest.mark.parametrize("variant", KEEPS_ALL)
def test_nothing_is_dropped(variant, text):
    rows = rows_of(variant, text)
    assert set(rows.tokens.ravel().tolist()) == set(text.stream.tolist())


@pytest.mark.parametrize("variant", ["nanochat", "concat", "crop", "two_pieces"])
def test_no_token_comes_twice_but_filler_and_shared_ends(variant, text):
    rows = rows_of(variant, text)
    inputs = rows.tokens[:, :-1]
    counts = Counter(inputs[inputs != BOS].tolist())
    twice = sum(count - 1 for count in counts.values())
    assert twice <= 0.03 * inputs.size


def test_the_token_before_a_piece_stands_in_place_of_the_inserted_bos(text):
    inserted = rows_of("best_fit", text).tokens
    marked = rows_of("marker", text).tokens
    previous = rows_of("previous", text).tokens
    row, place = np.nonzero(inserted != previous)
    assert len(row) > 100
    assert (inserted[row, place] == BOS).all()
    assert (marked[row, place] == text.vocab_size).all()
    assert (marked == inserted).sum() == (previous == inserted).sum()
    followed = place < ROW_LEN - 1
    after = inserted[row[followed], place[followed] + 1]
    assert (previous[row[followed], place[followed]] == after - 1).all()


@pytest.mark.parametrize("most", [1, 16, 64])
def test_targets_after_an_inserted_bos_are_not_in_the_loss(text, most):
    rows = rows_of(f"unlearned_{most}", text)
    begins = set(text.stream[np.cumsum(text.lengths) - text.lengths + 1].tolist())
    for tokens, in_loss in zip(rows.tokens.tolist(), rows.in_loss.tolist(), strict=True):
        since = most  # targets since an inserted BOS
        for place, target in enumerate(tokens[1:]):
            if tokens[place] == BOS:
                since = most if target in begins else 0
            assert in_loss[place] == (since >= most or target == BOS)
            since += 1


def test_a_context_is_of_the_piece_before_and_not_in_the_loss(text):
    rows = rows_of("context", text)
    counted = rows.tokens[:, 1:][rows.in_loss]
    counts = Counter(counted[counted != BOS].tolist())
    inside = set(text.stream[text.stream != BOS].tolist())
    assert counts.keys() == inside, "each is in the loss"
    assert sum(counts.values()) <= 1.03 * len(inside), "once, but for filler"
    assert not rows.in_loss.all()


def test_pieces_have_numbers(text):
    rows = rows_of("best_fit", text)
    begins = rows.tokens[:, :-1] == BOS
    np.testing.assert_array_equal(rows.piece, np.cumsum(begins, axis=1) - 1)


def test_windows_count_every_target_once(text):
    windows = learning_model.windows_of(text, seq_len=16, most=50)
    counted = Counter()
    for window, first in windows:
        assert len(window) <= 17
        counted.update(window[first + 1 :].tolist())
    documents = np.split(text.stream, np.cumsum(text.lengths))[:50]
    # a window's last half may be short of one target: those of less than two windows
    expected = Counter(np.concatenate([document[1:] for document in documents]).tolist())
    assert counted == expected


@pytest.mark.slow
def test_a_small_run_adds_what_is_missing_and_the_table_pairs_seeds(tmp_path, capsys, monkeypatch):
    tiny = learning.SMALL._replace(width=16, seq_len=32, batch_size=4)
    monkeypatch.setattr(learning, "SMALL", tiny)
    rng = np.random.default_rng(1)
    train = [rng.integers(2, 900, 700).tolist() for _ in range(2)]
    tokens = make_token_set(tmp_path / "set", train=train, val=[[5, 400, 700]], vocab=500)
    results = tmp_path / "results.jsonl"

    def run(*variants):
        options = ["--small", "--steps", "2", "--seeds", "2", "--out", str(results)]
        line = [str(tokens), *options, "--regimes", "fresh", "--variants", *variants]
        learning.main(line)

    run("best_fit")
    run("best_fit", "previous")
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert len(lines) == 4, "best_fit was not run again"
    assert all(line["steps"] == 2 and 5 < line["whole"] < 8 for line in lines)
    learning.main(["--table", str(results)])
    by_run = {(line["variant"], line["seed"]): line["whole"] for line in lines}
    gaps = [by_run["previous", seed] - by_run["best_fit", seed] for seed in (0, 1)]
    gap = sum(gaps) / 2
    error = abs(gaps[0] - gaps[1]) / 2
    assert f"{gap:+.4f} ± {error:.4f}" in capsys.readouterr().out
