"""`tokenmill view`: rules over metadata, compared with the same rule in Python, document by
document.
"""

import json
import random
import shutil
import time
from datetime import UTC, datetime
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from making import make_text, run_prepare, tree

from tokenmill import cli
from tokenmill.look.verify import verify
from tokenmill.store.tables import metadata_of, text_of_schema
from tokenmill.store.token_sets import TokenSet
from tokenmill.views.distributions import _edges, _labels_of
from tokenmill.views.documents import DocumentTables
from tokenmill.views.make_view import make_view, rounded
from tokenmill.views.rule import Rule


def write_source(folder, number, documents=60):
    """A parquet file with a score, a language as a dictionary, a struct, and a column called
    tokens.
    """
    rng = random.Random(number)
    columns = {
        "text": make_text(documents, seed=number, words=10),
        "score": [
            None if rng.random() < 0.1 else round(rng.random() * 5, 2) for _ in range(documents)
        ],
        "language": pa.array(rng.choices(["en", "de", None], k=documents)).dictionary_encode(),
        "meta": [{"domain": rng.choice(["a.org", "b.com"]), "n": n} for n in range(documents)],
        "tokens": list(range(documents)),
    }
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / f"part_{number}.parquet", row_group_size=25)


@pytest.mark.parametrize("names", [("tokens", "kept_tokens"), ("score", "Score")])
def test_two_kept_columns_that_rules_cannot_tell_apart_are_refused(names):
    """`prepare` refuses them; a set of other hands may have them."""
    schema = pa.schema([(name, pa.int64()) for name in names])
    manifest = {"prepared": {"metadata": text_of_schema(schema)}}
    token_set = SimpleNamespace(manifest=manifest, display_name="web")
    with pytest.raises(ValueError, match=f"web: keeps columns '{names[0]}' and '{names[1]}'"):
        DocumentTables(token_set)


@pytest.mark.filterwarnings("error")
def test_ranges_end_at_numbers_where_some_are_infinite():
    column = pa.chunked_array([[np.nan, np.inf, -np.inf, *([np.inf] * 40), *map(float, range(40))]])
    edges = _edges(column)
    assert np.isfinite(edges).all()
    assert _labels_of(column, edges).to_pylist()[:3] == [None, len(edges), 0]


@pytest.fixture(scope="module")
def made(tokenizer_json, tmp_path_factory):
    """(the folder it was prepared in, the token set) of three files with metadata."""
    cwd = tmp_path_factory.mktemp("views")
    for number in range(3):
        write_source(cwd / "corpus", number)
    flags = (
        "--source",
        "corpus",
        "--val-file",
        "last",
        "--tokenizer",
        tokenizer_json,
        "--keep-columns",
        "score,language,meta.domain,tokens",
    )
    done = run_prepare(*flags, "--shard-text-bytes", "3000", cwd=cwd)
    return cwd, cwd / done.stdout.splitlines()[-1]


def documents_of(folder):
    """What is known of each document, in the order of the manifest."""
    token_set = TokenSet(folder)
    for entry in token_set.entries:
        rows = metadata_of(token_set, entry).to_pylist()
        for row, length in zip(rows, token_set.open(entry).lengths.tolist(), strict=True):
            yield row | {
                "kept_tokens": row.pop("tokens", None),
                "tokens": length,
                "shard": entry.name,
                "split": entry.split,
            }


def counts_of(folder, name):
    token_set = TokenSet(folder).viewed(name)
    return np.concatenate(
        [token_set.view.repeats_of(entry) for entry in token_set.entries]
    ).tolist()


RULES = [
    (
        {"where": "score >= 3 and language = 'en'"},
        lambda d: (d["score"] or 0) >= 3 and d["language"] == "en",
    ),
    ({"where": "Tokens < 20"}, lambda d: d["tokens"] < 20),
    ({"where": "kept_tokens = 7"}, lambda d: d["kept_tokens"] == 7),
    ({"where": "meta.domain = 'a.org' -- a comment"}, lambda d: d["meta"]["domain"] == "a.org"),
    ({"where": "documents.score is null"}, lambda d: d["score"] is None),
    (
        {"where": "source_file like '%_1.parquet' or split = 'val'"},
        lambda d: "part_1" in d["shard"] or d["split"] == "val",
    ),
    (
        {"repeat": "case when score >= 4 then 3 when score >= 3 then 2 else 0 end"},
        lambda d: 3 if (d["score"] or 0) >= 4 else 2 if (d["score"] or 0) >= 3 else 0,
    ),
    ({"repeat": "1 + 1 - 1"}, lambda d: 1),
    (
        {"where": "year(timestamp '2020-01-01') = 2020 and score - 1 > 2"},
        lambda d: (d["score"] or 0) - 1 > 2,
    ),
    (
        {"where": "score > 1", "repeat": "score * 100", "cap": 4},
        lambda d: 4 if (d["score"] or 0) > 1 else 0,
    ),
]


@pytest.mark.parametrize(("rule", "expected"), RULES, ids=[str(rule) for rule, _ in RULES])
def test_a_rule_counts_what_the_same_rule_in_python_counts(made, rule, expected):
    _, folder = made
    make_view(TokenSet(folder), "one", Rule(**rule))
    assert counts_of(folder, "one") == [
        int(expected(document)) for document in documents_of(folder)
    ]


def test_fractions_are_coins_that_stay_when_the_rule_changes():
    times = np.repeat([0.0, 0.1, 0.5, 0.9, 2.5, 255.0], 20_000)
    counts = rounded("a", times)
    for fraction in np.unique(times):
        drawn = counts[times == fraction]
        assert abs(drawn.mean() - fraction) < 0.02
        assert {*drawn.tolist()} == {int(np.floor(fraction)), int(np.ceil(fraction))}
    assert (rounded("a", np.minimum(times * 1.5, 255)) >= counts).all(), (
        "a larger number takes nothing out"
    )
    assert (rounded("b", times) != counts).any()


def test_a_rule_over_columns_that_some_shards_lack_is_an_error_that_names_them(made, tmp_path):
    folder = shutil.copytree(made[1], tmp_path / "set")
    lacking = TokenSet(folder).entries[1].name
    path = folder / "shards" / f"{lacking}.json"
    path.write_text(
        json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "meta.parquet"})
    )
    for rule in (Rule(where="score >= 0"), Rule(repeat="coalesce(score, 0)")):
        with pytest.raises(
            ValueError, match=f"expected metadata of all shards, found none of 1, as {lacking}"
        ):
            make_view(TokenSet(folder), "one", rule)
    make_view(TokenSet(folder), "long", Rule(where="tokens > 1"))


WRONG = [
    (
        {"where": "scor > 3"},
        r"there is no column 'scor'; the columns are tokens, shard, source_file, split, score, la",
    ),
    ({"where": "score >"}, "expected an SQL expression, found syntax error at its end"),
    (
        {"where": "meta.domian = 'x'"},
        'cannot be evaluated: .*"domian" in struct Candidate Entries: "domain"',
    ),
    ({"where": "score > 3) or (1 = 1"}, "expected an SQL expression"),
    ({"where": "1 from documents; drop table x"}, "expected an SQL expression"),
    ({"where": "1 from range(3)"}, "expected an SQL expression"),
    ({"where": "1 from other --"}, "expected an SQL expression"),
    ({"where": "1 union select score"}, "expected one SQL expression, found a query"),
    ({"where": "score > 3 as x"}, "expected one SQL expression"),
    ({"where": "score > 7"}, r"view 'wrong' keeps none of its 180 documents"),
    ({"where": "language"}, "expected what is true or false, found VARCHAR"),
    ({"repeat": "case when score > 3 then 1 end"}, "--repeat gives NULL for"),
    (
        {"repeat": "100 * coalesce(score, 0)"},
        "would not count from 0 to 255 times, .* or pass --cap",
    ),
    (
        {"repeat": "-1"},
        r"180 documents would not count .* the first of them -1 times: .* as to greatest\(0, ...\)",
    ),
    (
        {"repeat": "'nan'::double"},
        "180 documents would not count .* the first of them nan times: change the rule",
    ),
    ({"where": "score"}, "expected what is true or false, found DOUBLE; compare it"),
    ({"where": 'language = "en"'}, r"there is no column 'en'; .*; write texts in single quotes"),
    (
        {"repeat": "sum(tokens)"},
        "sum is of several documents, and a rule sees one document at a time",
    ),
    ({"repeat": "count(*) over ()"}, "a window function is not supported"),
    ({"where": "len([x for x in [score] if x > 3]) > 0"}, "a lambda or a list comprehension"),
    ({"where": "list_any_value(list_filter([1], x -> x > 0)) = 1"}, "a lambda or a list"),
    ({"where": "score > (select avg(score) from documents)"}, "a subquery is not supported"),
    ({"where": "random() < 0.1"}, "random does not give the same each time"),
    ({"where": "now() > '2020-01-01'"}, "now does not give the same each time"),
    ({"repeat": "unnest([1, 2])"}, "a rule sees one document at a time"),
    ({"repeat": "1", "cap": 256}, "--cap must be at most 255"),
    ({"where": "tokens > 1", "cap": 2}, "--cap is for --repeat"),
    ({"repeat": "#1"}, "a position like #1 is not supported"),
    (
        {"where": "age(timestamp '2020-01-01') > interval 1 day"},
        "age does not give the same each time",
    ),
    ({"where": "current_date > '2020-01-01'"}, "there is no column 'current_date'"),
    ({}, "a view needs a rule"),
]


@pytest.mark.parametrize(("rule", "message"), WRONG, ids=[str(rule) for rule, _ in WRONG])
def test_a_rule_that_cannot_be_is_an_error_and_leaves_nothing(made, rule, message):
    _, folder = made
    before = tree(folder)
    with pytest.raises(ValueError, match=message):
        make_view(TokenSet(folder), "wrong", Rule(**rule))
    assert tree(folder) == before


@pytest.mark.parametrize(
    "name", ["", "a/b", "0123456789abcdef", "é" * 101, "../x", ".", "..", ".x"]
)
def test_names_that_cannot_be_are_refused(made, name):
    with pytest.raises(ValueError, match="--name must be"):
        make_view(TokenSet(made[1]), name, Rule(where="true"))


def prepare_columns(cwd, tokenizer_json, columns, keep):
    """A set of three files with these columns beside a text each."""
    (cwd / "corpus").mkdir()
    for number in range(3):
        rows = len(next(iter(columns.values())))
        table = pa.table({"text": make_text(rows, seed=number, words=3)} | columns)
        pq.write_table(table, cwd / "corpus" / f"{number}.parquet")
    flags = (
        "--source",
        "corpus",
        "--val-file",
        "last",
        "--tokenizer",
        tokenizer_json,
        "--keep-columns",
        keep,
    )
    return cwd / run_prepare(*flags, cwd=cwd).stdout.splitlines()[-1]


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_times_are_compared_in_utc_on_every_machine(tokenizer_json, tmp_path, zone, monkeypatch):
    times = [datetime(2019, 12, 31, hour, tzinfo=UTC) for hour in (2, 16, 23)]
    columns = {"ts": pa.array(times, pa.timestamp("us", tz="UTC"))}
    folder = prepare_columns(tmp_path, tokenizer_json, columns, "ts")
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        make_view(
            TokenSet(folder), "hour", Rule(where="hour(ts) = 16 and ts >= '2019-12-31 16:00:00'")
        )
    finally:
        monkeypatch.undo()
        time.tzset()
    assert counts_of(folder, "hour") == [0, 1, 0] * 3


def test_the_command_makes_lists_and_shows_views(made, capsys):
    _, folder = made
    rule = "case when score >= 4 then 3 when score >= 3 then 1.5 else 0 end"
    assert cli.main(["view", str(folder), "--name", "up", "--repeat", rule]) == 0
    out = capsys.readouterr().out
    assert f"up: --repeat '{rule}'" in out
    assert "a document counts up to 3 times in an epoch" in out
    assert cli.main(["view", str(folder)]) == 0
    out = capsys.readouterr().out
    assert f"up: --repeat '{rule}'" in out
    assert (
        "score (double), language (string), meta (struct<domain: string>), kept_tokens (int64)"
        in out
    )
    assert cli.main(["view", str(folder), "--name", "up"]) == 0
    out = capsys.readouterr().out
    of_language = out[out.index("┃ language ") : out.index("┃ meta.domain ")].splitlines()
    counts, documents = counts_of(folder, "up"), list(documents_of(folder))
    for language in ("en", "de", None):
        own = [
            (times, d["tokens"])
            for times, d in zip(counts, documents, strict=True)
            if d["language"] == language
        ]
        cells = (
            len(own),
            sum(t for _, t in own),
            sum(n for n, _ in own),
            sum(n * t for n, t in own),
        )
        (line,) = [line for line in of_language if line.startswith(f"│ {language or 'none'} ")]
        assert [
            int(cell.replace(",", ""))
            for cell in line.replace("│", " ").split()[1:]
            if "%" not in cell
        ] == [*cells]
    assert "┃ meta.domain " in out
    assert cli.main(["view", str(folder), "--name", "nope"]) == 1
    assert "expected a view 'nope', found " in capsys.readouterr().err


def test_a_view_is_made_again_for_a_set_that_has_grown(tokenizer_json, tmp_path, capsys):
    for number in range(3):
        write_source(tmp_path / "corpus", number)
    flags = (
        "--source",
        "corpus",
        "--val-file",
        "last",
        "--tokenizer",
        tokenizer_json,
        "--keep-columns",
        "score",
    )
    folder = tmp_path / run_prepare(*flags, cwd=tmp_path).stdout.splitlines()[-1]
    assert cli.main(["view", str(folder), "--name", "good", "--where", "score >= 2.5"]) == 0
    before = counts_of(folder, "good")
    write_source(tmp_path / "corpus", 9)
    run_prepare(*flags, cwd=tmp_path)
    update = "run `tokenmill view .* --name good --update`"
    with pytest.raises(ValueError, match=f"has grown or changed since, to .*; {update}"):
        TokenSet(folder).viewed("good")
    assert cli.main(["view", str(folder)]) == 0
    assert "the set has changed since; run `tokenmill view" in capsys.readouterr().out
    assert cli.main(["view", str(folder), "--update"]) == 0
    after = counts_of(folder, "good")
    assert after[: len(before)] == before, "the old shards come first, and count as before"
    assert after == [int((document["score"] or 0) >= 2.5) for document in documents_of(folder)]


def test_a_view_that_is_damaged_is_found(made, tmp_path):
    folder = shutil.copytree(made[1], tmp_path / "set")
    facts = make_view(TokenSet(folder), "good", Rule(where="score >= 2"))
    counts, slices = (
        folder / "views" / f"{facts['digest']}.{kind}" for kind in ("counts", "slices")
    )
    whole = counts.read_bytes()
    counts.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert any(
        "counts: its SHA-256 is not the view's" in problem
        for problem in verify(folder, quick=True)[""]
    )
    counts.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="expected 180 bytes, found 179; the view is damaged"):
        _ = TokenSet(folder).viewed("good").view.counts
    counts.write_bytes(whole)
    slices.write_bytes(slices.read_bytes()[::-1])
    assert any(
        "slices: its SHA-256 is not the view's" in problem
        for problem in verify(folder, quick=True)[""]
    )
    path = folder / "views" / "good.json"
    path.write_text(path.read_text().replace('"tokens": ', '"tokens": 9'))
    assert any(
        "good.json: it was changed since it was written" in problem
        for problem in verify(folder, quick=True)[""]
    )
