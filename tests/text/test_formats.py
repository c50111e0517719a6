"""Text formats are a registry: what the rest of the code asks, and a format from outside the package."""

import gzip
from dataclasses import replace

import pytest
import toy_format
from making import make_text
from toy_format import TOY

from tokenmill import PrepareConfig, TokenSet, cli, prepare
from tokenmill.look.source_places import SourceLocator
from tokenmill.text.formats import FORMATS, ReadOptions, format_names, format_of, register_format, stem_of
from tokenmill.tokenize.tokenizer import Tokenizer


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
        ("a.csv.gz", None, None, "a.csv.gz"),
        ("data-00000-of-00001.arrow", "arrow", None, "data-00000-of-00001"),
        ("a.parquet.gz", None, None, "a.parquet.gz"),
        ("a.toy", None, None, "a.toy"),
        ("txt", None, None, "txt"),
    ],
)
def test_a_name_says_the_format(name, format, compression, stem):
    entry = format_of(name)
    assert (entry.name if entry else None, stem_of(name)) == (format, stem)
    assert entry is None or entry.compression(name) == compression


def test_a_record_says_the_options_that_documents_depend_on():
    options = ReadOptions("body", b"\n\xff", id_column="id")
    assert FORMATS["jsonl"].facts(options) == {"text_column": "body", "id_column": "id"}
    assert FORMATS["txt"].facts(options) == {"document_separator": "\n\\xff"}
    assert FORMATS["txt"].facts(ReadOptions()) == {}


def test_names_and_suffixes_are_taken_once_and_workers_must_find_the_module(toy):
    register_format(replace(TOY))
    assert format_names() == "parquet, jsonl, txt, csv, md, arrow, json or toy"
    for other in (replace(TOY, document="page"), other_format("other", ".toy"), other_format("other", ".json")):
        with pytest.raises(ValueError, match=r"its name or a suffix is taken by TextFormat\(name='(toy|json)'"):
            register_format(other)
    with pytest.raises(ValueError, match="workers do not import the main script"):
        register_format(replace(other_format("other", ".other"), module="__main__"))


def other_format(name, suffix):
    return replace(TOY, name=name, suffixes=(suffix,), compressed=())


def test_a_format_from_outside_the_package_is_prepared_by_workers_resumed_and_shown(
    toy, tokenizer_json, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    texts = {"a": make_text(60, seed=1), "b": make_text(5, seed=2), "c": make_text(5, seed=3)}
    files = {name: toy_format.SEPARATOR.join(text.encode() for text in texts[name]) for name in texts}
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.toy").write_bytes(files["a"])
    (tmp_path / "corpus" / "b.toy.gz").write_bytes(gzip.compress(files["b"]))
    (tmp_path / "corpus" / "c.toy").write_bytes(files["c"])
    config = PrepareConfig(source="corpus", tokenizer=tokenizer_json, shard_text_bytes=len(files["a"]) // 4, workers=2)
    folder, _ = prepare(config)

    token_set, tokenizer = TokenSet(folder), Tokenizer.load(tokenizer_json)
    assert [entry.name for entry in token_set.entries] == [
        "a.000",
        "a.001",
        "a.002",
        "a.003",
        "a.004",
        "b.000",
        "c.000",
    ]
    shards = [token_set.open(entry) for entry in token_set.entries]
    found = [tokenizer.decode(tokens) for shard in shards for tokens in documents_of(shard)]
    assert found == [text for name in texts for text in texts[name]]

    before = {path.name: path.read_bytes() for path in folder.glob("shards/*")}
    made = {path.name: path.stat().st_mtime_ns for path in folder.glob("shards/*")}
    for path in folder.glob("shards/a.002.*"):
        path.unlink()
    prepare(config)
    assert {path.name: path.read_bytes() for path in folder.glob("shards/*")} == before
    again = {path.name for path in folder.glob("shards/*") if path.stat().st_mtime_ns != made[path.name]}
    assert again == {"a.002.bin", "a.002.idx", "a.002.json"}

    second = token_set.entries[1]
    assert SourceLocator(token_set).find(second, 0) == f"a.toy card {token_set.entries[0].documents + 1}"
    capsys.readouterr()
    assert cli.main(["show", str(folder), "--document", "0", "--seq-len", "128"]) in (0, None)
    assert "a.toy card 1" in capsys.readouterr().out


def documents_of(shard):
    offsets = shard.offsets.tolist()
    return [shard.tokens[first + 1 : last] for first, last in zip(offsets[:-1], offsets[1:], strict=True)]
