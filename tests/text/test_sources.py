"""Source files are found in name order, cut by their footers alone, and read without losing a document."""

import importlib.util
import json
import os
import random
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from making import ROOT, make_text, run_prepare, tree, write_parquet

from tokenmill.text.formats import ReadOptions
from tokenmill.text.listing import local_files
from tokenmill.text.sources import plan_units, read_documents, split_files
from tokenmill.text.units import SourceFile

EVERYTHING = 1 << 40


def only_unit(path, column="text"):
    files = split_files({"a.parquet": path, "z.parquet": path})
    (unit,) = plan_units(files[0], ReadOptions(column), EVERYTHING)
    return unit


def texts_of(units):
    return [text for unit in units for documents in read_documents(unit) for text in documents.texts.to_pylist()]


def test_files_of_a_folder_its_subfolders_and_a_glob_come_in_name_order(source):
    write_parquet(source / "sub" / "more.parquet", ["x"])
    write_parquet(source / ".cache" / "hidden.parquet", ["x"])
    (source / "notes.txt").write_text("no parquet")
    names = [f"shard_{i}.parquet" for i in range(4)]
    assert sorted(local_files(str(source))) == [*names, "sub/more.parquet"]
    assert sorted(local_files(f"{source}/*.parquet")) == names
    assert sorted(local_files(f"{source}/shard_[12]*")) == names[1:3]
    assert local_files(str(source / names[0])) == {names[0]: str(source / names[0])}


def test_the_last_file_is_for_validation_or_the_one_that_is_named(source, tmp_path):
    files = local_files(str(source))

    def splits(val_file=None):
        return {file.name: file.split for file in split_files(files, val_file)}

    names = sorted(files)
    assert splits() == dict.fromkeys(names[:3], "train") | {names[3]: "val"}
    assert splits(names[0]) == {names[0]: "val"} | dict.fromkeys(names[1:], "train")
    assert splits(str(source / names[1]))[names[1]] == "val"
    other = write_parquet(tmp_path / "elsewhere" / "held_out.parquet", ["x"])
    assert splits(str(other)) == dict.fromkeys(names, "train") | {"held_out.parquet": "val"}
    with pytest.raises(FileNotFoundError, match=r"--val-file nope: expected one of shard_0\.parquet"):
        splits("nope")


def test_one_file_alone_cannot_be_the_validation_file(source, tmp_path):
    files = local_files(str(source / "shard_0.parquet"))
    with pytest.raises(ValueError, match=r"shard_0\.parquet: found this one file.*nothing would be left.*--val-file"):
        split_files(files, "shard_0.parquet")
    assert len(split_files(files, str(source / "shard_1.parquet"))) == 2


def test_two_files_whose_shards_would_have_one_name_are_refused(tmp_path):
    for name in ("a/b.parquet", "a--b.parquet"):
        write_parquet(tmp_path / name, ["x"])
    with pytest.raises(ValueError, match="both would write shards named a--b"):
        split_files(local_files(str(tmp_path)))


@pytest.mark.parametrize(
    ("make", "source", "message"),
    [
        (None, "nowhere", "nowhere: no such file or folder; expected a folder, file or glob"),
        (
            "empty",
            "empty",
            "empty: expected parquet, jsonl, txt, csv, md, arrow or json files in this folder, found none",
        ),
        (None, "*.parquet", "no file matches this pattern"),
    ],
)
def test_a_source_without_files_is_an_error(tmp_path, monkeypatch, make, source, message):
    monkeypatch.chdir(tmp_path)
    if make:
        (tmp_path / make).mkdir()
    with pytest.raises(FileNotFoundError, match=message):
        local_files(source)


def test_units_are_consecutive_row_groups_up_to_the_limit(tmp_path):
    texts = [letter * 10_000 for letter in "abcdefgh"]
    path = write_parquet(tmp_path / "a.parquet", texts, row_group_size=1)
    file = split_files({"a.parquet": path, "z.parquet": path})[0]
    cuts = {
        limit: [unit.parts[0].span for unit in plan_units(file, ReadOptions(), limit)]
        for limit in (1, 35_000, EVERYTHING)
    }
    assert cuts[1] == [(i,) for i in range(8)]
    assert cuts[35_000] == [(0, 1, 2), (3, 4, 5), (6, 7)]
    assert cuts[EVERYTHING] == [tuple(range(8))]
    for limit in cuts:
        units = plan_units(file, ReadOptions(), limit)
        assert texts_of(units) == texts
        assert [unit.name for unit in units] == [f"a.{i:03d}" for i in range(len(units))]
        assert [unit.units for unit in units] == [len(units)] * len(units)


def test_a_file_without_row_groups_is_one_empty_unit(tmp_path):
    unit = only_unit(write_parquet(tmp_path / "a.parquet", []))
    assert texts_of([unit]) == []
    with pytest.raises(ValueError, match="expected a text column 'content'"):
        only_unit(tmp_path / "a.parquet", "content")


@pytest.mark.parametrize(
    "type", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_null_and_empty_documents_are_left_out_and_counted(tmp_path, type):
    unit = only_unit(write_parquet(tmp_path / "a.parquet", ["one", None, "", "two", None, "three"], type=type))
    (documents,) = read_documents(unit)
    assert documents.texts.to_pylist() == ["one", "two", "three"]
    assert (documents.null_documents, documents.empty_documents, documents.text_bytes) == (2, 1, 11)


@pytest.mark.parametrize("compression", ["snappy", "gzip", "zstd", "none"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_parquet_is_read_whatever_its_compression_encoding_and_statistics(tmp_path, compression, dictionary):
    texts = make_text(documents=200, seed=0) * 2
    path = tmp_path / "a.parquet"
    how = {"compression": compression, "use_dictionary": dictionary, "write_statistics": False, "row_group_size": 90}
    pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), path, **how)
    assert texts_of(plan_units(SourceFile("a.parquet", str(path), "train"), ReadOptions(), 100_000)) == texts


def test_bytes_that_are_not_utf8_are_replaced_and_counted(tmp_path):
    raw = [b"good", b"bad \xff byte", "naïve".encode()]
    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 4, 14, 20)))
    column = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"".join(raw))])
    (documents,) = read_documents(only_unit(write_parquet(tmp_path / "a.parquet", column)))
    assert documents.texts.to_pylist() == ["good", "bad \ufffd byte", "naïve"]
    assert documents.repaired_documents == 1


def test_the_text_column_is_named_and_must_hold_text(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", ["x"], column="content")
    assert texts_of([only_unit(path, "content")]) == ["x"]
    with pytest.raises(
        ValueError, match=r"a\.parquet: expected a text column 'text', found columns content; .*--text-column"
    ):
        only_unit(path)
    path = write_parquet(tmp_path / "b.parquet", [1, 2], type=pa.int64())
    with pytest.raises(ValueError, match=r"b\.parquet: expected text in column 'text', found int64"):
        only_unit(path)


def test_a_truncated_and_a_corrupt_file_are_named(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", make_text(documents=300, seed=0))
    whole = path.read_bytes()
    path.write_bytes(whole[:1000] + bytes(2000) + whole[3000:])
    unit = only_unit(path)
    with pytest.raises(ValueError, match=r"a\.parquet: expected a whole parquet file, found damage"):
        texts_of([unit])
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"a\.parquet: expected a whole parquet file, found damage .*fetch it again"):
        only_unit(path)


def test_the_footer_s_digest_changes_with_the_text(tmp_path):
    one = only_unit(write_parquet(tmp_path / "a.parquet", ["one", "two"]))
    same = only_unit(write_parquet(tmp_path / "b.parquet", ["one", "two"]))
    other = only_unit(write_parquet(tmp_path / "c.parquet", ["one", "twi"]))
    assert (
        one.parts[0].identity["footer_sha256"]
        == same.parts[0].identity["footer_sha256"]
        != other.parts[0].identity["footer_sha256"]
    )


def test_a_row_group_of_any_size_is_streamed(tmp_path):
    rng = random.Random(0)
    texts = [rng.randbytes(2_500).hex() for _ in range(24_000)]  # 120 MB in one row group, 60 MB of them in the file
    path = write_parquet(tmp_path / "large.parquet", texts, row_group_size=1 << 20)
    code = f"""
import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
from pathlib import Path
from tokenmill.text.formats import ReadOptions
from tokenmill.text.sources import plan_units, read_documents
from tokenmill.text.units import SourceFile
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) / 1e3
(unit,) = plan_units(SourceFile("large.parquet", {str(path)!r}, "train"), ReadOptions(), 1 << 40)
before = peak()
documents = sum(len(documents.texts) for documents in read_documents(unit))
print(documents, len(unit.parts[0].span), peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    documents, row_groups, grown = done.stdout.split()
    assert (documents, row_groups) == ("24000", "1")
    assert float(grown) < 100, "MB: some batches and pages, and not the row group"


def test_a_url_gives_the_same_files_and_tokens_as_its_folder(source, tokenizer_json, tmp_path):
    url = f"file://{source}"
    assert local_files(url) == {name: f"file://{path}" for name, path in local_files(str(source)).items()}
    assert local_files(f"{url}/shard_[12]*") == {f"shard_{i}.parquet": f"{url}/shard_{i}.parquet" for i in (1, 2)}
    assert local_files(f"{url}/shard_0.parquet") == {"shard_0.parquet": f"{url}/shard_0.parquet"}
    lines = "".join(json.dumps({"text": text}) + "\n" for text in make_text(documents=9, seed=0))
    (source / "more").mkdir()
    (source / "more" / "held_out.jsonl").write_text(lines)
    sets = []
    for number, where in enumerate((str(source), url)):  # the jsonl file there is an eighth of the bytes
        cwd = tmp_path / str(number)
        cwd.mkdir()
        flags = ("--tokenizer", tokenizer_json, "--val-file", f"{where}/more/held_out.jsonl")
        refused = run_prepare("--source", where, *flags, cwd=cwd, check=False)
        assert f"all of it: --source '{where}/**/*.parquet' '{where}/**/*.jsonl'" in refused.stderr
        done = run_prepare("--source", f"{where}/**/*.parquet", *flags, cwd=cwd)
        sets.append(tree(cwd / done.stdout.splitlines()[-1]))
    assert sets[0] == sets[1]


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("file:///nowhere/at/all", FileNotFoundError, "found none; check --source"),
        ("nothing://bucket/folder", ValueError, "nothing://bucket/folder: .*expected a URL that fsspec knows"),
        ("s3://bucket/folder", ValueError, r"s3://bucket/folder: .*pip install 'tokenmill\[remote\]'"),
    ],
)
def test_a_url_that_cannot_be_read_is_a_clear_error(url, error, message):
    if url.startswith("s3") and importlib.util.find_spec("s3fs"):
        pytest.skip("s3fs is installed")
    with pytest.raises(error, match=message):
        local_files(url)


def test_a_file_that_is_written_to_between_two_of_its_shards_is_refused(tmp_path):
    lines = [json.dumps({"text": f"a{number:07d}"}) for number in range(20_000)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    units = plan_units(SourceFile("a.jsonl", str(path), "train"), ReadOptions(), 200_000)
    assert sum(len(documents.texts) for documents in read_documents(units[0])) > 9000
    data = path.read_bytes()
    path.write_bytes(data[:70_000] + data[70_000:-70_000].replace(b'"a', b'"b') + data[-70_000:])
    os.utime(path, ns=(1, 1))
    with pytest.raises(ValueError, match="was written to or replaced while it was prepared"):
        list(read_documents(units[1]))
