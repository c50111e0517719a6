"""A fraction of the documents validates: chosen by their text alone, whatever file they are in, and none is lost."""

import gzip
import json
import re
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import Hub, environment
from hypothesis import given
from hypothesis import strategies as st
from making import make_text, run_prepare, tree, write_parquet

from tokenmill import cli
from tokenmill.look.source_places import SourceLocator
from tokenmill.prepare.shard_size import find_shard_text_bytes
from tokenmill.store.shards import sources_of
from tokenmill.store.tables import metadata_of
from tokenmill.store.token_sets import TokenSet
from tokenmill.text.document_split import _hashes
from tokenmill.text.formats import ReadOptions
from tokenmill.text.sources import plan_units, read_documents, split_files
from tokenmill.text_arrays import text_array

TEXTS = make_text(400, seed=5, words=12)
HASH_OF_TOKENMILL = 0xDDE5324F


def write(path, texts):
    """The texts in the format that the file's name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps({"text": text, "id": number}) + "\n" for number, text in enumerate(texts))
    if path.suffix == ".parquet":
        table = pa.table({"text": texts, "id": range(len(texts))})
        pq.write_table(table, path, row_group_size=50)
    elif path.suffix == ".txt":
        path.write_text("\n%%\n".join(text or "" for text in texts))
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(lines.encode()))
    else:
        path.write_text(lines)
    return path


def texts_by_split(files, shard_text_bytes=5_000, options=None):
    """{split: its texts}, of files read unit by unit."""
    options, found = options or ReadOptions(document_separator=b"\n%%\n"), {"train": [], "val": []}
    for file in files:
        for unit in plan_units(file, options, shard_text_bytes):
            found[file.split] += [text for some in read_documents(unit) for text in some.texts.to_pylist()]
    return found


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.txt", "a.jsonl.gz"])
def test_each_document_of_one_file_is_in_one_split_chosen_by_its_text(tmp_path, name):
    path = write(tmp_path / name, TEXTS)
    found = texts_by_split(split_files({name: path}))
    assert Counter(found["train"] + found["val"]) == Counter(TEXTS)
    expected = [text for text in TEXTS if _hashes(text_array([text]))[0] < 0.1 * 2**32]
    assert found["val"] == expected, "10% of less than 10 MiB, in the file's order"
    assert 20 < len(expected) < 65


@given(st.lists(st.text(min_size=1), min_size=1, max_size=20), st.integers(0, 3))
def test_a_hash_depends_on_the_text_alone(texts, skip):
    column = text_array(["before"] * skip + texts).slice(skip)
    assert _hashes(column).tolist() == [int(_hashes(text_array([text]))[0]) for text in texts]


def test_the_hash_is_the_same_on_every_machine_and_even_for_texts_that_differ_in_a_digit():
    assert _hashes(text_array(["", "tokenmill"])).tolist() == [0, HASH_OF_TOKENMILL]
    hashes = _hashes(text_array([f"document {number}" for number in range(100_000)]))
    counts = [int((hashes < fraction * 2**32).sum()) for fraction in (0.001, 0.01, 0.1, 0.5)]
    assert all(
        abs(count - expected) < 4 * expected**0.5
        for count, expected in zip(counts, (100, 1_000, 10_000, 50_000), strict=True)
    )


def test_a_document_stays_in_its_split_when_its_file_grows_and_others_come(tmp_path):
    first = texts_by_split(split_files({"a.jsonl": write(tmp_path / "a.jsonl", TEXTS[:200])}, val_fraction=0.1))
    files = {"a.jsonl": write(tmp_path / "a.jsonl", TEXTS[200:300] + TEXTS[:200])}
    files |= {"b.parquet": write(tmp_path / "b.parquet", TEXTS[:50] + TEXTS[300:])}
    later = texts_by_split(split_files(files, val_fraction=0.1))
    assert set(first["val"]) <= set(later["val"])
    assert set(first["train"]) <= set(later["train"])
    assert not set(later["train"]) & set(later["val"]), "equal texts of two files are in one split"
    more = texts_by_split(split_files(files, val_fraction=0.3))
    assert set(later["val"]) < set(more["val"]), "a larger fraction has all that a smaller one has"


def test_the_last_file_validates_unless_it_is_alone_or_little(tmp_path):
    def fractions(sizes):
        files = split_files({name: tmp_path / name for name in sizes}, sizes=sizes)
        return {file.val_fraction for file in files}

    assert fractions({"a.jsonl": 1 << 30}) == {0.01}
    assert fractions({"a.jsonl": 1 << 20}) == {0.1}
    assert fractions({"a.jsonl": 1 << 30, "b.jsonl": 1 << 20}) == {None}
    assert fractions({"a.jsonl": 1 << 30, "b.jsonl": (1 << 20) - 1}) == {0.01}
    assert fractions({"a.jsonl": 50_000, "b.jsonl": 600}) == {None}, "1% of the bytes are enough"
    assert fractions({f"{n:03d}.txt": 3_000 for n in range(300)}) == {0.1}
    assert fractions({f"{n:03d}.txt": 3_000 for n in range(100)}) == {None}


def test_one_file_is_prepared_verified_and_kept_as_it_is(tmp_path, tokenizer_json):
    rows = [None if n % 50 == 7 else text for n, text in enumerate(TEXTS)]
    write(tmp_path / "mine.jsonl", [text or "" for text in rows])
    flags = ("--source", "mine.jsonl", "--tokenizer", tokenizer_json, "--shard-text-bytes", 5_000)
    ahead = run_prepare(*flags, "--dry-run", cwd=tmp_path)
    size = (tmp_path / "mine.jsonl").stat().st_size
    assert f"1 file\nabout {size / 1e3:.1f} kB of text" in ahead.stdout
    done = run_prepare(*flags, "--keep-columns", "id", cwd=tmp_path)
    assert "validates: 0.1 of the documents, chosen by a hash of their text (--val-fraction)" in done.stdout
    assert "left out: 8 empty documents" in done.stdout, "counted once, not in both splits"
    folder = tmp_path / done.stdout.splitlines()[-1]
    token_set = TokenSet(folder)
    assert cli.main(["verify", str(folder)]) == 0
    found, begins = {}, {"train": [], "val": []}
    for entry in token_set.entries:
        for number in range(entry.documents):
            place = SourceLocator(token_set).find(entry, number)
            assert place.endswith(f"document {number:,} of those that were kept")
            if number == 0:
                begins[entry.split].append(int(re.search(r"from row (\d+) on", place)[1]))
            found[metadata_of(token_set, entry).column("id")[number].as_py()] = entry.split
    assert len(begins["train"]) > 5
    assert begins["train"] == sorted(begins["train"])
    assert set(begins["val"]) <= set(begins["train"]), "shards of both splits are cut at the same rows"
    assert found.keys() == {n for n, text in enumerate(rows) if text}
    validates = {n: _hashes(text_array([text]))[0] < 0.1 * 2**32 for n, text in enumerate(rows) if text}
    assert {n for n, split in found.items() if split == "val"} == {n for n, chosen in validates.items() if chosen}
    before = tree(folder)
    assert ", 0 to make" in run_prepare(*flags, cwd=tmp_path).stderr
    assert tree(folder) == before


def test_a_set_keeps_the_way_in_which_it_was_split(tmp_path, tokenizer_json):
    write(tmp_path / "in" / "a.jsonl", TEXTS[:300])
    flags = ("--source", "in", "--tokenizer", tokenizer_json, "--name", "mine")
    folder = tmp_path / run_prepare(*flags, "--val-fraction", 0.2, cwd=tmp_path).stdout.splitlines()[-1]
    write(tmp_path / "in" / "b.jsonl", TEXTS[300:])
    grown = run_prepare(*flags, cwd=tmp_path)
    assert "new in train: b.jsonl" in grown.stdout
    assert "new in val: val-of/b.jsonl" in grown.stdout
    fractions = {
        source["val_fraction"] for e in TokenSet(folder).entries for source in sources_of(TokenSet(folder).record(e))
    }
    assert fractions == {0.2}
    before = tree(folder)
    for named in (("--val-fraction", 0.3), ("--val-file", "b.jsonl")):
        refused = run_prepare(*flags, *named, cwd=tmp_path, check=False)
        assert refused.returncode == 1
        assert (
            "has been split by --val-fraction 0.2; leave that as it was, or prepare under another --name"
            in refused.stderr
        )
        assert tree(folder) == before


def test_a_set_whose_last_file_validates_keeps_that_too(tmp_path, tokenizer_json):
    for name, texts in {"a": TEXTS[:200], "b": TEXTS[200:]}.items():
        write(tmp_path / "in" / f"{name}.jsonl", texts)
    flags = ("--source", "in", "--tokenizer", tokenizer_json)
    folder = tmp_path / run_prepare(*flags, cwd=tmp_path).stdout.splitlines()[-1]
    write(tmp_path / "in" / "c.jsonl", TEXTS[:1])  # too little to validate a new set with
    assert split_files({p.name: p for p in (tmp_path / "in").iterdir()})[0].val_fraction == 0.1
    run_prepare(*flags, cwd=tmp_path)
    assert {name for e in TokenSet(folder).split("val") for name in e.sources} == {"b.jsonl"}
    refused = run_prepare(*flags, "--val-fraction", 0.1, cwd=tmp_path, check=False)
    assert "has been split by file; leave that as it was" in refused.stderr
    (tmp_path / "held.jsonl").write_text((tmp_path / "in/b.jsonl").read_text())
    alone = ("--source", "in/a.jsonl", "--tokenizer", tokenizer_json)
    run_prepare(*alone, "--val-file", "held.jsonl", cwd=tmp_path)
    refused = run_prepare(*alone, cwd=tmp_path, check=False)
    assert refused.returncode == 1
    assert "another file validates in this token set; name it with --val-file" in refused.stderr


def test_settings_that_cannot_be_are_refused(tmp_path, tokenizer_json):
    write(tmp_path / "a.txt", TEXTS[:3])
    flags = ("--source", "a.txt", "--tokenizer", tokenizer_json)

    def refused(*more):
        done = run_prepare(*flags, *more, cwd=tmp_path, check=False)
        assert done.returncode
        assert not list(tmp_path.glob("data/tokens/*/*"))
        return " ".join(done.stderr.replace("│", " ").split())

    assert "a.txt: found this one file, which is one document" in refused()
    assert "--val-file and --val-fraction both say what validates" in refused(
        "--val-fraction", 0.1, "--val-file", "a.txt"
    )
    assert "--val-fraction must be from 0.000001 to less than 1, as 0.01, not 1.0" in refused("--val-fraction", 1)


def test_a_conversation_is_in_one_split_whatever_is_beside_it_and_in_whichever_format(tmp_path, tokenizer_json):
    chats = [
        [{"role": "user", "content": text}, {"role": "assistant", "content": "yes"}]
        for text in TEXTS[:40]
        for _ in "ab"
    ]
    lines = [json.dumps({"id": number, "messages": messages}) for number, messages in enumerate(chats)]
    (tmp_path / "chats.jsonl").write_text("\n".join(lines))
    pq.write_table(pa.table({"messages": chats, "score": range(80)}), tmp_path / "rows.parquet")
    found = []
    for source in ("chats.jsonl", "rows.parquet"):
        options = ReadOptions(conversations=True)
        texts = texts_by_split(split_files({source: tmp_path / source}, val_fraction=0.3), 100_000, options)
        found.append({split: {str(json.loads(row)["messages"]) for row in rows} for split, rows in texts.items()})
    assert found[0] == found[1]
    assert not found[0]["train"] & found[0]["val"]
    assert 4 < len(found[0]["val"]) < 24


def test_a_file_in_both_splits_is_counted_once_in_sizes(tmp_path):
    gigabytes = 4 << 30
    alone = split_files({"a.jsonl": "/x/a.jsonl"}, sizes={"a.jsonl": gigabytes})
    two = split_files(
        {f"{n}.jsonl": f"/x/{n}.jsonl" for n in "ab"}, sizes=dict.fromkeys(("a.jsonl", "b.jsonl"), gigabytes // 2)
    )
    assert find_shard_text_bytes([], None, alone) == find_shard_text_bytes([], None, two)
    path = write(tmp_path / "a.jsonl", TEXTS)
    units = [unit for file in split_files({"a.jsonl": path}) for unit in plan_units(file, ReadOptions(), 5_000)]
    size = path.stat().st_size
    assert abs(sum(unit.text_bytes for unit in units) - size) <= len(units)
    shares = sum(some.share for unit in units for some in read_documents(unit))
    assert abs(shares - size) < 0.02 * size


def test_the_last_file_validates_where_it_is_named_however_little_it_has(tmp_path, tokenizer_json):
    write(tmp_path / "in" / "a.jsonl", TEXTS)
    write(tmp_path / "in" / "b.jsonl", TEXTS[:1])
    done = run_prepare("--source", "in", "--tokenizer", tokenizer_json, "--val-file", "last", cwd=tmp_path)
    assert "validates: b.jsonl" in done.stdout


def test_an_error_in_a_row_names_its_line_of_the_file(tmp_path, tokenizer_json):
    good = [[{"role": "user", "content": text}, {"role": "assistant", "content": "yes"}] for text in TEXTS[:60]]
    good[41] = []
    (tmp_path / "chats.jsonl").write_text("\n".join(json.dumps({"messages": messages}) for messages in good))
    pq.write_table(pa.table({"messages": good}), tmp_path / "rows.parquet", row_group_size=40)
    for source, place in (("chats.jsonl", "line 42"), ("rows.parquet", "row 1 of row group 1")):
        flags = ("--source", source, "--tokenizer", tokenizer_json, "--chat", "nanochat")
        done = run_prepare(*flags, "--val-fraction", 0.5, cwd=tmp_path, check=False)
        assert done.returncode == 1
        assert f"{source}: {place}: " in done.stderr


@pytest.mark.parametrize("keep", ["--keep-raw", "--no-keep-raw"])
def test_one_file_of_the_hub_is_fetched_once_and_deleted_once_both_splits_are_made(tmp_path, tokenizer_json, keep):
    data = write_parquet(tmp_path / "there" / "a.parquet", TEXTS, row_group_size=50).read_bytes()
    with Hub("owner/corpus", {"a.parquet": data}) as server:
        env = environment(server.url, tmp_path)
        flags = ("--source", "owner/corpus", "--num-shards", 1, "--tokenizer", tokenizer_json, keep)
        ahead = run_prepare(*flags, "--dry-run", cwd=tmp_path, env=env)
        assert "1 file, 1 of them to fetch" in ahead.stdout
        done = run_prepare(*flags, cwd=tmp_path, env=env)
        fetched = list(server.fetched)
        again = run_prepare(*flags, cwd=tmp_path, env=env)
        server.shutdown()
    assert fetched == ["a.parquet"] == list(server.fetched)
    assert ", 0 to make" in again.stderr
    documents = {
        split: sum(e.documents for e in TokenSet(tmp_path / done.stdout.splitlines()[-1]).split(split))
        for split in ("train", "val")
    }
    assert sum(documents.values()) == len(TEXTS)
    assert (tmp_path / "data/raw/owner--corpus/a.parquet").exists() == (keep == "--keep-raw")
