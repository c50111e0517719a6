"""What is told before and after: bytes and time ahead, what is left of a failure, the lines that train."""

import json
import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import warm
from making import ROOT, make_text, run_prepare, tree, write_parquet

from tokenmill import TokenSet
from tokenmill.humanize import counted, in_bytes, in_time
from tokenmill.prepare.estimate import Estimate, after_first, split_line
from tokenmill.prepare.progress import Meter
from tokenmill.text.units import SourceFile

HUGE = 10**18


def estimate(tmp_path, **more):
    plain = {"files": 3, "absent": 0, "fetch_bytes": 0, "text_bytes": 4_000_000, "itemsize": 2, "keep_raw": True}
    return Estimate(**plain | {"raw": tmp_path / "raw" / "set", "tokens": tmp_path / "tokens"} | more)


def test_amounts_are_told_as_people_say_them():
    assert [counted(n, "shard") for n in (0, 1, 1200)] == ["0 shards", "1 shard", "1,200 shards"]
    assert [in_bytes(n) for n in (1, 812, 13_800_000, 2.5e12)] == ["1 byte", "812 bytes", "13.8 MB", "2.5 TB"]
    assert [in_time(s) for s in (7.4, 200, 7500, 200_000)] == ["7 s", "3 min 20 s", "2 h 5 min", "2 days 7 h"]


def test_token_files_are_told_by_the_text_and_the_size_of_a_token(tmp_path):
    (files, ahead) = estimate(tmp_path, itemsize=4).lines()
    assert files == "3 files"
    assumed = "(if a token is 4 bytes of text)"
    assert ahead.startswith(f"about 4.0 MB of text to tokenize, about 4.0 MB of token files {assumed} in ")
    (unknown,) = estimate(tmp_path, text_bytes=None).lines()
    assert "is not known before it is read" in unknown


def test_what_cannot_lie_on_the_disk_is_said_at_once(tmp_path):
    full = estimate(tmp_path, absent=3, fetch_bytes=HUGE)
    with pytest.raises(ValueError, match=r"raw/set: 1,000,000\.0 TB are to be fetched, and .* free there; make room"):
        full.require_room()
    estimate(tmp_path, absent=3, fetch_bytes=HUGE, keep_raw=False).require_room()  # each is deleted in its turn
    assert not list(estimate(tmp_path).warnings())
    (warning,) = estimate(tmp_path, text_bytes=HUGE).warnings()
    assert "about 500,000.0 TB are needed" in warning
    (warning,) = full.warnings()
    assert "about 1,000,000.0 TB are needed" in warning, "one disk has to hold both"
    assert not list(estimate(tmp_path, text_bytes=HUGE, tokens=None).warnings()), "of what is sent elsewhere"


def test_the_first_shard_tells_of_the_rest(monkeypatch):
    meter = Meter(SimpleNamespace(live=False, say=print), "preparing", total=1000)
    assert meter.seconds_left is None
    assert "left" not in meter.line()
    monkeypatch.setattr(time, "monotonic", lambda: meter.started + 10)  # starting takes as long
    meter.add(documents=1, tokens=10, text_bytes=42, done=40)
    assert meter.seconds_left is None, "no rate yet"
    monkeypatch.setattr(time, "monotonic", lambda: meter.started + 30)
    meter.add(documents=4, tokens=40, text_bytes=168, done=160)
    assert after_first(meter, itemsize=2) == (
        "the first shard took 30 s; at this rate the rest takes 1 min 40 s, and all have 500 bytes of tokens"
    )
    meter.add(0, 0, 0, done=800)
    assert meter.seconds_left is None


def test_a_dry_run_of_files_that_are_here_makes_nothing_and_says_what_cannot_be_read(source, tokenizer_json, tmp_path):
    done = run_prepare("--source", source, "--tokenizer", tokenizer_json, "--dry-run", cwd=tmp_path)
    assert "0 of 2 shards are there, 2 to make" in done.stderr
    assert re.match("4 files\nabout .* of text to tokenize, about .* of token files .*in data/tokens; ", done.stdout)
    assert [path.name for path in tmp_path.iterdir()] == [source.name]
    (source / "shard_1.parquet").write_bytes(b"PAR1 and no more")
    done = run_prepare("--source", source, "--tokenizer", tokenizer_json, "--dry-run", cwd=tmp_path, check=False)
    assert (done.returncode, "shard_1.parquet" in done.stderr) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


def test_files_for_tests_are_not_trained_on_without_a_word(tmp_path, tokenizer_json):
    names = ["train-00000-of-00001.parquet", "test-00000-of-00001.parquet", "validation-00000-of-00001.parquet"]
    for number, name in enumerate(names):
        write_parquet(tmp_path / "corpus" / name, make_text(20, seed=number))
    flags = ("--tokenizer", tokenizer_json, "--dry-run")
    done = run_prepare("--source", "corpus", *flags, cwd=tmp_path)
    assert "left out test-00000-of-00001.parquet, for tests as the name says" in done.stderr
    assert "2 files\n" in done.stdout
    assert "validates: validation-00000-of-00001.parquet" in done.stdout
    by_fraction = run_prepare("--source", "corpus", "--val-fraction", 0.5, *flags, cwd=tmp_path)
    assert "left out test-" in by_fraction.stderr
    for asked in (("--source", f"corpus/{names[1]}"), ("--source", "corpus", "--val-file", f"corpus/{names[1]}")):
        assert "left out" not in run_prepare(*asked, *flags, cwd=tmp_path).stderr


def test_a_set_keeps_its_splits_as_files_come_whose_names_say_more(tmp_path, tokenizer_json):
    """What validated is never trained on, in one manifest or the next, and a new file may validate."""
    flags = ("--source", "corpus", "--tokenizer", tokenizer_json)
    trained, validated = set(), set()
    for new in (["train.jsonl", "val/a.jsonl"], ["b.jsonl", "test.jsonl"], ["dev.jsonl", "zz.jsonl"]):
        for name in new:
            path = tmp_path / "corpus" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in make_text(9, seed=len(name))))
        done = run_prepare(*flags, cwd=tmp_path)
        now = TokenSet(tmp_path / done.stdout.splitlines()[-1])
        for split, known in (("train", trained), ("val", validated)):
            known |= {name for entry in now.split(split) for name in entry.sources}
    assert trained == {"train.jsonl", "b.jsonl", "zz.jsonl"}
    assert validated == {"val/a.jsonl", "dev.jsonl"}


def test_a_dry_run_tells_the_share_that_validates(tmp_path, tokenizer_json):
    for number, name in enumerate(("a.parquet", "b.parquet")):
        write_parquet(tmp_path / "corpus" / name, make_text(200, seed=number))
    flags = ("--source", "corpus", "--tokenizer", tokenizer_json)
    dry = run_prepare(*flags, "--dry-run", cwd=tmp_path)
    assert re.search(r"validates: b\.parquet, about (4\d|5\d)\.\d% of the text", dry.stdout)
    done = run_prepare(*flags, cwd=tmp_path)
    assert "and tiktoken" in done.stderr
    assert (
        "are not trained on; to validate on less, prepare again with --val-fraction 0.01 --name corpus-2" in done.stdout
    )
    named = run_prepare(*flags, "--val-file", "b.parquet", "--name", "named", cwd=tmp_path)
    assert "are not trained on" not in named.stdout


def test_the_share_that_validates_stands_behind_the_file_s_name_whatever_it_is():
    files = [SourceFile("a.jsonl", "a.jsonl", "train", 300), SourceFile("b (1).jsonl", "b", "val", 100)]
    assert split_line(files).startswith("validates: b (1).jsonl, about 25.0% of the text (--val-file names another")
    unknown = [SourceFile("a.jsonl", "a.jsonl", "train"), SourceFile("b (1).jsonl", "b", "val", 100)]
    assert split_line(unknown).startswith("validates: b (1).jsonl (--val-file names another")


def test_several_sources_make_one_set_and_a_second_flag_does_not_replace_the_first(tmp_path, tokenizer_json):
    for name in ("web", "books"):
        write_parquet(tmp_path / name / "a.parquet", make_text(20, seed=len(name)))
    write_parquet(tmp_path / "held.parquet", make_text(9, seed=9))
    flags = ("--tokenizer", tokenizer_json, "--val-file", "held.parquet")
    done = run_prepare("--source", "web", *flags, "--source=books", cwd=tmp_path)
    folder = tmp_path / done.stdout.splitlines()[-1]
    assert folder.name.startswith("web-books-bpe400-")
    names = sorted(name for entry in TokenSet(folder).entries for name in entry.sources)
    assert names == ["books/a.parquet", "held.parquet", "web/a.parquet"]
    again = run_prepare(*flags, "--source", "web", "books", cwd=tmp_path)
    assert (again.stdout, "0 to make" in again.stderr) == (done.stdout, True)
    for more, said in (
        (("owner/name",), "a repository on the hub cannot be one of several sources"),
        (("a", "b", "c"), "5 sources have 5 names; say what to call"),
    ):
        refused = run_prepare(*flags, "--source", "web", "books", *more, cwd=tmp_path, check=False)
        assert refused.returncode != 0
        assert said in refused.stderr


def test_a_dry_run_of_a_set_that_is_there_tells_what_it_lacks(source, tokenizer_json, tmp_path):
    flags = ("--source", source, "--tokenizer", tokenizer_json, "--shard-text-bytes", 20_000)
    later = shutil.move(source / "shard_3.parquet", tmp_path)
    run_prepare(*flags, cwd=tmp_path)
    before = tree(tmp_path / "data")
    assert "3 files; all shards of this part are made" in run_prepare(*flags, "--dry-run", cwd=tmp_path).stdout
    shutil.move(later, source)
    dry = run_prepare(*flags, "--dry-run", cwd=tmp_path)
    assert tree(tmp_path / "data") == before
    many = re.search(r"(\d+) of \d+ shards are there, (\d+) to make", dry.stderr).groups()
    assert f"{many[0]} of " in run_prepare(*flags, cwd=tmp_path).stderr
    (source / "shard_0.parquet").unlink()
    gone = run_prepare(*flags, "--dry-run", cwd=tmp_path, check=False)
    assert (gone.returncode, "shard_0.parquet" in gone.stderr) == (1, True), "as without --dry-run"


def test_a_preparation_that_made_nothing_leaves_no_folder(source, tokenizer_json, tmp_path):
    for path in source.iterdir():
        path.write_bytes(b"PAR1 and no more")
    done = run_prepare("--source", source, "--tokenizer", tokenizer_json, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert not list(tmp_path.glob("data/tokens/*"))


def test_a_preparation_that_made_something_keeps_it_and_says_where(source, tokenizer_json, tmp_path):
    (source / "shard_1.parquet").write_bytes(b"PAR1 and no more")
    flags = ("--source", source, "--tokenizer", tokenizer_json, "--shard-text-bytes", 20_000)
    done = run_prepare(*flags, cwd=tmp_path, check=False)
    (folder,) = tmp_path.glob("data/tokens/*")
    assert list(folder.glob("shards/*.bin"))
    assert f"what is done is in {folder.relative_to(tmp_path)}" in done.stderr


@pytest.mark.parametrize("command", [[str(ROOT / "prepare_data.py")], ["-m", "tokenmill", "prepare"]])
def test_the_lines_that_preparing_ends_with_train_even_where_other_sets_are(command, source, tokenizer_json, tmp_path):
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}

    def run(*words):
        done = warm.run(*words, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
        return done

    flags = ("--source", source, "--tokenizer", tokenizer_json, "--name")
    run(*command, *flags, "other")
    printed = run(*command, *flags, "this").stdout.splitlines()
    assert printed[printed.index("train on it:") + 1] == "", "to be pasted without its neighbours"
    imported, batch = printed[printed.index("train on it:") + 2 :][:2]
    assert imported == f"from {'data' if 'prepare_data' in command[0] else 'tokenmill'} import get_batch"
    assert run("-c", f"{imported}\n{batch}\nprint(*inputs.shape, *targets.shape)").stdout == "8 1024 8 1024\n"
    words = printed[-3].split()[printed[-3].split().index("report") :]
    assert Path(run("-m", "tokenmill", *words).stdout.splitlines()[-1]).suffix == ".html"


def test_a_validation_split_of_few_tokens_is_warned_of_and_named(tokenizer_json, tmp_path):
    for number in range(2):
        write_parquet(tmp_path / "corpus" / f"{number}.parquet", make_text(3, seed=number), row_group_size=8)
    done = run_prepare("--source", tmp_path / "corpus", "--tokenizer", tokenizer_json, cwd=tmp_path)
    assert re.search(r"  validates: 1.parquet, [\d.]+% of the tokens \(--val-file names another\)\n", done.stdout)
    assert "tokens are few to validate with" in done.stdout
    assert "left out" not in done.stdout, "nothing was"
