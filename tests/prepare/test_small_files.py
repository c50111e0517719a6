"""Small files share a shard, which knows them all; what was read of them, and grows, is as with a shard each."""

import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import warm
from making import make_text, run_prepare, tree, write_parquet

from tokenmill.batches.loader import RowLoader
from tokenmill.look.source_places import SourceLocator
from tokenmill.store.token_sets import TokenSet


@pytest.fixture
def many(tmp_path):
    """Thirty small files: parquet of several row groups, some of whose documents are left out."""
    for number in range(30):
        texts = make_text(documents=12, seed=number, words=20)
        texts[3] = "" if number % 3 == 0 else texts[3]
        texts[5] = None if number % 4 == 0 else texts[5]
        write_parquet(tmp_path / "many" / f"{number:02d}.parquet", texts, row_group_size=5)
    return tmp_path / "many"


def prepare(source, tokenizer_json, cwd, *flags):
    cwd.mkdir(exist_ok=True)
    done = run_prepare("--source", source, "--tokenizer", tokenizer_json, *flags, cwd=cwd)
    return cwd / done.stdout.splitlines()[-1]


def tokens_of(folder, split="train"):
    token_set = TokenSet(folder)
    return np.concatenate([token_set.open(entry).tokens for entry in token_set.split(split)])


def test_consecutive_small_files_share_a_shard_that_names_them_all(many, tokenizer_json, tmp_path):
    shared = prepare(many, tokenizer_json, tmp_path / "shared")
    alone = prepare(many, tokenizer_json, tmp_path / "alone", "--shard-text-bytes", 10_000)
    assert [len(TokenSet(shared).split(split)) for split in ("train", "val")] == [1, 1]
    assert len(TokenSet(alone).entries) == 30
    for split in ("train", "val"):
        assert np.array_equal(tokens_of(shared, split), tokens_of(alone, split))
    (entry,) = TokenSet(shared).split("train")
    assert entry.sources == tuple(f"{number:02d}.parquet" for number in range(29))
    counts = ("documents", "tokens", "text_bytes", "null_documents", "empty_documents")
    assert [TokenSet(shared).manifest[key] for key in counts] == [TokenSet(alone).manifest[key] for key in counts]


def test_show_knows_the_file_and_row_of_each_document(many, tokenizer_json, tmp_path):
    found = []
    for name, flags in (("shared", ()), ("alone", ("--shard-text-bytes", "10000"))):
        token_set = TokenSet(prepare(many, tokenizer_json, tmp_path / name, *flags))
        rows = SourceLocator(token_set)
        found.append([rows.find(entry, d) for entry in token_set.split("train") for d in range(entry.documents)])
    assert found[0] == found[1]
    assert found[0][0].startswith("00.parquet row group 0, document 0 of those that were kept")
    assert "01.parquet row 3" in found[0]


def test_nanochat_s_rows_are_those_of_a_shard_a_file(many, tokenizer_json, tmp_path):
    rows = []
    for name, flags in (("shared", ()), ("alone", ("--shard-text-bytes", "10000"))):
        folder = prepare(many, tokenizer_json, tmp_path / name, *flags)
        settings = {"batch_size": 2, "seq_len": 32, "packing": "nanochat", "rank": 1, "world_size": 2}
        with RowLoader(folder, "train", **settings) as loader:
            rows.append([next(loader)[0].tolist() for _ in range(40)])
    assert rows[0] == rows[1]


def test_files_that_come_later_are_appended_and_what_was_there_stays(many, tokenizer_json, tmp_path):
    later = [shutil.move(many / f"{number:02d}.parquet", tmp_path) for number in (0, 7, 28)]
    folder = prepare(many, tokenizer_json, tmp_path)
    before, first = tree(folder / "shards"), TokenSet(folder)
    for path in later:
        shutil.move(path, many)
    assert prepare(many, tokenizer_json, tmp_path) == folder
    grown = TokenSet(folder)
    assert grown.entries[: len(first.entries)] == first.entries
    assert [entry.sources for entry in grown.entries[2:]] == [("00.parquet",), ("07.parquet", "28.parquet")]
    assert {name: data for name, data in tree(folder / "shards").items() if name in before} == before
    with RowLoader(folder, "train", batch_size=1, seq_len=32) as loader:
        assert loader.state_dict()


def test_damaged_shards_of_files_that_came_one_by_one_are_made_anew_as_they_were(many, tokenizer_json, tmp_path):
    later = [shutil.move(many / f"{number:02d}.parquet", tmp_path) for number in (7, 8)]
    for path in later:
        folder = prepare(many, tokenizer_json, tmp_path)
        shutil.move(path, many)
    folder = prepare(many, tokenizer_json, tmp_path)
    whole = tree(folder)
    assert len(TokenSet(folder).entries) == 4
    for name in ("07.000", "08.000"):
        (folder / "shards" / f"{name}.json").unlink()
    assert prepare(many, tokenizer_json, tmp_path) == folder
    assert tree(folder) == whole


def test_a_file_that_two_shards_hold_is_refused(many, tokenizer_json, tmp_path):
    folder = prepare(many, tokenizer_json, tmp_path)
    record = json.loads((folder / "shards" / "00.000.json").read_text())
    other = folder / "shards" / "99.000"
    for suffix in ("bin", "idx"):
        shutil.copy(folder / "shards" / f"00.000.{suffix}", f"{other}.{suffix}")
    record["source"]["files"], record["name"] = record["source"]["files"][:3], "99.000"
    record["source"]["files"][0]["documents"] = record["documents"] - sum(
        file["documents"] for file in record["source"]["files"][1:]
    )
    groups = [*record["source"]["files"][0]["row_group_documents"][:-1], 0]
    groups[-1] = record["source"]["files"][0]["documents"] - sum(groups)
    record["source"]["files"][0]["row_group_documents"] = groups
    other.with_name("99.000.json").write_text(json.dumps(record))
    done = run_prepare("--source", many, "--tokenizer", tokenizer_json, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "both hold 00.parquet, as two runs with different files made them" in done.stderr


def test_a_small_file_that_changed_is_told_and_another_source_of_the_name_refused(many, tokenizer_json, tmp_path):
    folder = prepare(many, tokenizer_json, tmp_path)
    before = tree(folder)
    write_parquet(many / "07.parquet", ["another text"])
    done = run_prepare("--source", many, "--tokenizer", tokenizer_json, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "shard 00.000 was made from other data: bytes of 07.parquet was" in done.stderr
    (many / "07.parquet").unlink()
    done = run_prepare("--source", many, "--tokenizer", tokenizer_json, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "has been prepared from 07.parquet too, and the source does not have it any more" in done.stderr
    assert tree(folder) == before


def test_a_second_source_in_a_folder_of_the_same_name_is_refused(many, tokenizer_json, tmp_path):
    folder = prepare(many, tokenizer_json, tmp_path)
    before = tree(folder)
    for name in ("x.parquet", "y.parquet"):
        write_parquet(tmp_path / "elsewhere" / "many" / name, ["a text"])
    done = run_prepare("--source", "elsewhere/many", "--tokenizer", tokenizer_json, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "where this is another corpus or is to be another set, give it another --name" in done.stderr
    assert tree(folder) == before
    assert prepare(tmp_path / "elsewhere" / "many", tokenizer_json, tmp_path, "--name", "other").name.startswith(
        "other-"
    )


def test_the_names_of_a_glob_stay_when_a_second_folder_comes(many, tokenizer_json, tmp_path):
    pattern = tmp_path / "m*" / "*.parquet"
    folder = prepare(pattern, tokenizer_json, tmp_path, "--name", "glob")
    before = {path.name: path.read_bytes() for path in folder.glob("shards/*")}
    write_parquet(tmp_path / "more" / "a.parquet", ["x"])
    flags = ("--source", pattern, "--tokenizer", tokenizer_json, "--name", "glob")
    done = run_prepare(*flags, cwd=tmp_path)
    assert "new in train: more/a.parquet" in done.stdout
    assert before.items() <= {path.name: path.read_bytes() for path in folder.glob("shards/*")}.items()


def test_a_file_that_is_replaced_while_it_is_read_is_not_mixed(tmp_path, tokenizer_json):
    from tokenmill.text.formats import ReadOptions
    from tokenmill.text.sources import plan_units, read_documents, split_files

    for name in ("a.parquet", "b.jsonl"):
        path, kept = tmp_path / name, tmp_path / f"kept-{name}"
        texts = make_text(documents=3000, seed=0)
        if name == "a.parquet":
            write_parquet(path, texts)
        else:
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        files = split_files({name: path, f"z{path.suffix}": path})
        shutil.copy(path, kept)
        (unit,) = plan_units(files[0], ReadOptions(), 1 << 40)
        documents = read_documents(unit)
        next(documents)
        shutil.move(kept, path)  # the same bytes, another file
        with pytest.raises(ValueError, match="was written to or replaced while it was prepared"):
            list(documents)
        (unit,) = plan_units(files[0], ReadOptions(), 1 << 40)
        with open(path, "ab") as file:
            file.write(b"\n")
        with pytest.raises(ValueError, match=r"(was written to or replaced while it was prepared|found damage)"):
            next(read_documents(unit))


def test_a_changed_setting_is_noticed_whichever_side_has_it(tmp_path, tokenizer_json):
    (tmp_path / "txt").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "txt" / name).write_text("one\n\ntwo\n\nthree")
    flags = ("--source", "txt", "--tokenizer", tokenizer_json)
    run_prepare(*flags, "--document-separator", r"\n\n", cwd=tmp_path)
    done = run_prepare(*flags, cwd=tmp_path, check=False)
    assert r"document_separator of a.txt was '\n\n' then, is None now" in done.stderr
    (tmp_path / "lines").mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / "lines" / name).write_text('{"text": "one"}\nbroken\n')
    flags = ("--source", "lines", "--tokenizer", tokenizer_json)
    run_prepare(*flags, "--skip-broken", cwd=tmp_path)
    done = run_prepare(*flags, cwd=tmp_path, check=False)
    assert "1 broken lines or rows were left out then, and --skip-broken is not given now" in done.stderr


def test_one_changed_file_stops_its_own_shards_alone(source, tokenizer_json, tmp_path):
    flags = ("--source", source, "--tokenizer", tokenizer_json, "--shard-text-bytes", 20_000)
    folder = tmp_path / run_prepare(*flags, cwd=tmp_path).stdout.splitlines()[-1]
    (folder / "manifest.json").unlink()
    for path in folder.glob("shards/shard_2.*"):
        path.unlink()
    write_parquet(source / "shard_0.parquet", ["another text"])
    done = run_prepare(*flags, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "failed: shard_0.parquet:" in done.stderr
    assert "was made from other data" in done.stderr
    assert list(folder.glob("shards/shard_2.*.json")), "the others are made"
    assert not (folder / "manifest.json").exists()


def test_texts_of_fields_bytes_and_several_columns_and_the_documents_own_ids(tmp_path, tokenizer_json):
    rows = [
        {
            "id": f"<urn\u2028{n}>",
            "title": f"title {n}" if n % 2 else None,
            "doc": {"text": f"body {n}", "raw": b"r%d" % n},
        }
        for n in range(6)
    ]
    rows[4] |= {"title": None, "doc": {"text": None, "raw": b"\xff"}}
    parquet, lines = tmp_path / "p", tmp_path / "l"
    for name in ("a", "b"):
        parquet.mkdir(exist_ok=True)
        lines.mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), parquet / f"{name}.parquet", row_group_size=2)
        told = [row | {"doc": {"text": row["doc"]["text"]}} for row in rows]
        (lines / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in told))
    joined = [f"title {n}\n\nbody {n}" if n % 2 else f"body {n}" for n in (0, 1, 2, 3, 5)]
    for source, column, expected in (
        (parquet, "title,doc.text", joined),
        (lines, "title,doc.text", joined),
        (parquet, "doc.text", [f"body {n}" for n in (0, 1, 2, 3, 5)]),
        (parquet, "doc.raw", ["r0", "r1", "r2", "r3", "\ufffd", "r5"]),
    ):
        flags = ("--source", source, "--tokenizer", tokenizer_json, "--text-column", column, "--keep-ids", "id")
        done = run_prepare(*flags, "--name", f"{source.name}-{column.replace(',', '-')}", cwd=tmp_path)
        token_set = TokenSet(tmp_path / done.stdout.splitlines()[-1])
        (entry,) = token_set.split("train")
        shard = token_set.open(entry)
        from tokenmill.tokenize.tokenizer import Tokenizer

        tokenizer = Tokenizer.load(token_set.path / "tokenizer.json")
        pieces = np.split(shard.tokens, shard.offsets[1:-1].astype(int))
        assert [tokenizer.decode(piece[1:]) for piece in pieces] == expected
        last = SourceLocator(token_set).find(entry, entry.documents - 1)
        assert last.endswith(', id "<urn\u20285>"')
    done = run_prepare(*flags[:-2], "--name", "p-doc.raw", cwd=tmp_path, check=False)
    assert "id_column of a.parquet was id then, is None now" in done.stderr
    shown = run_show(token_set.path, "--document", 0, "--split", "val", "--seq-len", 128)
    assert r'id "<urn\u20280>"' in shown, "and breaks no line"


def test_a_named_key_that_a_line_does_not_have_is_an_error(tmp_path, tokenizer_json):
    (tmp_path / "l").mkdir()
    for name in ("a", "b"):
        (tmp_path / "l" / f"{name}.jsonl").write_text('{"title": "t", "text": "x"}\n')
    flags = ("--source", "l", "--tokenizer", tokenizer_json)
    done = run_prepare(*flags, "--text-column", "title,nope", cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "found keys title, text" in done.stderr
    done = run_prepare(*flags, "--keep-ids", "nope", cwd=tmp_path, check=False)
    assert "found keys title, text, and none that --keep-ids nope names" in done.stderr
    (tmp_path / "l" / "a.jsonl").write_text('[{"text": "x"}]')
    done = run_prepare(*flags, cwd=tmp_path, check=False)
    assert "a list: one JSON array, where an object a line is read" in done.stderr


def run_show(folder, *flags):
    done = warm.run("-m", "tokenmill", "show", folder, *flags)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_files_that_share_a_shard_with_a_broken_one_are_said_to_wait(many, tokenizer_json, tmp_path):
    (many / "03.parquet").write_bytes(b"no parquet")
    done = run_prepare("--source", many, "--tokenizer", tokenizer_json, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "03.parquet: expected a whole parquet file, found damage" in done.stderr
    assert re.search(r"\. Its shard has \d+ files, which all wait for it, 00.parquet to \d\d.parquet", done.stderr)


def test_files_are_read_as_the_set_s_were_or_nothing_is_made(tokenizer_json, tmp_path):
    for name in "abc":
        lines = [json.dumps({"text": text, "id": name}) for text in make_text(3, seed=1)]
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{name}.jsonl").write_text("\n".join(lines))
    flags = ("--source", "in", "--tokenizer", tokenizer_json)
    folder = tmp_path / run_prepare(*flags, "--keep-ids", "id", cwd=tmp_path).stdout.splitlines()[-1]
    before = tree(folder)
    (tmp_path / "in" / "aa.jsonl").write_text('{"text": "a text without an id"}\n')
    done = run_prepare(*flags, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "id_column of a.jsonl was id then, is None now; give --keep-ids as it was" in done.stderr
    assert tree(folder) == before
