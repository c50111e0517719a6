"""Positions that tokenmill 0.3.0 (commit 41c3cfa) wrote go on with the rows that it dealt next.

positions_0_3_0.json has token sets as document lengths, positions, and the rows that came after each.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from making import make_token_set
from reference import rows_of

import tokenmill
from tokenmill import Mixture, RowLoader
from tokenmill.batches import get_batch as module
from tokenmill.batches.get_batch import LoaderCache
from tokenmill.feed.loader_config import LoaderConfig
from tokenmill.rows.position import VERSION, upgrade

KEPT = json.loads(Path(__file__).with_name("positions_0_3_0.json").read_text())
CASES = {case["name"]: case for case in KEPT["cases"]}
LOADERS = [name for name in CASES if name not in ("get_batch", "worker 1 of 2")]


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    for number, (name, train) in enumerate(KEPT["sets"].items()):
        make_token_set(folder / name, train=train, val=[[20] * 4], seed=number)
    return folder


def taken(loader, rows):
    return sum((rows_of(next(loader)) for _ in range(len(rows) // 2)), [])


def loader_of(sets, case):
    tokens = case["tokens"]
    tokens = sets / tokens if isinstance(tokens, str) else Mixture({sets / name: w for name, w in tokens.items()})
    return RowLoader(tokens, **({"batch_size": 2, "seq_len": 16} | case["settings"]))


@pytest.mark.parametrize("name", LOADERS)
def test_a_position_of_0_3_0_goes_on_with_the_rows_that_0_3_0_dealt(sets, small_windows, name):
    case = CASES[name]
    assert case["state"]["version"] == 2
    loader = loader_of(sets, case)
    loader.load_state_dict(case["state"])
    assert loader.tokens_seen == case["state"]["tokens_seen"]
    again = loader.state_dict()
    assert again["version"] == VERSION
    assert taken(loader, case["rows"]) == case["rows"]
    other = loader_of(sets, case)
    other.load_state_dict(json.loads(json.dumps(again)))
    assert taken(other, case["rows"]) == case["rows"], "saved again before a batch was taken"


def test_a_state_of_get_batch_goes_on(sets, small_windows, monkeypatch):
    monkeypatch.setattr(module, "_loaders", LoaderCache())
    case = CASES["get_batch"]
    tokenmill.load_state_dict(case["state"])
    batches = [rows_of(tokenmill.get_batch("train", 2, 16, tokens=sets / "web")) for _ in range(4)]
    assert sum(batches, []) == case["rows"]


def test_a_worker_s_position_goes_on_in_that_worker_alone(sets, small_windows):
    case = CASES["worker 1 of 2"]
    config = LoaderConfig(tokens=sets / "web", batch_size=2, seq_len=16, rank=0, world_size=1, prefetch=0)
    worker = RowLoader.of(config, (1, 2))
    worker.load_state_dict(case["state"])
    assert taken(worker, case["rows"]) == case["rows"]
    with pytest.raises(ValueError, match="worker is 1 in the position, 0 here"):
        RowLoader.of(config, (0, 2)).load_state_dict(case["state"])
    with pytest.raises(ValueError, match="rows_a_call is 2 in the position, 3 here"):
        RowLoader.of(replace(config, batch_size=3), (1, 2)).load_state_dict(case["state"])


def test_a_position_of_one_set_goes_on_as_a_source_of_a_mixture(sets, small_windows):
    case = CASES["best_fit"]
    loader = RowLoader(Mixture({sets / "web": 1}), batch_size=2, seq_len=16)
    loader.load_state_dict(case["state"])
    assert taken(loader, case["rows"]) == case["rows"], "in the order of the set, which had no name"


@pytest.mark.parametrize("name", LOADERS)
def test_upgrading_again_changes_nothing(name):
    once = upgrade(CASES[name]["state"])
    assert upgrade(once) == once
    assert CASES[name]["state"]["version"] == 2, "what was given stays as it was"
