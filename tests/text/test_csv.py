"""csv: cut anywhere, records are read as Python's csv module reads the whole file, and a stray quote is an error."""

import csv
import io
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import run_prepare

from tokenmill import Documents, TokenSet
from tokenmill.text.formats import ReadOptions
from tokenmill.text.sources import plan_units, read_documents
from tokenmill.text.units import SourceFile

PARTS = ['"', '""', "\n", "\r\n", "\r", ",", "a", "é水", " ", "b c", "\ufeff"]
CELLS = st.lists(st.sampled_from(PARTS), max_size=8).map("".join)


def written(rows, **how) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, **how).writerows(rows)
    return text.getvalue().encode()


def documents(path, options, shard_text_bytes):
    units = plan_units(SourceFile(path.name, str(path), "train"), options, shard_text_bytes)
    return len(units), [documents for unit in units for documents in read_documents(unit)]


def texts_of(path, shard_text_bytes=1 << 40, **options):
    _, found = documents(path, ReadOptions(**options), shard_text_bytes)
    return [text for some in found for text in some.texts.to_pylist()]


@given(
    rows=st.lists(st.tuples(CELLS, CELLS), max_size=12),
    size=st.integers(1, 40),
    mark=st.booleans(),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    columns=st.sampled_from([["text", "label"], ["text"]]),
)
def test_wherever_it_is_cut_records_are_those_of_the_csv_module(rows, size, mark, end, columns, tmp_path_factory):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    some = [row[: len(columns)] for row in rows]
    quoting = csv.QUOTE_MINIMAL if end == "\r\n" else csv.QUOTE_ALL  # Python does not quote the other line breaks
    data = written([columns, *some], lineterminator=end, quoting=quoting)
    path.write_bytes(b"\xef\xbb\xbf" * mark + data)
    reference = [row["text"] for row in csv.DictReader(io.StringIO(data.decode(), newline=""))]
    count, found = documents(path, ReadOptions(), size)
    assert [text for some in found for text in some.texts.to_pylist()] == [text for text in reference if text]
    body = len(data) - data.index(end.encode()) - len(end)
    assert count >= min(1, body // (size + max((len(written([row])) for row in some), default=1)))
    assert sum(some.empty_documents for some in found) <= reference.count("")  # a blank line is no record


def test_blocks_are_cut_where_a_record_ends_however_long_records_are(tmp_path, monkeypatch):
    rng = random.Random(0)
    monkeypatch.setattr("tokenmill.text.csv.BATCH_BYTES", 64)
    rows = [('x\n",' * rng.randint(1, 60), str(number)) for number in range(200)]
    path = tmp_path / "a.csv"
    path.write_bytes(written([("text", "n"), *rows]))
    for size in (1 << 40, 3000, 70):
        assert texts_of(path, size) == [text for text, _ in rows]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'text,n\na,1\n5" pipe,2\n6" pipe,3\n', r"a\.csv: line 3: expected quotes around whole fields"),
        (b'text,n\na,1\nb,2\n"c,3\nd,4\n', r"a\.csv: line 4: expected quotes around whole fields"),
        (b'text\na\n"b', r"a\.csv: line 3: expected quotes around whole fields"),
        (b'text,n\n"a"b,1\n', r"a\.csv: line 2: expected quotes"),
        (
            b"text,n\na,1\nb,2,3\n",
            r"a\.csv: expected 2 fields in a record, as the header has, found 3 fields in 'b,2,3'",
        ),
        (b"te\xe9xt,n\na,1\n", r"a\.csv: expected a header in UTF-8 in the first line"),
        (b"", r"a\.csv: expected a header with the names of columns in the first line, found none"),
        (b"body,n\na,1\n", r"a\.csv: expected a column 'text', found columns body, n; name another by --text-column"),
        (b"id;text\n1;a\n", r"found columns id;text \(commas separate columns\); name another"),
        (b"text,text\na,b\n", r"a\.csv: expected a column 'text', found 2 of them; name another by --text-column"),
    ],
)
def test_what_is_no_csv_is_an_error_that_says_where(tmp_path, data, said):
    (tmp_path / "a.csv").write_bytes(data)
    with pytest.raises(ValueError, match=said):
        texts_of(tmp_path / "a.csv")


def test_broken_records_texts_that_are_too_long_and_bad_bytes_are_counted(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,n\na,1\nb\nlong enough,2\nb\xff,3\n,4\n")
    _, (found,) = documents(path, ReadOptions(skip_broken=True, max_document_bytes=5), 1 << 40)
    assert found.texts.to_pylist() == ["a", "b\ufffd"]
    counts = (found.broken_lines, found.oversized_documents, found.repaired_documents, found.empty_documents)
    assert counts == (1, 1, 1, 1)


def test_a_record_that_never_ends_is_an_error_and_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("tokenmill.text.csv.BATCH_BYTES", 100)
    path = tmp_path / "a.csv"
    path.write_bytes(b'text\na\n"' + b"b\n" * 1000)
    with pytest.raises(
        ValueError, match=r"line 3: a record of more than 120 bytes, perhaps because a quote is missing"
    ):
        texts_of(path, max_document_bytes=10)


def test_columns_are_joined_and_kept_as_the_texts_that_they_are(tmp_path):
    path = tmp_path / "a.csv"
    rows = [("t1", "one", "3", "007", "x"), ("", "two", "0.5", "8", ""), ("t3", "", "4", "9", "5")]
    path.write_bytes(written([("title", "text", "score", "id", "note"), *rows]))
    options = ReadOptions("title,text", id_column="id", keep_columns=("score", "note?", "gone?"))
    _, (found,) = documents(path, options, 1 << 40)
    assert found.texts.to_pylist() == ["t1\n\none", "two", "t3"]
    assert found.kept.to_pydict() == {
        "score": ["3", "0.5", "4"],
        "note": ["x", None, "5"],
        "gone": [None] * 3,
        "id": ["007", "8", "9"],
    }
    with pytest.raises(ValueError, match="expected a column 'score2'.*by --keep-columns"):
        texts_of(path, keep_columns=("score2",))
    path.write_bytes(b"text,meta,meta.lang\nx,1,en\n")
    with pytest.raises(ValueError, match="columns 'meta' and 'meta.lang' cannot both be kept"):
        texts_of(path, keep_columns=("meta", "meta.lang"))


def test_a_header_alone_has_no_documents_and_conversations_are_refused(tmp_path):
    path = tmp_path / "a.csv"
    for data in (b"text", b"text\n", b"\xef\xbb\xbftext,n\r\n"):
        path.write_bytes(data)
        assert texts_of(path) == []
    with pytest.raises(ValueError, match="csv has no conversations; write them as jsonl, parquet or arrow"):
        texts_of(path, conversations=True)


def test_a_csv_file_is_prepared_resumed_and_shown_by_its_rows(tmp_path, tokenizer_json):
    rows = [(f'document {number},\n"quoted"', number) for number in range(3000)]
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.csv").write_bytes(written([("text", "n"), *rows]))
    (tmp_path / "corpus" / "b.csv").write_bytes(written([("text", "n"), ("held out", 1)]))
    flags = ("--source", "corpus", "--tokenizer", tokenizer_json, "--shard-text-bytes", 20_000, "--keep-columns", "n")
    flags += ("--val-file", "b.csv")
    folder = tmp_path / run_prepare(*flags, cwd=tmp_path).stdout.splitlines()[-1]
    token_set = TokenSet(folder)
    assert len(token_set.split("train")) == 5
    found = Documents(token_set, "train")
    assert [document.text for document in found] == [text for text, _ in rows]
    assert [document.metadata["n"] for document in found] == [str(number) for _, number in rows]
    assert found[2500].source == "a.csv row 2,501"
    before = {path.name: path.read_bytes() for path in folder.glob("shards/*")}
    for path in folder.glob("shards/a.002.*"):
        path.unlink()
    run_prepare(*flags, cwd=tmp_path)
    assert {path.name: path.read_bytes() for path in folder.glob("shards/*")} == before
