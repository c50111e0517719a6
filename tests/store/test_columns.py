"""A column from outside the package goes wherever a shard goes, and sets without one are what they always were."""

import itertools
import json
import os
import shutil
import textwrap
from types import SimpleNamespace
from unittest.mock import ANY

import fsspec
import numpy as np
import pytest
import torch
import warm
from file_server import FileServer
from making import BOS, ROOT, TEXT_COUNTS, give_tokenizer, make_token_set, read_manifest, source_of, tree
from old_sets import OLD, prepared

from tokenmill import RowLoader, TokenSet
from tokenmill.exchange.convert import Out, export
from tokenmill.exchange.pull_command import Pull, fetch
from tokenmill.exchange.push_command import Push, send
from tokenmill.look.verify import drop, verify
from tokenmill.prepare.upload import make_and_upload
from tokenmill.remote.push import subfolders_for
from tokenmill.remote.sets import Kept, open_set
from tokenmill.store.columns import COLUMNS, Column, register_column
from tokenmill.store.shard_writer import ShardWriter
from tokenmill.store.shards import finished_record
from tokenmill.store.token_sets import digest_of, write_manifest

MASK, QUALITY = Column("label", "uint8", "token"), Column("quality", "float32", "document")
LANGUAGE = Column("language", None, "document")
LENGTHS = {"train_0.000": [5, 3, 40, 7], "train_1.000": [3] * 30, "val_0.000": [4, 8, 30]}
FACTS = {"fingerprint": "f" * 64} | dict.fromkeys(TEXT_COUNTS, 0)


@pytest.fixture(autouse=True)
def registered():
    """The columns of these tests, in the table as long as a test runs."""
    for column in (MASK, QUALITY, LANGUAGE):
        register_column(column)
    yield
    for column in (MASK, QUALITY, LANGUAGE):
        del COLUMNS[column.suffix]


def mask_of(name: str) -> np.ndarray:
    return np.arange(sum(LENGTHS[name]), dtype=np.uint8) % 3


def quality_of(name: str) -> np.ndarray:
    return np.linspace(0, 1, len(LENGTHS[name]), dtype=np.float32)


def languages_of(name: str) -> list[str]:
    return [f"språk {number}\u2028" for number in range(len(LENGTHS[name]))]


def write_shard(folder, name: str, columns=("label", "quality", "language"), **others) -> dict:
    """The record of a shard, whose tokens are always the same; `others` are other values of its columns."""
    lengths, rng = LENGTHS[name], np.random.default_rng(0)
    tokens = rng.integers(1, 256, sum(lengths))
    tokens[np.cumsum([0, *lengths[:-1]])] = BOS
    values = {"label": mask_of(name), "quality": quality_of(name), "language": languages_of(name)} | others
    with ShardWriter(folder, name, "uint16", columns) as writer:
        writer.write(tokens, lengths)
        for suffix in columns:
            half = len(values[suffix]) // 2
            writer.write_column(suffix, values[suffix][:half])
            writer.write_column(suffix, values[suffix][half:])
        return writer.finish(FACTS | {"source": source_of(f"{name}.parquet", len(lengths))})


@pytest.fixture
def folder(tmp_path):
    """A token set whose shards have the three columns. Its tokenizer is not of use."""
    folder = tmp_path / "set"
    folder.mkdir()
    for name in ("tokenizer.json", "token_bytes.npy"):
        (folder / name).write_bytes(b"of no use here")
    for name in LENGTHS:
        write_shard(folder, name)
    return write_set(folder)


def write_set(folder):
    records = [(finished_record(folder, name), name.partition("_")[0]) for name in LENGTHS]
    facts = {"name": "random", "fingerprint": "f" * 64, "vocab_size": 400, "bos_token": "<|bos|>", "bos_id": BOS}
    write_manifest(folder, "synthetic", facts, records)
    return folder


def require_columns(token_set: TokenSet) -> None:
    for entry in token_set.entries:
        shard = token_set.open(entry)
        assert np.array_equal(shard.column("label"), mask_of(entry.name))
        assert shard.column("label").dtype == np.uint8
        assert np.array_equal(shard.column("quality"), quality_of(entry.name))
        assert [json.loads(line) for line in shard.lines("language")] == languages_of(entry.name)


def rows(tokens, **more) -> torch.Tensor:
    with RowLoader(tokens, batch_size=2, seq_len=16, **more) as loader:
        return torch.stack([inputs for inputs, _ in itertools.islice(loader, 6)])


def problems(tokens) -> dict[str, list[str]]:
    """What verify finds of the shards: the set of these tests has no tokenizer of its own."""
    return {name: found for name, found in verify(tokens, workers=1).items() if name}


# ---------------------------------------------------------------------------- written, and read


def test_columns_are_files_that_the_record_and_the_manifest_list(folder):
    token_set, record = TokenSet(folder), finished_record(folder, "train_0.000")
    assert (folder / "shards/train_0.000.label").read_bytes() == mask_of("train_0.000").tobytes()
    assert {name: (facts["dtype"], facts["per"]) for name, facts in record["columns"].items()} == {
        "label": ("uint8", "token"),
        "quality": ("float32", "document"),
        "language": (None, "document"),
    }
    listed = read_manifest(folder)["shards"][0]["columns"]
    assert listed == {name: facts["sha256"] for name, facts in record["columns"].items()}
    require_columns(token_set)
    assert not token_set.open(token_set.entries[0]).column("label").flags.writeable


def test_reading_needs_no_registration(folder):
    code = f"""
    from tokenmill import TokenSet
    from tokenmill.store.columns import COLUMNS
    token_set = TokenSet({str(folder)!r})
    shard = token_set.open(token_set.entries[0])
    print("label" in COLUMNS, int(shard.column("label").sum()))
    """
    done = warm.run("-c", textwrap.dedent(code), cwd=ROOT)
    assert done.stdout.split() == ["False", str(int(mask_of("train_0.000").sum()))], done.stderr


def test_a_column_that_nobody_registered_or_that_a_shard_lacks_is_an_error(tmp_path, folder):
    with pytest.raises(
        ValueError,
        match="no optional column 'reward' is registered in this process, only ids, meta.parquet, mask, targets, lab",
    ):
        ShardWriter(tmp_path, "a.000", "uint16", ["reward"])
    assert not (tmp_path / "shards").exists()
    token_set = TokenSet(folder)
    with pytest.raises(ValueError, match="has no column 'ids'; optional columns here: label, quality, language"):
        token_set.open(token_set.entries[0]).lines("ids")
    with pytest.raises(ValueError, match="column language is no array of numbers; read it by lines"):
        token_set.open(token_set.entries[0]).column("language")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1] * 5, "a.000.label: expected 6 values, one a token, found 5"),
        ([1] * 7, "a.000.label: expected 6 values, one a token, found 7"),
        ([256] * 6, "column label: expected a sequence of uint8, found values it cannot hold"),
        ([0.5] * 6, "column label: expected a sequence of uint8"),
        ([[1] * 6], "column label: expected a sequence of uint8"),
    ],
)
def test_values_that_do_not_fit_leave_nothing(tmp_path, values, message):
    def write():
        with ShardWriter(tmp_path, "a.000", "uint16", ["label"]) as writer:
            writer.write(np.arange(6), [2, 4])
            writer.write_column("label", values)
            writer.finish(FACTS | {"source": source_of("a.parquet", 2)})

    with pytest.raises(ValueError, match=message):
        write()
    assert tree(tmp_path) == {}


def test_what_cannot_be_a_column_is_refused():
    for suffix in ("bin/x", "", "A", "json", "tmp", "x" * 33, "..", "a.b"):
        with pytest.raises(ValueError, match="the suffix of a column must be"):
            Column(suffix, "uint8", "token")
    with pytest.raises(ValueError, match="column a: dtype must be one of"):
        Column("a", "object", "token")
    with pytest.raises(ValueError, match="column label: is registered already, as Column"):
        register_column(Column("label", "uint16", "token"))
    register_column(Column("label", "uint8", "token"))  # the same
    with pytest.raises(ValueError, match="column x: only an optional one"):
        register_column(Column("x", "uint8", "token", optional=False))
    with pytest.raises(ValueError, match="column ids: is registered already"):
        register_column(Column("ids", None, "document"))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"bin": {"dtype": "uint8", "per": "token"}}, "column 'bin': expected an optional one"),
        ({"../x": {"dtype": "uint8", "per": "token"}}, "the suffix of a column must be"),
        ({"label": {"dtype": "object", "per": "token"}}, "column label: dtype must be one of"),
        ({"label": {"dtype": "uint8", "per": "boundary"}}, "column 'label': expected an optional one"),
        ({"label": {"dtype": "uint16", "per": "token"}}, "label: bytes: expected 110, as its counts say, found 55"),
        ([], "is not built as a shard is"),
    ],
)
def test_a_record_that_says_what_no_column_can_be_is_refused(folder, columns, message):
    path = folder / "shards/train_0.000.json"
    record = json.loads(path.read_text())
    sums = {key: record["columns"]["label"][key] for key in ("bytes", "sha256", "crc32")}
    record["columns"] = {name: facts | sums for name, facts in columns.items()} if columns else columns
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match=f"train_0.000.json: {message}"):
        finished_record(folder, "train_0.000")


# ---------------------------------------------------------------------------- the manifest


def test_the_digest_changes_with_any_column_and_with_none_stays_as_it_was(folder, tmp_path):
    manifest = read_manifest(folder)
    seen = {digest_of(manifest)}
    for suffix in ("label", "quality", "language"):
        other = json.loads(json.dumps(manifest))
        other["shards"][1]["columns"][suffix] = "0" * 64
        seen.add(digest_of(other))
    for shard in manifest["shards"]:
        del shard["columns"]
    seen.add(digest_of(manifest))
    assert len(seen) == 5
    (tmp_path / "plain").mkdir()
    for name in LENGTHS:
        write_shard(tmp_path / "plain", name, ())
    assert read_manifest(write_set(tmp_path / "plain")) == manifest | {"files": {}, "records": ANY}


@pytest.mark.parametrize("columns", [{}, {"bin": "0" * 64}, {"label": "0"}, {"../x": "0" * 64}, ["label"]])
def test_a_manifest_with_columns_that_cannot_be_is_refused(folder, columns):
    manifest = read_manifest(folder)
    manifest["shards"][1]["columns"] = columns
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"manifest.json: "):
        TokenSet(folder)


def test_sets_of_an_older_tokenmill_are_made_again_byte_for_byte(tmp_path):
    old = json.loads(OLD.read_text())
    assert prepared(tmp_path, old["tokenizer"]) == old["sets"]


# ---------------------------------------------------------------------------- checked


def test_a_flipped_bit_a_cut_and_a_missing_file_are_found(folder):
    assert problems(folder) == {}
    path = folder / "shards/train_0.000.label"
    whole = path.read_bytes()
    path.write_bytes(whole[:9] + bytes([whole[9] ^ 4]) + whole[10:])
    assert problems(folder) == {"train_0.000": [".label: bit 2 of byte 9 is flipped"]}
    path.write_bytes(whole[:-1])
    assert problems(folder) == {"train_0.000": [".label: expected 55 bytes, found 54"]}
    assert finished_record(folder, "train_0.000") is None, "so it is made again"
    token_set = TokenSet(folder)
    with pytest.raises(ValueError, match="train_0.000.label: expected 55 bytes, found 54"):
        token_set.open(token_set.entries[0]).column("label")
    path.unlink()
    assert "train_0.000.label" in problems(folder)["train_0.000"][0]
    with pytest.raises(FileNotFoundError, match="train_0.000.label: no such file, though the manifest lists it"):
        token_set.open(token_set.entries[0]).column("label")


def test_a_column_of_another_shard_is_found_though_its_own_record_fits(folder, tmp_path):
    name = "train_1.000"
    other = tmp_path / "other"
    other.mkdir()
    write_shard(other, name, ("label", "quality"))
    shutil.copytree(other / "shards", folder / "shards", dirs_exist_ok=True)
    record = "record: its SHA-256 is not the manifest's"
    assert problems(folder) == {name: [record, "record: the SHA-256 of .language is not the manifest's"]}
    token_set = TokenSet(folder)
    with pytest.raises(ValueError, match="expected the record of the shard that the manifest lists"):
        token_set.open(token_set.entries[1]).column("label")


def test_a_bad_shard_is_taken_out_with_its_columns(folder):
    before = TokenSet(folder).digest
    drop(folder, ["train_1.000"])
    assert not list(folder.glob("shards/train_1*"))
    token_set = TokenSet(folder)
    assert [entry.name for entry in token_set.entries] == ["train_0.000", "val_0.000"]
    assert dict(token_set.dropped[0][1].columns).keys() == {"label", "quality", "language"}
    assert token_set.digest != before
    assert problems(folder) == {}


# ---------------------------------------------------------------------------- at an address


@pytest.fixture
def memory(tmp_path):
    """An address in memory, empty again afterwards."""
    yield f"memory://columns/{tmp_path.name}"
    fsspec.filesystem("memory").store.clear()


def test_columns_are_pushed_read_and_pulled(folder, memory, tmp_path):
    send(Push(str(folder), memory))
    remote = open_set(memory, Kept(tmp_path / "cache"))
    require_columns(remote)
    assert remote.digest == TokenSet(folder).digest
    assert torch.equal(rows(memory, cache_dir=tmp_path / "cache"), rows(folder))
    fetch(Pull(memory, tmp_path / "back"))
    assert tree(tmp_path / "back") == tree(folder)
    require_columns(TokenSet(tmp_path / "back"))


def test_a_push_sends_again_a_shard_that_lacks_a_column_there(folder, memory, capsys):
    send(Push(str(folder), memory))
    fsspec.filesystem("memory").rm(f"{memory.removeprefix('memory:/')}/shards/train_1.000.label")
    capsys.readouterr()
    send(Push(str(folder), memory))
    assert "1 shards were sent, 2 were there already" in capsys.readouterr().out


def test_a_column_that_is_damaged_here_is_not_pushed(folder, memory):
    (folder / "shards/train_0.000.label").write_bytes(bytes(55))
    with pytest.raises(ValueError, match="train_0.000.label: expected SHA-256 .*: damaged"):
        send(Push(str(folder), memory))


def test_only_verified_bytes_of_a_column_reach_the_cache(folder, tmp_path):
    with FileServer.of(folder) as server:
        path = "set/shards/train_0.000.label"
        server.faults[path] = ["flip", "drop", "503"]
        token_set = open_set(f"{server.url}/set", Kept(tmp_path / "cache"))
        shard = token_set.open(token_set.entries[0])
        cached = token_set.path / "shards/train_0.000.label"
        assert not cached.exists(), "fetched when it is asked for"
        assert np.array_equal(shard.column("label"), mask_of("train_0.000"))
        asked = len(server.asked)
        assert np.array_equal(shard.column("label"), mask_of("train_0.000"))
        assert len(server.asked) == asked, "and once"
        os.truncate(cached, 9)
        again = open_set(f"{server.url}/set", Kept(tmp_path / "cache"))
        assert np.array_equal(again.open(again.entries[0]).column("label"), mask_of("train_0.000"))
        cached.unlink()
        (tmp_path / "mine").write_bytes(bytes(55))
        cached.symlink_to(tmp_path / "mine")
        assert np.array_equal(again.open(again.entries[0]).column("label"), mask_of("train_0.000"))
        assert (tmp_path / "mine").read_bytes() == bytes(55), "a link is replaced"
        cached.write_bytes(b"cut")
        assert np.array_equal(shard.column("label"), mask_of("train_0.000"))
        assert problems(f"{server.url}/set") == {}
        server.always["train_1.000.label"] = "flip"
        with pytest.raises(OSError, match="train_1.000.label: expected SHA-256 .* 3 times: damaged there, or replaced"):
            token_set.open(token_set.entries[1]).column("label")
        assert not (token_set.path / "shards/train_1.000.label").exists()
        assert "expected SHA-256" in problems(f"{server.url}/set")["train_1.000"][0]


def test_a_set_as_it_was_has_its_own_columns(folder, tmp_path):
    """A shard whose tokens stayed and whose mask is another now is not read from the same place of the cache."""
    was, other = TokenSet(folder), np.ones(55, np.uint8)
    with FileServer.of(folder) as server:
        old = open_set(f"{server.url}/set", Kept(tmp_path / "cache"))
        require_columns(old)
        write_shard(folder, "train_0.000", label=other)
        write_set(folder)
        server.files = {f"set/{name}": data for name, data in tree(folder).items()}
        new = open_set(f"{server.url}/set", Kept(tmp_path / "cache"))
        assert new.digest != was.digest
        assert np.array_equal(new.open(new.entries[0]).column("label"), other)
        before = TokenSet(folder).as_it_was(was.digest, "train")  # the tokens are what they were
        with pytest.raises(ValueError, match="train_0.000"):
            before.open(before.entries[0]).column("label")


def test_a_worker_that_prepares_into_a_bucket_sends_every_column(tmp_path, memory):
    unit = SimpleNamespace(name="train_0.000")
    make = lambda state, unit, report: write_shard(tmp_path, unit.name)  # noqa: E731
    record = make_and_upload(make, tmp_path, memory, None, unit, None)
    assert [path.name for path in (tmp_path / "shards").iterdir()] == ["train_0.000.json"]
    sent = fsspec.filesystem("memory").ls(f"{memory.removeprefix('memory:/')}/shards", detail=False)
    assert {path.rpartition(".")[2] for path in sent} == {"bin", "idx", "json", *record["columns"]}


def test_a_hub_s_folder_is_full_sooner_with_columns(folder):
    entries = TokenSet(folder).entries
    assert subfolders_for(entries, 3 * 7 + 1) == 0
    assert subfolders_for(entries, 3 * 7) > 0


# ---------------------------------------------------------------------------- converted


def test_a_layout_that_has_no_place_for_columns_says_so(tmp_path, tokenizer, capsys):
    folder = make_token_set(tmp_path / "set", train=[[5, 3]], val=[[4]], vocab=tokenizer.vocab_size)
    give_tokenizer(folder, tokenizer)
    export(Out("raw", str(folder), tmp_path / "plain"))
    assert capsys.readouterr().err == ""
    manifest = read_manifest(folder)
    record = write_shard(folder, "train_0.000") | {"fingerprint": tokenizer.fingerprint}
    (folder / "shards/train_0.000.json").write_text(json.dumps(record))
    shards = [(record, "train"), (finished_record(folder, "val_0.000"), "val")]
    write_manifest(folder, "synthetic", manifest["tokenizer"], shards)
    export(Out("raw", str(folder), tmp_path / "out"))
    said = capsys.readouterr().err
    for name in ("language", "label", "quality"):
        assert f"left out: column {name} of 1 shard, as raw has no place for it\n" in said
