"""How much text a shard has: enough shards for every core, the same on all parts, and for as long as the set lives."""

import heapq
import json
import os

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import make_text, tree

from tokenmill import PrepareConfig, prepare
from tokenmill.prepare import make, shard_size
from tokenmill.prepare.inventory import Inventory
from tokenmill.prepare.shard_size import LARGEST, SHARDS, SMALLEST, default_shard_text_bytes, find_shard_text_bytes
from tokenmill.store.token_sets import TokenSet
from tokenmill.text import sources
from tokenmill.text.formats import ReadOptions
from tokenmill.text.listing import list_source
from tokenmill.text.sources import split_files
from tokenmill.text.units import Unit

MIB = 1 << 20


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 50))
def test_a_shard_is_a_512th_of_the_text_between_its_bounds(text_bytes, more):
    size = default_shard_text_bytes(text_bytes)
    assert (SMALLEST, LARGEST) == (8 * MIB, 256 * MIB)
    assert SMALLEST <= size <= LARGEST
    assert size & (size - 1) == 0, "a power of two, so small changes of a corpus seldom change it"
    assert size <= default_shard_text_bytes(text_bytes + more)
    if SMALLEST < size < LARGEST:
        assert SHARDS / 1.5 < text_bytes / size < SHARDS * 1.5


def test_what_is_known_of_sizes_decides_and_a_compressed_byte_is_four(tmp_path):
    def size_of(**sizes):
        for name, size in sizes.items():
            with open(tmp_path / name.replace("_", "."), "wb") as file:
                file.truncate(size)
        listed = list_source(str(tmp_path))
        return find_shard_text_bytes([], None, split_files(listed.files, sizes=listed.bytes))

    assert size_of(a_jsonl=1000, b_jsonl=1000) == 8 * MIB
    assert size_of(c_jsonl=16 << 30) == 32 * MIB
    (tmp_path / "c.jsonl").unlink()
    with open(tmp_path / "c.jsonl.gz", "wb") as file:
        file.truncate(4 << 30)
    assert size_of() == 32 * MIB
    unknown = split_files({"a.jsonl": "https://host/a.jsonl", "b.jsonl": "https://host/b.jsonl"})
    assert find_shard_text_bytes([], None, unknown) == LARGEST
    assert find_shard_text_bytes([], 1000, unknown) == 1000


@pytest.mark.parametrize(
    ("files", "megabytes", "suffix"), [(5, 200, ".jsonl"), (125, 8, ".jsonl"), (2500, 0.4, ".jsonl"), (1, 4000, ".txt")]
)
def test_64_cores_are_busy_from_a_gigabyte_on(files, megabytes, suffix, tmp_path):
    """Simulated: the units as they are planned, the longest first, each for the core that is done first."""
    source = tmp_path / "in"
    source.mkdir()
    for number in range(files):
        with open(source / f"{number:05d}{suffix}", "wb") as file:
            file.truncate(int(megabytes * 1e6))
    (source / f"z{suffix}").write_bytes(b"x\n")
    listed = list_source(str(source))
    found = split_files(listed.files, sizes=listed.bytes)
    inventory = Inventory(tmp_path / "set", "f" * 64, ReadOptions(document_separator=b"\n"), found, None)
    units = [unit.text_bytes for group in inventory.groups(found) for unit in inventory.plan(group)]
    cores = [0] * 64
    for size in sorted(units, reverse=True):
        heapq.heappush(cores, heapq.heappop(cores) + size)
    assert len(units) >= 1.8 * len(cores)
    assert sum(cores) / len(cores) > 0.74 * max(cores), "cores are busy for three quarters of the time, or more"


@pytest.fixture
def settings(tokenizer_json, tmp_path, monkeypatch):
    monkeypatch.setattr(shard_size, "SMALLEST", 1000)
    monkeypatch.setattr(shard_size, "SHARDS", 8)
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in", range(3))
    return {
        "source": str(tmp_path / "in"),
        "tokenizer": tokenizer_json,
        "tokens_root": tmp_path / "tokens",
        "workers": 2,
    }


def write(folder, numbers):
    folder.mkdir(exist_ok=True)
    for number in numbers:
        texts = make_text(40, seed=number, words=30)
        (folder / f"{number:02d}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def sizes_of(folder):
    return {json.loads(path.read_text()).get("shard_text_bytes") for path in folder.glob("shards/*.json")}


def test_a_set_keeps_its_size_when_it_grows_and_refuses_another(settings, tmp_path):
    folder = prepare(PrepareConfig(**settings)).folder
    (size,) = sizes_of(folder)
    before = tree(folder / "shards")
    assert len(TokenSet(folder).entries) >= 6
    write(tmp_path / "in", range(3, 60))
    assert find_shard_text_bytes([], None, split_files(list_source(settings["source"]).files)) > size
    assert prepare(PrepareConfig(**settings)).folder == folder
    assert sizes_of(folder) == {size}
    assert {name: data for name, data in tree(folder / "shards").items() if name in before} == before
    with pytest.raises(ValueError, match=rf"have up to {size:,} bytes of text, not 77; leave out --shard-text-byt"):
        prepare(PrepareConfig(**settings, shard_text_bytes=77))
    prepare(PrepareConfig(**settings, shard_text_bytes=size))


def test_a_set_from_before_sizes_were_recorded_keeps_what_it_had(settings, tmp_path, monkeypatch):
    folder = prepare(PrepareConfig(**settings, shard_text_bytes=shard_size.BEFORE_RECORDED)).folder
    for path in folder.glob("shards/*.json"):
        record = json.loads(path.read_text())
        del record["shard_text_bytes"]
        path.write_text(json.dumps(record, indent=1) + "\n")
    before = tree(folder / "shards")
    write(tmp_path / "in", range(3, 6))
    prepare(PrepareConfig(**settings))
    assert sizes_of(folder) == {None, shard_size.BEFORE_RECORDED}
    assert {name: data for name, data in tree(folder / "shards").items() if name in before} == before


def test_every_part_finds_the_same_size_and_parts_of_two_corpora_are_told(settings, tmp_path):
    whole = prepare(PrepareConfig(**settings)).folder
    settings["tokens_root"] = tmp_path / "parts"
    for part in ("2/3", "1/3", "3/3"):
        folder = prepare(PrepareConfig(**settings, part=part)).folder
    assert tree(folder) == tree(whole)
    path = next(iter(sorted(folder.glob("shards/*.json"))))
    path.write_text(path.read_text().replace('"shard_text_bytes": ', '"shard_text_bytes": 1'))
    with pytest.raises(ValueError, match="expected shards of one size, found .* two parts that found other files"):
        prepare(PrepareConfig(**settings))


def test_small_files_are_opened_once_by_their_worker(settings, tmp_path, monkeypatch):
    opened = []
    real = sources.identify
    monkeypatch.setattr(sources, "identify", lambda file, options: opened.append(file.name) or real(file, options))
    listed = list_source(settings["source"])
    found = split_files(listed.files, sizes=listed.bytes)
    inventory = Inventory(tmp_path / "set", "f" * 64, ReadOptions(), found, 1 << 20)
    (train, val) = (unit for group in inventory.groups(found) for unit in inventory.plan(group))
    assert (len(train.files), len(val.files), opened) == (2, 1, [])
    list(sources.read_documents(train))
    assert opened == ["00.jsonl", "01.jsonl"]


def test_the_size_of_a_shard_is_summed_once_however_many_files_it_has(settings, tmp_path, monkeypatch, tokenizer):
    summed = []
    real = Unit.text_bytes.fget
    monkeypatch.setattr(Unit, "text_bytes", property(lambda unit: summed.append(unit) or real(unit)))
    write(tmp_path / "in", range(30))
    found = split_files(list_source(settings["source"]).files)
    inventory = Inventory(tmp_path / "set", "f" * 64, ReadOptions(), found, 1 << 20)
    unit = inventory.plan(inventory.groups(found)[0])[0]
    assert len(unit.files) == 29
    encoder = make.load_encoder(tokenizer, "tiktoken", unit)
    make.make_shard(tmp_path, 1 << 20, encoder, unit, lambda *numbers: None)
    assert len(summed) <= 2


def test_a_run_with_nothing_to_make_leaves_no_process_behind(settings):
    prepare(PrepareConfig(**settings))
    before = {process.pid for process in psutil.Process(os.getpid()).children(recursive=True)}
    prepare(PrepareConfig(**settings))
    left = [process for process in psutil.Process(os.getpid()).children(recursive=True) if process.pid not in before]
    assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []
