"""arrow: what `save_to_disk` of Hugging Face's datasets writes is read like parquet, and damage is an error."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from making import make_text, run_prepare, write_parquet

from tokenmill import Documents
from tokenmill.text.formats import ReadOptions
from tokenmill.text.sources import plan_units, read_documents
from tokenmill.text.units import FilePart, SourceFile, Unit


def write_arrow(path, table, rows=10, open_writer=pa.ipc.new_stream, **how):
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(os.fsencode(path), "wb") as file, open_writer(file, table.schema, **how) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def units_of(path, shard_text_bytes=1 << 40, **options):
    return plan_units(
        SourceFile(path.name, str(path), "train", path.stat().st_size), ReadOptions(**options), shard_text_bytes
    )


def read(units):
    return [documents for unit in units for documents in read_documents(unit)]


def texts_of(units):
    return [text for documents in read(units) for text in documents.texts.to_pylist()]


@pytest.mark.parametrize("open_writer", [pa.ipc.new_stream, pa.ipc.new_file])
@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_record_batches_make_shards_whatever_the_file_and_the_column_are(tmp_path, open_writer, kind, compression):
    texts = [*make_text(95, seed=1), None, "", "水"]
    column = pa.array(
        [text and text.encode() for text in texts] if kind == pa.binary() else texts,
        pa.binary() if kind == pa.binary() else pa.string(),
    )
    table = pa.table({"n": range(len(texts)), "text": column.cast(kind) if kind != pa.binary() else column})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    path = write_arrow(tmp_path / "a.arrow", table, 10, open_writer, options=options)
    whole, small = units_of(path), units_of(path, 9000)
    assert (len(whole), len(small) > 3) == (1, True)
    assert texts_of(whole) == texts_of(small) == [text for text in texts if text]
    (found,) = read(whole)
    assert (found.null_documents, found.empty_documents) == (1, 1)


def test_what_datasets_saves_is_prepared_like_the_same_rows_in_parquet(tmp_path, tokenizer_json):
    texts, held_out = make_text(300, seed=1), make_text(20, seed=2)
    scores = [number / 8 for number in range(300)]
    saved = tmp_path / "saved" / "corpus"
    for number in range(2):
        some = slice(150 * number, 150 * number + 150)
        table = pa.table({"text": texts[some], "score": scores[some]})
        write_arrow(saved / f"data-0000{number}-of-00002.arrow", table)
    (saved / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00002.arrow"}]}')
    (saved / "dataset_info.json").write_text('{"features": {}}')
    write_arrow(saved / "cache-00ff.arrow", pa.table({"text": texts}))
    val = write_parquet(tmp_path / "val.parquet", held_out)
    flags = ("--tokenizer", tokenizer_json, "--val-file", val, "--keep-columns", "score")
    refused = run_prepare("--source", saved, *flags, cwd=tmp_path, check=False)
    assert "expected a column 'score' to keep, found columns text" in refused.stderr, "the validation file lacks it"
    flags = (*flags[:-1], "score?", "--keep-ids", "score")
    flags = flags[:-2]
    done = run_prepare("--source", saved, *flags, cwd=tmp_path)
    assert "left out of" in done.stderr
    assert "1 cached file beside arrow: cache-00ff.arrow" in done.stderr
    found = Documents(tmp_path / done.stdout.splitlines()[-1], "train")
    assert [document.text for document in found] == texts
    assert [document.metadata["score"] for document in found] == scores
    assert found[200].source == "data-00001-of-00002.arrow row 50"


def test_conversations_in_arrow_are_rows_of_json(tmp_path):
    rows = [
        [{"role": "user", "content": f"question {n}"}, {"role": "assistant", "content": "answer"}] for n in range(30)
    ]
    path = write_arrow(tmp_path / "a.arrow", pa.table({"messages": rows, "n": range(30)}))
    units = units_of(path, 500, conversations=True, keep_columns=("n",))
    assert len(units) > 1
    found = read(units)
    assert [text for documents in found for text in documents.texts.to_pylist()] == [
        f'{{"messages":[{{"role":"user","content":"question {n}"}},{{"role":"assistant","content":"answer"}}]}}'
        for n in range(30)
    ]
    assert [n for documents in found for n in documents.kept["n"].to_pylist()] == list(range(30))
    assert found[0].locate(3) == "row 3"


def test_a_wrong_column_and_no_arrow_at_all_are_errors_that_name_the_file(tmp_path):
    path = write_arrow(tmp_path / "a.arrow", pa.table({"body": ["x"]}))
    with pytest.raises(ValueError, match=r"a\.arrow: expected a text column 'text', found columns body"):
        units_of(path)
    for data in (b"", b"no arrow at all", path.read_bytes()[:200]):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"a\.arrow: expected a whole arrow file, found damage"):
            texts_of(units_of(path, text_column="body"))


def test_a_stream_that_is_cut_or_followed_by_another_is_an_error(tmp_path):
    path = write_arrow(tmp_path / "a.arrow", pa.table({"text": [f"text {n}" for n in range(10)]}), rows=2)
    whole = path.read_bytes()
    for data, said in (
        (whole[:-8], "the stream has no end mark"),
        (whole + whole, "bytes follow the end of the stream"),
    ):
        path.write_bytes(data)
        for read_it in (
            lambda: units_of(path),
            lambda: read([Unit((FilePart(units_file(path), ReadOptions(), None, 9, {}),))]),
        ):
            with pytest.raises(ValueError, match=said):
                read_it()


def units_file(path):
    return SourceFile(path.name, str(path), "train", path.stat().st_size)


def test_names_that_are_not_utf8_and_full_dictionaries_are_read(tmp_path):
    texts = [f"text {n}" * 900 for n in range(128)]
    column = pa.DictionaryArray.from_arrays(pa.array(range(128), pa.int8()), pa.array(texts))
    path = write_arrow(tmp_path / os.fsdecode(b"caf\xe9.arrow"), pa.table({"text": column}), rows=128)
    file = SourceFile("a.arrow", str(path), "train", path.stat().st_size)
    assert texts_of(plan_units(file, ReadOptions(), 1 << 40)) == texts
    kept = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["en", None]))
    write_arrow(path, pa.table({"text": ["a", "b"], "lang": kept}))
    (found,) = read(plan_units(file, ReadOptions(keep_columns=("lang",)), 1 << 40))
    assert found.kept.to_pydict() == {"lang": ["en", None]}
    assert not pa.types.is_dictionary(found.kept.schema.field("lang").type)


def test_damage_is_an_error_or_other_text_and_never_a_crash(tmp_path):
    """In a process of its own, 300 files with a few wrong bytes."""
    for name, open_writer in (("stream", pa.ipc.new_stream), ("file", pa.ipc.new_file)):
        write_arrow(tmp_path / f"{name}.arrow", pa.table({"text": make_text(40, seed=1)}), 10, open_writer)
    code = f"""
import random, pathlib, sys
sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}
from test_arrow import read, units_of
rng, folder, failed = random.Random(0), pathlib.Path({str(tmp_path)!r}), 0
good = [(folder / name).read_bytes() for name in ("stream.arrow", "file.arrow")]
for number in range(300):
    data = bytearray(good[number % 2])
    for _ in range(rng.choice([1, 3, 30])):
        data[rng.randrange(len(data))] = rng.choice([0, 255, rng.randrange(256)])
    path = folder / f"bad.arrow"
    path.write_bytes(data[: rng.choice([len(data), rng.randrange(len(data))])])
    try:
        read(units_of(path, rng.choice([1000, 1 << 40])))
    except (ValueError, MemoryError):
        failed += 1
print(failed)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 100


def test_batches_that_are_skipped_are_found_by_their_numbers(tmp_path):
    rng = random.Random(0)
    texts = [rng.choice("abc") * rng.randint(1, 300) for _ in range(200)]
    path = write_arrow(tmp_path / "a.arrow", pa.table({"text": texts}), rows=7)
    for size in (1, 700, 5000):
        units = units_of(path, size)
        assert [unit.parts[0].span[0] for unit in units[1:]] == [unit.parts[0].span[1] for unit in units[:-1]]
        assert texts_of(units) == texts
        assert sum(unit.text_bytes for unit in units) == sum(map(len, texts))
