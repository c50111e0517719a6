"""`tokenmill mix --checkpoint`: what a run took from each source, as its batches say."""

import contextlib
import json
import random
from collections import Counter

import pytest
import torch
from making import make_sources, make_token_set

from tokenmill import Mixture, cli
from tokenmill.look.mixture_chart import chart_of_run, draw
from tokenmill.look.run_history import Calls, history
from tokenmill.numpy import RowLoader

NAMES = ("web", "code", "math")


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return make_sources(tmp_path_factory.mktemp("sources"), documents=120)


def run(mixture, state, calls, batch_size, world_size, seq_len):
    """Calls of all ranks: the position afterwards, and the tokens of each source."""
    tokens = Counter()
    loaders = [
        RowLoader(
            mixture, batch_size=batch_size, seq_len=seq_len, rank=rank, world_size=world_size, sources=True, prefetch=0
        )
        for rank in range(world_size)
    ]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
        for _ in range(calls):
            _, _, of = next(loader)
            for number in of.tolist():
                tokens[mixture.names[number]] += seq_len
    state = json.loads(json.dumps(loaders[0].state_dict()))
    for loader in loaders:
        loader.close()
    return state, tokens


@pytest.mark.parametrize("seed", range(6))
def test_the_history_of_a_run_is_what_its_batches_were(sources, seed):
    rng = random.Random(seed)
    state, total, stretches, names = None, Counter(), [], set()
    for _ in range(rng.randint(1, 4)):
        kept = [name for name in NAMES if name in names or rng.random() < 0.7] or ["web"]
        names.update(kept)
        weights = {str(sources / name): rng.randint(1, 20) for name in kept}
        mixture = Mixture(weights if rng.random() < 0.5 else [(0, weights), (900, dict.fromkeys(weights, 1))])
        how = (rng.randint(1, 3), rng.randint(1, 3), rng.choice([16, 24]))
        calls = rng.randint(1, 25)
        state, tokens = run(mixture, state, calls, *how)
        total += tokens
        stretches.append((calls * how[0] * how[1] * how[2], *how))
    found = history(state)
    assert Counter(found.totals) == total
    assert found.tokens == sum(total.values()) == found.parts[-1].end
    assert found.notes == []
    merged: list[Calls] = []
    begin = 0
    for size, *how in stretches:
        if merged and list(merged[-1][2:]) == how:
            merged[-1] = merged[-1]._replace(end=begin + size)
        else:
            merged.append(Calls(begin, begin + size, *how))
        begin += size
    assert found.calls == merged


def test_the_command_prints_and_draws_a_run_from_its_checkpoint(sources, tmp_path, capsys):
    mixture = Mixture({str(sources / name): weight for name, weight in zip(NAMES, (2, 1, 1), strict=True)})
    state, _ = run(mixture, None, 20, 4, 2, 16)
    state, tokens = run(Mixture({str(sources / name): 1 for name in NAMES}), state, 10, 4, 1, 16)
    torch.save({"loop": {"data": state}}, tmp_path / "ckpt.pt")
    assert cli.main(["mix", "--checkpoint", str(tmp_path / "ckpt.pt"), "--html", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr().out
    assert "tokens 0 to 2,560: world_size 2, batch_size 4, seq_len 16" in said
    assert "tokens 2,560 to 3,200: world_size 1, batch_size 4, seq_len 16" in said
    totals = history(state).totals
    for name in NAMES:
        assert f"{name}: {totals[name]:,} tokens, {totals[name] / 3200:.3%} of the run" in said
    page = (tmp_path / "page.html").read_text()
    assert "<td>0 to 2,560</td><td>web</td><td>2</td><td>50.000%</td><td>1,280</td>" in page
    assert draw(chart_of_run(history(state)), "dark") in page
    assert tokens.total() == 640


def test_a_run_of_one_set_has_a_history_too(tmp_path, capsys):
    folder = make_token_set(tmp_path / "set", train=[[30] * 60], val=[[9] * 3])
    with RowLoader(folder, batch_size=2, seq_len=16) as loader:
        next(loader)
        (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    assert cli.main(["mix", "--checkpoint", str(tmp_path / "state.json")]) == 0
    assert "the set: 32 tokens, 100.000% of the run" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["mix"], "expected a mixture's file or --checkpoint"),
        (["mix", "a.toml"], "--seq-len is required"),
        (["mix", "--checkpoint", "a.pt", "--seq-len", "16"], "a checkpoint says --seq-len and --tokens"),
        (["mix", "--checkpoint", "nothing.pt"], "expected a checkpoint with a position in it, found no such file"),
    ],
)
def test_what_is_missing_is_said(flags, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(SystemExit):
        assert cli.main(flags) != 0
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_position_from_before_the_first_row_has_no_history(tmp_path, capsys):
    folder = make_token_set(tmp_path / "set", train=[[30] * 60], val=[[9] * 3])
    with RowLoader(folder, batch_size=2, seq_len=16) as loader:
        (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    assert cli.main(["mix", "--checkpoint", str(tmp_path / "state.json")]) == 1
    assert "this position has no segments" in capsys.readouterr().err
