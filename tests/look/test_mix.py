"""`tokenmill mix`: the forecast is what a loader then gives, and a run so far is what its loop logged."""

import contextlib
import json
import random
from collections import Counter

import pytest
import torch
from making import make_sources, make_token_set

from tokenmill import Mixture, cli, forecast
from tokenmill.look.mixture_chart import chart_of, chart_of_run, draw
from tokenmill.look.run_history import Calls, history
from tokenmill.numpy import RowLoader

NAMES, T = ("web", "code", "math"), 16
CAPPED = "[sources.math]\nmax_epochs = 2\n"
STAGES = (
    "[[stages]]\nbegin = 0\nweights = {web = 3, code = 2}\n[[stages]]\nbegin = '10K'\nweights = {math = 1, web = 1}\n"
)


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    return make_sources(tmp_path_factory.mktemp("sources"), documents=120)


def written(sets, text):
    (sets / "mixture.toml").write_text(text)
    return sets / "mixture.toml"


# ---------------------------------------------------------------------------- before the run


@pytest.mark.parametrize("seed", range(8))
def test_the_forecast_is_what_a_loader_then_gives(sets, seed):
    """Within 1% of the run: also where a source retires, and where all do, so that the run ends early."""
    rng = random.Random(seed)
    stages = [(begin, {name: rng.randint(1, 6) for name in rng.sample(NAMES, 2)}) for begin in (0, 20_000, 45_000)]
    caps = {name: rng.randint(1, 4) for name in NAMES if rng.random() < (0.3 if seed < 6 else 1)}
    used = {name for _, weights in stages for name in weights}
    mixture = Mixture(
        stages, sources={name: sets / name for name in used}, max_epochs={n: caps[n] for n in used & caps.keys()}
    )
    total, given, ended = rng.randint(30_000, 90_000), 0, False
    found = forecast(mixture, tokens=total)
    with RowLoader(mixture, batch_size=1, seq_len=T, prefetch=0) as loader:
        while loader.tokens_seen < total and not ended:
            try:
                ended = next(loader, None) is None
            except ValueError as error:
                assert "are used up after" in str(error)  # noqa: PT017
                ended = True
        usage, given = loader.seen(), loader.tokens_seen
    assert bool(found.problems) == ended
    assert found.lines[-1].end == pytest.approx(given, abs=0.01 * total)
    for name, (tokens, epochs) in found.totals.items():
        assert tokens == pytest.approx(usage[name].tokens, abs=0.01 * total)
        assert epochs == pytest.approx(usage[name].epochs, abs=0.1)


def test_the_command_prints_the_forecast_and_draws_it(sets, tmp_path, capsys):
    path, page = written(sets, CAPPED + STAGES), tmp_path / "mix.html"
    assert cli.main(["mix", str(path), "--tokens", "20K", "--html", str(page)]) == 0
    said, found = capsys.readouterr().out, forecast(Mixture.load(path), tokens=20_000)
    for name, (tokens, epochs) in found.totals.items():
        assert f"{name}: {tokens:,} tokens, {epochs:.3f} epochs in all" in said
    html = page.read_text()
    assert draw(chart_of(found), "light") in html
    assert html.count("<rect") == 2 * (len(found.lines) + 3), "a box for each source of each part, and the legend's"
    assert "<td>0</td><td>0 to 10,000</td><td>web</td><td>3</td><td>60.000%</td><td>6,000</td>" in html
    retired = next(line.begin for line in found.lines if line.stage == 1 and line.share == 1)
    assert f"<td>1</td><td>{retired:,} to 20,000</td><td>web</td>" in html


def test_a_run_that_ends_early_is_a_problem(sets, capsys):
    path = written(sets, f"{CAPPED}[weights]\nmath = 1\n")
    assert cli.main(["mix", str(path), "--tokens", "100K"]) == 1
    assert "error: all sources of stage 0 are used up after" in capsys.readouterr().out
    assert cli.main(["mix", str(path), "--tokens", "5K"]) == 0


# ---------------------------------------------------------------------------- a run so far


def go_on(state, tokens, calls, batch_size, world_size, seq_len, skip=0):
    """The position after some calls of all ranks, and the tokens of each source that they got."""
    ranks, taken = range(world_size), Counter()
    loaders = [
        RowLoader(tokens, batch_size=batch_size, seq_len=seq_len, rank=r, world_size=world_size, prefetch=0)
        for r in ranks
    ]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
        loader.skip(skip)
        for _ in range(calls):
            next(loader)
            for number in loader.row_sources.tolist():
                taken[loader.sources[number] if loader.sources else "the set"] += seq_len
    return json.loads(json.dumps(loaders[0].state_dict())), taken


@pytest.mark.parametrize("seed", range(8))
def test_the_history_of_a_run_is_what_its_loop_logged(sets, seed):
    rng = random.Random(seed)
    state, total, expected, at = None, Counter(), [], 0
    for _ in range(rng.randint(1, 5)):
        names = rng.sample(NAMES, rng.randint(1, 3))
        weights = {name: rng.randint(1, 20) for name in names}
        stages = [(0, weights), (900, dict.fromkeys(names, 1))][: rng.randint(1, 2)]
        removed = [name for name in NAMES if name not in names]
        mixture = Mixture(stages, sources={name: sets / name for name in names}, removed=removed)
        calls, how = rng.randint(0, 25), (rng.randint(1, 3), rng.randint(1, 3), rng.choice([T, 24]))
        state, taken = go_on(state, mixture, calls, *how, skip=rng.choice([0, 0, 3]))
        total, end = total + taken, at + taken.total()
        if expected and expected[-1][2:] == how:
            expected[-1] = expected[-1]._replace(end=end)
        elif end > at:
            expected.append(Calls(at, end, *how))
        at = end
    found = history(state)
    assert found.totals | Counter() == total
    assert found.tokens == at == (found.parts[-1].end if found.parts else 0)
    assert found.calls == expected


def test_the_command_prints_and_draws_a_run_from_its_checkpoint(sets, tmp_path, capsys):
    state, _ = go_on(None, Mixture({"web": 2, "code": 1, "math": 1}, sources={n: sets / n for n in NAMES}), 20, 4, 2, T)
    state, _ = go_on(state, Mixture(dict.fromkeys(NAMES, 1), sources={n: sets / n for n in NAMES}), 10, 4, 1, T)
    torch.save({"loop": {"data": state}}, tmp_path / "ckpt.pt")
    assert cli.main(["mix", "--checkpoint", str(tmp_path / "ckpt.pt"), "--html", str(tmp_path / "page.html")]) == 0
    said, found, page = capsys.readouterr().out, history(state), (tmp_path / "page.html").read_text()
    assert "tokens 0 to 2,560: world_size 2, batch_size 4, seq_len 16" in said
    assert "tokens 2,560 to 3,200: world_size 1, batch_size 4, seq_len 16" in said
    for name, tokens in found.totals.items():
        assert f"{name}: {tokens:,} tokens, {tokens / 3200:.3%} of the run" in said
    assert "<td>0 to 2,560</td><td>web</td><td>50.000%</td><td>1,280</td>" in page
    assert draw(chart_of_run(found), "dark") in page


@pytest.mark.parametrize(("calls", "said"), [(1, "the set: 32 tokens, 100.000% of the run"), (0, "of the run")])
def test_a_run_of_one_set_has_a_history_too(tmp_path, capsys, calls, said):
    folder = make_token_set(tmp_path / "set", train=[[30] * 60], val=[[9] * 3])
    (tmp_path / "state.json").write_text(json.dumps(go_on(None, folder, calls, 2, 1, T)[0]))
    assert cli.main(["mix", "--checkpoint", str(tmp_path / "state.json"), "--html", str(tmp_path / "p.html")]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "expected a mixture's file or --checkpoint"),
        ("a.toml", "a mixture's file needs --tokens, those of the whole run"),
        ("a.toml --tokens 5K", "a.toml"),
        ("--checkpoint a.pt --tokens 5K", "a checkpoint says them"),
        (
            "--checkpoint nothing.pt",
            "--checkpoint nothing.pt: expected a checkpoint with a position in it, found no such",
        ),
    ],
)
def test_what_is_missing_is_said(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(SystemExit):
        assert cli.main(["mix", *words.split()]) == 1
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())
