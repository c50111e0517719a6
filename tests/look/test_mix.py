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


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = make_sources(tmp_path_factory.mktemp("sources"), documents=120)
    return {name: folder / name for name in NAMES}


def mixture_of(paths, stages, **more):
    names = [name for name in NAMES if any(name in weights for _, weights in stages)]
    removed = [name for name in NAMES if name not in names]
    return Mixture(stages, sources={name: paths[name] for name in names}, removed=removed, **more)


@pytest.mark.parametrize("seed", range(8))
def test_the_forecast_is_what_a_loader_then_gives(paths, seed):
    """Within 1% of the run; also where a source retires, and where all do, so that the run ends early."""
    rng = random.Random(seed)
    stages = [(begin, {name: rng.randint(1, 6) for name in rng.sample(NAMES, 2)}) for begin in (0, 20_000, 45_000)]
    names = {name for _, weights in stages for name in weights}
    caps = {name: rng.randint(1, 4) for name in sorted(names) if rng.random() < (0.3 if seed < 6 else 1)}
    mixture, total, ended = mixture_of(paths, stages, max_epochs=caps), rng.randint(30_000, 90_000), False
    with RowLoader(mixture, batch_size=1, seq_len=64, prefetch=0) as loader:
        while loader.tokens_seen < total and not ended:
            try:
                ended = next(loader, None) is None
            except ValueError:  # of a stage that has another after it
                ended = True
        usage, given = loader.seen(), loader.tokens_seen
    found = forecast(mixture, tokens=total)
    assert bool(found.problems) == ended
    assert found.lines[-1].end == pytest.approx(given, abs=0.01 * total)
    for name, (tokens, epochs) in found.totals.items():
        assert tokens == pytest.approx(usage[name].tokens, abs=0.01 * total)
        assert epochs == pytest.approx(usage[name].epochs, rel=0.03), "filler and BOS are not counted"


def test_the_command_prints_the_forecast_draws_it_and_says_that_a_run_ends_early(paths, tmp_path, capsys):
    path, page = tmp_path / "mixture.toml", tmp_path / "mix.html"
    sources = "".join(f"[sources.{name}]\npath = '{paths[name]}'\n" for name in NAMES) + "max_epochs = 2\n"  # of math
    stages = "[[stages]]\nbegin = 0\nweights = {web = 3, code = 2}\n[[stages]]\nbegin = '10K'\nweights = {math = 1%s}\n"
    path.write_text(stages % ", web = 1" + sources)
    assert cli.main(["mix", str(path), "--tokens", "40K", "--html", str(page)]) == 0
    said, html, found = capsys.readouterr().out, page.read_text(), forecast(Mixture.load(path), tokens=40_000)
    assert all(
        f"{name}: {n:,} tokens, {epochs:.3f} epochs in all" in said for name, (n, epochs) in found.totals.items()
    )
    assert draw(chart_of(found), "light") in html
    assert html.count("<rect") == 2 * (len(found.lines) + 3), "a box for each source of each part, and the legend's"
    assert "<td>0</td><td>0 to 10,000</td><td>web</td><td>3</td><td>60.000%</td><td>6,000</td>" in html
    retired = next(line.begin for line in found.lines if line.share == 1)
    assert f"<td>1</td><td>{retired:,} to 40,000</td><td>web</td>" in html
    path.write_text(stages % "" + sources)
    assert cli.main(["mix", str(path), "--tokens", "40K"]) == 1
    assert "error: all sources of stage 1 are used up after" in capsys.readouterr().out
    assert cli.main(["mix", str(path), "--tokens", "15K"]) == 0


def go_on(state, tokens, calls, batch_size, world_size, seq_len, skip=0):
    """The position after some calls of all ranks, and the tokens of each source that they got."""
    settings = {"batch_size": batch_size, "seq_len": seq_len, "world_size": world_size, "prefetch": 0}
    ranks, taken = [RowLoader(tokens, rank=rank, **settings) for rank in range(world_size)], Counter()
    for loader in ranks:
        if state is not None:
            loader.load_state_dict(state)
        loader.skip(skip)
        for _ in range(calls):
            next(loader)
            taken.update([loader.sources[number] for number in loader.row_sources.tolist() if loader.sources])
    return json.loads(json.dumps(ranks[0].state_dict())), Counter({name: n * seq_len for name, n in taken.items()})


@pytest.mark.parametrize("seed", range(8))
def test_the_history_of_a_run_is_what_its_loop_logged(paths, seed):
    rng, state, total, calls = random.Random(seed), None, Counter(), []
    for _ in range(rng.randint(1, 5)):
        names = rng.sample(NAMES, rng.randint(1, 3))
        stages = [(0, {name: rng.randint(1, 20) for name in names}), (900, dict.fromkeys(names, 1))]
        mixture = mixture_of(paths, stages[: rng.randint(1, 2)])
        how = rng.randint(1, 3), rng.randint(1, 3), rng.choice([T, 24])
        state, taken = go_on(state, mixture, rng.randint(0, 25), *how, skip=rng.choice([0, 0, 3]))
        begin, total = total.total(), total + taken
        if calls and calls[-1][2:] == how:
            begin = calls.pop().begin
        calls += [Calls(begin, total.total(), *how)] * (total.total() > begin)
    found = history(state)
    assert Counter(found.totals) == total
    assert found.tokens == total.total() == (found.parts[-1].end if found.parts else 0)
    assert found.calls == calls


def test_the_command_prints_and_draws_a_run_from_its_checkpoint(paths, tmp_path, capsys):
    checkpoint, page = tmp_path / "ckpt.pt", tmp_path / "page.html"
    state, _ = go_on(None, mixture_of(paths, [(0, {"web": 2, "code": 1, "math": 1})]), 20, 4, 2, T)
    state, _ = go_on(state, mixture_of(paths, [(0, dict.fromkeys(NAMES, 1))]), 10, 4, 1, T)
    torch.save({"loop": {"data": state}}, checkpoint)
    assert cli.main(["mix", "--checkpoint", str(checkpoint), "--html", str(page)]) == 0
    said, found = capsys.readouterr().out, history(state)
    assert "tokens 0 to 2,560: world_size 2, batch_size 4, seq_len 16" in said
    assert "tokens 2,560 to 3,200: world_size 1, batch_size 4, seq_len 16" in said
    assert all(f"{name}: {n:,} tokens, {n / 3200:.3%} of the run" in said for name, n in found.totals.items())
    assert "<td>0 to 2,560</td><td>web</td><td>50.000%</td><td>1,280</td>" in page.read_text()
    assert draw(chart_of_run(found), "dark") in page.read_text()
    folder = make_token_set(tmp_path / "set", train=[[30] * 60], val=[[9] * 3])
    for calls, line in ((0, "source"), (1, "the set: 32 tokens, 100.000% of the run")):
        torch.save(go_on(None, folder, calls, 2, 1, T)[0], checkpoint)
        assert cli.main(["mix", "--checkpoint", str(checkpoint)]) == 0
        assert line in capsys.readouterr().out


def test_what_is_missing_is_said(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words, said in (
        ("", "expected a mixture's file or --checkpoint"),
        ("a.toml", "a mixture's file needs --tokens, those of the whole run"),
        ("a.toml --tokens 5K", "a.toml"),
        ("--checkpoint a.pt --tokens 5K", "a checkpoint says them"),
        ("--checkpoint no.pt", "checkpoint no.pt: expected a checkpoint with a position in it, found no such file"),
    ):
        with contextlib.suppress(SystemExit):
            assert cli.main(["mix", *words.split()]) == 1
        assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())
