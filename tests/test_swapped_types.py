"""A value of another type, wherever a user can put one, ends in a sentence, or does its work.

Each case puts a value of another kind at one place of what is right: into a loader's settings, a
position, a mixture, a rule, a file of a set, a row of chats. SEED and CASES choose others.
"""

import copy
import dataclasses
import json
import math
import os
import random
import shutil
import warnings
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from making import make_text, make_token_set

import tokenmill
from tokenmill import Mixture, PrepareConfig, RowLoader, TokenSet, get_batch, prepare
from tokenmill.chat.chat_encoder import ChatEncoder
from tokenmill.chat.find_rule import find_chat_rule, with_rule
from tokenmill.feed.config import LoaderConfig
from tokenmill.look.verify import verify
from tokenmill.prepare.failures import PreparationError
from tokenmill.tokenize.encoder import Encoder
from tokenmill.views.make_view import make_view
from tokenmill.views.rule import Rule

CASES = int(os.environ.get("CASES", 40))  # of each kind
SEED = os.environ.get("SEED", "1")
OF_JSON = [None, True, False, 0, -1, 3, 10**30, 0.5, math.nan, math.inf, "", "text", "1", "../x"]
OF_JSON += [[], [1], ["a"], [None], [[]], {}, {"a": 1}, {"a": {"b": [1]}}, [{"a": 1}]]
OF_PYTHON = [*OF_JSON, b"bytes", Decimal("NaN"), Decimal(1), np.int64(3), np.float32(1), object()]
OF_PYTHON += [np.array([1, 2]), (1, 2), {1, 2}, Path("x"), int, 1 + 2j, range(3), "\ud800"]
REFUSALS = (ValueError, OSError, PreparationError, ImportError)
RAW = ("invalid literal", "could not convert", "values to unpack", "embedded null")
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}<|bos|>"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
USER = {"role": "user", "content": "hi"}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
ANSWER = {"role": "assistant", "content": "yo", "loss": 1, "tool_calls": [CALL]}
ROWS = [
    {"messages": [USER, ANSWER], "tools": [{"type": "function"}], "loss_mask": [0, 1]},
    {"prompt": "a", "completion": "b"},
    {"prompt": [USER], "completion": [ANSWER]},
    {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    {"input_ids": [1, 2, 3], "labels": [-100, 2, 3], "attention_mask": [1, 1, 1]},
]


def places(value, path=()):
    """The place of a value, and those of all that it contains."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from places(item, (*path, number))


def swapped(rng, value, kinds=OF_JSON):
    """A copy in which something at one place is of another kind."""
    value = copy.deepcopy(value)
    path = rng.choice(list(places(value)))
    kind = rng.choice(kinds)
    if not path:
        return kind
    *outer, last = path
    parent = value
    for key in outer:
        parent = parent[key]
    parent[last] = kind
    return value


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    root = tmp_path_factory.mktemp("sets")
    web = make_token_set(root / "web", [[30, 9] * 40, [5] * 30], [[40] * 5])
    make_view(TokenSet(web), "long", Rule(where="tokens > 6"))
    return {"web": web, "b": make_token_set(root / "b", [[30, 9] * 40], [[4] * 5])}


def loader(sets, **more):
    return RowLoader(**{"tokens": sets["web"], "batch_size": 2, "seq_len": 16} | more)


def of_a_setting(rng, sets, work):
    names = [field.name for field in dataclasses.fields(LoaderConfig)]
    name = rng.choice(sorted({*names} - {"dtype"}))  # which RowLoader does not take
    next(loader(sets, **{name: rng.choice(OF_PYTHON)}))


def of_a_method(rng, sets, work):
    method = rng.choice(["skip", "set_epoch", "load_state_dict"])
    getattr(loader(sets, epochs=1), method)(rng.choice(OF_PYTHON))


def of_a_position(rng, sets, work):
    first = loader(sets)
    next(first)
    position = swapped(rng, json.loads(first.state_dict()["tokenmill"]))
    loader(sets).load_state_dict({"tokenmill": json.dumps(position)})


def of_get_batch(rng, sets, work):
    arguments = {"batch_size": 2, "seq_len": 16, "tokens": sets["web"]}
    tokenmill.load_state_dict({"get_batch": "[]"})
    get_batch("train", **arguments)
    state = swapped(rng, json.loads(tokenmill.state_dict()["get_batch"]))
    tokenmill.load_state_dict({"get_batch": json.dumps(state)})
    get_batch("train", **arguments)
    tokenmill.state_dict()


def of_a_mixture(rng, sets, work):
    paths = {name: str(path) for name, path in sets.items()}
    right = {"weights": {"web": 1, "b": 2}, "sources": paths, "views": {"web": None}}
    right |= {"max_epochs": {"web": 2}, "removed": ["x"]}
    name = rng.choice(list(right))
    right[name] = swapped(rng, right[name], OF_PYTHON)
    next(loader(sets, tokens=Mixture(**right)))


def of_a_rule(rng, sets, work):
    rule = {"where": "tokens > 6", "repeat": "2", "cap": 3}
    rule[rng.choice(list(rule))] = rng.choice([*OF_PYTHON, "tokens >", "*", ";", "select", "now()"])
    make_view(TokenSet(sets["b"]), rng.choice(["v", rng.choice(OF_PYTHON)]), Rule(**rule))


def of_a_file_of_a_set(rng, sets, work):
    folder = shutil.copytree(sets["web"], work / "copy")
    path = rng.choice(sorted(folder.rglob("*.json")))
    path.write_text(json.dumps(swapped(rng, json.loads(path.read_text()))))
    verify(folder, quick=True)
    next(loader(sets, tokens=folder, view=rng.choice([None, "long"])))


def of_preparing(rng, sets, work):
    names = [field.name for field in dataclasses.fields(PrepareConfig)]
    name = rng.choice(sorted({*names} - {"cluster", "dry_run"}))
    source = work / "source.jsonl"
    lines = [json.dumps({"text": text}) for text in make_text(9, seed=1)]
    source.write_text("\n".join(lines))
    settings = {"source": str(source), "tokens_root": str(work / "tokens"), "workers": 1}
    settings |= {"tokenizer": "gpt2" if name == "tokenizer" else sets["tokenizer"]}
    prepare(PrepareConfig(**settings | {name: rng.choice(OF_PYTHON), "dry_run": True}))


def of_a_row(rng, sets, work):
    row = json.dumps(swapped(rng, rng.choice(ROWS)))
    encoded = sets["chats"].encode(pa.array([row], pa.large_string()))
    for _, reason in [*encoded.broken, *encoded.refused]:
        raise ValueError(reason)


KINDS = [of_a_setting, of_a_method, of_a_position, of_get_batch, of_a_mixture, of_a_rule]
KINDS += [of_a_file_of_a_set, of_preparing, of_a_row]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_value_of_another_type_is_a_sentence(
    kind, sets, tokenizer, tokenizer_json, tmp_path, monkeypatch
):
    warnings.simplefilter("ignore")
    monkeypatch.chdir(tmp_path)
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    chatting = with_rule(tokenizer, find_chat_rule(str(template), "all"))
    there = {**sets, "tokenizer": str(tokenizer_json), "chats": ChatEncoder(Encoder(chatting))}
    refusals = {}
    for number in range(CASES):
        rng = random.Random(f"{SEED}:{kind.__name__}:{number}")
        work = tmp_path / str(number)
        work.mkdir()
        try:
            kind(rng, there, work)
        except REFUSALS as error:
            refusals[number] = error
    raw = {number: str(error) for number, error in refusals.items() if is_raw(error)}
    assert not raw
    assert CASES < 20 or len(refusals) > CASES // 10


def is_raw(error) -> bool:
    """Whether an error is Python's or a library's, and says nothing to a user."""
    text = str(error)
    is_of_python = isinstance(error, UnicodeError | json.JSONDecodeError)
    return is_of_python or len(text) < 9 or any(words in text for words in RAW)
