"""Sets sent to buckets, to the hub and by fsspec, and had back: the same bytes, and never a half."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from functools import partial

import boto3
import numpy as np
import pytest
import torch
from file_server import FileServer
from making import ROOT, give_small_files, make_token_set, of_shards, read_manifest, tree, wait_until

from tokenmill import RowLoader, TokenSet, cli
from tokenmill.exchange.card import card_of
from tokenmill.exchange.pull_command import Pull, fetch
from tokenmill.exchange.push_command import Push, send
from tokenmill.remote import push as pushing
from tokenmill.remote.backends import backend_of, read
from tokenmill.remote.pull import pull
from tokenmill.remote.sets import Kept, open_set
from tokenmill.remote.writers import sink_of
from tokenmill.store.files import write_json
from tokenmill.store.small_files import SMALL_FILES

REAL = ("shards", "manifest", "tokenizer", "token_bytes")


@pytest.fixture(scope="module")
def folder(prepared, tmp_path_factory):
    """A prepared set, of which there is a tokenizer too."""
    there = tmp_path_factory.mktemp("push") / prepared[1].name
    shutil.copytree(prepared[1], there)
    return there


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with FileServer({}) as server:
        server.token = "hf_S3CRET"
        for key, value in {
            "HF_ENDPOINT": f"{server.url}/hub",
            "HF_HOME": str(tmp_path / "hf"),
            "HF_TOKEN": server.token,
            "HF_HUB_DISABLE_XET": "1",
        }.items():
            monkeypatch.setenv(key, value)
        yield server


def rows(tokens, count=20, **more):
    with RowLoader(tokens, batch_size=4, seq_len=128, **more) as loader:
        return torch.stack([inputs for inputs, _ in itertools.islice(loader, count)])


def test_s3_takes_a_set_and_gives_its_rows(folder, bucket, tmp_path, capsys):
    address = f"s3://{bucket}/tokens/web"
    assert cli.main(["push", str(folder), address]) == 0
    assert "shards were sent, 0 were there already" in capsys.readouterr().out
    assert torch.equal(rows(address, cache_dir=tmp_path), rows(folder))
    assert cli.main(["push", str(folder), address + "/"]) == 0
    assert "0 shards were sent" in capsys.readouterr().out
    assert cli.main(["pull", address, str(tmp_path / "back")]) == 0
    assert tree(tmp_path / "back") == {k: v for k, v in tree(folder).items() if k.startswith(REAL)}


def test_credentials_are_asked_for_and_anonymous_is_said(folder, bucket, monkeypatch, tmp_path):
    address = f"s3://{bucket}/tokens/public"
    send(Push(str(folder), address))
    boto3.client("s3").put_object_acl(Bucket=bucket, Key="tokens/public/manifest.json", ACL="public-read")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    from tokenmill.remote.s3_backend import S3Backend

    with pytest.raises(PermissionError, match=r"give AWS credentials .* write \?anonymous after the address"):
        read(S3Backend(address), "manifest.json")
    assert read(S3Backend(address + "?anonymous"), "manifest.json")
    with pytest.raises(ValueError, match="only `anonymous` may follow"):
        S3Backend(address + "?anonymos")


def test_the_hub_takes_a_set_with_a_card_and_gives_its_rows(folder, hub, tmp_path, capsys):
    address = "hf://datasets/o/n/web"
    assert cli.main(["push", str(folder), address]) == 1
    assert "expected --license" in capsys.readouterr().err
    assert cli.main(["push", str(folder), address, "--license", "odc-by"]) == 0, capsys.readouterr().err
    card = hub.files["web/README.md"].decode()
    assert 'license: "odc-by"' in card
    assert "viewer: false" in card
    assert f'RowLoader("{address}"' in card
    assert f"{TokenSet(folder).tokenizer['fingerprint']}" in card
    from tokenmill.remote import backends

    backends._backends.clear()
    assert torch.equal(rows(address, cache_dir=tmp_path / "c"), rows(folder))
    pull(address, tmp_path / "back")
    assert tree(tmp_path / "back") == {k: v for k, v in tree(folder).items() if k.startswith(REAL)}


def test_a_push_mends_what_is_not_there_and_with_again_what_is_damaged(folder, bucket, tmp_path, capsys):
    address, s3 = f"s3://{bucket}/tokens/mended", boto3.client("s3")
    send(Push(str(folder), address))
    name = sorted(path.name for path in (folder / "shards").glob("*.bin"))[0]
    key = {"Bucket": bucket, "Key": f"tokens/mended/shards/{name}"}
    right = (folder / "shards" / name).read_bytes()
    s3.delete_object(**key)
    send(Push(str(folder), address))
    assert "1 shards were sent" in capsys.readouterr().out
    assert s3.get_object(**key)["Body"].read() == right
    s3.put_object(**key, Body=bytes([right[0] ^ 1]) + right[1:])
    assert cli.main(["verify", address]) == 1
    assert f"tokenmill push FOLDER {address} --again" in capsys.readouterr().out
    send(Push(str(folder), address, again=True))
    assert cli.main(["verify", address]) == 0


def test_a_push_over_another_set_is_refused(folder, bucket, tmp_path):
    other = make_token_set(tmp_path / "other", train=[[300] * 20], val=[[300] * 20])
    give_small_files(other, folder)
    send(Push(str(other), f"s3://{bucket}/mine"))
    with pytest.raises(FileExistsError, match="is of another token set, synthetic with manifest"):
        send(Push(str(folder), f"s3://{bucket}/mine"))
    assert open_set(f"s3://{bucket}/mine", Kept(tmp_path)).digest == TokenSet(other).digest


def test_what_is_written_here_is_no_address(folder, bucket, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    send(Push(str(folder), f"s3://{bucket}/set"))
    for words in (
        ["pull", f"s3://{bucket}/set", f"s3://{bucket}/other"],
        ["convert", "out", "llm.c", str(folder), f"s3://{bucket}/out"],
        ["report", str(folder), "--out", f"s3://{bucket}/page.html"],
    ):
        assert cli.main(words) == 1
        assert "must be on this disk, found an address" in capsys.readouterr().err
    assert cli.main(["convert", "in", "llm.c", f"s3://{bucket}/*.bin", "--tokenizer", "gpt2", "--name", "x"]) == 1
    assert "files come in from this disk, or from hf://" in capsys.readouterr().err
    assert cli.main(["pull", f"s3://{bucket}/nothing"]) == 1
    assert "found no manifest.json" in capsys.readouterr().err
    assert cli.main(["pull", "s3://no-such-bucket-at-all/nothing"]) == 1
    assert "NoSuchBucket" in capsys.readouterr().err
    assert cli.main(["push", str(folder), "s3://no-such-bucket-at-all/set"]) == 1
    error = capsys.readouterr().err
    assert "there is no bucket 'no-such-bucket-at-all'; make it first, or correct its name" in error
    assert "credentials" not in error
    assert not (tmp_path / "data").exists(), "nothing is made for what is not there"


def test_the_hub_s_own_reason_is_told(hub, monkeypatch, tmp_path, capsys):
    from tokenmill.remote import backends

    monkeypatch.setenv("HF_TOKEN", "wrong")
    backends._backends.clear()
    assert cli.main(["pull", "hf://datasets/o/n", str(tmp_path / "x")]) == 1
    assert "no such dataset repository or revision; for a private repository set HF_TOKEN" in capsys.readouterr().err


def test_a_card_tells_the_source_s_commit(folder):
    token_set = TokenSet(folder)
    token_set.origin = {"hub": {"repository": "karpathy/fine", "commit": "c0ffee", "files": [1, 2]}}
    assert "[karpathy/fine](https://huggingface.co/datasets/karpathy/fine/tree/c0ffee) at commit `c0ffee`" in card_of(
        token_set, "hf://datasets/o/n", "mit"
    )


def test_many_shards_lie_in_subfolders_and_come_back_flat(folder, hub, tmp_path, monkeypatch):
    monkeypatch.setattr(pushing, "SUBFOLDERS", 3)
    from tokenmill.remote import backends, writers

    monkeypatch.setattr(writers._Repository, "most_in_a_folder", 20)
    send(Push(str(folder), "hf://datasets/o/n/web", license="mit"))
    names = [path for path in hub.files if path.endswith(".bin")]
    assert {path.split("/")[2] for path in names} == {"000", "001", "002"}
    backends._backends.clear()
    assert torch.equal(rows("hf://datasets/o/n/web", cache_dir=tmp_path / "c"), rows(folder))
    pull("hf://datasets/o/n/web", tmp_path / "back")
    assert read_manifest(tmp_path / "back") == read_manifest(folder)
    assert torch.equal(rows(tmp_path / "back"), rows(folder))


def test_whatever_fsspec_writes_to_takes_a_set(folder, tmp_path):
    address = f"memory://tokens/{tmp_path.name}"
    send(Push(str(folder), address))
    assert torch.equal(rows(address, cache_dir=tmp_path), rows(folder))


def test_a_record_is_sent_after_its_tokens_and_the_manifest_last(folder, tmp_path):
    """So that whoever looks at any moment sees the old set or the new one, and no shard that is not whole."""
    sent, sink = [], sink_of(f"memory://order/{tmp_path.name}")
    real = sink._put
    sink._put = lambda name, what: (sent.append(name), real(name, what))
    pushing.push(TokenSet(folder), sink)
    assert sent[-1] == "manifest.json"
    assert sent[-2].startswith("manifests/")
    for entry in TokenSet(folder).entries:
        places = [sent.index(f"shards/{entry.name}.{suffix}") for suffix in ("bin", "idx", "json")]
        assert max(places) == places[-1] < sent.index("manifest.json")
    assert sent.count("manifest.json") == 1


def test_a_web_server_takes_nothing(folder):
    with pytest.raises(ValueError, match="files cannot be sent to a web server"):
        send(Push(str(folder), "https://host/tokens/web"))


def test_a_damaged_shard_is_not_sent(folder, bucket, tmp_path):
    shutil.copytree(folder, tmp_path / "bad")
    path = next((tmp_path / "bad" / "shards").glob("*.bin"))
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=rf"{path.name}: expected SHA-256 .*: damaged"):
        send(Push(str(tmp_path / "bad"), f"s3://{bucket}/bad"))
    with pytest.raises(FileNotFoundError, match="found no manifest.json"):
        open_set(f"s3://{bucket}/bad", Kept(tmp_path))


@pytest.mark.slow
def test_a_push_that_is_killed_shows_the_old_set_or_the_new_one_and_goes_on(folder, bucket, tmp_path):
    """A set of half the shards is there; the whole is pushed over it, and killed at random."""
    old = make_token_set(tmp_path / "grown", train=[[300] * 200 for _ in range(6)], val=[[300] * 20])
    address = f"s3://{bucket}/grown"
    give_small_files(old, folder)
    send(Push(str(old), address))
    new = make_token_set(tmp_path / "new", train=[[300] * 200 for _ in range(40)], val=[[300] * 20], seed=8)
    shutil.copy(next((old / "manifests").glob("*.json")), new / "manifests")  # as of a set that has grown
    give_small_files(new, folder)
    known = {TokenSet(old).digest: rows(old), TokenSet(new).digest: rows(new)}
    command = [sys.executable, "-m", "tokenmill", "push", str(new), address]
    rng = np.random.default_rng(0)
    for _ in range(4):
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(float(rng.uniform(1.0, 2.2)))
        process.kill()
        process.communicate()
        found = open_set(address, Kept(tmp_path / "c"))
        assert found.digest in known
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert open_set(address, Kept(tmp_path / "c")).digest == TokenSet(new).digest
    assert torch.equal(rows(address, cache_dir=tmp_path / "d"), known[TokenSet(new).digest])


# ---------------------------------------------------------------------------- pulling


@pytest.fixture
def large(tmp_path_factory):
    """A set of 24 MiB, served."""
    lengths = np.random.default_rng(1).integers(100, 3000, 1300).tolist()
    folder = make_token_set(tmp_path_factory.mktemp("large") / "web", train=[lengths] * 5, val=[lengths[:100]])
    with FileServer.of(folder) as server:
        yield folder, server


def has_come(server, process, size):
    return server.tokens_served() > size or process.poll() is not None


def test_a_pull_that_is_killed_goes_on_with_the_next_block(large, prepared, tmp_path):
    folder, server = large
    give_small_files(folder, prepared[1])
    server.files |= {f"set/{name}": (folder / name).read_bytes() for name in ("manifest.json", *SMALL_FILES)}
    server.delay = 0.03
    command = [sys.executable, "-m", "tokenmill", "pull", f"{server.url}/set", str(tmp_path / "back")]
    for _ in range(6):
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_until(partial(has_come, server, process, server.tokens_served() + (2 << 20)))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    server.delay = 0
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    total = sum(path.stat().st_size for path in folder.rglob("*.bin"))
    assert server.tokens_served() <= total + 6 * 16 * (1 << 20)
    back = tree(tmp_path / "back")
    assert {name: data for name, data in back.items() if name.startswith("shards")} == {
        name: data for name, data in tree(folder).items() if name.startswith("shards")
    }
    assert not [name for name in back if "incoming" in name or name.endswith(".tmp")]
    assert torch.equal(rows(tmp_path / "back"), rows(folder))


def test_a_pulled_shard_has_the_sha256_that_the_manifest_lists(large, prepared, tmp_path):
    """Where a record's CRC-32s agree with damaged tokens, and an older manifest does not list the record."""
    folder, server = large
    name = "set/shards/train_0.000"
    data = bytearray(server.files[f"{name}.bin"])
    data[1000:1002] = b"\x07\x00"
    record = json.loads(server.files[f"{name}.json"])
    record["bin"]["crc32"][0] = zlib.crc32(data[: 1 << 20])
    server.files |= {f"{name}.bin": bytes(data), f"{name}.json": json.dumps(record).encode()}
    manifest = json.loads(server.files["set/manifest.json"])
    del manifest["records"]
    server.files["set/manifest.json"] = json.dumps(manifest).encode()
    with pytest.raises(OSError, match="shard train_0.000: expected SHA-256"):
        fetch(Pull(f"{server.url}/set", tmp_path / "back"))
    assert not (tmp_path / "back" / "manifest.json").exists()


def test_a_pull_goes_on_where_moving_a_shard_was_interrupted(large, prepared, tmp_path, monkeypatch):
    folder, server = large
    give_small_files(folder, prepared[1])
    server.files |= {f"set/{name}": (folder / name).read_bytes() for name in ("manifest.json", *SMALL_FILES)}
    real, moved = os.replace, []

    def replace(source, target):
        if ".incoming" in str(source) and "shards" in str(source) and str(source).endswith(".idx"):
            moved.append(source)
            if len(moved) == 2:
                raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        pull(f"{server.url}/set", tmp_path / "back")
    monkeypatch.undo()
    served = server.tokens_served()
    pull(f"{server.url}/set", tmp_path / "back")
    assert torch.equal(rows(tmp_path / "back"), rows(folder))
    assert served <= server.tokens_served() <= sum(path.stat().st_size for path in folder.rglob("*.bin"))


def test_a_pulled_set_that_grew_knows_the_positions_of_before(folder, tmp_path):
    """No listing of the address is needed: the manifest says which there were."""
    grown = make_token_set(tmp_path / "grown", train=[[300] * 200 for _ in range(3)], val=[[300] * 20])
    give_small_files(grown, folder)
    manifest = read_manifest(grown)
    small = shutil.copytree(grown, tmp_path / "small", ignore=shutil.ignore_patterns("manifests", "train_2*"))
    shards = [shard for shard in manifest["shards"] if not shard["name"].startswith("train_2")]
    write_json(small / "manifest.json", of_shards(manifest, shards))
    before = TokenSet(small).digest
    shutil.copy(small / "manifest.json", grown / "manifests" / f"{before}.json")
    address = f"memory://grows/{tmp_path.name}"
    assert pushing.push(TokenSet(small), sink_of(address)) == 3
    with RowLoader(address, batch_size=4, seq_len=128, cache_dir=tmp_path / "c") as loader:
        next(loader)
        state = loader.state_dict()
        after = [next(loader)[0].clone() for _ in range(5)]
    assert pushing.push(TokenSet(grown), sink_of(address)) == 1
    pull(address, tmp_path / "back")
    for there in (address, tmp_path / "back"):
        with RowLoader(there, batch_size=4, seq_len=128, cache_dir=tmp_path / "c") as loader:
            loader.load_state_dict(state)
            assert all(torch.equal(next(loader)[0], inputs) for inputs in after)
    assert tree(tmp_path / "back") == tree(grown), "as it was pushed"


def test_a_former_manifest_at_an_address_is_the_one_that_it_is_called_after(folder, tmp_path):
    """Or a position would go on over other shards than its run read."""
    grown = make_token_set(tmp_path / "grown", train=[[300] * 20 for _ in range(3)], val=[[300] * 20])
    give_small_files(grown, folder)
    manifest = read_manifest(grown)
    shards = [shard for shard in manifest["shards"] if shard["name"] != "train_2.000"]
    before = TokenSet(grown).digest
    with FileServer.of(grown) as server:
        server.files["set/manifests/" + "0" * 16 + ".json"] = json.dumps(of_shards(manifest, shards)).encode()
        token_set = open_set(f"{server.url}/set", Kept(tmp_path / "c"))
        assert token_set.knows(before)
        with pytest.raises(ValueError, match="expected the manifest with this digest, found"):
            token_set.knows("0" * 16)


def test_a_pull_refuses_another_set_s_folder(large, prepared, tmp_path, folder):
    _, server = large
    with pytest.raises(FileExistsError, match="is there already, of another tokenizer"):
        pull(f"{server.url}/set", shutil.copytree(folder, tmp_path / "other"))
    same_tokenizer = make_token_set(tmp_path / "same", train=[[30] * 20], val=[[30]])
    with pytest.raises(FileExistsError, match="is there already, with manifest"):
        pull(f"{server.url}/set", same_tokenizer)
    with pytest.raises(ValueError, match="expected an address"):
        fetch(Pull("data/tokens/web"))


def test_the_first_windows_come_into_the_cache(large, tmp_path, capsys):
    folder, server = large
    assert cli.main(["pull", f"{server.url}/set", "--tokens", "1K", "--cache-dir", str(tmp_path)]) == 0
    assert "1 of 1 windows" in capsys.readouterr().out
    served = server.tokens_served()
    assert served == sum(path.stat().st_size for path in folder.rglob("train*.bin"))
    rows(f"{server.url}/set", cache_dir=tmp_path)
    assert server.tokens_served() == served
    assert cli.main(["pull", f"{server.url}/set", str(tmp_path), "--tokens", "1K"]) == 1
    assert "leave the folder out" in capsys.readouterr().err


def test_backends_are_those_of_this_process():
    assert backend_of("memory://a") is backend_of("memory://a")


# ---------------------------------------------------------------------------- views


def test_views_and_metadata_go_along_and_come_back(folder, bucket, tmp_path, capsys):
    there = tmp_path / "set"
    shutil.copytree(folder, there)
    for name, rule in (("long", "tokens >= 30"), ("up", "shard like '%1%'")):
        assert cli.main(["view", str(there), "--name", name, "--where", rule]) == 0
    address = f"s3://{bucket}/tokens/viewed"
    send(Push(str(there), address))
    assert open_set(address, Kept(tmp_path / "cache")).view_names() == ["long", "up"]
    for name in ("long", "up"):
        assert torch.equal(rows(address, view=name, cache_dir=tmp_path / "cache"), rows(there, view=name))
    with pytest.raises(FileNotFoundError, match="expected a view 'nope', found long, up"):
        rows(address, view="nope", cache_dir=tmp_path / "cache")
    former = open_set(there).viewed("long").view_digest
    assert cli.main(["view", str(there), "--name", "long", "--where", "tokens >= 35"]) == 0
    send(Push(str(there), address))
    assert torch.equal(rows(address, view="long", cache_dir=tmp_path / "cache"), rows(there, view="long"))
    pull(address, tmp_path / "back")
    assert tree(tmp_path / "back" / "views") == tree(there / "views")
    assert open_set(tmp_path / "back").viewed(former).view_digest == former, "for positions of before"
    assert cli.main(["verify", address, "--quick"]) == 0
    capsys.readouterr()


def test_a_view_that_is_damaged_is_not_sent_and_not_taken(folder, bucket, tmp_path):
    there = tmp_path / "set"
    shutil.copytree(folder, there)
    assert cli.main(["view", str(there), "--name", "long", "--where", "tokens >= 30"]) == 0
    address, digest = f"s3://{bucket}/tokens/damaged", open_set(there).viewed("long").view_digest
    send(Push(str(there), address))
    path = there / "views" / f"{digest}.counts"
    whole = path.read_bytes()
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(ValueError, match=r"counts: expected SHA-256 .*, found .*: damaged; make the view again"):
        send(Push(str(there), address))
    boto3.client("s3").upload_file(str(path), bucket, f"tokens/damaged/views/{digest}.counts")
    with pytest.raises(OSError, match="3 times on fresh connections: damaged there, or replaced"):
        rows(address, view="long", cache_dir=tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.counts"))
