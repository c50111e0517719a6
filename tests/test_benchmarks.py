"""Benchmarks are run by hand; here, that each says how, and that what they make and measure is right."""

import importlib
import json
import math
import runpy
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from making import BOS, ROOT, VOCAB, make_token_set

from tokenmill import RowLoader
from tokenmill.store.token_sets import TokenSet

COMMANDS = [path for path in sorted((ROOT / "benchmarks").glob("*.py")) if "__main__" in path.read_text()]


@pytest.mark.parametrize("path", COMMANDS, ids=[path.stem for path in COMMANDS])
def test_help_says_what_it_does_and_runs_nothing(path, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [path.name, "--help"])
    monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert not ended.value.code
    assert printed.startswith(f"usage: {path.name} [-h]")
    assert path.read_text().splitlines()[0].strip('"') in printed, "its docstring"
    assert not list(tmp_path.iterdir())


def test_the_sets_that_they_make_are_token_sets(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    sets = importlib.import_module("sets")
    folder = sets.sparse(tmp_path / "sparse", num_shards=3, shard_tokens=100_000)
    assert next(RowLoader(folder, batch_size=2, seq_len=64))[0].shape == (2, 64)
    (tmp_path / "random").mkdir()
    sets.random_set(tmp_path / "random", shards=2, tokens=100_000)
    assert next(RowLoader(tmp_path / "random", batch_size=2, seq_len=64))[0].shape == (2, 64)


SIZE = {"layers": 1, "width": 16, "heads": 1, "seq_len": 8, "steps": 2, "total_rows": 3, "batch_size": 3}


@pytest.fixture
def quality(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # to compile takes half a minute
    return importlib.import_module("quality")


@pytest.fixture
def readable(tmp_path):
    """A token set whose tokens stand for 1 to 8 bytes of text, or for none; one validation document is BOS alone."""
    folder = make_token_set(tmp_path / "set", train=[[30] * 20], val=[[1, 2, 8, 9], [10, 40, 16, 17]])
    token_bytes = np.random.default_rng(0).integers(1, 9, VOCAB)
    token_bytes[[BOS, 5, 6, 7]] = 0
    np.save(folder / "token_bytes.npy", token_bytes)
    return folder


def test_what_a_model_learned_is_measured_on_every_token_once(quality, readable):
    config = quality.TrainConfig(device="cpu", **SIZE)
    torch.manual_seed(0)
    token_set = TokenSet(readable)
    model = quality.GPT(token_set.tokenizer["vocab_size"], config)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.5)  # so that what goes before matters
    token_bytes = np.load(readable / "token_bytes.npy")

    def bits(begin_with_bos, of):
        """One token after the other, its context spelled out."""
        nats, counted = 0.0, 0
        for shard in map(token_set.open, token_set.split("val")):
            for begin, end in pairwise(shard.offsets.tolist()):
                document = shard.tokens[begin:end].astype(int).tolist()
                for place in range(1, len(document)):
                    cut = (place - 1) // 8 * 8
                    context = document[cut:place]
                    if cut and begin_with_bos:
                        context[0] = token_set.bos_id
                    if of(cut):
                        chances = model(torch.tensor([context]))[0, -1].double().log_softmax(-1)
                        nats -= chances[document[place]].item() * bool(token_bytes[document[place]])
                        counted += int(token_bytes[document[place]])
        return nats / counted / math.log(2)

    with torch.no_grad():
        expected = [bits(True, lambda cut: True), bits(False, lambda cut: True), bits(False, lambda cut: not cut)]
        expected += [bits(False, bool), bits(True, bool)]
    found = quality.bits_per_byte(model, token_set, config, most=None)
    assert found == pytest.approx(dict(zip(quality.MEASURED, expected, strict=True)), rel=1e-5)
    assert len({round(value, 6) for value in expected}) == 5, "they are told apart here"


def test_what_models_learned_is_kept_run_by_run(quality, readable, tmp_path, capsys):
    config, file = quality.TrainConfig(device="cpu", **SIZE), tmp_path / "runs.jsonl"

    def run(seeds):
        quality.main(readable, file, seeds, None, config)
        return [json.loads(line) for line in file.read_text().splitlines()]

    first, second = run(1), run(2)
    packings = ["best_fit", "best_fit, crop", "nanochat", "concat", "random"]
    assert second[:5] == first, "and they were not done again"
    assert [run["settings"]["packing"] for run in second] == packings * 2
    assert [run["settings"]["seed"] for run in second] == [0] * 5 + [1] * 5
    for name, line in zip(packings, capsys.readouterr().out.splitlines()[-5:], strict=True):
        ours = [run["bits_per_byte"]["first pieces"] for run in second if run["settings"]["packing"] == name]
        assert line.split(" | ")[0] == f"| {name}"
        assert line.split(" | ")[4] == f"{np.mean(ours):.4f} ({min(ours):.4f} to {max(ours):.4f})"
