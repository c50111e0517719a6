"""Columns that are kept: with their types, beside the tokens, and added to a set that is there without tokenizing."""

import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from making import make_text, run_prepare, tree

from tokenmill import cli
from tokenmill.look.source_places import SourceLocator
from tokenmill.look.verify import verify
from tokenmill.store.tables import metadata_of
from tokenmill.store.token_sets import TokenSet

TEXTS = make_text(120, seed=3, words=12)


def rows_of(number):
    rng = random.Random(number)
    for n, text in enumerate(TEXTS):
        yield {
            "text": None if n % 17 == 3 else "" if n % 17 == 5 else text,
            "id": f"urn:{number}:{n}",
            "score": round(rng.random() * 5, 2),
            "language": rng.choice(["en", "de", None]),
            "meta": {"domain": rng.choice(["a.org", "naïve.com"]), "year": 2000 + n % 20},
        }


def write_parquet_source(folder):
    folder.mkdir()
    for number in range(3):
        table = pa.Table.from_pylist(list(rows_of(number)))
        place = table.column_names.index("language")
        table = table.set_column(place, "language", table.column("language").dictionary_encode())
        pq.write_table(table, folder / f"part_{number}.parquet", row_group_size=30)


def write_jsonl_source(folder):
    folder.mkdir()
    for number in range(3):
        (folder / f"part_{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of(number)))


SOURCES = {"parquet": write_parquet_source, "jsonl": write_jsonl_source}
COLUMNS = "score,language,meta.domain,id"


@pytest.fixture(params=SOURCES)
def source(request, tmp_path):
    SOURCES[request.param](tmp_path / "corpus")
    return tmp_path / "corpus"


def flags_of(tokenizer_json, *more):
    return ("--source", "corpus", "--tokenizer", tokenizer_json, "--shard-text-bytes", "5000", "--workers", "2", *more)


def prepared(cwd, tokenizer_json, *more, **settings):
    return cwd / run_prepare(*flags_of(tokenizer_json, *more), cwd=cwd, **settings).stdout.splitlines()[-1]


def expected():
    for number in range(3):
        for row in rows_of(number):
            if row["text"]:
                yield {key: row[key] for key in ("score", "language", "id")} | {
                    "meta": {"domain": row["meta"]["domain"]}
                }


def kept_of(folder):
    token_set = TokenSet(folder)
    return [row for entry in token_set.entries for row in metadata_of(token_set, entry).to_pylist()]


def test_columns_are_kept_as_they_are_for_each_document(source, tokenizer_json):
    folder = prepared(source.parent, tokenizer_json, "--keep-columns", COLUMNS)
    key = lambda row: row["id"]  # noqa: E731
    assert sorted(kept_of(folder), key=key) == sorted(expected(), key=key)
    table = metadata_of(TokenSet(folder), TokenSet(folder).entries[0])
    assert table.schema.field("score").type == pa.float64()
    if (source / "part_0.parquet").exists():
        assert pa.types.is_dictionary(table.schema.field("language").type)
    assert verify(folder) == {}


def test_a_set_keeps_its_columns_as_it_grows_and_takes_no_others(source, tokenizer_json):
    cwd = source.parent
    folder = prepared(cwd, tokenizer_json, "--keep-columns", "score")
    whole = tree(folder)
    more = run_prepare(*flags_of(tokenizer_json, "--keep-columns", "score,language"), cwd=cwd, check=False)
    assert more.returncode == 1
    assert "was made without language, which --keep-columns names; prepare under another --name" in more.stderr
    path = sorted((folder / "shards").glob("*.meta.parquet"))[0]
    path.write_bytes(path.read_bytes()[:-5])
    prepared(cwd, tokenizer_json)
    assert tree(folder) == whole, "a table that was cut is made again"
    suffix = next(source.iterdir()).suffix
    (source / f"part_9{suffix}").write_bytes((source / f"part_0{suffix}").read_bytes())
    prepared(cwd, tokenizer_json)
    assert {frozenset(row) for row in kept_of(folder)} == {frozenset({"score"})}
    assert verify(folder) == {}


def test_a_column_that_is_not_there_is_an_error_unless_it_may_be_missing(source, tokenizer_json):
    cwd = source.parent
    done = run_prepare(*flags_of(tokenizer_json, "--keep-columns", "scor"), cwd=cwd, check=False)
    assert done.returncode == 1
    assert "scor" in done.stderr
    assert "--keep-columns" in done.stderr
    folder = prepared(cwd, tokenizer_json, "--keep-columns", "score,note?,meta.nothing?")
    assert {row["note"] for row in kept_of(folder)} == {None}
    assert {row["meta"]["nothing"] for row in kept_of(folder)} == {None}


@pytest.mark.parametrize("named", ["", "a,,b", "a,a?"])
def test_names_that_cannot_be_are_refused(tmp_path, tokenizer_json, named):
    write_parquet_source(tmp_path / "corpus")
    done = run_prepare(*flags_of(tokenizer_json, "--keep-columns", named), cwd=tmp_path, check=False)
    assert "--keep-columns must be names of columns, separated by commas" in done.stderr


def test_jsonl_values_of_several_types_become_text(tmp_path, tokenizer_json):
    (tmp_path / "corpus").mkdir()
    values = [1, "two", None, {"three": 3}, 1 << 70, "\ud800", True]
    for number in range(2):
        lines = [json.dumps({"text": "a text", "it": value, "n": value if number else 1}) for value in values]
        (tmp_path / "corpus" / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    folder = prepared(tmp_path, tokenizer_json, "--keep-columns", "it,n")
    as_text = ["1", "two", None, '{"three": 3}', str(1 << 70), "\ufffd", "true"]
    assert [row["it"] for row in kept_of(folder)] == as_text * 2
    assert [row["n"] for row in kept_of(folder)] == ["1"] * 7 + as_text or [row["n"] for row in kept_of(folder)][
        :7
    ] == [1] * 7


def test_a_key_with_a_dot_and_a_key_of_a_key_are_one_column(tmp_path, tokenizer_json):
    (tmp_path / "corpus").mkdir()
    lines = [
        {"text": "a", "meta": {"lang": "en"}},
        {"text": "b", "meta.lang": "de"},
        {"text": "c", "meta": {"lang": "fr"}},
    ]
    for number, some in enumerate((lines, lines[:1], lines[1:2])):
        (tmp_path / "corpus" / f"{number}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in some))
    folder = prepared(tmp_path, tokenizer_json, "--keep-columns", "meta.lang")
    assert [row["meta"]["lang"] for row in kept_of(folder)] == ["en", "de", "fr", "en", "de"]


def test_a_boolean_among_numbers_makes_them_text_in_any_order(tmp_path, tokenizer_json):
    (tmp_path / "corpus").mkdir()
    for number, values in enumerate(([1.5, True], [True, 1.5])):
        lines = [json.dumps({"text": "a", "it": value}) for value in values]
        (tmp_path / "corpus" / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    folder = prepared(tmp_path, tokenizer_json, "--keep-columns", "it")
    assert [row["it"] for row in kept_of(folder)] == ["1.5", "true", "true", "1.5"]


def test_a_file_without_documents_has_the_columns_too(tmp_path, tokenizer_json):
    (tmp_path / "corpus").mkdir()
    for number, rows in enumerate((3, 0, 3)):
        table = pa.table({"text": pa.array(["a"] * rows, pa.string()), "id": pa.array(list(range(rows)), pa.int64())})
        pq.write_table(table, tmp_path / "corpus" / f"{number}.parquet")
    folder = prepared(tmp_path, tokenizer_json, "--shard-text-bytes", "1", "--keep-columns", "id")
    assert [row["id"] for row in kept_of(folder)] == [0, 1, 2] * 2
    assert verify(folder) == {}


def test_numbers_that_do_not_fit_into_one_type_become_text(tmp_path, tokenizer_json):
    (tmp_path / "corpus").mkdir()
    columns = (
        pa.array([2**60 + 1, 2], pa.int64()),
        pa.array([1.5, None], pa.float64()),
        pa.array([2**63 + 9], pa.uint64()),
    )
    for number, column in enumerate(columns):
        table = pa.table({"text": ["a"] * len(column), "id": column})
        pq.write_table(table, tmp_path / "corpus" / f"{number}.parquet")
    flags = ("--source", "corpus", "--tokenizer", tokenizer_json, "--keep-columns", "id", "--val-file", "2.parquet")
    folder = tmp_path / run_prepare(*flags, cwd=tmp_path).stdout.splitlines()[-1]
    assert [str(row["id"]) for row in kept_of(folder)] == [str(2**60 + 1), "2", "1.5", "None", str(2**63 + 9)]


def test_a_value_as_long_as_a_text_is_refused(tmp_path, tokenizer_json):
    write_parquet_source(tmp_path / "corpus")
    table = pa.table({"text": ["a"] * 3, "score": ["x" * 70_000] * 3})
    for number in range(3):
        pq.write_table(table, tmp_path / "corpus" / f"part_{number}.parquet")
    done = run_prepare(*flags_of(tokenizer_json, "--keep-columns", "score"), cwd=tmp_path, check=False)
    assert "a value of column 'score' has 70,000 bytes" in done.stderr


# ---------------------------------------------------------------------------- ids


def test_ids_are_one_of_the_columns_and_show_prints_them(source, tokenizer_json, capsys):
    cwd = source.parent
    folder = prepared(cwd, tokenizer_json, "--keep-ids", "id", "--keep-columns", "score")
    token_set = TokenSet(folder)
    assert set(kept_of(folder)[0]) == {"score", "id"}
    assert 'id "urn:0:0"' in SourceLocator(token_set).find(token_set.entries[0], 0)
    assert cli.main(["show", str(folder), "--document", "0", "--seq-len", "128"]) == 0
    out = capsys.readouterr().out
    assert 'id "urn:0:0"' in out
    assert f"score: {next(expected())['score']}" in out
