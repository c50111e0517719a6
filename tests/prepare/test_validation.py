"""What validates: by the user's word, names, or a hash; and no document ever changes its split."""

import json
import re
import sys
from dataclasses import replace

import pytest
from making import make_text, read_manifest, run_prepare, write_parquet

from tokenmill import Documents
from tokenmill.look.verify import verify
from tokenmill.prepare.config import PrepareConfig
from tokenmill.prepare.input_files import list_files
from tokenmill.prepare.run import prepare
from tokenmill.text.listing import list_sources
from tokenmill.text.source_file import SourceFile
from tokenmill.text.validation import asked_rule, divide, find_rule


def divided(sizes, former=None, **config):
    """(the share of each file that validates, what was said) for files of these names and sizes."""
    files = [SourceFile(name, f"/{name}", size) for name, size in sorted(sizes.items())]
    asked = asked_rule(config.get("val_file"), config.get("val_fraction"))
    with_shares, sentences = divide(files, find_rule(asked, files, former, "web"))
    return {file.name: file.val_share for file in with_shares}, sentences


run_module = sys.modules["tokenmill.prepare.run"]  # tokenmill.prepare is a function
MANY = {f"{n}.jsonl": 9 << 20 for n in range(3)}


@pytest.mark.parametrize(
    ("sizes", "config", "expected"),
    [
        (MANY, {}, dict.fromkeys(MANY, 0.01)),
        ({"a.jsonl": 5000}, {}, {"a.jsonl": 0.1}),
        ({"a.jsonl": 5000, "b.jsonl": 5000}, {}, {"a.jsonl": 0.1, "b.jsonl": 0.1}),
        (MANY, {"val_fraction": 0.3}, dict.fromkeys(MANY, 0.3)),
        (MANY, {"val_file": "1.jsonl"}, {"0.jsonl": 0.0, "1.jsonl": 1.0, "2.jsonl": 0.0}),
        (MANY, {"val_file": "last"}, {"0.jsonl": 0.0, "1.jsonl": 0.0, "2.jsonl": 1.0}),
        (MANY, {"val_file": "[12].jsonl"}, {"0.jsonl": 0.0, "1.jsonl": 1.0, "2.jsonl": 1.0}),
        ({"a.jsonl": 90, "test.txt": 9, "x/val.txt": 9}, {}, {"a.jsonl": 0.0, "x/val.txt": 1.0}),
        ({"a.jsonl": 90, "dev/b.txt": 9, "eval.jsonl": 9}, {}, {"a.jsonl": 0.0, "dev/b.txt": 1.0}),
        ({"train.jsonl": 90, "test.jsonl": 9}, {}, {"train.jsonl": 0.1}),
        ({"train.jsonl": 90, "test.jsonl": 9}, {"val_fraction": 0.2}, {"train.jsonl": 0.2}),
        ({"a.jsonl": 90, "test.md": 9}, {"val_file": "test.md"}, {"a.jsonl": 0.0, "test.md": 1.0}),
        ({"test/a.jsonl": 90, "test/b.jsonl": 9}, {}, {"test/a.jsonl": 0.1, "test/b.jsonl": 0.1}),
        ({"valid-a.jsonl": 5, "devices.txt": 90}, {}, {"valid-a.jsonl": 1.0, "devices.txt": 0.0}),
    ],
)  # fmt: skip
def test_the_rule(sizes, config, expected):
    shares, sentences = divided(sizes, **config)
    assert shares == expected
    assert sentences[0].startswith("validates: ")
    assert [line for line in sentences if line.startswith("left out, for tests")] == sentences[1:]
    assert len(sentences) - 1 == (len(shares) < len(sizes))


@pytest.mark.parametrize(
    ("sizes", "config", "message"),
    [
        (
            {"train.jsonl": 50, "dev.jsonl": 50},
            {},
            r"dev\.jsonl would validate, as the names say, 50% of the source",
        ),
        (
            {"val.jsonl": 50},
            {},
            r"val\.jsonl would validate, and nothing would be left to train on",
        ),
        ({"a.jsonl": 50}, {"val_file": "a.jsonl"}, "nothing would be left to train on"),
        (
            MANY,
            {"val_file": "nope"},
            r"--val-file nope: no such file here or in the source, which has 0\.jsonl, 1",
        ),
        (
            MANY,
            {"former": {"fraction": 0.01}, "val_file": "1.jsonl"},
            "0.01 of all .* cannot now validate 1.jsonl",
        ),
        (
            MANY,
            {"former": {"names": True}, "val_fraction": 0.5},
            "whose names say so, and cannot now validate 0.5 of",
        ),
    ],
)
def test_what_cannot_be_is_refused(sizes, config, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        divided(sizes, **config)


def test_a_set_keeps_its_rule():
    assert divided(MANY | {"val.jsonl": 9}, former={"fraction": 0.01})[0] == dict.fromkeys(
        [*MANY, "val.jsonl"], 0.01
    )
    assert (
        divided(MANY | {"3.jsonl": 9}, former={"file": "2.jsonl"}, val_file="last")[0]["2.jsonl"]
        == 1.0
    )


# ---------------------------------------------------------------------------- in sets that grow


def texts_of(folder, split):
    return [document.text for document in Documents(folder, split)]


def jsonl(texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


def test_documents_never_change_their_split_and_equal_ones_are_in_one(tokenizer_json, tmp_path):
    """Over growth, other tokenizers, formats, sizes of shards and orders."""
    corpus = tmp_path / "corpus"
    flags = ("--source", "corpus", "--shard-text-bytes", 3000)
    corpus.mkdir()
    texts = {
        name: make_text(80, seed=seed)
        for seed, name in enumerate(("m.jsonl", "a.jsonl", "z.jsonl", "n.jsonl"))
    }
    texts["z.jsonl"][:20] = texts["m.jsonl"][:20]
    ever = {"train": set(), "val": set()}
    for count, name in enumerate(texts, 1):
        (corpus / name).write_text(jsonl(texts[name]))
        done = run_prepare(*flags, "--tokenizer", tokenizer_json, cwd=tmp_path)
        folder = tmp_path / done.stdout.splitlines()[-1]
        for split in ever:
            found = texts_of(folder, split)
            assert ever[split] <= set(found), "what is in a split stays in it"
            ever[split] |= set(found)
        assert len(texts_of(folder, "train")) + len(texts_of(folder, "val")) == 80 * count
        assert not ever["train"] & ever["val"]
        assert ("new in this set" in done.stdout) == (count > 1)
    assert 0.04 < len(ever["val"]) / 300 < 0.2
    assert read_manifest(folder)["prepared"]["validation"] == {"fraction": 0.1}

    elsewhere = (
        tmp_path
        / run_prepare(*flags, "--tokenizer", "train:300", cwd=tmp_path).stdout.splitlines()[-1]
    )
    write_parquet(tmp_path / "parquet" / "all.parquet", sum(texts.values(), [])[::-1])
    more = ("--source", "parquet", "--tokenizer", tokenizer_json)
    again = tmp_path / run_prepare(*more, cwd=tmp_path).stdout.splitlines()[-1]
    for folder in (elsewhere, again):
        assert {split: set(texts_of(folder, split)) for split in ever} == ever


def test_files_of_a_pattern_validate_beside_the_first_files(tmp_path, monkeypatch):
    for name in ("a", "b", "c", "val-0", "val-1"):
        (tmp_path / f"{name}.jsonl").write_text('{"text": "a"}\n')
    config = PrepareConfig(source=str(tmp_path), num_shards=2, val_file="val-*")
    files, asked = list_files(config, print)
    assert [file.name for file in files] == ["a.jsonl", "b.jsonl", "val-0.jsonl", "val-1.jsonl"]
    assert asked == {"file": "val-*"}
    (tmp_path / "held").mkdir()
    (tmp_path / "a.jsonl").rename(tmp_path / "held" / "a.jsonl")
    monkeypatch.setenv("HOME", str(tmp_path / "held"))
    files, asked = list_files(replace(config, num_shards=1, val_file="~/a.jsonl"), print)
    assert [file.name for file in files] == ["b.jsonl", "a.jsonl"]
    assert asked == {"file": "a.jsonl"}


def test_a_file_from_elsewhere_validates_and_must_be_named_again(source, tokenizer_json, tmp_path):
    write_parquet(tmp_path / "held_out.parquet", ["one", "two"])
    flags = ("--source", source, "--tokenizer", tokenizer_json)
    folder = (
        tmp_path
        / run_prepare(*flags, "--val-file", "held_out.parquet", cwd=tmp_path).stdout.splitlines()[
            -1
        ]
    )
    assert texts_of(folder, "val") == ["one", "two"]
    assert len(texts_of(folder, "train")) == 160
    done = run_prepare(*flags, cwd=tmp_path, check=False)
    assert "--val-file held_out.parquet: no such file" in done.stderr
    run_prepare(*flags, "--val-file", "held_out.parquet", cwd=tmp_path)


def test_a_file_that_is_gone_or_changed_is_refused_and_others_are_appended(
    source, tokenizer_json, tmp_path
):
    flags = ("--source", source, "--tokenizer", tokenizer_json, "--val-file", "shard_3.parquet")
    folder = tmp_path / run_prepare(*flags, cwd=tmp_path).stdout.splitlines()[-1]
    before = {path.name: path.stat().st_ino for path in folder.glob("shards/*")}
    shards = read_manifest(folder)["shards"]
    for name in ("a.parquet", "shard_2b.parquet"):
        write_parquet(source / name, make_text(10, seed=7))
    run_prepare(*flags, cwd=tmp_path)
    assert read_manifest(folder)["shards"][: len(shards)] == shards
    assert (
        before.items()
        <= {path.name: path.stat().st_ino for path in folder.glob("shards/*")}.items()
    )
    assert len(list((folder / "manifests").iterdir())) == 2

    intact = (source / "shard_1.parquet").read_bytes()
    write_parquet(source / "shard_1.parquet", make_text(documents=40, seed=99), row_group_size=8)
    done = run_prepare(*flags, cwd=tmp_path, check=False)
    assert "shard shard_0.000 was made from other data" in done.stderr
    assert "bytes of shard_1.parquet was" in done.stderr
    (source / "shard_1.parquet").unlink()
    done = run_prepare(*flags, cwd=tmp_path, check=False)
    assert "was made of shard_1.parquet too, which the source has no more" in done.stderr
    (source / "shard_1.parquet").write_bytes(intact)
    assert "all shards are made" in run_prepare(*flags, "--dry-run", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (["--document-separator", r"\n\n"], [], "document_separator was '\\n\\n', is None"),
        (
            ["--text-column", "title"],
            ["--text-column", "text"],
            "text_column was 'title', is 'text'",
        ),
        (
            ["--skip-broken"],
            [],
            "1 broken lines or rows were left out, and --skip-broken is not given",
        ),
        (["--max-document-bytes", "90"], [], "max_document_bytes was 90, is 16777216"),
        (["--keep-columns", "title"], [], "keep_columns was ['title'], is None"),
        ([], ["--keep-columns", "title"], "keep_columns was None, is ['title']"),
    ],
)
def test_other_settings_are_refused_and_change_nothing(
    before, after, message, tokenizer_json, tmp_path
):
    broken = "nonsense\n" if "--skip-broken" in before else ""
    lines = (
        "".join(json.dumps({"text": f"text {n}", "title": f"{n}"}) + "\n" for n in range(90))
        + broken
    )
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"a.{'txt' if 'separator' in str(before) else 'jsonl'}").write_text(
        lines.replace("{", "\n\n{")
    )
    flags = ("--source", "in", "--tokenizer", tokenizer_json)
    folder = tmp_path / run_prepare(*flags, *before, cwd=tmp_path).stdout.splitlines()[-1]
    manifest = (folder / "manifest.json").read_bytes()
    after = [*after, *(["--val-fraction", "0.1"] * ("separator" in str(before)))]
    done = run_prepare(*flags, *after, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert message in done.stderr or "which is one document" in done.stderr
    assert (folder / "manifest.json").read_bytes() == manifest


@pytest.mark.parametrize(
    ("files", "flags", "message"),
    [
        ({"a.jsonl": ""}, [], "found no document to train on: the files are empty"),
        (
            {"a.jsonl": '{"text": ""}\n' * 3 + '{"text": null}\n'},
            [],
            "train on: 3 empty documents.*; 1 null document",
        ),
        (
            {"a.jsonl": '{"text": "long text"}\n'},
            ["--max-document-bytes", "3"],
            "train on: 1 oversized document",
        ),
        ({"a.txt": "one\n\ntwo"}, [], r"which is one document, .* as --document-separator"),
        (
            {"a.txt": "one two"},
            [],
            "which is one document, .* separates its documents, as --document-separator",
        ),
    ],
)
def test_a_source_without_a_document_to_train_on_makes_no_set(
    files, flags, message, tokenizer_json, tmp_path
):
    (tmp_path / "in").mkdir()
    for name, text in files.items():
        (tmp_path / "in" / name).write_text(text)
    done = run_prepare(
        "--source", "in", "--tokenizer", tokenizer_json, *flags, cwd=tmp_path, check=False
    )
    assert done.returncode == 1
    assert re.search(message, done.stderr)
    assert not list(tmp_path.glob("data/tokens/*/manifest.json"))


def gen(path, word, count=50):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(jsonl([f"{word} {number} and more words" for number in range(count)]))


def test_a_shard_of_a_run_with_other_settings_is_not_taken_for_one_of_this(
    tokenizer_json, tmp_path
):
    """As if the second run had been killed between the two shards of a unit."""
    flags = ("--source", "c", "--tokenizer", tokenizer_json, "--tokens-root")
    gen(tmp_path / "c" / "a.jsonl", "a")
    made = [
        run_prepare(*flags, f, "--val-fraction", f, cwd=tmp_path).stdout for f in ("0.1", "0.6")
    ]
    first, second = (tmp_path / out.splitlines()[-1] for out in made)
    for path in second.glob("shards/*-val.*"):
        (first / "shards" / path.name).write_bytes(path.read_bytes())
    (first / "manifest.json").unlink()
    run_prepare(*flags, "0.1", "--val-fraction", "0.1", cwd=tmp_path)
    assert {*texts_of(first, "train"), *texts_of(first, "val")} == {
        f"a {n} and more words" for n in range(50)
    }


# ---------------------------------------------------------------------------- a set that grows


def write_lines(folder, name):
    lines = [json.dumps({"text": f"{name} {number}"}) for number in range(40)]
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("first", "flags", "added"),
    [
        (["eval"], [], "train"),  # a source of tests alone is meant, and stays meant
        (["dev-a"], ["--val-fraction", "0.1"], "dev-b"),
        (["dev-a", "train"], ["--val-fraction", "0.1"], "dev-c"),
    ],
)
def test_a_set_is_continued_by_what_it_was_made_with(first, flags, added, tokenizer_json, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    same = ("--source", "source", "--tokenizer", tokenizer_json)
    for name in first:
        write_lines(source, name)
    made = run_prepare(*same, *flags, cwd=tmp_path).stdout.splitlines()[-1]
    run_prepare(*same, cwd=tmp_path)
    write_lines(source, added)
    assert run_prepare(*same, cwd=tmp_path).stdout.splitlines()[-1] == made
    listed = {
        file for shard in read_manifest(tmp_path / made)["shards"] for file in shard["sources"]
    }
    assert listed >= {f"{name}.jsonl" for name in first}


def test_a_link_that_sorts_before_its_file_changes_no_name(tokenizer_json, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    write_lines(source, "b")
    flags = ("--source", "source", "--tokenizer", tokenizer_json)
    run_prepare(*flags, cwd=tmp_path)
    (source / "a.jsonl").symlink_to(source / "b.jsonl")
    done = run_prepare(*flags, cwd=tmp_path)
    assert "a.jsonl: the same file as b.jsonl" in done.stderr


def test_a_run_of_other_files_is_refused_until_the_set_is_made(tokenizer_json, tmp_path):
    """Both grow one set from different sources; the second to end would list its own alone."""
    for name in ("base", "first", "second"):
        write_lines(tmp_path, name)
    config = PrepareConfig(
        source=str(tmp_path / "base.jsonl"),
        name="s",
        tokenizer=str(tokenizer_json),
        tokens_root=str(tmp_path / "t"),
    )
    first, second = (
        replace(config, source=[*config.source, str(tmp_path / f"{name}.jsonl")])
        for name in ("first", "second")
    )
    prepare(config)
    with pytest.MonkeyPatch.context() as patch:
        make_missing = run_module._make_missing

        def meanwhile(*arguments):
            for other in (second, replace(first, skip_broken=True), replace(config, part="1/2")):
                with pytest.raises(BlockingIOError, match="another run makes this set from other"):
                    prepare(other)
            return make_missing(*arguments)

        patch.setattr(run_module, "_make_missing", meanwhile)
        prepare(first)
    folder = next((tmp_path / "t").glob("*/"))
    listed = {file for shard in read_manifest(folder)["shards"] for file in shard["sources"]}
    assert listed == {"base.jsonl", "first.jsonl"}
    assert verify(folder) == {}
    assert not list((tmp_path / "t").glob(".*.lock"))
    with pytest.raises(ValueError, match="which the source has no more"):
        prepare(second)


def test_files_are_counted_by_number(tmp_path):
    for number in range(12):
        write_lines(tmp_path, f"part-{number}")
    config = PrepareConfig(source=str(tmp_path), num_shards=3, val_file="last")
    files, asked = list_files(config, print)
    assert asked == {"file": "last"}
    assert {file.name for file in files} == {f"part-{number}.jsonl" for number in (0, 1, 2, 11)}
    assert find_rule(asked, files) == {"file": "part-11.jsonl"}


def test_a_folder_of_a_web_server_is_refused_by_name():
    with pytest.raises(ConnectionError, match="a folder of a web server.*name its files"):
        list_sources(["http://localhost:1/corpus/"])
