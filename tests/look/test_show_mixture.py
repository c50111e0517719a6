"""What a mixture's run saw, and what it will see: compared with what its loaders deal."""

import json
import re

import pytest
from making import make_sources

from tokenmill import Mixture, RowLoader, forecast
from tokenmill.feed import window_plans
from tokenmill.look import mix, show
from tokenmill.look.show_config import Show
from tokenmill.look.show_query import ShowQuery
from tokenmill.look.trace import Tracer
from tokenmill.look.when_seen import when
from tokenmill.rows.windows import WindowSize
from tokenmill.store.token_sets import TokenSet

T = 16
STAGES = (
    "[[stages]]\nbegin = 0\nweights = {web = 3, code = 2}\n[[stages]]\nbegin = '1K'\nweights = {math = 1, web = 1}\n"
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(window_plans, "DEFAULT_WINDOW_SIZE", WindowSize(slice=16, window=128))


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    return make_sources(tmp_path_factory.mktemp("traced"), documents=15)


def written(sets, name, text):
    (sets / name).write_text(text)
    return sets / name


def tokens_of(row):
    return [token for piece in row.pieces for token in piece.tokens(0).tolist()]


@pytest.mark.parametrize("step", [0, 3, 11, 15, 16, 40])
def test_the_rows_of_a_step_are_those_that_the_ranks_got_across_stages(sets, step):
    path = written(sets, "mixture.toml", STAGES)
    config = Show(path, step=step, batch_size=2, world_size=2, seq_len=T)
    found = list(ShowQuery(config).rows())
    assert [rank for rank, _ in found] == [0, 0, 1, 1]
    for rank in range(2):
        loader = RowLoader(path, batch_size=2, seq_len=T, rank=rank, world_size=2, sources=True)
        for _ in range(step + 1):
            inputs, _, sources = next(loader)
        mine = [row for r, row in found if r == rank]
        assert [tokens_of(row)[:T] for row in mine] == inputs.tolist()
        assert [row.place.partition("/")[0] for row in mine] == [loader.sources[i] for i in sources.tolist()]
        again = Tracer.of(config.loader).row_at(*place_of(mine[0].place))
        assert again.pieces == mine[0].pieces or tokens_of(again) == tokens_of(mine[0])
    other = RowLoader(path, batch_size=4, seq_len=T, skip_rows=[found[1][1].place])
    for _ in range(step + 1):
        inputs, _ = next(other)
    assert tokens_of(found[1][1])[:T] not in inputs.tolist(), "what is printed is what skip_rows takes"


def test_steps_of_a_mixture_are_its_own_though_a_source_s_rows_were_counted_alone_before(sets, monkeypatch, tmp_path):
    """Counts of rows are cached: a source's rows in a mixture come in another order than alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("web", "code", "math"):
        list(ShowQuery(Show(sets / name, step=40, batch_size=4, world_size=1, seq_len=T)).rows())
    path = written(sets, "mixture.toml", STAGES)
    loader = RowLoader(path, batch_size=4, seq_len=T)
    for step in range(40):
        found = ShowQuery(Show(path, step=step, batch_size=4, world_size=1, seq_len=T)).rows()
        assert [tokens_of(row)[:T] for _, row in found] == next(loader)[0].tolist()


def place_of(told):
    from tokenmill.rows.row_stream import Cursor

    source, _, place = told.partition("/")
    return source, Cursor(*map(int, place.split(":")))


def a_run_with_changes(sets):
    """Loaders of three mixtures and lengths, one after the other: (all rows as (tokens before, place), state, path)."""
    first = written(sets, "first.toml", STAGES)
    second = written(sets, "second.toml", "[weights]\nweb = 1\nmath = 2\ncode = 1\n")
    seen, state = [], None
    for path, seq_len, calls in ((first, T, 20), (second, 2 * T, 9), (second, T, 17), (first, T, 30)):
        loader = RowLoader(path, batch_size=3, seq_len=seq_len, prefetch=0)
        if state is not None:
            loader.load_state_dict(state)
        rows = loader._make_rows(ahead=False)
        rows.seek(loader._state.place)
        for number, row in enumerate(rows.pieces(3 * calls)):
            seen += [(loader.tokens_seen + number * seq_len, piece) for piece in row]
        for _ in range(calls):
            next(loader)
        state = loader.state_dict()
    return seen, state, first


def test_a_document_is_traced_through_stages_and_changes_of_mixture_and_length(sets):
    seen, state, path = a_run_with_changes(sets)
    (sets / "state.json").write_text(json.dumps(state))
    settings = {"batch_size": 3, "until": str(sets / "state.json"), "seq_len": T}
    compared = 0
    for source in ("web", "code", "math"):
        entries, before = TokenSet(sets / source).split("train"), 0
        for entry in entries:
            for document in range(entry.documents):
                config = Show(path, document=f"{source}/{before + document}", **settings)
                lines = list(when(ShowQuery(config)))
                found = [
                    int(re.search(r"after ([\d,]+) tokens", line)[1].replace(",", ""))
                    for line in lines
                    if "seen in seg" in line
                ]
                expected = sorted(
                    {
                        tokens
                        for tokens, piece in seen
                        if (piece.shard.path.parents[1].name, piece.shard.entry.name, piece.document)
                        == (source, entry.name, document)
                    }
                )
                assert sorted(found) == expected
                compared += len(found)
            before += entry.documents
    assert compared > 150
    assert len([line for line in lines if line.startswith("segment")]) == 4
    assert "rows of 32 + 1, code 25.00%, math 50.00%, web 25.00%" in "\n".join(lines)


def test_the_command_shows_steps_and_documents_of_a_mixture(prepared, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(window_plans, "DEFAULT_WINDOW_SIZE", WindowSize())
    path = tmp_path / "mixture.toml"
    path.write_text(f"[sources.only]\npath = '{prepared[1]}'\n[weights]\nonly = 1\n")
    flags = ["--batch-size", "2", "--world-size", "1", "--seq-len", "64"]
    show.main([str(path), "--step", "3", *flags], "tokenmill show")
    said = capsys.readouterr().out
    assert re.search(r"to leave these rows out: skip_rows=\['only/0:0:6-7'\]", said)
    assert "<|bos|>" in said
    show.main([str(path), "--row", "only/0:0:6", *flags], "tokenmill show")
    assert "at only/0:0:6" in capsys.readouterr().out
    show.main([str(path), "--document", "only/7", *flags], "tokenmill show")
    said = capsys.readouterr().out
    assert "segment 0, from 0 tokens on: rows of 64 + 1, only 100.00%" in said
    assert re.search(
        r"seen in segment 0, after [\d,]+ tokens, step \d+, rank 0, row \d of its batch, at only/0:0:\d+", said
    )
    for asked, told in [
        (["--document", "7"], "--document of a mixture must name its source, as in only/7"),
        (["--document", "web/7"], "'web' is not a source of the mixture, which has only"),
        (["--row", "web/0:0:1"], "'web' is not a source"),
        (["--row", "0:0:3"], "--row of a mixture must be a number, or a place as only/0:12:100, not '0:0:3'"),
        (["--step", "3", "--since", "1", "0:0:5"], "--since 0:0:5: expected a checkpoint"),
        (["--step", "3", "--manifest", "abc"], "--manifest is for one token set"),
    ]:
        with pytest.raises((ValueError, OSError), match=told):
            show.main([str(path), *asked, *flags], "tokenmill show")


def test_since_a_state_steps_are_counted_from_it(sets):
    seen, state, path = a_run_with_changes(sets)
    (sets / "since.json").write_text(json.dumps(state))
    config = Show(path, step=103, batch_size=2, world_size=1, since=(100, str(sets / "since.json")), seq_len=T)
    found = [row for _, row in ShowQuery(config).rows()]
    loader = RowLoader(path, batch_size=2, seq_len=T)
    loader.load_state_dict(state)
    for _ in range(4):
        inputs, _ = next(loader)
    assert [tokens_of(row)[:T] for row in found] == inputs.tolist()


# ---------------------------------------------------------------------------- before the run


@pytest.mark.parametrize("on_cap", ["retire", "spread"])
def test_the_forecast_is_what_the_run_then_gives(sets, on_cap):
    caps = f"on_cap = '{on_cap}'\ntokens = '4K'\n[sources.math]\nmax_epochs = 1.5\n"
    path = written(sets, f"{on_cap}.toml", caps + STAGES)
    found = forecast(Mixture.load(path), seq_len=T)
    assert not found.problems
    loader = RowLoader(path, batch_size=1, seq_len=T)
    for _ in range(-(-4_000 // T)):
        next(loader)
    for name, (tokens, epochs) in found.totals.items():
        assert tokens == pytest.approx(loader.seen()[name].tokens, rel=0.08)
        assert epochs == pytest.approx(loader.seen()[name].epochs, rel=0.15), "windows are of 8 slices here"
    assert found.lines[0].begin == 0
    assert found.lines[-1].end == -(-4_000 // T) * T
    assert sum(tokens for tokens, _ in found.totals.values()) == found.lines[-1].end


def test_a_cap_that_would_be_passed_tells_what_fits(sets, capsys):
    text = "[sources.math]\nmax_epochs = 1\n" + STAGES
    path = written(sets, "capped.toml", text)
    assert mix.main([str(path), "--tokens", "4K", "--seq-len", "16"], "tokenmill mix") == 1
    said = capsys.readouterr().out
    problem = re.search(
        r"source 'math' would give (\S+) epochs, more than its max_epochs of 1; use max_epochs = "
        r"(\S+), or a weight of (\S+) in stage 1, or on_cap",
        said,
    )
    epochs, cap, weight = (float(number) for number in problem.groups())
    assert epochs - 0.006 < cap < epochs + 0.02
    for fits in (text.replace("max_epochs = 1", f"max_epochs = {cap}"), text.replace("math = 1", f"math = {weight}")):
        assert (
            mix.main([str(written(sets, "fits.toml", fits)), "--tokens", "4K", "--seq-len", "16"], "tokenmill mix") == 0
        )
    assert mix.main([str(path), "--tokens", "1K", "--seq-len", "16"], "tokenmill mix") == 0


def test_the_page_has_the_table_and_the_picture(sets, tmp_path, capsys):
    path = written(sets, "page.toml", STAGES)
    page = tmp_path / "mix.html"
    assert mix.main([str(path), "--tokens", "4K", "--seq-len", "16", "--html", str(page)], "tokenmill mix") == 0
    said, html = capsys.readouterr().out, page.read_text()
    assert str(page) in said
    assert html.count("<svg") == 2
    assert html.count("<rect") == 2 * (4 + 3), "a box for each source of each segment, and the legend's"
    assert "1,008 to 4,000" in html
    assert "web: 2,106 tokens" not in said
    for head in ("share", "epochs by then"):
        assert head in html


def test_a_forecast_needs_the_tokens_of_the_run(sets):
    with pytest.raises(ValueError, match="expected the tokens of the whole run, found none in the mixture"):
        forecast(Mixture.load(written(sets, "plain.toml", STAGES)), seq_len=T)


def test_a_run_that_ends_early_is_a_problem(sets):
    text = "on_cap = 'retire'\n[sources.math]\nmax_epochs = 1\n[weights]\nmath = 1\n"
    found = forecast(Mixture.load(written(sets, "short.toml", text)), seq_len=T, tokens="10K")
    assert "all sources are used up after" in found.problems[0]


@pytest.mark.parametrize("number", [0, 14])
def test_a_document_of_a_source_that_ends_with_its_stage_is_searched_as_far_as_it_comes(sets, number):
    """Not for ever: the run has no end, and the source no more rows."""
    path = written(sets, "mixture.toml", STAGES.replace("web = 3, code = 2", "web = 9, code = 1"))
    lines = list(when(ShowQuery(Show(path, document=f"code/{number}", batch_size=2, seq_len=T))))
    seen = [line for line in lines if line.startswith(("seen in segment 0", "not seen in the first"))]
    assert seen
    with_end = written(sets, "ending.toml", f"tokens = 2000\n{STAGES}")
    assert list(when(ShowQuery(Show(with_end, document=f"web/{number}", batch_size=2, seq_len=T))))
