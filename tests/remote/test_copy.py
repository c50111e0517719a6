"""Push and pull: the same bytes there and back, never half a set, nothing damaged sent or taken,
nothing outside.
"""

import json
import re
import shutil
from functools import partial
from pathlib import Path

import boto3
import fsspec
import pytest
import warm
from elsewhere import lengths, size
from file_server import FileServer
from making import give_small_files, make_token_set, read_manifest, tree, wait_until

from tokenmill import TokenSet, cli
from tokenmill.remote import files
from tokenmill.remote import push as pushing
from tokenmill.remote.pull import pull
from tokenmill.remote.push import push
from tokenmill.remote.token_set import open_set
from tokenmill.store.locks import locked


@pytest.fixture
def folder(prepared, tmp_path):
    """A prepared set with views, whose name stood for another view before."""
    there = shutil.copytree(prepared[1], tmp_path / prepared[1].name)
    for rule in ("tokens >= 30", "tokens >= 35"):
        assert cli.main(["view", str(there), "--name", "long", "--where", rule]) == 0
    return there


def pushed(folder) -> dict[str, bytes]:
    """The files of a set that are sent."""
    kept = ("shards", "manifest", "tokenizer", "token_bytes", "views")
    return {name: data for name, data in tree(folder).items() if name.startswith(kept)}


@pytest.mark.parametrize("kind", ["s3", "memory", "hf"])
def test_a_set_is_there_and_back_byte_for_byte(folder, kind, request, tmp_path, capsys):
    if kind == "s3":
        address = f"s3://{request.getfixturevalue('bucket')}/tokens/web"
    elif kind == "hf":
        hub = request.getfixturevalue("hub")
        address = "hf://datasets/o/n/web"
    else:
        address = f"memory://tokens/{tmp_path.name}"
    words = ["push", str(folder), address, *(["--license", "odc-by"] if kind == "hf" else [])]
    assert cli.main(words) == 0, capsys.readouterr().err
    assert cli.main([*words[:2], address + "/", *words[3:]]) == 0, "and again, spelled otherwise"
    if kind == "hf":
        assert hub.pushes == 2, "one each"
        card = hub.files["web/README.md"].decode()
        assert 'license: "odc-by"' in card
        assert f'RowLoader("{address}"' in card
    else:
        assert "sent 0 shards" in capsys.readouterr().out
    assert open_set(address).view_names() == ["long"]
    assert cli.main(["pull", address, str(tmp_path / "back")]) == 0
    assert pushed(tmp_path / "back") == pushed(folder)
    assert cli.main(["verify", str(tmp_path / "back")]) == 0
    capsys.readouterr()
    assert cli.main(["pull", address, str(tmp_path / "back")]) == 0
    assert "fetched 0 shards" in capsys.readouterr().out


def test_a_web_server_gives_the_present_manifest_and_its_shards(folder, tmp_path):
    with FileServer.of(folder) as server:
        pull(f"{server.url}/set", tmp_path / "back")
    expected = pushed(folder)
    for name in [*expected]:
        if name.startswith("views"):
            del expected[name]
    assert pushed(tmp_path / "back") == expected


def test_a_record_is_sent_after_its_tokens_and_the_manifest_last(folder, tmp_path, monkeypatch):
    """So that whoever looks at any moment sees the old set or the new one, and no shard that is not
    whole.
    """
    sent = []

    def write(address, name, data):
        files.write(address, name, data)
        sent.append(name)

    monkeypatch.setattr(pushing, "write", write)
    push(TokenSet(folder), f"memory://order/{tmp_path.name}")
    assert sent[-1] == "manifest.json"
    assert sent.count("manifest.json") == 1
    for entry in TokenSet(folder).entries:
        places = [sent.index(f"shards/{entry.name}.{suffix}") for suffix in ("bin", "idx", "json")]
        assert max(places) == places[-1]
    views = [name for name in sent if name.startswith("views")]
    assert [name.endswith(".json") for name in views] == sorted(
        name.endswith(".json") for name in views
    )


def test_a_push_mends_what_is_missing_and_a_pull_names_what_is_damaged(
    folder, bucket, capsys, tmp_path
):
    address = f"s3://{bucket}/tokens/mended"
    s3 = boto3.client("s3")
    push(TokenSet(folder), address)
    name = min(path.name for path in (folder / "shards").glob("*.bin"))
    key = {"Bucket": bucket, "Key": f"tokens/mended/shards/{name}"}
    right = (folder / "shards" / name).read_bytes()
    for damage in (None, right[:-1]):
        s3.delete_object(**key) if damage is None else s3.put_object(**key, Body=damage)
        assert push(TokenSet(folder), address) == 1
        assert s3.get_object(**key)["Body"].read() == right
    s3.put_object(**key, Body=bytes([right[0] ^ 1]) + right[1:])
    assert cli.main(["pull", address, str(tmp_path / "back")]) == 1
    assert (
        "damaged there, or replaced; delete the shard there, and push it again"
        in capsys.readouterr().err
    )


def test_another_set_is_not_written_over_there_or_here(folder, tmp_path):
    another = make_token_set(tmp_path / "other", train=[[300] * 20], val=[[300] * 20])
    give_small_files(another, folder)
    address = f"memory://mine/{tmp_path.name}"
    push(TokenSet(another), address)
    with pytest.raises(FileExistsError, match="has another token set, synthetic with manifest"):
        push(TokenSet(folder), address)
    with pytest.raises(FileExistsError, match="has another token set, with manifest"):
        pull(address, folder)
    assert open_set(address).digest == TokenSet(another).digest


def test_what_is_damaged_is_not_sent(folder, tmp_path):
    digest = TokenSet(folder).viewed("long").view_digest
    shard = f"shards/{TokenSet(folder).entries[0].name}"
    names = [f"{shard}.bin", f"{shard}.idx", f"{shard}.json", "tokenizer.json", "token_bytes.npy"]
    for name in [*names, f"views/{digest}.counts"]:
        right = (folder / name).read_bytes()
        (folder / name).write_bytes(right[:-2] + bytes([right[-2] ^ 1]) + right[-1:])
        with pytest.raises(ValueError, match=rf"{Path(name).name}: expected"):
            push(TokenSet(folder), f"memory://bad/{tmp_path.name}/{name}")
        assert "manifest.json" not in files.sizes(f"memory://bad/{tmp_path.name}/{name}")
        (folder / name).write_bytes(right)


@pytest.mark.usefixtures("impatient")
def test_what_is_damaged_is_not_taken(folder, tmp_path):
    name = min(path.name for path in (folder / "shards").glob("*.bin"))
    for damaged in (f"shards/{name}", f"shards/{Path(name).stem}.json", "tokenizer.json"):
        with FileServer.of(folder) as server:
            right = server.files[f"set/{damaged}"]
            server.files[f"set/{damaged}"] = right[:-2] + bytes([right[-2] ^ 1]) + right[-1:]
            with pytest.raises(
                ValueError, match=rf"{damaged}: (cannot be read, 3 tries|expected SHA-256)"
            ):
                pull(f"{server.url}/set", tmp_path / "back")
            assert not (tmp_path / "back" / "manifest.json").exists()
            server.files[f"set/{damaged}"] = right
            pull(f"{server.url}/set", tmp_path / "back")
        assert cli.main(["verify", str(tmp_path / "back")]) == 0
        shutil.rmtree(tmp_path / "back")


def test_names_from_a_manifest_or_a_listing_stay_in_the_folder(folder, tmp_path):
    address = f"memory://names/{tmp_path.name}"
    push(TokenSet(folder), address)
    for name in (
        "views/..json",
        "views/a/b.json",
        "manifests/x.json",
        "views/\x1b[1m.json",
        "views/a.txt",
    ):
        fsspec.filesystem("memory").pipe_file(f"{address}/{name}", b"mine")
    pull(address, tmp_path / "back")
    assert pushed(tmp_path / "back") == pushed(folder)
    for name in ("../../home", "/etc/passwd", "", "a\x1b[31m"):
        manifest = read_manifest(folder)
        manifest["shards"][0]["name"] = name
        fsspec.filesystem("memory").pipe_file(
            f"{address}/manifest.json", json.dumps(manifest).encode()
        )
        with pytest.raises(ValueError, match="expected a plain name"):
            pull(address, tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("verb", ["push", "pull"])
def test_a_copy_that_is_killed_continues_and_shows_the_old_set_or_the_new_one(
    prepared, bucket, tmp_path, verb
):
    train = [lengths(1 << 16, n) for n in range(20)]
    token_set = make_token_set(tmp_path / "web", train=train, val=[[300] * 20])
    give_small_files(token_set, prepared[1])
    if verb == "push":
        address = f"s3://{bucket}/web"
        words = ["push", token_set, address]
    else:
        server = FileServer.of(token_set, delay=0.04)
        words = ["pull", f"{server.url}/set", tmp_path / "back"]

    def has_copied(share):
        if verb == "push":
            return len(files.sizes(address)) > share * 63
        return server.tokens_served() > share * size(token_set)

    command = ["-m", "tokenmill", *words]
    for share in (0.3, 0.6):
        process = warm.Command(*command)
        wait_until(partial(has_copied, share))
        process.kill()
        if verb == "push":
            assert "manifest.json" not in files.sizes(address)
        else:
            assert not (tmp_path / "back" / "manifest.json").exists()
    last = warm.run(*command)
    assert last.returncode == 0, last.stderr
    assert int(last.stdout.split()[1]) < 21, "what was there was not copied again"
    if verb == "push":
        assert cli.main(["pull", address, str(tmp_path / "back")]) == 0
    else:
        server.shutdown()
    assert pushed(tmp_path / "back") == pushed(token_set)
    assert not [name for name in tree(tmp_path / "back") if name.endswith(".tmp")]


def test_what_cannot_be_is_said_before_anything_is_made(
    folder, bucket, hub, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pushing, "MOST_IN_A_FOLDER", 10)
    for words, message in {
        ("push", folder, "https://host/tokens/web"): "files cannot be sent there one by one",
        ("push", folder, "hf://datasets/o/n/web"): "expected --license",
        (
            "push",
            folder,
            "hf://datasets/o/n/web",
            "--license",
            "mit",
        ): "the hub takes 10 files in a folder",
        ("push", folder, f"s3://{bucket}/x", "--license", "mit"): "are for the hub",
        ("push", folder, "s3://no-such-bucket-at-all/set"): "NoSuchBucket|bucket does not exist",
        (
            "pull",
            f"s3://{bucket}/set",
            f"s3://{bucket}/other",
        ): "must be on this disk, found an address",
        ("pull", f"s3://{bucket}/nothing"): "found no manifest.json",
        ("pull", "data/tokens/web"): "expected an address",
        (
            "report",
            folder,
            "--out",
            f"s3://{bucket}/page.html",
        ): "must be on this disk, found an address",
    }.items():
        assert cli.main(list(map(str, words))) == 1, words
        assert hub.created == 0, "no repository for a set that it does not take"
        assert re.search(message, capsys.readouterr().err), words
    assert not (tmp_path / "data").exists()
    monkeypatch.setenv("HF_TOKEN", "wrong")
    assert cli.main(["push", str(folder), "hf://datasets/o/n/web", "--license", "mit"]) == 1
    assert "for a private repository set HF_TOKEN" in capsys.readouterr().err


def test_a_set_that_is_being_written_is_not_pushed(folder, tmp_path):
    with locked(folder), pytest.raises(OSError, match="another process is writing in this folder"):
        push(TokenSet(folder), f"memory://busy/{tmp_path.name}")
