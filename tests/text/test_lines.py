"""jsonl and txt files give the documents that a plain reading of the whole file gives, however they are cut."""

import gzip
import json
import re
import tempfile
from contextlib import contextmanager
from pathlib import Path

import multiprocess
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import make_text, run_prepare, tree

from tokenmill.text import separated
from tokenmill.text.formats import ReadOptions
from tokenmill.text.sources import plan_units, read_documents
from tokenmill.text.units import SourceFile

EVERYTHING = 1 << 40
BY_DEFAULT = ReadOptions()


COMPRESS = {"": lambda data: data, ".gz": gzip.compress, ".zst": lambda data: bytes(pa.Codec("zstd").compress(data))}


def units_of(path, how=BY_DEFAULT, limit=EVERYTHING):
    return plan_units(SourceFile(path.name, str(path), "train"), how, limit)


def texts_of(path, how=BY_DEFAULT, limit=EVERYTHING):
    units = units_of(path, how, limit)
    return [text for unit in units for documents in read_documents(unit) for text in documents.texts.to_pylist()]


def jsonl(texts, key="text") -> bytes:
    return b"".join(json.dumps({"id": i, key: text}).encode() + b"\n" for i, text in enumerate(texts))


@contextmanager
def _file(name, data):
    """A file of this name for as long as a hypothesis example lasts."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        yield path


texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=12)


@settings(deadline=None, max_examples=80)
@given(texts, st.integers(1, 60), st.sampled_from(sorted(COMPRESS)), st.integers(1, 40), st.booleans())
def test_jsonl_gives_every_text_once_in_order_wherever_it_is_cut(texts, limit, ending, block, last_newline):
    data = jsonl(texts) if last_newline else jsonl(texts).removesuffix(b"\n")
    with pytest.MonkeyPatch.context() as patch, _file(f"a.jsonl{ending}", COMPRESS[ending](data)) as path:
        patch.setattr(separated, "BATCH_BYTES", block)
        assert texts_of(path, limit=limit) == [text for text in texts if text]
        units = units_of(path, limit=limit)
        assert [unit.parts[0].identity["span"][0] for unit in units] == list(range(0, max(1, len(data)), limit))
        counted = [documents for unit in units for documents in read_documents(unit)]
        assert sum(documents.empty_documents for documents in counted) == texts.count("")
        assert 0 <= sum(documents.share for documents in counted) - len(data) <= 1, "progress comes to its end"


@settings(deadline=None, max_examples=150)
@given(
    st.text("ab\n", max_size=60),
    st.sampled_from(["\n", "\n\n", "ab", "aba", "a\n", "nowhere"]),
    st.integers(1, 30),
    st.sampled_from(sorted(COMPRESS)),
    st.integers(1, 20),
)
def test_txt_is_split_as_python_splits_it_wherever_it_is_cut(text, separator, limit, ending, block):
    how = ReadOptions(document_separator=separator.encode())
    with pytest.MonkeyPatch.context() as patch, _file(f"a.txt{ending}", COMPRESS[ending](text.encode())) as path:
        patch.setattr(separated, "BATCH_BYTES", block)
        assert texts_of(path, how, limit) == [piece for piece in text.split(separator) if piece]


@settings(deadline=None, max_examples=150)
@given(
    st.text("ab\n", max_size=60),
    st.sampled_from(["\n", "\n\n", "ab", "aba"]),
    st.integers(1, 12),
    st.sampled_from(sorted(COMPRESS)),
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=8),
)
def test_a_reader_that_goes_on_gives_what_a_new_one_gives(text, separator, limit, ending, block, order):
    """Shards of a file are read in any order by one process, some of them not to their end."""
    how = ReadOptions(document_separator=separator.encode(), max_document_bytes=9)
    with pytest.MonkeyPatch.context() as patch, _file(f"a.txt{ending}", COMPRESS[ending](text.encode())) as path:
        patch.setattr(separated, "BATCH_BYTES", block)
        units = units_of(path, how, limit)
        for number, is_read in order:
            unit = units[number % len(units)]
            if not is_read:
                next(read_documents(unit), None)
                continue
            found = [(d.texts.to_pylist(), d.oversized_documents, d.share) for d in read_documents(unit)]
            patch.setattr(separated, "_held", None)
            alone = [(d.texts.to_pylist(), d.oversized_documents, d.share) for d in read_documents(unit)]
            assert [sum(column, type(column[0])()) for column in zip(*found, strict=True)] == [
                sum(column, type(column[0])()) for column in zip(*alone, strict=True)
            ]


def test_forked_processes_do_not_share_their_place_in_a_compressed_file(tmp_path):
    texts = [f"text {number}" for number in range(5000)]
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(COMPRESS[".zst"](jsonl(texts)))
    units = units_of(path, limit=10_000)
    expected = [[t for d in read_documents(unit) for t in d.texts.to_pylist()] for unit in units]
    assert sum(expected, []) == texts
    next(read_documents(units[0]))  # as the fork server does, to prove an engine
    context = multiprocess.get_context("fork")
    for _ in range(3):
        results = context.SimpleQueue()

        def read(number, results=results):
            found = [[t for d in read_documents(unit) for t in d.texts.to_pylist()] for unit in units[number::2]]
            results.put((number, found == expected[number::2]))

        workers = [context.Process(target=read, args=(number,)) for number in range(2)]
        for worker in workers:
            worker.start()
        assert sorted(results.get() for _ in workers) == [(0, True), (1, True)]
        for worker in workers:
            worker.join()


def test_a_txt_file_is_one_document_without_a_separator(tmp_path):
    path = tmp_path / "book.txt"
    path.write_bytes(b"\xef\xbb\xbfone\n\ntwo\n")
    assert texts_of(path, limit=1) == ["one\n\ntwo\n"]
    path.write_bytes(b"")
    (documents,) = read_documents(units_of(path)[0])
    assert (len(documents.texts), documents.empty_documents) == (0, 1)


def test_nulls_blank_lines_bad_bytes_and_lone_surrogates(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"text": "one"}\r\n\r\n{"text": null}\n{"text": "bad \xff byte"}\n'
        b'{"text": "half \\ud83d"}\n{"text": "whole \\ud83d\\ude00", "text2": 1}\n{"text": ""}'
    )
    assert texts_of(path) == ["one", "bad \ufffd byte", "half \ufffd", "whole \U0001f600"]
    for count, expected in (("null_documents", 1), ("empty_documents", 1), ("repaired_documents", 2)):
        assert sum(getattr(documents, count) for documents in read_documents(units_of(path)[0])) == expected


@pytest.mark.parametrize("ending", sorted(COMPRESS))
@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b'{"text": "cut o', r"no JSON \(Unterminated string"),
        (b'{"content": "x", "id": 3}', "keys content, id"),
        (b'["text"]', "a list"),
        (b'{"text": 5}', "a int there"),
        (b'{"text": "a"}{"text": "b"}', "no JSON .Extra data"),
    ],
)
def test_a_broken_line_is_named_with_file_and_line_or_counted(tmp_path, ending, line, found):
    whole = jsonl(make_text(documents=50, seed=0)).splitlines(keepends=True)
    data = b"".join([*whole[:40], line + b"\n", *whole[40:]])
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(COMPRESS[ending](data))
    with pytest.raises(
        ValueError, match=rf"a\.jsonl{re.escape(ending)}: line 41: expected .* 'text', found {found}.*--skip-br"
    ):
        texts_of(path, limit=10_000)
    how = ReadOptions(skip_broken=True)
    assert texts_of(path, how, 10_000) == make_text(documents=50, seed=0)
    assert (
        sum(documents.broken_lines for unit in units_of(path, how, 10_000) for documents in read_documents(unit)) == 1
    )


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_truncated_file_is_damage_and_not_an_end(tmp_path, ending):
    path = tmp_path / f"a.jsonl{ending}"
    whole = COMPRESS[ending](jsonl(make_text(documents=300, seed=0)))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"a\.jsonl.*: expected a whole jsonl file, found damage .*fetch it again"):
        units_of(path)


def test_members_and_frames_in_a_row_are_one_text(tmp_path):
    first, second = jsonl(["one", "two"]), jsonl(["three"])
    for ending in (".gz", ".zst"):
        path = tmp_path / f"a.jsonl{ending}"
        path.write_bytes(COMPRESS[ending](first) + COMPRESS[ending](second))
        assert texts_of(path) == ["one", "two", "three"]


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "jsonl.zst", "txt"])
def test_a_large_file_becomes_many_shards_of_the_same_tokens(tmp_path, tokenizer_json, ending):
    texts = make_text(documents=600, seed=1)
    data = jsonl(texts, "content") if "jsonl" in ending else "\n<sep>\n".join(texts).encode()
    held_out = jsonl(["held out"], "content") if "jsonl" in ending else b"held out"
    compress = COMPRESS[ending.removeprefix("jsonl").removeprefix("txt")]
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / f"a.{ending}").write_bytes(compress(data))
    (tmp_path / "corpus" / f"b.{ending}").write_bytes(compress(held_out))
    flags = ("--source", "corpus", "--tokenizer", tokenizer_json, "--text-column", "content")
    flags += ("--document-separator", r"\n<sep>\n", "--shard-text-bytes", 50_000, "--val-file", "last")
    sets = []
    for workers in (1, 2):
        cwd = tmp_path / str(workers)
        cwd.mkdir()
        (cwd / "corpus").symlink_to(tmp_path / "corpus")
        done = run_prepare(*flags, "--workers", workers, cwd=cwd)
        sets.append(tree(cwd / done.stdout.splitlines()[-1]))
    assert sets[0] == sets[1]
    assert len([name for name in sets[0] if name.endswith(".bin")]) == -(-len(data) // 50_000) + 1
    manifest = json.loads(sets[0]["manifest.json"])
    assert (manifest["documents"], manifest["text_bytes"]) == (601, len("".join(texts).encode()) + len("held out"))
    again = run_prepare(*flags, cwd=tmp_path / "1")
    assert "0 to make" in again.stderr
