"""What a user says of a mixture: dicts, stages and TOML mean the same; what makes no sense is
refused.
"""

import pickle
from pathlib import Path

import pytest
from making import make_token_set

from tokenmill import Mixture
from tokenmill.feed.compatible_sets import require_compatible
from tokenmill.feed.weights import tokens_of
from tokenmill.store.token_sets import TokenSet

TOML = """
removed = ["old"]

[sources.web]
path = "sets/web"
[sources.code]
path = "sets/code"
max_epochs = 2
view = "good"

[[stages]]
begin = 0
weights = { web = 3, code = 1 }
[[stages]]
begin = "900K"
weights = { web = 1, code = 1 }
"""


def written(folder, text):
    (folder / "mixture.toml").write_text(text)
    return folder / "mixture.toml"


def test_a_dict_stages_and_toml_mean_the_same(tmp_path):
    loaded = Mixture.load(written(tmp_path, TOML))
    web = tmp_path / "sets" / "web"
    code = str(tmp_path / "sets" / "code" / "..") + "/code/"
    stages = [(0, {web: 0.75, code: 0.25}), (900_000, {web: 7, code: 7.0})]
    same = Mixture(stages, max_epochs={code: 2}, views={code: "good"}, removed=["old", "old"])
    assert loaded == same
    assert hash(loaded) == hash(same)
    assert (loaded.names, loaded["code"]) == (("web", "code"), tmp_path / "sets" / "code")
    assert (loaded.max_epochs, loaded.views, loaded.removed) == (
        {"code": 2},
        {"code": "good"},
        ("old",),
    )
    assert loaded.stages == [(0, {"code": 1, "web": 3}), (900_000, {"code": 1, "web": 1})]
    assert pickle.loads(pickle.dumps(loaded)) == loaded
    assert Mixture({web: 3, code: 1}) != loaded


def test_a_source_in_toml_may_be_the_name_of_a_set_under_data_tokens(tmp_path, monkeypatch):
    folder = make_token_set(
        tmp_path / "data" / "tokens" / "web-gpt2-12345678", train=[[9] * 5], val=[[9]]
    )
    beside = make_token_set(tmp_path / "conf" / "other", train=[[9] * 5], val=[[9]])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "synthetic").mkdir()  # of text
    for name in ("synthetic", "web-gpt2-12345678"):
        sources = f'[sources]\nweb = {{path = "{name}"}}\nother = {{path = "other"}}\n'
        weights = "[weights]\nweb = 1\nother = 1\n"
        loaded = Mixture.load(written(tmp_path / "conf", sources + weights))
        assert {name: Path(path) for name, path in loaded.paths.items()} == {
            "web": folder,
            "other": beside,
        }
        assert Mixture.load(written(tmp_path / "conf", f"[weights]\n{name} = 1\n"))[name] == folder
    assert list(loaded) == ["web", "other"]
    assert "web" in loaded
    assert "code" not in loaded


def test_sources_are_known_by_their_name_or_folder(tmp_path):
    mixture = Mixture(
        {"web": 1, "second": 2}, sources={"web": tmp_path / "a/set", "second": tmp_path / "b/set"}
    )
    assert mixture.paths == {"web": tmp_path / "a/set", "second": tmp_path / "b/set"}
    folders = {tmp_path / "web": 1, tmp_path / "code": 2}
    assert Mixture(folders, max_epochs=2).max_epochs == {"web": 2, "code": 2}
    assert Mixture(folders, max_epochs={"web": 2, tmp_path / "code": 3}).max_epochs == {
        "web": 2,
        "code": 3,
    }
    assert Mixture([(0, folders), (5, {"web": 1})]).stages[1].weights == {"web": 1}


def test_a_link_is_the_folder_that_it_leads_to(tmp_path):
    make_token_set(tmp_path / "web", train=[[5]], val=[])
    (tmp_path / "link").symlink_to(tmp_path / "web")
    with pytest.raises(ValueError, match="sources 'web' and 'link' have the same documents"):
        Mixture({tmp_path / "web": 1, tmp_path / "link": 1}).open()
    assert Mixture({tmp_path / "web": 1}, sources={"web": tmp_path / "link"}).names == ("web",)


def test_numbers_of_tokens():
    amounts = [0, "0", "1_000", "2K", 9e11, "900B", "9e11", "1.5t"]
    assert [tokens_of("begin", amount) for amount in amounts] == [
        0,
        0,
        1_000,
        2_000,
        *[9 * 10**11] * 3,
        15 * 10**11,
    ]
    for amount in [
        -1,
        0.5,
        "many",
        "1.5",
        True,
        None,
        float("nan"),
        "B",
        "-3K",
        [1],
        "",
        "1,5B",
        "1/0B",
        "1e400",
    ]:
        with pytest.raises(ValueError, match="begin must be a"):
            tokens_of("begin", amount)


SENSELESS = [
    (({"a": 0, "b": 0.0},), {}, "expected a source with a weight above 0, found none"),
    (({"a": 1, "b": -1},), {}, "the weight of 'b' must be a positive number, or 0, not -1"),
    (({"a": 1, "b": False},), {}, "the weight of 'b' must be a positive number, or 0, not False"),
    (
        ({"a": 1, "b": 1e-9},),
        {},
        "the weight of 'b' is 1.0e-09 of the whole, less than the smallest share",
    ),
    (({},), {}, "expected a source with a weight above 0, found none"),
    (
        ([(5, {"a": 1})],),
        {},
        r"stages must begin at 0 tokens and ascend, found stages that begin at \[5\]",
    ),
    (
        ([(0, {"a": 1}), (9, {"a": 2}), (9, {"a": 1})],),
        {},
        r"ascend, found stages that begin at \[0, 9, 9\]",
    ),
    (
        ([(0, {"a": 1}), ("ten", {"a": 2})],),
        {},
        "begin of stage 1 must be a whole number of tokens",
    ),
    (("web",), {}, "a mixture must be {source: weight}, or stages"),
    (([(0, "web")],), {}, "the weights of stage 0 must be {source: ...}, not 'web'"),
    (
        ({"one/web": 1, "two/web": 1},),
        {},
        "two sources are called 'web': .*one/web and .*two/web; name them",
    ),
    (({"one/web": 1, "one/../one/web": 1},), {}, "stage 0 names source 'web' twice"),
    (({"a": 1},), {"max_epochs": {"a": 3, "./a": 5}}, "max_epochs names source 'a' twice"),
    (({"a": 1},), {"views": {"a": "good", "./a": "bad"}}, "views names source 'a' twice"),
    (({"a": 1},), {"sources": {"a": "x", "b": "y"}}, "source 'b' has no weight"),
    (
        ({"a": 1},),
        {"max_epochs": {"b": 1}},
        "max_epochs names 'b', which is not a source of the mixture",
    ),
    (
        ({"a": 1},),
        {"max_epochs": 1.5},
        "max_epochs of 'a' must be a whole number of at least 1, not 1.5",
    ),
    (({"a": 1},), {"views": {"b": "good"}}, "views names 'b', which is not a source"),
    (({"a": 1},), {"views": {"a": ""}}, "a view must be the name of a view, not ''"),
    (({"a": 1},), {"removed": 3}, "removed must be a list of names, not 3"),
    (({"a": 1},), {"removed": ["a"]}, "source 'a' is both in the mixture and in removed"),
    (({"a": 1},), {"removed": "old"}, "removed must be a list of names, not 'old'"),
    (({3: 1},), {}, "a source must be a name or a folder, not 3"),
]


@pytest.mark.parametrize(("positional", "named", "told"), SENSELESS)
def test_what_makes_no_sense_is_refused(positional, named, told):
    with pytest.raises(ValueError, match=told):
        Mixture(*positional, **named)


SENSELESS_TOML = [
    ("weights = 3", r"the weights of stages\[0\] must be a table, not 3"),
    (
        "[weights]\na = 1\n[[stages]]\nbegin = 0\nweights = {a = 1}",
        "expected either weights or stages",
    ),
    ("removed = ['a']", "expected either weights or stages"),
    (
        "remove = ['a']\n[weights]\na = 1",
        "unknown key remove; the keys are sources, weights, stages, removed",
    ),
    (
        "[sources.a]\npath = 'a'\nmax_epoch = 3\n[weights]\na = 1",
        "unknown key sources.a.max_epoch; the keys are path",
    ),
    (
        "[[stages]]\nbegins = 0\nweights = {a = 1}",
        r"unknown key stages\[0\].begins; the keys are begin, weights",
    ),
    ("tokens = '1T'\n[weights]\na = 1", "unknown key tokens"),
    (
        "[sources.a]\npath = 3\n[weights]\na = 1",
        "sources.a.path must be a string that is not empty, not 3",
    ),
    (
        "[sources]\na = {path = 'a'}\nb = {max_epochs = 3}\n[weights]\na = 1",
        "max_epochs names 'b', which is not a source of the mixture",
    ),
    ("[[stages]]\nbegin = 0", r"stages\[0\] has no weights"),
    ("stages = 3", "stages must be tables, each under"),
    ("weights = {a = 1}\nweights = {a = 1}", "expected a mixture as TOML, found"),
]


@pytest.mark.parametrize(("text", "told"), SENSELESS_TOML)
def test_a_file_that_makes_no_sense_is_refused_with_its_name(tmp_path, text, told):
    with pytest.raises(ValueError, match=f"mixture.toml: .*{told}"):
        Mixture.load(written(tmp_path, text))


def test_ids_of_two_types_are_refused_by_their_types(tmp_path):
    """As of text with 65,535 ids, and of chats with two more: their tokenizer is the same."""
    for name, vocab in (("text", 65_535), ("chat", 65_537)):
        make_token_set(tmp_path / name, [[30] * 9], [[9]], vocab=vocab)
    sets = {name: TokenSet(tmp_path / name) for name in ("text", "chat")}
    for token_set in sets.values():
        token_set.tokenizer["fingerprint"] = "0" * 16
    with pytest.raises(
        ValueError, match="ids of one type, found uint16 in 'text', uint32 in 'chat'"
    ):
        require_compatible(sets)


def test_a_name_that_is_no_set_is_told_with_the_sources(tmp_path):
    make_token_set(tmp_path / "web", [[30] * 9], [[9]])
    misspelled = Mixture({"wbe": 1, "web": 1}, sources={"web": tmp_path / "web"})
    with pytest.raises(FileNotFoundError, match=r"source 'wbe' of web, wbe: .*wbe: expected a fin"):
        misspelled.open()
