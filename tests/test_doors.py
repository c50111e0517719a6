"""Names from strangers lead nowhere: each door with each trick, and what lies behind stays as it
was.
"""

import json
import os
import re
import shutil

import pytest
from file_server import FileServer, Hub, environment
from making import make_text, read_manifest, run_prepare, tree, write_parquet

from tokenmill import cli
from tokenmill.remote.pull import pull

TRICKS = ["../../home/model", "/{home}/model", "..", "", "a\x1b[31m", "a\0b"]


def write_jsonl(path, texts) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


@pytest.fixture
def home(tmp_path):
    """What is somebody's own: beside the folders that are named to tokenmill."""
    home = tmp_path / "home"
    home.mkdir()
    for suffix in ("bin", "idx", "json", "ids", "txt"):
        (home / f"model.{suffix}").write_bytes(b"my own" * 100)
    yield home
    found = {name: data for name, data in tree(home).items() if name.startswith("model.")}
    assert found == {
        f"model.{suffix}": b"my own" * 100 for suffix in ("bin", "idx", "json", "ids", "txt")
    }


@pytest.fixture
def token_set(tmp_path, prepared):
    shutil.copytree(prepared[1], tmp_path / "sets" / "web")
    return tmp_path / "sets" / "web"


def say(folder, **changes) -> None:
    """Changes what the manifest says."""
    (folder / "manifest.json").write_text(json.dumps(read_manifest(folder) | changes))


def fails(capsys, *arguments) -> str:
    """What the command says when it ends with an error: one line, without what could move a
    terminal's cursor.
    """
    assert cli.main(list(map(str, arguments))) != 0
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    return told.out + told.err


@pytest.mark.parametrize("trick", TRICKS)
def test_a_shard_s_name_in_a_manifest(home, token_set, capsys, trick):
    name = trick.replace("/{home}", str(home))
    shards = read_manifest(token_set)["shards"]
    say(token_set, shards=[shards[0] | {"name": name}, *shards[1:]])
    for command in (("verify", "--quick"), ("show", "--row", "0", "--seq-len", "64"), ("report",)):
        assert ".name: expected a plain name" in fails(capsys, command[0], token_set, *command[1:])


@pytest.mark.parametrize("trick", TRICKS)
def test_a_tokenizer_s_name(home, token_set, tmp_path, capsys, trick):
    path = token_set / "tokenizer.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"name": trick.replace("/{home}", str(home))})
    )
    write_jsonl(tmp_path / "texts" / "a.jsonl", ["one", "two"])
    write_jsonl(tmp_path / "texts" / "b.jsonl", ["three"])
    more = ("--tokens-root", tmp_path / "here" / "tokens")
    told = fails(capsys, "prepare", "--source", tmp_path / "texts", "--tokenizer", path, *more)
    assert "name: expected a plain name" in told
    assert not list((tmp_path / "here").rglob("manifest.json"))


@pytest.mark.parametrize("folder", ["shards", "manifests"])
def test_a_folder_of_a_set_that_is_a_link(home, token_set, folder):
    """To one in which the names of shards are those of other files."""
    for path in (token_set / "shards").glob("*.json"):
        shutil.copy(path, home / path.name)
    before = tree(home)
    if (token_set / folder).exists():
        os.rename(token_set / folder, token_set / "away")
    (token_set / folder).symlink_to(home, target_is_directory=True)
    with (
        FileServer.of(token_set.parent / "web") as server,
        pytest.raises(ValueError, match="lies outside of"),
    ):
        pull(f"{server.url}/set", token_set)
    assert tree(home) == before


@pytest.fixture
def hub(tmp_path):
    path = write_parquet(tmp_path / "there" / "a.parquet", make_text(documents=30, seed=1))
    with Hub(
        "owner/corpus", {"a.parquet": path.read_bytes(), "b.parquet": path.read_bytes()}
    ) as server:
        yield server


@pytest.mark.parametrize(
    "trick", ["../../../../home/model.txt", "a/../../../../../home/model.txt", "x\x1b[31m.txt"]
)
def test_a_file_s_name_in_a_hub_s_list(home, hub, tokenizer_json, tmp_path, trick):
    """Of the right size, so that it would be taken for fetched; and deleted after its shard was
    made.
    """
    work = tmp_path / "work"
    work.mkdir()
    flags = ["--source", "owner/corpus", "--tokenizer", tokenizer_json, "--no-keep-raw"]
    hub.commits[hub.main] = {trick: b"my own" * 100, "z.txt": b"z", "y.txt": b"y"}
    done = run_prepare(*flags, cwd=work, env=environment(hub.url, tmp_path), check=False)
    assert done.returncode != 0
    assert "path of plain names" in done.stderr
    assert "\x1b" not in done.stderr


# ---------------------------------------------------------------------------- what is no file, too
# large, too deep


def test_a_pipe_in_place_of_a_record_ends(token_set, capsys):
    path = min((token_set / "shards").glob("*.json"))
    path.unlink()
    os.mkfifo(path)
    assert re.search(
        r"\.json: expected the record of a shard, found a pipe",
        fails(capsys, "verify", token_set, "--quick"),
    )


def test_a_manifest_that_is_too_large_or_too_deep(token_set, capsys):
    os.truncate(token_set / "manifest.json", 129 << 20)
    assert "expected the manifest of a token set of at most 134,217,728 bytes" in fails(
        capsys, "show", token_set, "--row", 0, "--seq-len", 64
    )
    (token_set / "manifest.json").write_text("[" * 100_000)
    assert "found broken JSON" in fails(capsys, "show", token_set, "--row", 0, "--seq-len", 64)
