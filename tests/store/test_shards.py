"""The bytes on disk are those of the documented format, and damage is named."""

import itertools
import json
import shutil
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from file_server import FileServer
from making import make_token_set, of_shards, read_manifest, tree

from tokenmill import RowLoader
from tokenmill.store.files import AtomicFile
from tokenmill.store.json_files import write_json
from tokenmill.store.manifests import digest_of
from tokenmill.store.set_names import find_token_set
from tokenmill.store.shard_writer import ShardWriter
from tokenmill.store.shards import TEXT_COUNTS, is_finished
from tokenmill.store.token_sets import TokenSet

FACTS = {"source": {"file": "a.parquet"}, "fingerprint": "f" * 64} | dict.fromkeys(TEXT_COUNTS, 0)


def test_a_shard_is_plain_uint16_ids_and_uint64_offsets(tmp_path):
    with ShardWriter(tmp_path, "a.000", "uint16") as writer:
        writer.write(np.array([50256, 15496, 995, 0, 50256, 40], np.uint32), [4, 2])
        writer.write(np.array([50256, 64, 65], np.uint32), [3])
        record = writer.finish(FACTS)
    assert np.fromfile(tmp_path / "shards/a.000.bin", "<u2").tolist() == [
        50256,
        15496,
        995,
        0,
        50256,
        40,
        50256,
        64,
        65,
    ]
    assert np.fromfile(tmp_path / "shards/a.000.idx", "<u8").tolist() == [0, 4, 6, 9]
    assert record == json.loads((tmp_path / "shards/a.000.json").read_text())
    assert (record["documents"], record["tokens"], record["bin"]["bytes"]) == (3, 9, 18)
    assert is_finished(tmp_path, record)


def test_a_shard_whose_files_are_gone_or_of_another_size_is_not_finished(tmp_path):
    with ShardWriter(tmp_path, "a.000", "uint16") as writer:
        writer.write(np.array([1, 2]), [2])
        record = writer.finish(FACTS)
    path = tmp_path / "shards/a.000.bin"
    path.write_bytes(path.read_bytes()[:-1])
    assert not is_finished(tmp_path, record)
    path.unlink()
    assert not is_finished(tmp_path, record)


def test_a_kill_while_a_shard_is_replaced_leaves_no_record_of_the_former_one(tmp_path, monkeypatch):
    for tokens in ([1, 2], [3, 4]):
        with ShardWriter(tmp_path, "a.000", "uint16") as writer:
            writer.write(np.array(tokens), [2])
            if tokens == [3, 4]:
                monkeypatch.setattr(AtomicFile, "rename", killed_after(1, AtomicFile.rename))
            with suppress(KeyboardInterrupt):
                writer.finish(FACTS)
    assert np.fromfile(tmp_path / "shards/a.000.bin", "<u2").tolist() == [3, 4]
    assert sorted(path.name for path in tmp_path.glob("shards/*")) == ["a.000.bin", "a.000.idx"]


def killed_after(count, function):
    """The function, but for later calls."""
    calls = itertools.count()

    def called(*arguments):
        if next(calls) >= count:
            raise KeyboardInterrupt
        function(*arguments)

    return called


def test_an_atomic_file_leaves_the_old_one_until_it_is_committed(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with AtomicFile(path) as file:
        file.write(b"half")
    assert tree(tmp_path) == {"file": b"old"}
    with AtomicFile(path) as file:
        file.write(b"new")
        file.commit()
    assert tree(tmp_path) == {"file": b"new"}


def test_the_one_token_set_is_found_and_several_are_listed(tmp_path, monkeypatch):
    with pytest.raises(
        FileNotFoundError, match=r"run `tokenmill prepare` \(in a clone `python prepare_data\.py`\)"
    ):
        find_token_set(tmp_path / "tokens")
    first = make_token_set(tmp_path / "tokens" / "one", train=[[3]], val=[[2]])
    assert find_token_set(tmp_path / "tokens") == first
    monkeypatch.chdir(tmp_path)
    make_token_set(tmp_path / "data" / "tokens" / "near", train=[[3]], val=[[2]])
    (tmp_path / "data" / "tokens" / "unfinished").mkdir()
    with pytest.raises(
        FileNotFoundError, match=r"unfinished: expected a finished .* folder without man"
    ):
        TokenSet("data/tokens/unfinished")
    with pytest.raises(
        FileNotFoundError,
        match=r"found a folder of 1 token set; name one of them, as .*tokens/one$",
    ):
        TokenSet(tmp_path / "tokens")
    make_token_set(tmp_path / "tokens" / "two", train=[[3]], val=[[2]])
    with pytest.raises(
        ValueError, match=r"2 token sets(.|\n)*one(.|\n)*two(.|\n)*tokens=\".*two\"$"
    ):
        find_token_set(tmp_path / "tokens")


def test_the_digest_changes_with_any_shard_or_split_and_not_with_what_is_said_of_them(tmp_path):
    def make(name, train, val):
        return TokenSet(make_token_set(tmp_path / name, train=train, val=val))

    token_set = make("one", [[3], [5]], [[2]])
    assert make("same", [[3], [5]], [[2]]).digest == token_set.digest
    more = make("more", [[3], [5]], [[2], [2]])
    swapped = make("swapped", [[5], [3]], [[2]])
    shorter = make("shorter", [[3], [4]], [[2]])
    assert len({token_set.digest, more.digest, swapped.digest, shorter.digest}) == 4
    manifest = read_manifest(token_set.path) | {"dataset": "renamed", "new": 3}
    assert digest_of(manifest) == token_set.digest
    manifest["shards"] = [shard | {"split": "train"} for shard in manifest["shards"]]
    assert digest_of(manifest) != token_set.digest
    with pytest.raises(ValueError, match="split must be one of"):
        token_set.split("test")


def test_a_set_is_had_as_it_was_or_it_is_said_what_of_it_is_gone(tmp_path):
    folder = make_token_set(tmp_path / "set", train=[[3], [5]], val=[[2]])
    was = TokenSet(folder)
    make_token_set(tmp_path / "more", train=[[3], [5], [7]], val=[[2]])
    shutil.copytree(tmp_path / "more", folder, dirs_exist_ok=True)
    grown = TokenSet(folder)
    assert grown.as_it_was(was.digest, "train").entries == was.entries
    assert grown.as_it_was(grown.digest, "train") is grown
    shutil.rmtree(folder)
    shutil.copytree(make_token_set(tmp_path / "again", train=[[3], [5]], val=[[2]]), folder)
    manifest = read_manifest(folder)
    left = [shard for shard in manifest["shards"] if shard["name"] != "train_1.000"]
    write_json(folder / "manifest.json", of_shards(manifest, left))
    less = TokenSet(folder)
    with pytest.raises(
        ValueError,
        match=r"expected shard train_1.000 of train_1.parquet, with 5 tokens, .*found none",
    ):
        less.as_it_was(was.digest, "train")
    assert less.as_it_was(was.digest, "val").entries == was.entries, "and the others are not needed"
    never = r"this was never the token set with manifest (abc){5}0: expected .*abc0.json, found no"
    with pytest.raises(ValueError, match=never):
        less.as_it_was("abc" * 5 + "0", "train")
    (folder / "manifests" / f"{was.digest}.json").write_bytes(
        (folder / "manifest.json").read_bytes()
    )
    with pytest.raises(
        ValueError, match=f"expected the manifest with this digest, found {less.digest}"
    ):
        less.as_it_was(was.digest, "train")


@pytest.mark.parametrize("tokens", [1 << 34, 1 << 40, 1 << 60])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_manifest_that_lies_costs_no_memory(tmp_path, tokens, elsewhere):
    """Neither plans nor files of what it claims are made."""
    folder = make_token_set(tmp_path / "set", train=[[50] * 40], val=[[50] * 20])
    manifest = read_manifest(folder)
    manifest["shards"][0]["tokens"] = tokens
    write_json(folder / "manifest.json", of_shards(manifest, manifest["shards"]))
    message = (
        "expected [0-9,]+ bytes, found 4,000|0 to 17,592,186,044,416, found"
        "|record of shard train_0.000 is not of"
    )
    tracemalloc.start()
    with FileServer.of(folder) as server:
        where = f"{server.url}/set" if elsewhere else folder
        with pytest.raises(ValueError, match=message):
            RowLoader(where, batch_size=2, seq_len=64, prefetch=0, cache_dir=tmp_path / "c").skip(1)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 200 << 20
