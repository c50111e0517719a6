"""What a user says of a mixture: dicts, stages and TOML mean the same; what makes no sense is refused."""

import pickle
from fractions import Fraction
from pathlib import Path

import pytest
from making import make_token_set

from tokenmill import Mixture
from tokenmill.feed.mixture import tokens_of

TOML = """
tokens = "1M"
on_cap = "spread"
removed = ["old"]

[sources.web]
path = "sets/web"
[sources.code]
path = "sets/code"
max_epochs = 2.5

[[stages]]
begin = 0
weights = { web = 3, code = 1 }
[[stages]]
begin = "900K"
weights = { web = 1, code = 1 }
"""


def written(tmp_path, text):
    path = tmp_path / "mixture.toml"
    path.write_text(text)
    return path


def test_a_dict_stages_and_toml_mean_the_same(tmp_path):
    told = Mixture.load(written(tmp_path, TOML))
    web, code = tmp_path / "sets" / "web", str(tmp_path / "sets" / "code" / "..") + "/code/"
    stages = [(0, {web: 0.75, code: 0.25}), (900_000, {web: 7, code: 7.0})]
    same = Mixture(stages, max_epochs={code: 2.5}, on_cap="spread", tokens=1e6, removed=["old", "old"])
    assert told == same
    assert hash(told) == hash(same)
    assert told.names == ("web", "code")
    assert told["code"] == tmp_path / "sets" / "code"
    assert told.max_epochs == {"code": Fraction(5, 2)}
    assert [stage.begin for stage in told.stages] == [0, 900_000]
    assert pickle.loads(pickle.dumps(told)) == told
    assert Mixture({web: 3, code: 1}) != told
    assert "web 75.00%, code 25.00%" in repr(told)


def test_a_source_in_toml_may_be_the_name_of_a_set_under_data_tokens(tmp_path, monkeypatch):
    folder = make_token_set(tmp_path / "data" / "tokens" / "web-gpt2-12345678", train=[[9] * 5], val=[[9]])
    beside = make_token_set(tmp_path / "conf" / "other", train=[[9] * 5], val=[[9]])
    monkeypatch.chdir(tmp_path)
    for name in ("synthetic", "web-gpt2-12345678"):
        text = f'[sources]\nweb = {{path = "{name}"}}\nother = {{path = "other"}}\n[weights]\nweb = 1\nother = 1\n'
        told = Mixture.load(written(tmp_path / "conf", text))
        assert {name: Path(path) for name, path in told.paths.items()} == {"web": folder, "other": beside}


def test_one_weight_in_toml_needs_no_stages(tmp_path):
    (tmp_path / "data/tokens/math").mkdir(parents=True)
    told = Mixture.load(written(tmp_path, "[weights]\nmath = 1\nother = 2\n"))
    assert told["math"] == tmp_path / "data/tokens/math", "a bare name is looked for where preparing puts it"
    assert told["other"] == tmp_path / "other"
    assert told == Mixture({tmp_path / "data/tokens/math": 1, tmp_path / "other": 2})


def test_a_name_beside_the_path(tmp_path):
    mixture = Mixture({"web": 1, "second": 2}, sources={"web": tmp_path / "a/set", "second": tmp_path / "b/set"})
    assert mixture.paths == {"web": tmp_path / "a/set", "second": tmp_path / "b/set"}


def test_caps_know_sources_that_are_given_by_their_folders(tmp_path):
    folders = {tmp_path / "web": 1, tmp_path / "code": 2}
    assert Mixture(folders, max_epochs=2).max_epochs == {"web": 2, "code": 2}
    assert Mixture(folders, max_epochs={"web": 2, tmp_path / "code": 3}).max_epochs == {"web": 2, "code": 3}
    assert Mixture([(0, folders), (5, {"web": 1})]).stages[1].weights == {"web": 1}


def test_the_weights_of_one_moment():
    mixture = Mixture([(0, {"a": 1}), ("2K", {"a": 1, "b": 3})], max_epochs={"b": 2}, on_cap="retire")
    assert mixture.at(0) == mixture.at("1999") == Mixture({"a": 1})
    assert mixture.at(2_000).names == ("a", "b")
    assert mixture.at("1B").max_epochs == {"b": 2}
    assert len(mixture.at("2K").stages) == 1


@pytest.mark.parametrize(
    ("told", "tokens"),
    [
        (0, 0),
        ("0", 0),
        (9e11, 900 * 10**9),
        ("900B", 900 * 10**9),
        ("1.5t", 1_500 * 10**9),
        ("1_000", 1000),
        ("2K", 2000),
    ],
)
def test_numbers_of_tokens(told, tokens):
    assert tokens_of("begin", told) == tokens


@pytest.mark.parametrize(
    "told", [-1, 0.5, "many", "1.5", True, None, float("nan"), "B", "-3K", [1], "", "1,5B", "1/0B", "1e400"]
)
def test_what_is_no_number_of_tokens(told):
    with pytest.raises(ValueError, match="begin must be a"):
        tokens_of("begin", told)


SENSELESS = [
    (({"a": 0},), {}, "the weight of 'a' must be a positive number, not 0"),
    (({"a": -1, "b": 1},), {}, "the weight of 'a' must be a positive number, not -1"),
    (({"a": float("nan")},), {}, "the weight of 'a' must be a positive number, not nan"),
    (({"a": "5"},), {}, "the weight of 'a' must be a positive number, not '5'"),
    (({"a": 1, "b": 1e-9},), {}, "the weight of 'b' is 1.0e-09 of the whole, less than the smallest share"),
    (({},), {}, "expected weights of at least one source"),
    (([],), {}, "the first stage must begin at 0 tokens, found no stage"),
    (([(5, {"a": 1})],), {}, "the first stage must begin at 0 tokens, found 5"),
    (([(0, {"a": 1}), (10, {"a": 2}), (10, {"a": 1})],), {}, "stage 2 must begin after the stage before it, at 10 t"),
    (([(0, {"a": 1}), ("ten", {"a": 2})],), {}, "begin of stage 1 must be a whole number of tokens"),
    (([{"a": 1}],), {}, "a mixture must be {source: weight}, or stages"),
    (("web",), {}, "a mixture must be {source: weight}, or stages"),
    (([(0, "web")],), {}, "the weights of stage 0 must be {source: weight}, not 'web'"),
    (({"one/web": 1, "two/web": 1},), {}, "two sources are called 'web': .*one/web and .*two/web; name them"),
    (({"one/web": 1, "one/../one/web": 1},), {}, "stage 0 names source 'web' twice"),
    (({"a": 1, "b": 1},), {"sources": {"a": "x", "b": "./x"}}, "sources 'a' and 'b' are the same folder"),
    (({"a": 1},), {"sources": {"a": "x", "b": "y"}}, "source 'b' has no weight in any stage"),
    (({"a": 1},), {"sources": {"x/a": "x"}}, "a source's name must be a string without '/'"),
    (({"a": 1},), {"max_epochs": {"b": 1}}, "max_epochs names 'b', which is not a source of the mixture"),
    (({"a": 1},), {"max_epochs": {"a": 0}}, "max_epochs of 'a' must be a positive number"),
    (({"a": 1},), {"max_epochs": "3"}, "max_epochs of 'a' must be a positive number, not '3'"),
    (({"a": 1},), {"on_cap": "stop"}, "on_cap must be one of error, retire, spread, not 'stop'"),
    (({"a": 1},), {"max_epochs": 1, "on_cap": "spread"}, "on_cap='spread' needs the tokens of the whole run"),
    (({"a": 1},), {"removed": ["a"]}, "source 'a' is both in the mixture and in removed"),
    (({3: 1},), {}, "a source must be a name or a folder, not 3"),
    (({b"web": 1},), {}, "a source must be a name or a folder, not b'web'"),
    (({"a": 1},), {"sources": 5}, "sources must be {name: folder}, not 5"),
    (({"a": 1},), {"sources": {"a": 5}}, "the folder of source 'a' must be a path, not 5"),
    (({"a": 1},), {"removed": 5}, "removed must be a list of names, not 5"),
    (({"a": 1},), {"removed": {"b": 1}}, "removed must be a list of names, not {'b': 1}"),
    (({"a": 1},), {"removed": "old"}, r"removed must be a list of names, not the string 'old'; write \['old'\]"),
]


@pytest.mark.parametrize(("positional", "named", "told"), SENSELESS)
def test_what_makes_no_sense_is_refused(positional, named, told):
    with pytest.raises(ValueError, match=told):
        Mixture(*positional, **named)


SENSELESS_TOML = [
    ("weights = 3", "the weights of stages\\[0\\] must be a table, not 3"),
    ("[weights]\na = 1\n[[stages]]\nbegin = 0\nweights = {a = 1}", "expected either weights or stages"),
    ("tokens = 3", "expected either weights or stages"),
    ("on_cup = 'retire'\n[weights]\na = 1", "unknown key on_cup; did you mean on_cap?"),
    (
        "[sources.a]\npath = 'a'\nmax_epoch = 3\n[weights]\na = 1",
        "unknown key sources.a.max_epoch; did you mean sources.a",
    ),
    ("[sources.a]\npath = 3\n[weights]\na = 1", "sources.a.path must be a string that is not empty, not 3"),
    ("[sources.b]\nmax_epochs = 3\n[weights]\na = 1", "source 'b' has no weight in any stage"),
    ("[[stages]]\nbegin = 0", "stages\\[0\\] has no weights"),
    (
        "[[stages]]\nbegins = 0\nweights = {a = 1}",
        "unknown key stages\\[0\\].begins; did you mean stages\\[0\\].begin?",
    ),
    ("stages = 3", "stages must be tables, each under"),
    ("sources = 3\n[weights]\na = 1", "sources must be a table, not 3"),
    ("weights = {a = true}", "the weight of 'a' must be a positive number, not True"),
    ("weights = {a = 1}\nweights = {a = 1}", "expected a mixture as TOML, found"),
    (
        "[sources.web]\npath = 'web'\n[weights]\nwebb = 1",
        "'webb' has a weight but is not in sources; did you mean 'web'",
    ),
    ("weights = {'x/a' = 1, 'y/a' = 1}", "a source's name must be a string without '/'"),
]


@pytest.mark.parametrize(("text", "told"), SENSELESS_TOML)
def test_a_file_that_makes_no_sense_is_refused_with_its_name(tmp_path, text, told):
    with pytest.raises(ValueError, match=f"mixture.toml: .*{told}"):
        Mixture.load(written(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.toml: expected a mixture's TOML file, found no such file"):
        Mixture.load(tmp_path / "nowhere.toml")
    with pytest.raises(FileNotFoundError, match="expected a mixture's TOML file, found a folder"):
        Mixture.load(tmp_path)


def test_another_length_of_the_run_than_the_file_s(tmp_path):
    assert Mixture.load(written(tmp_path, TOML), tokens="2M").tokens == 2_000_000
    spread = TOML.replace('tokens = "1M"', "")
    assert Mixture.load(written(tmp_path, spread), tokens="1M") == Mixture.load(written(tmp_path, TOML))


def test_a_link_is_the_folder_that_it_leads_to(tmp_path):
    make_token_set(tmp_path / "web", train=[[5]], val=[])
    (tmp_path / "link").symlink_to(tmp_path / "web")
    with pytest.raises(ValueError, match="sources 'web' and 'link' are the same folder"):
        Mixture({tmp_path / "web": 1, tmp_path / "link": 1})
    one, other = Mixture({tmp_path / "link": 1}), Mixture({"link": 1}, sources={"link": tmp_path / "web"})
    assert one != other
    assert one.resolved() == other.resolved()
    assert one["link"] == Path(tmp_path / "link")
