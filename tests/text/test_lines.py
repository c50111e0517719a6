"""jsonl and txt give the documents of a plain reading of the whole file, wherever it is cut."""

import gzip
import json
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import ROOT, make_text
from reading import counts_of, read, texts_of, units_of

from tokenmill.text import lines
from tokenmill.text.formats import ReadOptions

COMPRESS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".zst": lambda data: bytes(pa.Codec("zstd").compress(data)),
}


def as_jsonl(texts, key="text") -> bytes:
    return b"".join(
        json.dumps({"id": i, key: text}).encode() + b"\n" for i, text in enumerate(texts)
    )


@contextmanager
def small_blocks(name, data, block):
    """A file of this name, read in blocks of so many bytes, while a hypothesis example lasts."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BATCH_BYTES", block)
        patch.setattr(lines, "STEP", block)
        patch.setattr(lines, "LOOK_BACK", block)
        path = Path(folder) / name
        path.write_bytes(data)
        yield path


some_texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=12)


@settings(max_examples=40)
@given(
    some_texts,
    st.integers(1, 60),
    st.sampled_from(sorted(COMPRESS)),
    st.integers(1, 40),
    st.booleans(),
)
def test_jsonl_gives_every_text_once_in_order_wherever_it_is_cut(
    texts, size, ending, block, last_newline
):
    data = as_jsonl(texts) if last_newline else as_jsonl(texts).removesuffix(b"\n")
    with small_blocks(f"a.jsonl{ending}", COMPRESS[ending](data), block) as path:
        assert texts_of(path, size=size) == [text for text in texts if text]
        assert len(units_of(path, size=size)) == (1 if ending else max(1, round(len(data) / size)))
        assert counts_of(path, size=size).get("empty_documents", 0) == texts.count("")


@settings(max_examples=100)
@given(
    st.text("ab\n", max_size=60),
    st.sampled_from(["\n", "\n\n", "ab", "aba", "a\n", "nowhere"]),
    st.integers(1, 30),
    st.sampled_from(sorted(COMPRESS)),
    st.integers(1, 20),
    st.sampled_from([5, 1000]),
)
def test_txt_is_split_as_python_splits_it_wherever_it_is_cut(
    text, separator, size, ending, block, most
):
    options = ReadOptions(document_separator=separator, max_document_bytes=most)
    with small_blocks(f"a.txt{ending}", COMPRESS[ending](text.encode()), block) as path:
        pieces = text.split(separator)
        assert texts_of(path, options, size) == [
            piece for piece in pieces if 0 < len(piece) <= most
        ]
        assert counts_of(path, options, size).get("oversized_documents", 0) == sum(
            len(p) > most for p in pieces
        )


def test_nulls_blank_lines_bad_bytes_and_lone_surrogates(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"text": "one"}\r\n\r\n{"text": null}\n{"text": "bad \xff byte"}\n'
        b'{"text": "half \\ud83d"}\n{"text": "whole \\ud83d\\ude00", "text2": 1}\n{"text": ""}\n'
        b'{"text": "twice", "text": "halves \\udcc3\\udca9"}\n{"text": "cut \xe6\xb0 character"}'
    )
    texts = ["one", "bad \ufffd byte", "half \ufffd", "whole \U0001f600"]
    texts += ["halves \ufffd\ufffd", "cut \ufffd character"]
    assert texts_of(path) == texts
    left_out = {"null_documents": 1, "empty_documents": 1, "blank_lines": 1}
    assert counts_of(path) == left_out | {"repaired_documents": 4}


@pytest.mark.parametrize(
    ("line", "found", "ending"),
    [
        (b'{"text": "cut o', r"no JSON \(Unterminated string", ""),
        (b'{"content": "x", "id": 3}', "keys content, id", ""),
        (b'["text"]', "a list: one JSON array, where an object a line is read", ".gz"),
        (b'{"text": 5}', "a int there", ".zst"),
        (b'{"text": "a"}{"text": "b"}', "no JSON .Extra data", ""),
    ],
)
def test_a_broken_line_is_named_with_file_and_line_or_counted(tmp_path, line, found, ending):
    all_lines = as_jsonl(make_text(documents=50, seed=0)).splitlines(keepends=True)
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(COMPRESS[ending](b"".join([*all_lines[:40], line + b"\n", *all_lines[40:]])))
    message = (
        rf"a\.jsonl{re.escape(ending)}: line 41: expected .* 'text', found {found}.*--skip-broken"
    )
    with pytest.raises(ValueError, match=message):
        texts_of(path, size=10_000)
    options = ReadOptions(skip_broken=True)
    assert texts_of(path, options, 10_000) == make_text(documents=50, seed=0)
    assert counts_of(path, options, 10_000) == {"broken_lines": 1}
    first = "".join(batch.first_broken for batch in read(path, options, 10_000))
    place = "line 41"
    if not ending:  # which is cut: in later parts of a file, lines are not counted
        place = f"byte {sum(map(len, all_lines[:40])):,}"
    assert re.match(f"{place}: {found}", first)
    (whole,) = read(path, options)
    assert re.match(f"line 41: {found}", whole.first_broken)


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_truncated_file_is_damage_and_members_and_frames_in_a_row_are_one_text(tmp_path, ending):
    path = tmp_path / f"a.jsonl{ending}"
    texts = make_text(documents=300, seed=0)
    compressed = COMPRESS[ending](as_jsonl(texts))
    path.write_bytes(compressed[: len(compressed) // 2])
    with pytest.raises(
        ValueError, match=r"a\.jsonl.*: expected a whole jsonl file, found damage .*fetch it again"
    ):
        texts_of(path)
    path.write_bytes(compressed + COMPRESS[ending](as_jsonl(["three"])))
    assert texts_of(path) == [*texts, "three"]


def test_texts_of_fields_and_of_several_keys_are_found_and_joined(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [
        {"title": f"t{n}" if n % 2 else None, "doc": {"text": f"body {n}" if n else None}}
        for n in range(4)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert texts_of(path, ReadOptions("doc.text")) == ["body 1", "body 2", "body 3"]
    assert texts_of(path, ReadOptions("title,doc.text")) == [
        "t1\n\nbody 1",
        "body 2",
        "t3\n\nbody 3",
    ]
    assert counts_of(path, ReadOptions("title,doc.text")) == {"null_documents": 1}
    with pytest.raises(ValueError, match="found keys title, doc; fix it, name the key"):
        texts_of(path, ReadOptions("title,nope"))


def test_keys_are_kept_with_their_types_and_several_types_are_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [
        {"text": "a", "it": it, "score": 0.5, "meta": {"lang": "en"}}
        for it in ("one", None, "\ud800")
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (batch,) = read(
        path, ReadOptions(keep_columns=("it", "score", "meta.lang", "note?", "meta.none?"))
    )
    assert batch.kept.to_pydict() == {
        "it": ["one", None, "\ufffd"],
        "score": [0.5] * 3,
        "meta": [{"lang": "en", "none": None}] * 3,
        "note": [None] * 3,
    }
    assert pa.types.is_float64(batch.kept.schema.field("score").type)
    with pytest.raises(ValueError, match="line 1 lacks 'note'; if lines may lack it, name note"):
        read(path, ReadOptions(keep_columns=("note",), skip_broken=True))
    for values in ([1, "two"], [1, True], [{"a": 1}, 2], [1, 1 << 64]):
        path.write_text("".join(json.dumps({"text": "a", "it": value}) + "\n" for value in values))
        with pytest.raises(
            ValueError,
            match=r"a\.jsonl: column 'it' to keep has values of several types .*make it one",
        ):
            read(path, ReadOptions(keep_columns=("it",)))


def test_conversations_stay_json_and_their_lines_are_known(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [{"messages": [{"role": "user", "content": f"\ud800 {n}"}], "id": n} for n in range(200)]
    path.write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    options = ReadOptions(conversations=True, keep_columns=("id",))
    batches = read(path, options, 3000)
    assert len(batches) > 3
    ids = []
    kept = []
    places = []
    for batch in batches:
        ids += [json.loads(text)["id"] for text in batch.texts.to_pylist()]
        kept += batch.kept["id"].to_pylist()
        places += map(batch.place, range(len(batch.texts)))
    assert ids == kept == list(range(200))
    assert places == [f"line {number}" for number in range(1, 400, 2)]
    path.write_text("{}\n" + "x" * 999 + "\n{}\n")
    (batch,) = read(path, ReadOptions(conversations=True, max_document_bytes=99))
    assert [batch.place(0), batch.place(1)] == ["line 1", "line 3"], (
        "a line that was left out counts"
    )


def test_a_line_of_any_length_costs_no_memory(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(
        gzip.compress(b'{"text": "' + b"x" * 250_000_000 + b'"}\n', 1)
        + gzip.compress(as_jsonl(["b"]))
    )
    paths = [str(ROOT), str(ROOT / "tests")]
    code = f"import sys; sys.path[:0] = {paths!r}\n"
    code += f"""
from reading import *
def peak():
    status = open("/proc/self/status").read()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1e3
before = peak()
print(texts_of(Path({str(path)!r})), counts_of(Path({str(path)!r})), peak() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.startswith("['b'] {'oversized_documents': 1} ")
    assert float(done.stdout.split()[-1]) < 150, "MB"


ODD_LINES = [
    b'{"text":"deep","n":' + b"[" * 1010 + b"]" * 1010 + b"}",
    b'{"text":"too deep","n":' + b"[" * 90_000 + b"]" * 90_000 + b"}",
    b'{"text":"NaN","n":NaN}',
    b'{"text":"half \\ud800"}',
    b'{"text":"byte \xff"}',
    b'{"text":"twice","text":"again"}',
    b'{"text":"large","n":%d}' % 2**70,
    b'{"text":"huge","n":1e999}',
    b'{"text":"a control \x01"}',
    b'{"text":"a comma",}',
]


@pytest.mark.parametrize("neighbor", [b"", b'{"text":"x","n":NaN}', b'{"text":"x"}', b'["x"]'])
@pytest.mark.parametrize("line", ODD_LINES, ids=range(len(ODD_LINES)))
def test_whether_a_line_is_broken_does_not_depend_on_its_neighbors(tmp_path, line, neighbor):
    options = ReadOptions(skip_broken=True)
    path = tmp_path / "a.jsonl"
    path.write_bytes(line)
    alone = texts_of(path, options)
    path.write_bytes(b"\n".join([neighbor, line, neighbor]))
    assert [text for text in texts_of(path, options) if text != "x"] == alone
