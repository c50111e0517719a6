"""Columns that are kept: with their types, beside the tokens of each document."""

import json
import random
import re
from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from making import make_text, run_prepare

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


@pytest.mark.parametrize("size", ["1000", "100000"], ids=["a shard a file", "one shard"])
def test_a_column_of_two_types_over_files_is_an_error_that_names_both(
    tmp_path, tokenizer_json, size
):
    columns_of(tmp_path / "corpus", [pa.array([1] * 9), pa.array(["x"] * 9), pa.array([2] * 9)])
    flags = (*flags_of(tokenizer_json, "--keep-columns", "it"), "--shard-text-bytes", size)
    done = run_prepare(*flags, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert re.search(
        "column 'it' to keep is (number|text) in [012].parquet and (number|text) in [012].parquet",
        done.stderr,
    )
    assert list(tmp_path.glob("data/tokens/*")) == [], "a refusal leaves nothing"
