"""Text formats are a registry: what the rest of the code asks, and a format from outside the package."""

import gzip
from dataclasses import replace

import pytest
import toy_format
from making import make_text
from toy_format import TOY

from tokenmill import Documents, PrepareConfig, TokenSet, prepare
from tokenmill.text.formats import FORMATS, compression_of, format_names, format_of, register_format, stem_of


@pytest.fixture
def toy():
    register_format(TOY)
    yield TOY
    del FORMATS[TOY.name]


@pytest.mark.parametrize(
    ("name", "format", "compression", "stem"),
    [
        ("web/a.parquet", "parquet", None, "web/a"),
        ("a.JSONL.GZ", "jsonl", "gzip", "a"),
        ("a.ndjson.zst", "jsonl", "zstd", "a"),
        ("a.json.gz", "jsonl", "gzip", "a"),
        ("a.json", "json", None, "a"),
        ("a.b.txt", "txt", None, "a.b"),
        ("notes.MD.gz", "md", "gzip", "notes"),
        ("a.csv", "csv", None, "a"),
        ("a.csv.gz", "csv", "gzip", "a"),
        ("data-00000-of-00001.arrow", "arrow", None, "data-00000-of-00001"),
        ("a.parquet.gz", None, "gzip", "a.parquet.gz"),
        ("a.toy", None, None, "a.toy"),
        ("txt", None, None, "txt"),
    ],
)
def test_a_name_says_the_format(name, format, compression, stem):
    entry = format_of(name)
    assert (entry.name if entry else None, compression_of(name), stem_of(name)) == (format, compression, stem)


def test_names_and_suffixes_are_taken_once_and_workers_must_find_the_module(toy):
    register_format(replace(TOY))
    assert format_names() == "parquet, arrow, jsonl, json, csv, txt, md or toy"
    other = replace(TOY, name="other", suffixes=(".other",), compressed=())
    for taken in (
        replace(TOY, document="page"),
        replace(other, suffixes=(".toy",)),
        replace(other, suffixes=(".json",)),
    ):
        with pytest.raises(ValueError, match="its name or a suffix is taken by (toy|json); choose another"):
            register_format(taken)
    with pytest.raises(ValueError, match="workers do not import the main script"):
        register_format(replace(other, reader="__main__:read"))


def test_a_format_from_outside_the_package_is_prepared_by_workers_and_shown(toy, tokenizer_json, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = {"a": make_text(60, seed=1), "b": make_text(5, seed=2), "c": make_text(5, seed=3)}
    files = {name: toy_format.SEPARATOR.join(text.encode() for text in texts[name]) for name in texts}
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.toy").write_bytes(files["a"])
    (tmp_path / "corpus" / "b.toy.gz").write_bytes(gzip.compress(files["b"]))
    (tmp_path / "corpus" / "c.toy").write_bytes(files["c"])
    size = len(files["a"]) // 4
    folder, *_ = prepare(
        PrepareConfig("corpus", tokenizer=tokenizer_json, shard_text_bytes=size, workers=2, val_file="c.toy")
    )
    names = [entry.name for entry in TokenSet(folder).entries]
    assert names == ["a.000", "a.001", "a.002", "a.003", "b.000", "c.000"]
    for split, files in (("train", "ab"), ("val", "c")):
        found = Documents(folder, split)
        assert [document.text for document in found] == [text for name in files for text in texts[name]]
    assert Documents(folder, "train")[30].source == "a.toy card 31"
