"""--tokenizer owner/name: the tokenizer.json of a model on the hub, or in a folder."""

import pytest
from file_server import Hub, environment
from json_kinds import letters
from making import make_text, run_prepare, write_parquet

from tokenmill import TokenSet
from tokenmill.tokenize.load import find_tokenizer_file, load_any


@pytest.fixture
def hub(tmp_path):
    path = tmp_path / "MyModel-1B" / "tokenizer.json"
    path.parent.mkdir()
    letters().save(str(path))
    data = path.read_bytes()
    with Hub("owner/MyModel-1B", {"tokenizer.json": data}) as server:
        server.commits["b" * 40] = {"config.json": b"{}"}
        yield server


def test_a_model_on_the_hub_gives_its_tokenizer_and_its_name_and_works_offline_afterwards(
    hub, tmp_path
):
    write_parquet(tmp_path / "corpus" / "a.parquet", make_text(40, seed=1))
    env = environment(hub.url, tmp_path)
    flags = ("--source", "corpus", "--tokenizer", "owner/MyModel-1B")
    folder = tmp_path / run_prepare(*flags, cwd=tmp_path, env=env).stdout.splitlines()[-1]
    assert folder.name.startswith("corpus-MyModel-1B-")
    assert TokenSet(folder).tokenizer["bos_token"] == "<s>"
    of_folder = run_prepare(
        "--source", "corpus", "--tokenizer", "./MyModel-1B", cwd=tmp_path, env=env
    )
    assert of_folder.stdout.splitlines()[-1] == str(folder.relative_to(tmp_path)), (
        "the same, from a folder"
    )
    hub.shutdown()
    hub.server_close()
    assert "all shards are made" in run_prepare(*flags, cwd=tmp_path, env=env).stderr


@pytest.mark.parametrize(
    ("spec", "error", "said"),
    [
        ("owner/MyModel-1B@nothing", FileNotFoundError, "no such model or revision is on the hub"),
        ("owner/MyModel-1B@" + "b" * 40, FileNotFoundError, "no tokenizer.json is in this model"),
        (
            "owner/other",
            FileNotFoundError,
            "no such folder is here, and no such model or revision is on the hub",
        ),
    ],
)
def test_what_the_hub_lacks_is_an_error_that_says_so(hub, tmp_path, monkeypatch, spec, error, said):
    for key, value in environment(hub.url, tmp_path).items():
        monkeypatch.setenv(key, value)
    with pytest.raises(error, match=said):
        find_tokenizer_file(spec)


def test_other_names_are_no_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [find_tokenizer_file(spec) for spec in ("gpt2", "a/b.json", "a/b.pkl", "train:400")] == [
        None
    ] * 4
    for name in ("empty", "gpt2"):
        (tmp_path / name).mkdir()
    assert find_tokenizer_file("gpt2") is None, "a folder of this name is no tokenizer"
    for spec in ("./none", "../none", "a/b/c"):
        with pytest.raises(
            FileNotFoundError,
            match=r"expected a folder with a tokenizer\.json, found no such folder",
        ):
            find_tokenizer_file(spec)
    with pytest.raises(
        FileNotFoundError, match=r"empty: expected a tokenizer\.json in this folder, found none"
    ):
        find_tokenizer_file("./empty")
    with pytest.raises(ValueError, match=r"unknown tokenizer 'empty', did you mean \./empty\?"):
        load_any("empty")
