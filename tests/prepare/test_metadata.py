"""Columns that are kept: with their types, beside the tokens of each document."""

import json
import random
from decimal import Decimal
from itertools import chain, product

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from making import make_text, run_prepare

from tokenmill.look.verify import verify
from tokenmill.store.tables import metadata_of
from tokenmill.store.token_sets import TokenSet
from tokenmill.views.distributions import distributions
from tokenmill.views.documents import DocumentTables

LIST_OF_ELEMENTS = pa.list_(pa.field("element", pa.string()))
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
        (folder / f"part_{number}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows_of(number))
        )


SOURCES = {"parquet": write_parquet_source, "jsonl": write_jsonl_source}
COLUMNS = "score,language,meta.domain,id"


@pytest.fixture(params=SOURCES)
def source(request, tmp_path):
    SOURCES[request.param](tmp_path / "corpus")
    return tmp_path / "corpus"


def flags_of(tokenizer_json, *more):
    return (
        "--source",
        "corpus",
        "--tokenizer",
        tokenizer_json,
        "--shard-text-bytes",
        "5000",
        "--workers",
        "2",
        *more,
    )


def prepared(cwd, tokenizer_json, *more, **settings):
    return (
        cwd
        / run_prepare(*flags_of(tokenizer_json, *more), cwd=cwd, **settings).stdout.splitlines()[-1]
    )


def expected():
    for number in range(3):
        for row in rows_of(number):
            if row["text"]:
                yield {key: row[key] for key in ("score", "language", "id")} | {
                    "meta": {"domain": row["meta"]["domain"]}
                }


def kept_of(folder):
    token_set = TokenSet(folder)
    tables = [metadata_of(token_set, entry) for entry in token_set.entries]
    return list(chain.from_iterable(table.to_pylist() for table in tables))


def test_columns_are_kept_as_they_are_for_each_document(source, tokenizer_json):
    folder = prepared(source.parent, tokenizer_json, "--keep-columns", COLUMNS)
    key = lambda row: row["id"]  # noqa: E731
    assert sorted(kept_of(folder), key=key) == sorted(expected(), key=key)
    table = metadata_of(TokenSet(folder), TokenSet(folder).entries[0])
    assert table.schema.field("score").type == pa.float64()
    assert verify(folder) == {}


def test_a_column_that_is_not_there_is_an_error_unless_it_may_be_missing(source, tokenizer_json):
    cwd = source.parent
    done = run_prepare(*flags_of(tokenizer_json, "--keep-columns", "scor"), cwd=cwd, check=False)
    assert done.returncode == 1
    assert "scor" in done.stderr
    assert "--keep-columns" in done.stderr
    done = run_prepare(
        *flags_of(tokenizer_json, "--keep-columns", "score,note?,meta.nothing?"), cwd=cwd
    )
    assert "warning: column 'note' of --keep-columns has no value in any document" in done.stderr
    assert "column 'score' of" not in done.stderr
    folder = cwd / done.stdout.splitlines()[-1]
    sorted(folder.glob("shards/*.json"))[0].unlink()  # one that has no note is made again
    done = run_prepare(
        *flags_of(tokenizer_json, "--keep-columns", "score,note?,meta.nothing?"), cwd=cwd
    )
    assert "column 'score' of" not in done.stderr
    assert {row["note"] for row in kept_of(folder)} == {None}
    assert {row["meta"]["nothing"] for row in kept_of(folder)} == {None}


def columns_of(folder, columns):
    folder.mkdir()
    for number, column in enumerate(columns):
        pq.write_table(
            pa.table({"text": ["a text"] * len(column), "it": column}), folder / f"{number}.parquet"
        )


def test_numbers_of_several_types_stay_numbers(tmp_path, tokenizer_json):
    columns_of(
        tmp_path / "corpus",
        [pa.array([2, None]), pa.array([1.5]), pa.array([3], pa.uint64()), pa.nulls(1)],
    )
    folder = prepared(tmp_path, tokenizer_json, "--keep-columns", "it", "--val-file", "3.parquet")
    assert [row["it"] for row in kept_of(folder)] == [2, None, 1.5, 3, None]


ONE = {  # columns of two files, and the type of both
    "lists": (pa.array([["a"]], LIST_OF_ELEMENTS), pa.array([["b"]]), pa.list_(pa.string())),
    "texts": (pa.array(["a"], pa.string_view()), pa.array(["b"], pa.large_string()), pa.string()),
    "fractions": (pa.array([1 << 53]), pa.array([1.5], pa.float32()), pa.float64()),
    "decimals": (pa.array([Decimal("1.10")]), pa.array([3]), pa.decimal128(38, 2)),
    "null": (pa.nulls(1), pa.array([["a"]]), pa.list_(pa.string())),
    "bytes": (pa.array([b"\xff"]), pa.array([b"\xfe"], pa.large_binary()), pa.binary()),
    "fields": (pa.array([{"a": 1}]), pa.array([{"a": 2, "b": None}]), None),  # not compared
}


SHARDS = {"a shard a file": 1000, "one shard": 100_000}  # bytes of text in a shard


@pytest.mark.parametrize("shards", SHARDS)
def test_a_column_has_one_type_whatever_the_shard(tmp_path, tokenizer_json, shards):
    (tmp_path / "corpus").mkdir()
    for number in range(2):
        columns = {kind: ONE[kind][number] for kind in ONE}
        table = pa.table({"text": ["a text"], **columns})
        pq.write_table(table, tmp_path / "corpus" / f"{number}.parquet")
    how = {"shard_text_bytes": SHARDS[shards], "keep_columns": ",".join(ONE)}
    token_set = TokenSet(prepared_here(tmp_path, tokenizer_json, **how))
    tables = DocumentTables(token_set)
    values = {kind: [] for kind in ONE}
    for _, rows in tables.batches([*ONE]):
        for kind in ONE:
            values[kind] += rows.column(kind).to_pylist()
    assert [value["a"] for value in values.pop("fields")] == [1, 2]
    for kind in values:
        first, second, expected = ONE[kind]
        assert tables.columns[kind] == expected
        assert values[kind] == first.to_pylist() + second.to_pylist(), kind
    listed = {name for name, _ in distributions(token_set, None)}
    assert listed & {*ONE} == {"texts", "fractions", "decimals"}


TWO = {
    "text": (pa.array(["x"]), "column 'it' to keep is (int64|string) in .* and (int64|string) in"),
    "list": (pa.array([[1]]), "column 'it' to keep is"),
    "fraction": (pa.array([1.5]), "9007199254740993 not in range"),
    "unsigned": (pa.array([1 << 63], pa.uint64()), "9223372036854775808 not in range"),
}


@pytest.mark.parametrize(
    ("kind", "shards"), [*product(TWO, ["a shard a file"]), ("text", "one shard")]
)
def test_types_that_do_not_go_together_are_found_while_preparing(
    tmp_path, tokenizer_json, kind, shards
):
    column, message = TWO[kind]
    columns_of(tmp_path / "corpus", [pa.array([(1 << 53) + 1]), column])
    with pytest.raises(ValueError, match=message):
        prepared_here(tmp_path, tokenizer_json, shard_text_bytes=SHARDS[shards])
    assert not list(tmp_path.rglob("manifest.json"))


def test_what_cannot_go_together_is_found_before_a_shard_is_made(tmp_path, tokenizer_json):
    columns_of(tmp_path / "corpus", [pa.array([1])])
    (tmp_path / "corpus" / "b.jsonl").write_text('{"text": "a text", "it": "x"}\n')
    source = str(tmp_path / "corpus" / "*")
    with pytest.raises(ValueError, match="'it' to keep is int64 in 0.parquet and string in b.js"):
        prepared_here(tmp_path, tokenizer_json, "--dry-run", source=source)


def test_a_set_that_grows_keeps_the_types_of_its_columns(tmp_path, tokenizer_json):
    columns_of(tmp_path / "corpus", [pa.array([1, 2])])
    former = prepared_here(tmp_path, tokenizer_json)
    path = tmp_path / "corpus" / "more.jsonl"
    source = str(tmp_path / "corpus" / "*")
    path.write_text('{"text": "a text", "it": 2.5}\n')
    with pytest.raises(ValueError, match="'it' to keep is int64 in the set as it is and double in"):
        prepared_here(tmp_path, tokenizer_json, source=source)
    path.write_text('{"text": "a text", "it": 3}\n')
    assert prepared_here(tmp_path, tokenizer_json, source=source) == former
    (tmp_path / "corpus" / "other.jsonl").write_text('{"text": "a text"}\n')
    with pytest.raises(ValueError, match="line 1 lacks 'it'; if lines may lack it"):
        prepared_here(tmp_path, tokenizer_json, source=source)
    prepared_here(tmp_path, tokenizer_json, source=source, keep_columns="it?")
    assert [row["it"] for row in kept_of(former)] == [1, 2, 3, None]


def test_a_text_file_among_others_lacks_every_column(tmp_path, tokenizer_json):
    columns_of(tmp_path / "corpus", [pa.array([1])])
    (tmp_path / "corpus" / "notes.txt").write_text("a text")
    source = str(tmp_path / "corpus" / "*")
    for columns in ({"keep_columns": "it"}, {"keep_columns": "it?", "text_column": "it"}):
        with pytest.raises(ValueError, match="notes.txt: a file of text has no columns"):
            prepared_here(tmp_path, tokenizer_json, source=source, **columns)
    folder = prepared_here(tmp_path, tokenizer_json, source=source, keep_columns="it?")
    assert [row["it"] for row in kept_of(folder)] == [1, None]


TWICE = {
    "jsonl": '{"text": "a text", "meta.id": 1, "meta": {"id": 2}}\n',
    "csv": "text,meta.id,meta.id\na text,1,2\n",
}


@pytest.mark.parametrize("suffix", [*TWICE, "parquet"])
def test_a_name_that_two_columns_of_a_file_have_is_an_error(tmp_path, tokenizer_json, suffix):
    path = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        table = pa.table({"text": ["a text"], "meta.id": [1], "meta": [{"id": 2}]})
        pq.write_table(table, path)
    else:
        path.write_text(TWICE[suffix])
    with pytest.raises(ValueError, match="meta.id"):
        prepared_here(tmp_path, tokenizer_json, source=str(path), keep_columns="meta.id?")


def prepared_here(folder, tokenizer, *more, **settings):
    """The set of the corpus below a folder. ValueError with what the command says, if it fails."""
    given = {"source": folder / "corpus", "tokens_root": folder, "keep_columns": "it"}
    given["val_fraction"] = 1e-6
    flags = ["--tokenizer", tokenizer, "--workers", 1, *more]
    for name, value in (given | settings).items():
        flags += [f"--{name.replace('_', '-')}", value]
    done = run_prepare(*flags, cwd=folder, check=False)
    if done.returncode:
        raise ValueError(done.stderr)
    return folder / done.stdout.splitlines()[-1]


def test_types_that_differ_at_the_end_of_a_file_leave_what_is_made(tmp_path, tokenizer_json):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, last in (("a", 1), ("b", 2), ("c", "three")):
        rows = [{"text": text, "it": None} for text in TEXTS] + [{"text": "end", "it": last}]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"shard_text_bytes": 5000, "name": "s"}
    with pytest.raises(ValueError, match="'it' to keep is (int64|string) in"):
        prepared_here(tmp_path, tokenizer_json, **settings)
    records = {path: path.stat().st_mtime_ns for path in tmp_path.glob("s-*/shards/[ab].*.json")}
    assert records
    text = (folder / "c.jsonl").read_text().replace('"three"', "3")
    (folder / "c.jsonl").write_text(text)
    prepared_here(tmp_path, tokenizer_json, **settings)
    assert {path: path.stat().st_mtime_ns for path in records} == records
