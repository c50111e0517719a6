"""A set has one short name, which every command and loader takes, and which never means another set
than it says.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from tokenmill import Mixture, PrepareConfig, RowLoader, TokenSet, cli, find_token_set, get_batch
from tokenmill.chat.find_rule import find_chat_rule
from tokenmill.look.checkpoint_files import position_of
from tokenmill.store.manifests import write_manifest
from tokenmill.store.set_names import set_folder

SIZES = {"batch_size": 1, "seq_len": 4, "rank": 0, "world_size": 1}


@pytest.fixture
def make(prepared):
    """Makes a set of a name, and of another name of its data set."""

    def copy_as(folder, dataset):
        shutil.copytree(prepared[1], folder)
        token_set = TokenSet(folder)
        records = [(token_set.record(entry), entry.split) for entry in token_set.entries]
        write_manifest(folder, dataset, token_set.tokenizer, records)

    return copy_as


@pytest.fixture
def tokens(tmp_path, monkeypatch, make):
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "data/tokens"
    for name, dataset in (("web-bpe-11111111", "web"), ("web-edu-bpe-22222222", "web-edu")):
        make(root / name, dataset)
    return root


def test_a_set_is_found_by_its_folder_its_name_and_its_data_set(tokens):
    expected = tokens / "web-bpe-11111111"
    for name in (
        "web",
        "web-bpe-11111111",
        "data/tokens/web-bpe-11111111",
        expected,
        str(expected) + "/",
    ):
        assert TokenSet(name).path == expected
    assert TokenSet("web-edu").path == tokens / "web-edu-bpe-22222222"


def test_a_name_never_means_a_set_whose_name_only_begins_so(tokens):
    shutil.rmtree(tokens / "web-bpe-11111111")
    for name in ("web", "web-e", "edu", "WEB"):
        with pytest.raises(
            FileNotFoundError, match=f"{name}: expected a finished token set, found no such folder"
        ):
            TokenSet(name)


def test_a_name_of_two_sets_is_refused_and_both_are_listed(tokens, make):
    make(tokens / "web-gpt2-33333333", "web")
    for use in (
        TokenSet,
        lambda name: RowLoader(name, **SIZES),
        lambda name: Mixture({"a": 1}, sources={"a": name}),
    ):
        with pytest.raises(
            ValueError,
            match=r"web: 2 token sets have this name(.|\n)*web-bpe-1{8}\n.*web-gpt2-3{8}$",
        ):
            use("web")
    assert TokenSet("web-gpt2-33333333").path.name == "web-gpt2-33333333"


def test_a_folder_here_comes_first_and_an_unfinished_set_is_never_meant(tokens, tmp_path, make):
    make(tmp_path / "web", "mine")
    assert TokenSet("web").path == tmp_path / "web"
    assert TokenSet("./web").path == tmp_path / "web"
    (tmp_path / "web-edu").mkdir()
    assert TokenSet("web-edu").path == tokens / "web-edu-bpe-22222222", (
        "a folder of text is no token set"
    )
    for use in (
        TokenSet,
        lambda name: RowLoader(name, **SIZES),
        lambda name: get_batch("train", tokens=name, **SIZES),
    ):
        with pytest.raises(FileNotFoundError, match="found a folder without manifest"):
            use("./web-edu")
    shutil.copytree(tokens / "web-edu-bpe-22222222", tokens / "copy")
    with pytest.raises(ValueError, match="2 token sets have this name"):
        TokenSet("web-edu")
    (tokens / "code-bpe-44444444").mkdir()
    assert str(set_folder("code")) == "code"
    with pytest.raises(FileNotFoundError, match="code: expected a finished token set"):
        TokenSet("code")


def test_loaders_of_one_set_by_several_names_are_one(tokens):
    names = [
        "web",
        "web-bpe-11111111",
        "data/tokens/web-bpe-11111111",
        str(tokens / "web-bpe-11111111"),
    ]
    rows = [get_batch("train", tokens=name, **SIZES)[0].tolist() for name in names]
    loader = RowLoader("web", **SIZES)
    assert rows == [next(loader)[0].tolist() for _ in names], (
        "each call gets the next batch of the same loader"
    )
    mixture = Mixture({"web": 1, "web-edu": 1})
    assert mixture.names == ("web-bpe-11111111", "web-edu-bpe-22222222"), (
        "one source name, however a set is named"
    )
    assert [os.path.basename(path) for path in mixture.paths.values()] == [*mixture.names]


def test_list_prints_every_set_with_its_short_name_and_what_is_not_finished(
    tokens, capsys, tmp_path
):
    (tokens / "code-bpe-44444444/shards").mkdir(parents=True)
    (tokens / "code-bpe-44444444/shards/a.000.json").write_text("{}")
    (tokens / "bad" / "shards").mkdir(parents=True)
    (tokens / "bad/manifest.json").write_text("{")
    assert cli.main(["list"]) == 0
    said = capsys.readouterr().out
    assert "web-bpe-11111111\n    web, tokenizer" in said
    count = sum(entry.tokens for entry in TokenSet("web").split("train"))
    assert f"{count:,} tokens\n    val " in said
    assert "code-bpe-44444444\n    not finished: 1 shard made" in said
    assert "bad\n    cannot be opened: " in said
    assert cli.main(["list", str(tmp_path / "nowhere")]) == 1
    assert "nowhere: expected token sets, found none" in capsys.readouterr().err


def test_a_tilde_is_the_home_folder_wherever_a_path_is_named(tmp_path, monkeypatch, make):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "sets/web-bpe-11111111"
    make(folder, "web")
    mixture = '[sources.a]\npath = "~/sets/web-bpe-11111111"\n[weights]\na = 1\n'
    (tmp_path / "mix.toml").write_text(mixture)
    (tmp_path / "a.jinja").write_text("{{ messages }}")
    (tmp_path / "tokenizer.json").touch()
    loader = RowLoader("~/sets/web-bpe-11111111", **SIZES)
    (tmp_path / "a.json").write_text(json.dumps(loader.state_dict()))
    assert find_token_set("~/sets") == TokenSet("~/sets/web-bpe-11111111").path == folder
    assert Mixture.load("~/mix.toml")["a"] == folder
    assert find_chat_rule("~/a.jinja", "all").name == "a"
    assert position_of("--checkpoint", Path("~/a.json"), None, "") == loader.state_dict()
    config = PrepareConfig("a", chat="~/a.jinja", tokens_root="~/sets")
    assert config.tokens_root == str(tmp_path / "sets")
    assert config.tokenizer_name == str(tmp_path / "tokenizer.json")
