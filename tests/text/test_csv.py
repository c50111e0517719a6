"""csv: records are those of Python's csv module for the whole file; a stray quote is an error."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import counts_of, read, texts_of

from tokenmill.text.formats import ReadOptions

PARTS = ['"', '""', "\n", "\r\n", "\r", ",", "a", "é水", " ", "b c", "\ufeff"]
CELLS = st.lists(st.sampled_from(PARTS), max_size=8).map("".join)


def written(rows, **how) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, **how).writerows(rows)
    return text.getvalue().encode()


@given(
    rows=st.lists(st.tuples(CELLS, CELLS), max_size=12),
    size=st.integers(1, 40),
    mark=st.booleans(),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    columns=st.sampled_from([["text", "label"], ["text"]]),
)
def test_records_are_those_of_the_csv_module(rows, size, mark, end, columns, tmp_path_factory):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    cut_rows = [row[: len(columns)] for row in rows]
    quoting = (
        csv.QUOTE_MINIMAL if end == "\r\n" else csv.QUOTE_ALL
    )  # Python does not quote the other line breaks
    data = written([columns, *cut_rows], lineterminator=end, quoting=quoting)
    path.write_bytes(b"\xef\xbb\xbf" * mark + data)
    reference = [row["text"] for row in csv.DictReader(io.StringIO(data.decode(), newline=""))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenmill.text.csv.BATCH_BYTES", size)
        assert texts_of(path) == [text for text in reference if text]
        assert counts_of(path).get("empty_documents", 0) <= reference.count(
            ""
        )  # a blank line is no record


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'text,n\n"a"b,1\n', r"a\.csv: line 2: expected quotes around whole cells"),
        (b'text\na\n"b', r"a\.csv: line 3: expected quotes around whole cells"),
        (
            b"text,n\na,1\nb,2,3\n",
            r"a\.csv: line 3: expected 2 cells, as the header has, found 3 in 'b,2,3'",
        ),
        (b"", r"a\.csv: expected one column 'text', found columns none"),
        (
            b"body,n\na,1\n",
            r"a\.csv: expected one column 'text', found columns body, n; name another by --text",
        ),
        (b"id;text\n1;a\n", r"found columns id;text; name another"),
        (
            b"text,text\na,b\n",
            r"a\.csv: expected one column 'text', found 2 of them; name another by --text-column",
        ),
    ],
)
def test_what_is_no_csv_is_an_error_that_says_where(tmp_path, data, said):
    (tmp_path / "a.csv").write_bytes(data)
    with pytest.raises(ValueError, match=said):
        texts_of(tmp_path / "a.csv")


def test_broken_records_texts_that_are_too_long_and_bad_bytes_are_counted(tmp_path):
    path = tmp_path / "a.csv"
    options = ReadOptions(skip_broken=True, max_document_bytes=5)
    path.write_bytes(b"text,n\na,1\nb\nlong enough,2\nb\xff,3\n,4\n")
    assert texts_of(path, options) == ["a", "b\ufffd"]
    counts = ("broken_lines", "oversized_documents", "repaired_documents", "empty_documents")
    assert counts_of(path, options) == dict.fromkeys(counts, 1)
    (batch,) = read(path, options)
    assert batch.first_broken == "line 3: 1 cells, where the header has 2"


def test_columns_are_joined_and_kept_as_the_texts_that_they_are(tmp_path):
    path = tmp_path / "a.csv"
    rows = [("t1", "one", "3", "007", "x"), ("", "two", "0.5", "8", ""), ("t3", "", "4", "9", "5")]
    path.write_bytes(written([("title", "text", "score", "id", "note"), *rows]))
    (batch,) = read(path, ReadOptions("title,text", keep_columns=("score", "note?", "gone?", "id")))
    assert batch.texts.to_pylist() == ["t1\n\none", "two", "t3"]
    assert batch.kept.to_pydict() == {
        "score": ["3", "0.5", "4"],
        "note": ["x", None, "5"],
        "gone": [None] * 3,
        "id": ["007", "8", "9"],
    }
    with pytest.raises(ValueError, match="expected one column 'score2'.*by --keep-columns"):
        texts_of(path, ReadOptions(keep_columns=("score2",)))
