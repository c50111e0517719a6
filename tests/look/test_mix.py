"""`tokenmill mix`: the forecast is what a loader then gives, and a run so far is what its loop
logged.
"""

import contextlib
import json
import random
import re
from collections import Counter

import pytest
import torch
from making import make_sources, make_token_set

from tokenmill import Mixture, cli, forecast
from tokenmill.look.mix import run_cells
from tokenmill.look.report_text import short
from tokenmill.numpy import RowLoader

NAMES = ("web", "code", "math")
T = 16


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = make_sources(tmp_path_factory.mktemp("sources"), documents=120)
    return {name: folder / name for name in NAMES}


def names_of(stages):
    names = set()
    for _, weights in stages:
        names.update(weights)
    return names


def mixture_of(paths, stages, **more):
    names = sorted(names_of(stages), key=NAMES.index)
    removed = [name for name in NAMES if name not in names]
    return Mixture(stages, sources={name: paths[name] for name in names}, removed=removed, **more)


@pytest.mark.parametrize("seed", [0, 1, 2, 6, 7])
def test_the_forecast_is_what_a_loader_then_gives(paths, seed):
    """Within 1% of the run; also where a source retires, and where all do, so that the run ends
    early.
    """
    rng = random.Random(seed)
    stages = []
    for begin in (0, 20_000, 45_000):
        stages.append((begin, {name: rng.randint(1, 6) for name in rng.sample(NAMES, 2)}))
    capped = 0.3 if seed < 6 else 1
    caps = {name: rng.randint(1, 4) for name in sorted(names_of(stages)) if rng.random() < capped}
    mixture = mixture_of(paths, stages, max_epochs=caps)
    total = rng.randint(30_000, 90_000)
    ended = False
    with RowLoader(mixture, batch_size=1, seq_len=64, prefetch=0) as loader:
        while loader.tokens_seen < total and not ended:
            try:
                ended = next(loader, None) is None
            except ValueError:  # of a stage that has another after it
                ended = True
        usage = loader.seen()
        tokens_seen = loader.tokens_seen
    expected = forecast(mixture, tokens=total)
    assert bool(expected.problems) == ended
    assert expected.lines[-1].end == pytest.approx(tokens_seen, abs=0.01 * total)
    for name, (tokens, epochs) in expected.totals.items():
        assert tokens == pytest.approx(usage[name].tokens, abs=0.01 * total)
        assert epochs == pytest.approx(usage[name].epochs, rel=0.03), (
            "filler and BOS are not counted"
        )


def test_the_command_prints_the_forecast_and_says_that_a_run_ends_early(paths, tmp_path, capsys):
    path = tmp_path / "mixture.toml"
    sources = "".join(f"[sources.{name}]\npath = '{paths[name]}'\n" for name in NAMES)
    sources += "max_epochs = 2\n"  # of math
    stages = "[[stages]]\nbegin = 0\nweights = {web = 3, code = 2}\n"
    stages += "[[stages]]\nbegin = '10K'\nweights = {math = 1%s}\n"
    path.write_text(stages % ", web = 1" + sources)
    assert cli.main(["mix", str(path), "--tokens", "40K"]) == 0
    printed = capsys.readouterr().out
    expected = forecast(Mixture.load(path), tokens=40_000)
    for name, (n, epochs) in expected.totals.items():
        assert f"{name}: {n:,} tokens, {epochs:.3f} epochs in all" in printed
    lines = [line.replace("│", " ").split() for line in printed.splitlines()]
    assert ["0", "0", "to", "10k", "web", "3", "60.000%", "6k"] in [line[:8] for line in lines]
    retired = next(line.begin for line in expected.lines if line.share == 1)
    assert f"1 {short(retired)} to 40k web".split() in [line[:5] for line in lines]
    path.write_text(stages % "" + sources)
    assert cli.main(["mix", str(path), "--tokens", "40K"]) == 1
    assert "error: all sources of stage 1 are used up after" in capsys.readouterr().out
    assert cli.main(["mix", str(path), "--tokens", "15K"]) == 0
    assert cli.main(["mix", str(path), "--tokens", "0"]) == 1


def test_without_a_length_the_first_source_to_end_bounds_the_run_and_many_epochs_are_a_warning(
    paths, tmp_path, capsys
):
    path = tmp_path / "mixture.toml"
    sources = "".join(f"[sources.{name}]\npath = '{paths[name]}'\n" for name in NAMES)
    stages = "[[stages]]\nbegin = 0\nweights = {web = 3, code = 2}\n"
    path.write_text(
        f"{stages}[[stages]]\nbegin = '10K'\nweights = {{math = 1, web = 9}}\n{sources}"
    )
    assert cli.main(["mix", str(path)]) == 0
    printed = capsys.readouterr().out
    tokens, source = re.search(r"a run of ([\d,]+): until (\w+), the first", printed).groups()
    epochs = {}
    for name, totals in forecast(
        Mixture.load(path), tokens=int(tokens.replace(",", ""))
    ).totals.items():
        epochs[name] = totals[1]
    assert epochs["math"] < 1
    assert source == "web"
    assert epochs["web"] == pytest.approx(round(epochs["web"]), abs=0.01)
    assert "warning" not in printed
    assert cli.main(["mix", str(path), "--tokens", "100K"]) == 0
    assert "warning: web is read" in capsys.readouterr().out


def go_on(state, tokens, calls, batch_size, world_size, seq_len, skip=0):
    """The position after some calls of all ranks, and the tokens of each source that they got."""
    settings = {
        "batch_size": batch_size,
        "seq_len": seq_len,
        "world_size": world_size,
        "prefetch": 0,
    }
    ranks = [RowLoader(tokens, rank=rank, **settings) for rank in range(world_size)]
    got = Counter()
    for loader in ranks:
        if state is not None:
            loader.load_state_dict(state)
        loader.skip(skip)
        for _ in range(calls):
            next(loader)
            if loader.sources:
                for number in loader.row_sources.tolist():
                    got[loader.sources[number]] += seq_len
    return json.loads(json.dumps(ranks[0].state_dict())), got


@pytest.mark.parametrize("seed", range(4))
def test_the_history_of_a_run_is_what_its_loop_logged(paths, seed):
    rng = random.Random(seed)
    state = None
    total = Counter()
    legs = []
    for _ in range(rng.randint(1, 5)):
        names = rng.sample(NAMES, rng.randint(1, 3))
        mixture = mixture_of(paths, [(0, {name: rng.randint(1, 20) for name in names})])
        batch_size = rng.randint(1, 3)
        ranks = rng.randint(1, 3)
        how = batch_size, ranks, rng.choice([T, 24])
        state, got = go_on(state, mixture, rng.randint(0, 25), *how, skip=rng.choice([0, 0, 3]))
        begin = total.total()
        total += got
        if got:
            legs.append((f"{short(begin)} to {short(total.total())}", ranks, batch_size, how[2]))
    rows, totals = run_cells(state)
    assert +totals == total
    assert list(dict.fromkeys(row[:4] for row in rows)) == legs


def test_the_command_prints_a_run_from_its_checkpoint(paths, tmp_path, capsys):
    checkpoint = tmp_path / "ckpt.pt"
    state, _ = go_on(None, mixture_of(paths, [(0, {"web": 2, "code": 1, "math": 1})]), 20, 4, 2, T)
    state, _ = go_on(state, mixture_of(paths, [(0, dict.fromkeys(NAMES, 1))]), 10, 4, 1, T)
    torch.save({"loop": {"data": state}}, checkpoint)
    assert cli.main(["mix", "--checkpoint", str(checkpoint)]) == 0
    printed = capsys.readouterr().out
    lines = [line.replace("│", " ").split() for line in printed.splitlines()]
    assert ["0", "to", "2.56k", "2", "4", "16", "web", "50.000%", "1.28k"] in lines
    of_second_leg = [line[3:6] for line in lines if line[:3] == ["2.56k", "to", "3.2k"]]
    assert of_second_leg == [["1", "4", "16"]] * 3
    for name, n in run_cells(state)[1].items():
        share = n / 3200
        assert f"{name}: {n:,} tokens, {share:.3%} of the run" in printed
    folder = make_token_set(tmp_path / "set", train=[[30] * 60], val=[[9] * 3])
    for calls, line in ((0, "source"), (1, "the set: 32 tokens, 100.000% of the run")):
        torch.save(go_on(None, folder, calls, 2, 1, T)[0], checkpoint)
        assert cli.main(["mix", "--checkpoint", str(checkpoint)]) == 0
        assert line in capsys.readouterr().out


def test_what_is_missing_is_said(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words, message in (
        ("", "expected either a mixture's file or --checkpoint"),
        ("a.toml --tokens 5K", "a.toml"),
        ("--checkpoint a.pt --tokens 5K", "a checkpoint says them"),
        (
            "--checkpoint no.pt",
            "checkpoint no.pt: expected a checkpoint with a position in it, found no such file",
        ),
    ):
        with contextlib.suppress(SystemExit):
            assert cli.main(["mix", *words.split()]) == 1
        assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())
