"""Files that are small and hold far more text than they tell: bounded in memory, left out and counted, or refused."""

import gzip
import json
import sys
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import run_prepare, write_parquet

from tokenmill.humanize import counted
from tokenmill.prepare import make
from tokenmill.store.shard_writer import ShardWriter
from tokenmill.store.shards import TEXT_COUNTS
from tokenmill.text import parquet, separated
from tokenmill.text.formats import ReadOptions
from tokenmill.text.sources import plan_units, read_documents
from tokenmill.text.units import BATCH_BYTES, SourceFile

MIB = 1 << 20


def documents_of(path, how, limit=1 << 40):
    units = plan_units(SourceFile(path.name, str(path), "train"), how, limit)
    return [documents for unit in units for documents in read_documents(unit)]


def texts_of(found):
    return [text for documents in found for text in documents.texts.to_pylist()]


def repeated(path, text, times):
    """A parquet file that has a text once, and says that it comes again and again."""
    column = pa.DictionaryArray.from_arrays(pa.array([0] * times, pa.int32()), pa.array([text]))
    how = {"compression": "zstd", "dictionary_pagesize_limit": 1 << 30, "store_schema": False}
    pq.write_table(pa.table({"text": column}), path, **how)
    return path


texts = st.lists(st.none() | st.text("ab", max_size=12), max_size=40)


@settings(deadline=None, max_examples=60)
@given(texts, st.integers(1, 12), st.sampled_from(["plain", "dictionary", "DELTA_BYTE_ARRAY"]), st.integers(1, 20))
def test_parquet_gives_all_but_what_is_longer_whatever_its_encoding(texts, most, encoding, rows):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.parquet"
        delta = {"column_encoding": {"text": encoding}} if encoding.isupper() else {}
        table = pa.table({"text": pa.array(texts, pa.string()), "id": [f"n{i}" for i in range(len(texts))]})
        pq.write_table(table, path, use_dictionary=encoding == "dictionary", row_group_size=rows, **delta)
        found = documents_of(path, ReadOptions(id_column="id", max_document_bytes=most))
    kept = [(text, f"n{i}") for i, text in enumerate(texts) if text and len(text) <= most]
    ids = [id for documents in found for id in documents.kept.column("id").to_pylist()]
    assert list(zip(texts_of(found), ids, strict=True)) == kept
    assert sum(documents.oversized_documents for documents in found) == sum(len(t or "") > most for t in texts)
    left_out = sum(d.null_documents + d.empty_documents + d.oversized_documents for d in found)
    assert len(kept) + left_out == len(texts)


@settings(deadline=None, max_examples=200)
@given(
    st.text("ab\n", max_size=80),
    st.sampled_from(["\n", "ab", "aba"]),
    st.integers(1, 30),
    st.integers(1, 20),
    st.integers(1, 9),
    st.sampled_from(["", ".gz"]),
)
def test_pieces_that_are_too_long_are_left_out_and_counted_wherever_they_are_cut(text, apart, limit, block, most, end):
    data = gzip.compress(text.encode()) if end else text.encode()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(separated, "BATCH_BYTES", block)
        path = Path(folder) / f"a.txt{end}"
        path.write_bytes(data)
        found = documents_of(path, ReadOptions(document_separator=apart.encode(), max_document_bytes=most), limit)
    pieces = text.split(apart)
    assert texts_of(found) == [piece for piece in pieces if 0 < len(piece) <= most]
    assert sum(documents.oversized_documents for documents in found) == sum(len(piece) > most for piece in pieces)
    assert 0 <= sum(documents.share for documents in found) - len(text) <= len(apart), "progress comes to its end"


def test_a_line_after_one_that_is_too_long_is_named_by_its_number(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n' + json.dumps({"text": "b" * 100}) + '\n{"text": "c"}\nbroken\n')
    with pytest.raises(ValueError, match=r"a\.jsonl: line 4: expected a JSON object"):
        documents_of(path, ReadOptions(max_document_bytes=50))


def test_texts_that_a_dictionary_repeats_are_decoded_some_mb_at_a_time(tmp_path):
    path = repeated(tmp_path / "a.parquet", "ab " * (MIB // 3), 100)
    assert path.stat().st_size < 2_000
    found = documents_of(path, ReadOptions())
    assert len(texts_of(found)) == 100
    assert max(documents.text_bytes for documents in found) <= BATCH_BYTES + MIB


def test_a_row_group_that_unpacks_to_what_no_text_does_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a" * (150 * MIB)]}), path, compression="zstd", use_dictionary=False)
    with pytest.raises(ValueError, match="row group 0 unpacks .* as no text does; write it again"):
        documents_of(path, ReadOptions())


BOMBS = {
    "dictionary.parquet": lambda path: repeated(path, "ab " * (MIB // 2), 200),
    "long.parquet": lambda path: repeated(path, "ab " * (40 * MIB), 3),
    "line.jsonl.zst": lambda path: _compressed(path, [b'{"text": "', *[b"a" * MIB] * 2000, b'"}\n{"text": "after"}\n']),
    "whole.txt.gz": lambda path: _compressed(path, [b"a" * MIB] * 1000),
}


def _compressed(path, blocks):
    with pa.CompressedOutputStream(str(path), "zstd" if path.suffix == ".zst" else "gzip") as stream:
        for block in blocks:
            stream.write(block)


MEASURE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:])
print("peak MiB:", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)
sys.exit(done.returncode)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_costs_no_memory_and_the_other_files_are_finished(tmp_path, tokenizer_json, name):
    folder = tmp_path / "corpus"
    folder.mkdir()
    BOMBS[name](folder / f"b.{name}")
    ending = name.partition(".")[2]
    for other in ("a", "z"):
        if ending == "parquet":
            write_parquet(folder / f"{other}.parquet", ["a good document"] * 20)
        elif ending.startswith("jsonl"):
            (folder / f"{other}.jsonl").write_text('{"text": "a good document"}\n' * 20)
        else:
            (folder / f"{other}.txt").write_text("a good document")
    own = ("--shard-text-bytes", "1000") if ending == "parquet" else ()  # each file has its shards, or all share one
    flags = ("--source", folder, "--tokenizer", tokenizer_json, *own, "--workers", "1")
    done = run_prepare(*flags, cwd=tmp_path, check=False, prefix=(sys.executable, "-c", MEASURE))
    peak = int(done.stdout.partition("peak MiB: ")[2].split()[0])
    assert peak < 900, done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr
    left_out = {"dictionary.parquet": 0, "long.parquet": 3}.get(name, 1)
    said = f"left out: {counted(left_out, 'document')} of more than 16,777,216 bytes"
    assert (said in done.stdout) == (left_out > 0)


def test_lengths_take_twelve_bytes_a_document(tmp_path):
    """Four while they are held, and eight more when offsets are made of them: 384 MiB for the most documents."""
    many, part = 4_000_000, np.ones(100_000, np.int64)
    tracemalloc.start()
    with ShardWriter(tmp_path, "a.000", "uint16") as writer:
        for _ in range(many // len(part)):
            writer.write(part, part)
        held, _ = tracemalloc.get_traced_memory()
        writer.finish({"fingerprint": "f" * 64, "source": {"file": "a"}} | dict.fromkeys(TEXT_COUNTS, 0))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 4.5 * many
    assert most < 13 * many


def test_a_file_that_gives_far_more_than_it_told_is_refused(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(make, "MOST_TEXT", MIB)
    path = repeated(tmp_path / "b.parquet", "ab " * 10_000, 1000)
    (unit,) = plan_units(SourceFile("b.parquet", str(path), "train"), ReadOptions(), MIB)
    encoder = make.load_encoder(tokenizer, "auto", unit)
    with pytest.raises(ValueError, match="bytes of text and has more, where .* write it again with smaller row groups"):
        make.make_shard(tmp_path, 1 << 20, encoder, unit, lambda *numbers: None)
    assert list((tmp_path / "shards").iterdir()) == [], "nothing of it counts"


def test_another_limit_is_another_set_where_it_could_change_one(tmp_path, tokenizer_json):
    for name, text in (("a", "short"), ("b", "long " * 20), ("z", "last")):
        write_parquet(tmp_path / "corpus" / f"{name}.parquet", [text])
    flags = ("--source", tmp_path / "corpus", "--tokenizer", tokenizer_json, "--shard-text-bytes", "1")
    done = run_prepare(*flags, "--max-document-bytes", 50, cwd=tmp_path)
    assert "left out: 1 document of more than 50 bytes (--max-document-bytes)" in done.stdout
    for other in (40, 60, 100 * MIB):
        done = run_prepare(*flags, "--max-document-bytes", other, cwd=tmp_path, check=False)
        assert done.returncode == 1
        assert f"of more than 50 bytes were left out then, --max-document-bytes is {other:,} now" in done.stderr
    (tmp_path / "corpus" / "b.parquet").unlink()
    write_parquet(tmp_path / "corpus" / "c.parquet", ["another"])
    more = ("--name", "other", "--max-document-bytes")
    run_prepare(*flags, *more, 50, cwd=tmp_path)
    assert ", 0 to make" in run_prepare(*flags, *more, 60, cwd=tmp_path).stderr, "none was left out"


def test_what_is_read_of_a_struct_is_the_text_alone(tmp_path):
    """Of its other fields nothing is decoded, however large."""
    doc = pa.StructArray.from_arrays([pa.array(["a", "b"]), pa.array(["x" * MIB, "y" * MIB])], names=["text", "junk"])
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"doc": doc}), path)
    (first,) = plan_units(SourceFile("a.parquet", str(path), "train"), ReadOptions("doc.text"), 1 << 40)
    with path.open("rb") as raw, pq.ParquetFile(raw) as file:
        chunks = parquet._text_chunks(first.files[0], file, first.parts[0].options)
        batches = list(parquet._batches(raw, file, 0, ["doc.text"], chunks[0]))
    assert batches[0].schema.field("doc").type == pa.struct([("text", pa.string())])
    assert texts_of(documents_of(path, ReadOptions("doc.text"))) == ["a", "b"]


def test_rows_are_decoded_one_two_four_at_a_time_and_fewer_where_they_are_long(tmp_path):
    path = tmp_path / "a.parquet"
    texts = ["short"] * 100 + [f"{number}" + "x" * (8 * MIB) for number in range(6)]
    pq.write_table(pa.table({"text": texts}), path, use_dictionary=False)
    with path.open("rb") as raw, pq.ParquetFile(raw) as file:
        found = [len(b) for b in parquet._growing(file, 32, {"row_groups": [0], "columns": ["text"]})]
    assert found[:7] == [1, 2, 4, 8, 16, 32, 32]
    assert max(found[7:]) <= 11
    assert sum(found) == 106


@pytest.mark.parametrize("ids", [["x" * (1 << 17)], [["a", "b"]], [{"a": 1}]])
def test_ids_that_are_as_long_as_texts_or_nested_are_refused(tmp_path, ids):
    pq.write_table(pa.table({"text": ["a"], "id": ids}), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a", "id": ids[0]}) + "\n")
    for name in ("a.parquet", "a.jsonl"):
        with pytest.raises(
            ValueError,
            match=r"name another column by --keep-columns|expected ids in|an id under id that is",
        ):
            documents_of(tmp_path / name, ReadOptions(id_column="id"))


def test_ids_that_are_not_utf8_are_mended_and_columns_of_one_name_refused(tmp_path):
    raw = pa.array([b"a\xff", b"b"], pa.binary())
    ids = pa.StringArray.from_buffers(2, raw.buffers()[1], raw.buffers()[2])
    pq.write_table(pa.table({"text": ["one", "two"], "id": ids}), tmp_path / "a.parquet")
    (found,) = documents_of(tmp_path / "a.parquet", ReadOptions(id_column="id"))
    assert found.kept.column("id").to_pylist() == ["a\ufffd", "b"]
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(twice, tmp_path / "b.parquet")
    with pytest.raises(ValueError, match="column 'text' is there 2 times"):
        documents_of(tmp_path / "b.parquet", ReadOptions())


@pytest.mark.parametrize("kind", ["string_view", "binary_view", "large_string"])
def test_texts_of_any_type_that_are_too_long_are_left_out(kind, tmp_path):
    texts = ["short", None, "", "x" * 50, "other"]
    column = pa.array([text and text.encode() if "binary" in kind else text for text in texts], getattr(pa, kind)())
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    (unit,) = plan_units(
        SourceFile("a.parquet", str(tmp_path / "a.parquet"), "train"), ReadOptions(max_document_bytes=10), MIB
    )
    found = list(read_documents(unit))
    assert [text for documents in found for text in documents.texts.to_pylist()] == ["short", "other"]
    assert sum(documents.oversized_documents for documents in found) == 1
