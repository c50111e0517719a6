"""A stage may name its row length: the loader then goes on as a user would by hand, with as many tokens a batch."""

import re

import numpy as np
import pytest
from making import ROOT, make_token_set
from making_views import make_view

from tokenmill import Mixture, PackedRows, forecast
from tokenmill.look.trace import Tracer
from tokenmill.numpy import RowLoader

PAGE = ROOT / "docs" / "mixtures.md"
TOKENS = 4 * 16 * 5  # after 5 batches of 4 rows of 16


@pytest.fixture
def sources(tmp_path):
    rng = np.random.default_rng(0)
    return {
        name: make_token_set(tmp_path / name, [rng.integers(3, 80, 60).tolist()] * 2, [[30] * 4], seed=number)
        for number, name in enumerate(("short", "long"))
    }


def mixture_of(sources, *seq_lens):
    weights = [{"short": 3, "long": 1}, {"long": 1}, {"short": 1, "long": 1}]
    begins = [0, TOKENS, 2 * TOKENS]
    stages = [
        (b, w, *([s] if s else [])) for b, w, s in zip(begins, weights, (*seq_lens, None, None, None), strict=False)
    ]
    return Mixture(stages, sources=sources)


def batches(loader, count):
    return [tuple(array.tolist() for array in next(loader)) for _ in range(count)]


def test_rows_get_longer_as_they_would_by_hand(sources):
    plain = mixture_of(sources)
    with RowLoader(plain, batch_size=4, seq_len=16) as loader:
        expected, state = batches(loader, 5), loader.state_dict()
    with RowLoader(plain, batch_size=2, seq_len=32) as loader:
        loader.load_state_dict(state)
        expected += batches(loader, 5)
        state = loader.state_dict()
    with RowLoader(plain, batch_size=4, seq_len=16) as loader:
        loader.load_state_dict(state)
        expected += batches(loader, 3)
        last = loader.state_dict()
    with RowLoader(mixture_of(sources, None, 32), batch_size=4, seq_len=16) as loader:
        assert batches(loader, 13) == expected
        assert loader.state_dict() == last
        stats = loader.stats()
        assert stats.tokens == 13 * 64
        assert stats.rows == 8 * 4 + 5 * 2
        assert sum(counts.tokens for counts in stats.sources.values()) == stats.tokens


@pytest.mark.parametrize("done", [3, 5, 7, 12])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_it_resumes_before_at_and_after_the_change(sources, done, prefetch):
    mixture = mixture_of(sources, None, 32)
    settings = {"batch_size": 4, "seq_len": 16, "prefetch": prefetch}
    with RowLoader(mixture, **settings) as loader:
        expected = batches(loader, done)
        state = loader.state_dict()
        expected = batches(loader, 6)
        assert loader.state_dict(pending=0)["tokens_seen"] == 64 * (done + 6)
    with RowLoader(mixture, **settings) as loader:
        loader.load_state_dict(state)
        assert loader.tokens_seen == 64 * done
        assert batches(loader, 6) == expected


def test_the_position_before_the_change_can_be_saved_after_it(sources):
    with RowLoader(mixture_of(sources, None, 32), batch_size=4, seq_len=16) as loader:
        batches(loader, 4)
        before = loader.state_dict()
        expected = batches(loader, 3)
        assert loader.state_dict(pending=3) == before
        loader.load_state_dict(before)
        assert batches(loader, 3) == expected


def test_ranks_change_with_the_same_batch(sources):
    mixture = mixture_of(sources, None, 32)
    with RowLoader(mixture, batch_size=4, seq_len=16) as one:
        whole = [np.concatenate([np.array(next(one)[0]) for _ in range(1)]) for _ in range(8)]
    shapes = []
    for rank in range(2):
        with RowLoader(mixture, batch_size=2, seq_len=16, rank=rank, world_size=2) as loader:
            found = [np.array(next(loader)[0]) for _ in range(8)]
            for batch, rows in zip(whole, found, strict=True):
                half = len(batch) // 2
                assert (batch[rank * half : (rank + 1) * half] == rows).all()
            shapes.append([rows.shape for rows in found])
    assert shapes[0] == shapes[1] == [(2, 16)] * 5 + [(1, 32)] * 3


def test_what_cannot_be_is_said(sources):
    with pytest.raises(ValueError, match="rows of 24 tokens, and a batch of 4 rows of 16 has 64, which is no multiple"):
        RowLoader(mixture_of(sources, None, 24), batch_size=4, seq_len=16)
    with pytest.raises(ValueError, match="seq_len of stage 1"):
        mixture_of(sources, None, -3)
    with pytest.raises(ValueError, match="a mixture must be"):
        Mixture([(0, {"short": 1}, 16, 7)], sources=sources)
    with pytest.raises(ValueError, match="stages name a seq_len needs RowLoader"):
        PackedRows(mixture_of(sources, None, 32), batch_size=4, seq_len=16)
    with RowLoader(mixture_of(sources, None, 32).at(TOKENS), "val", batch_size=4, seq_len=16) as loader:
        assert next(loader)[0].shape == (4, 16)


def test_the_forecast_says_that_rows_change_their_length(sources, tmp_path):
    found = forecast(mixture_of(sources, None, 32), seq_len=16, tokens=3 * TOKENS)
    assert [line.tokens for line in found.lines] == [240, 80, 320, 160, 160]
    (note,) = found.notes
    assert note == f"from {TOKENS} tokens on, rows have 32 + 1 tokens; this table counts all in rows of one length"


def test_a_file_names_lengths_and_show_does_not_guess_them(sources, tmp_path):
    path = tmp_path / "mixture.toml"
    path.write_text(
        f'[sources.short]\npath = "{sources["short"]}"\n[sources.long]\npath = "{sources["long"]}"\n'
        "[[stages]]\nbegin = 0\nweights = { short = 3, long = 1 }\n"
        f"[[stages]]\nbegin = {TOKENS}\nweights = {{ long = 1 }}\nseq_len = 32\n"
    )
    assert Mixture.load(path).seq_lens == {TOKENS: 32}
    with RowLoader(path, batch_size=4, seq_len=16) as loader:
        assert [next(loader)[0].shape for _ in range(6)] == [(4, 16)] * 5 + [(2, 32)]
        tracer = Tracer.of(loader.given)
        assert len(list(tracer.rows(0, 20))) == 20
        with pytest.raises(ValueError, match=r"at 320 tokens the mixture's stage has rows of 32 \+ 1"):
            list(tracer.rows(20, 4))


def test_the_file_of_the_docs_trains_on_long_documents_in_long_rows(tmp_path, monkeypatch):
    (text,) = [block for block in re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL) if "seq_len" in block]
    rng = np.random.default_rng(0)
    lengths = [rng.integers(3, 80, 60).tolist() for _ in range(3)]
    folder = make_token_set(tmp_path / "data/tokens/web-gpt2-1bd489c3", lengths[:2], lengths[2:])
    for name, is_long in (("short", False), ("long", True)):
        counts = {f"train_{n}.000": [int((length >= 32) == is_long) for length in lengths[n]] for n in range(2)}
        make_view(folder, name, counts)
    path = tmp_path / "mixture.toml"
    path.write_text(text.replace("900B", str(TOKENS)).replace("8192", "32"))
    with RowLoader(path, batch_size=4, seq_len=16, documents=True) as loader:
        assert [next(loader)[0].shape for _ in range(9)] == [(4, 16)] * 5 + [(2, 32)] * 4
        assert loader.seen()["long"].rows > 8
    assert all(mixture_view in Mixture.load(path).views.values() for mixture_view in ("short", "long"))
