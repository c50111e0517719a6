"""parquet and Arrow: every row is in one part, whatever the file, types and parts are."""

import json
import subprocess
import sys
from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from making import ROOT, make_text, write_parquet
from reading import counts_of, read, texts_of, units_of

from tokenmill.text.formats import ReadOptions

KINDS = [
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.string_view(),
    pa.dictionary(pa.int32(), pa.string()),
]
TEXTS = [*make_text(95, seed=1), None, "", "水"]


def write_arrow(path, table, rows=10, open_writer=pa.ipc.new_stream, **how):
    with pa.OSFile(str(path), "wb") as file, open_writer(file, table.schema, **how) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def column_of(kind, texts=TEXTS):
    if kind == pa.binary():
        return pa.array([text and text.encode() for text in texts], kind)
    return pa.array(texts, pa.string()).cast(kind)


def check(path):
    for size in (1 << 40, 20_000, path.stat().st_size // 30):
        assert texts_of(path, size=size) == [text for text in TEXTS if text]
        assert counts_of(path, size=size) == {"null_documents": 1, "empty_documents": 1}
    assert len(units_of(path, size=size)) > 9


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_parquet_is_read_whole_in_any_number_of_parts(kind, tmp_path):
    table = pa.table({"n": range(len(TEXTS)), "text": column_of(kind)})
    for how in (
        {"compression": "zstd"},
        {"compression": "none", "use_dictionary": False, "write_statistics": False},
    ):
        pq.write_table(table, tmp_path / "a.parquet", row_group_size=7, **how)
        check(tmp_path / "a.parquet")


@pytest.mark.parametrize("open_writer", [pa.ipc.new_stream, pa.ipc.new_file])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_arrow_is_read_whole_in_any_number_of_parts(kind, open_writer, tmp_path):
    table = pa.table({"n": range(len(TEXTS)), "text": column_of(kind)})
    for compression in (None, "zstd"):
        options = pa.ipc.IpcWriteOptions(compression=compression)
        check(write_arrow(tmp_path / "a.arrow", table, 7, open_writer, options=options))


def test_row_groups_are_told_and_parts_take_them_evenly(tmp_path):
    path = write_parquet(
        tmp_path / "a.parquet", [letter * 10_000 for letter in "abcdefgh"], row_group_size=1
    )
    letters = [(batch.row_group, batch.texts[0].as_py()[0]) for batch in read(path, size=1)]
    assert letters == [*enumerate("abcdefgh")]
    path = write_parquet(tmp_path / "b.parquet", [])
    assert texts_of(path) == []
    with pytest.raises(ValueError, match="expected text in column 'content', found columns text"):
        texts_of(path, ReadOptions("content"))


@pytest.mark.parametrize("write", ["parquet", "arrow"])
def test_fields_of_structs_several_columns_and_kept_ones(write, tmp_path):
    rows = [
        {
            "title": f"t{n}" if n % 2 else None,
            "doc": {"text": f"body {n}", "raw": b"r%d" % n},
            "score": n / 8,
        }
        for n in range(6)
    ]
    rows[4] |= {"title": None, "doc": {"text": None, "raw": b"\xff"}}
    path = tmp_path / f"a.{write}"
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, path, row_group_size=2) if write == "parquet" else write_arrow(
        path, table, 2
    )
    joined = [f"t{n}\n\nbody {n}" if n % 2 else f"body {n}" for n in (0, 1, 2, 3, 5)]
    options = ReadOptions("title,doc.text", keep_columns=("score", "doc.raw", "none?"))
    assert texts_of(path, options) == joined
    kept = list(chain.from_iterable(batch.kept.to_pylist() for batch in read(path, options)))
    assert kept == [
        {"score": n / 8, "doc": {"raw": b"r%d" % n}, "none": None} for n in (0, 1, 2, 3, 5)
    ]
    assert texts_of(path, ReadOptions("doc.raw")) == ["r0", "r1", "r2", "r3", "\ufffd", "r5"]
    assert counts_of(path, ReadOptions("doc.raw")) == {"repaired_documents": 1}
    with pytest.raises(
        ValueError, match=r"expected a column 'none' to keep, found columns .*or write none\?"
    ):
        read(path, ReadOptions("title", keep_columns=("none",)))
    with pytest.raises(ValueError, match="expected text in column 'score', found double there"):
        read(path, ReadOptions("score"))


@pytest.mark.parametrize("write", ["parquet", "arrow"])
def test_conversations_become_json_and_their_rows_are_known(write, tmp_path):
    messages = [[{"role": "user", "content": f"question {n}", "name": None}] for n in range(30)]
    path = tmp_path / f"a.{write}"
    table = pa.table({"messages": messages, "n": range(30)})
    pq.write_table(table, path, row_group_size=10) if write == "parquet" else write_arrow(
        path, table, 10
    )
    batches = read(path, ReadOptions(conversations=True, keep_columns=("n",)), 500)
    texts = list(chain.from_iterable(batch.texts.to_pylist() for batch in batches))
    assert list(map(json.loads, texts)) == [
        {"messages": [{"role": "user", "content": f"question {n}"}]} for n in range(30)
    ]
    numbers = chain.from_iterable(batch.kept["n"].to_pylist() for batch in batches)
    assert list(numbers) == list(range(30))
    assert batches[-1].place(3) == ("row 3 of row group 2" if write == "parquet" else "row 23")
    with pytest.raises(
        ValueError, match=r"expected conversations under turns, found columns messages, n"
    ):
        read(path, ReadOptions(conversations=True, messages_column="turns"))
    table = pa.table({"messages": [[{"role": "user", "content": b"\xff"}]]})
    pq.write_table(table, path) if write == "parquet" else write_arrow(path, table)
    (reason,) = json.loads(read(path, ReadOptions(conversations=True))[0].texts[0].as_py()).values()
    assert "codec can't decode" in reason, "it is told as a broken conversation"


def test_a_map_with_a_key_twice_breaks_its_row_alone(tmp_path):
    arguments = pa.array(
        [[("a", "b")], [("a", "b"), ("a", "c")]], pa.map_(pa.string(), pa.string())
    )
    table = pa.table({"messages": ["one", "two"], "tools": arguments})
    path = write_arrow(tmp_path / "a.arrow", table)
    first, second = map(json.loads, texts_of(path, ReadOptions(conversations=True)))
    assert first == {"messages": "one", "tools": {"a": "b"}}
    assert list(second.values()) == ["a map has a key twice"]


def test_damage_is_an_error_that_names_the_file(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", make_text(documents=300, seed=0))
    intact = path.read_bytes()
    for data in (intact[:1000] + bytes(2000) + intact[3000:], intact[: len(intact) // 2], b""):
        path.write_bytes(data)
        with pytest.raises(
            ValueError,
            match=r"a\.parquet: expected a whole parquet file, found damage .*fetch it again",
        ):
            texts_of(path)
    path = write_arrow(
        tmp_path / "a.arrow", pa.table({"text": [f"text {n}" for n in range(10)]}), rows=2
    )
    intact = path.read_bytes()
    for data, message in (
        (intact[:-8], "the stream has no end mark"),
        (b"no arrow at all", "found damage"),
        (intact[:200], "found damage"),
        (b"", "found damage"),
    ):
        path.write_bytes(data)
        with pytest.raises(
            ValueError, match=rf"a\.arrow: expected a whole arrow file, .*{message}"
        ):
            texts_of(path)


def test_a_row_group_of_any_size_is_streamed(tmp_path):
    texts = [str(n) * 500 for n in range(40_000)]  # 100 MB in one row group
    path = write_parquet(tmp_path / "large.parquet", texts, row_group_size=1 << 20)
    paths = [str(ROOT), str(ROOT / "tests")]
    code = f"import sys; sys.path[:0] = {paths!r}\n"
    code += f"""
import pyarrow.compute, pyarrow.parquet
from reading import *
def peak():
    status = open("/proc/self/status").read()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1e3
(unit,), before = units_of(Path({str(path)!r})), peak()
print(sum(len(documents.texts) for documents in read_unit(unit, BY_DEFAULT)), peak() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    documents, grown = done.stdout.split()
    assert int(documents) == 40_000
    assert float(grown) < 90, "MB: some batches and pages, and not the row group"
