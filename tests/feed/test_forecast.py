"""A forecast is what a run takes: as many tokens of each source, stage by stage, and as many epochs."""

import numpy as np
import pytest
from making import make_token_set

from tokenmill import Mixture, forecast
from tokenmill.numpy import RowLoader

SIZES = {"web": 30_000, "code": 6_000, "math": 1_500}
STAGES = [(0, {"web": 6, "code": 3, "math": 1}), (20_000, {"web": 1, "code": 1, "math": 2})]


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Token sets of these sizes."""
    folder = tmp_path_factory.mktemp("sizes")
    for number, (name, size) in enumerate(SIZES.items()):
        lengths = np.random.default_rng(number).integers(2, 60, size // 35).tolist()
        lengths.append(size - sum(lengths))
        make_token_set(folder / name, train=[lengths], val=[[9]], seed=number)
    return {name: folder / name for name in SIZES}


@pytest.mark.parametrize("caps", [{}, {"math": 2}, {"math": 1, "code": 2}, {"math": 3, "code": 1, "web": 1}])
def test_it_is_what_a_run_takes(sets, caps):
    mixture = Mixture(STAGES, sources=sets, max_epochs=caps)
    total = 50_000 if "web" not in caps else 40_000
    found = forecast(mixture, tokens=total)
    assert not found.problems
    loader = RowLoader(mixture, batch_size=5, seq_len=100)
    while loader.tokens_seen < total:
        next(loader)
    for name, usage in loader.seen().items():
        tokens, epochs = found.totals[name]
        assert tokens == pytest.approx(usage.tokens, rel=0.03, abs=800), "filler and BOS are not counted"
        assert epochs == pytest.approx(usage.epochs, rel=0.05, abs=0.05)
        assert epochs <= caps.get(name, 99)
    assert sum(line.tokens for line in found.lines) == pytest.approx(total, abs=10)


def test_its_lines_are_the_parts_in_which_weights_stay():
    mixture = Mixture({"a": 3, "b": 1}, max_epochs={"b": 1})
    found = forecast(mixture, tokens=1_000, sizes={"a": 1_000, "b": 100})
    parts = [(line.stage, line.begin, line.end, line.source, line.tokens, line.epochs) for line in found.lines]
    assert sorted(parts) == [(0, 0, 400, "a", 300, 0.3), (0, 0, 400, "b", 100, 1.0), (0, 400, 1000, "a", 600, 0.9)]
    assert [line.share for line in found.lines if line.source == "a"] == [0.75, 1.0]
    assert found.totals == {"a": (900, 0.9), "b": (100, 1.0)}


def test_sources_that_are_used_up_too_early_are_a_problem():
    mixture = Mixture([(0, {"a": 1}), ("1K", {"b": 1})], max_epochs=2)
    found = forecast(mixture, tokens=5_000, sizes={"a": 100, "b": 900})
    assert found.problems == ["all sources of stage 0 are used up after 200 tokens, before 1,000"]


def test_a_source_without_training_tokens_is_refused(sets, tmp_path):
    empty = make_token_set(tmp_path / "empty", train=[], val=[[9]])
    with pytest.raises(ValueError, match="source 'empty' has no training tokens; leave it out"):
        forecast(Mixture({sets["web"]: 1, empty: 1}), tokens="1M")
    with pytest.raises(ValueError, match="tokens must be a whole number of tokens"):
        forecast(Mixture({sets["web"]: 1}), tokens="many")
