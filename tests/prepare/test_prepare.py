"""Preparing: the same bytes whatever the workers and whatever was killed, and every fault has its message."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from making import ROOT, make_text, run_prepare, tree, write_parquet

from tokenmill.store.token_sets import TokenSet
from tokenmill.tokenize.tokenizer import Tokenizer, train_tokenizer


def prepare(source, tokenizer_json, cwd, *flags, **more):
    """Prepares `source` with small shards; the token set's folder, as the last line of stdout has it."""
    fixed = ("--source", source, "--tokenizer", tokenizer_json, "--shard-text-bytes", 20_000)
    done = run_prepare(*fixed, *flags, cwd=cwd, **more)
    return cwd / done.stdout.splitlines()[-1] if done.returncode == 0 else done


def documents_of(folder, split):
    token_set = TokenSet(folder)
    for entry in token_set.split(split):
        shard = token_set.open(entry)
        yield from np.split(shard.tokens, shard.offsets[1:-1].astype(int))


def texts_of(*paths):
    return [text for path in paths for text in pq.read_table(path)["text"].to_pylist() if text]


def test_every_document_is_there_in_order_and_equal_to_tiktoken_s_ids(source, tokenizer, tokenizer_json, tmp_path):
    folder = prepare(source, tokenizer_json, tmp_path)
    files = sorted(source.glob("*.parquet"))
    for split, paths in (("train", files[:3]), ("val", files[3:])):
        expected = [[tokenizer.bos_id, *tokenizer.encoding.encode_ordinary(text)] for text in texts_of(*paths)]
        assert [document.tolist() for document in documents_of(folder, split)] == expected
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["documents"] == 160
    assert manifest["text_bytes"] == sum(len(text.encode()) for text in texts_of(*files))
    assert Tokenizer.load(folder / "tokenizer.json") == tokenizer
    assert np.array_equal(np.load(folder / "token_bytes.npy"), tokenizer.token_bytes())
    assert folder.name == f"corpus-bpe400-{tokenizer.fingerprint[:8]}"


def test_the_result_does_not_depend_on_the_number_of_workers(source, tokenizer_json, tmp_path):
    one = prepare(source, tokenizer_json, tmp_path, "--workers", 1, "--tokens-root", "one")
    three = prepare(source, tokenizer_json, tmp_path, "--workers", 3, "--tokens-root", "three")
    assert tree(one) == tree(three)
    assert len(TokenSet(one).entries) > 4


def test_running_again_tokenizes_nothing_and_touches_nothing(source, tokenizer_json, tmp_path):
    folder = prepare(source, tokenizer_json, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    done = run_prepare("--source", source, "--tokenizer", tokenizer_json, "--shard-text-bytes", 20_000, cwd=tmp_path)
    assert ", 0 to make" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before


def test_a_new_source_file_trains_and_nothing_moves_between_the_splits(source, tokenizer_json, tmp_path):
    later = {name: shutil.move(source / name, tmp_path) for name in ("shard_0.parquet", "shard_3.parquet")}
    folder = prepare(source, tokenizer_json, tmp_path)
    before, first = {path: path.stat().st_ino for path in (folder / "shards").iterdir()}, TokenSet(folder)
    assert {e.sources[0] for e in first.split("val")} == {"shard_2.parquet"}
    for path in later.values():
        shutil.move(path, source)
    flags = ("--source", source, "--tokenizer", tokenizer_json, "--shard-text-bytes", 20_000)
    summary = run_prepare(*flags, cwd=tmp_path).stdout
    assert "new in train: shard_0.parquet, shard_3.parquet\n  val is as it was: shard_2.parquet\n" in summary
    grown = TokenSet(folder)
    assert grown.entries[: len(first.entries)] == first.entries, "new shards come after those that there were"
    assert {e.sources[0] for e in grown.split("val")} == {"shard_2.parquet"}
    assert {path: path.stat().st_ino for path in before} == before, "nothing was tokenized twice"
    kept = {path.stem for path in (folder / "manifests").iterdir()}
    assert kept == {first.digest, grown.digest}
    assert grown.as_it_was(first.digest, "train").entries == first.entries

    assert "new in" not in run_prepare(*flags, cwd=tmp_path).stdout, "nothing changed"
    summary = run_prepare(*flags, "--val-file", "shard_0.parquet", cwd=tmp_path).stdout
    assert "moved to train, as --val-file says: shard_2.parquet" in summary
    assert "moved to val, as --val-file says: shard_0.parquet" in summary
    assert {e.sources[0] for e in TokenSet(folder).split("val")} == {"shard_0.parquet"}
    assert len(list((folder / "manifests").iterdir())) == 3


def test_a_validation_file_that_is_gone_is_not_replaced_by_one_that_was_trained_on(source, tokenizer_json, tmp_path):
    folder = prepare(source, tokenizer_json, tmp_path)
    before = tree(folder)
    shutil.move(source / "shard_3.parquet", tmp_path)
    flags = ("--source", source, "--tokenizer", tokenizer_json, "--shard-text-bytes", 20_000)
    done = run_prepare(*flags, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "has been prepared from shard_3.parquet too, and the source does not have it any more" in done.stderr
    assert tree(folder) == before
    done = run_prepare(*flags, "--val-file", "shard_2.parquet", cwd=tmp_path, check=False)
    assert done.returncode == 1, "no shard of it is taken out of the set either"
    assert tree(folder) == before


def test_another_tokenizer_prepares_beside_the_old(source, tokenizer_json, tmp_path):
    old = prepare(source, tokenizer_json, tmp_path)
    before = tree(old)
    other = tmp_path / "other.json"
    train_tokenizer(make_text(documents=50, seed=9), 350, "bpe350").save(other)
    new = prepare(source, other, tmp_path)
    assert new.parent == old.parent
    assert new != old
    assert tree(old) == before


def test_a_vocabulary_over_65536_is_stored_as_uint32(source, tokenizer, tmp_path):
    ranks = dict(tokenizer.ranks)
    special = {name: 70_000 + i for i, name in enumerate(tokenizer.special_tokens)}
    path = tmp_path / "wide.json"
    Tokenizer("wide", tokenizer.pattern, ranks, special, "<|bos|>").save(path)
    folder = prepare(source, path, tmp_path)
    assert json.loads((folder / "manifest.json").read_text())["dtype"] == "uint32"
    assert next(documents_of(folder, "train"))[0] == 70_000


def test_a_trained_tokenizer_is_kept_and_used_again(source, tmp_path):
    flags = ("--source", source, "--tokenizer", "train:300")
    first = run_prepare(*flags, cwd=tmp_path)
    second = run_prepare(*flags, cwd=tmp_path)
    assert (tmp_path / "data/tokenizers/corpus-bpe300.json").exists()
    assert "using the tokenizer trained before" in second.stderr
    assert first.stdout.splitlines()[-1] == second.stdout.splitlines()[-1]


# ---------------------------------------------------------------------------- killed


def start(source, tokenizer_json, cwd):
    """A preparation with one worker, in a process group of its own, that has finished at least one shard."""
    flags = ("--source", source, "--tokenizer", tokenizer_json, "--shard-text-bytes", 300_000, "--workers", "1")
    flags += ("--engine", "tiktoken")  # the slow one, so that there is a middle to be caught in
    command = [sys.executable, ROOT / "prepare_data.py", *map(str, flags)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=cwd, stdout=pipe, stderr=pipe, start_new_session=True)
    deadline = time.monotonic() + 60
    while not list(Path(cwd).glob("data/tokens/*/shards/*.json")) and time.monotonic() < deadline:
        time.sleep(0.002)
    return process, flags


@pytest.fixture
def large_source(tmp_path):
    folder = tmp_path / "corpus"
    for number in range(3):
        texts = make_text(documents=600, seed=number, words=500)
        write_parquet(folder / f"shard_{number}.parquet", texts, row_group_size=50)
    return folder


def test_a_run_that_was_killed_goes_on_and_equals_an_undisturbed_one(large_source, tokenizer_json, tmp_path):
    process, flags = start(large_source, tokenizer_json, tmp_path)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not list(tmp_path.glob("data/tokens/*/manifest.json")), "killed in the middle"
    again = run_prepare(*flags, cwd=tmp_path)
    assert "0 of" not in again.stderr.split(" shards are there")[0], "what was done is not done again"
    whole = run_prepare(*flags, "--tokens-root", "undisturbed", cwd=tmp_path)
    trees = [tree(tmp_path / run.stdout.splitlines()[-1]) for run in (again, whole)]
    assert trees[0] == trees[1]
    assert not [name for name in trees[0] if name.endswith(".tmp")]


def test_ctrl_c_stops_promptly_and_leaves_nothing_half_written(large_source, tokenizer_json, tmp_path):
    process, flags = start(large_source, tokenizer_json, tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"interrupted; run the same command to continue from here" in stderr
    assert b"Traceback" not in stderr
    run_prepare(*flags, cwd=tmp_path)
    assert not list(tmp_path.rglob("data/**/*.tmp"))


def test_two_preparations_of_one_set_do_not_meet(large_source, tokenizer_json, tmp_path):
    process, flags = start(large_source, tokenizer_json, tmp_path)
    os.killpg(process.pid, signal.SIGSTOP)  # so that it is in the middle for as long as the second needs to begin
    second = run_prepare(*flags, cwd=tmp_path, check=False)
    os.killpg(process.pid, signal.SIGCONT)
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert second.returncode == 1
    assert "another process is writing in this folder" in second.stderr


# ---------------------------------------------------------------------------- what a user can get wrong


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--source", "nowhere.parquet"), "nowhere.parquet: no such file or folder; expected"),
        (
            ("--source", "empty"),
            "empty: expected parquet, jsonl, txt, csv, md, arrow or json files in this folder, found none",
        ),
        (("--source", "corpus", "--tokenizer", "gpt7"), "unknown tokenizer 'gpt7'"),
        (("--source", "corpus", "--tokenizer", "train:many"), "expected train:N of up to"),
        (("--source", "corpus", "--tokenizer", "train:5"), "expected at least 265"),
        (("--source", "corpus", "--text-column", "content"), "expected a text column 'content', found columns text"),
        (("--source", "corpus", "--tokens-root", "a file"), "choose another folder"),
        (("--source", "corpus", "--workers", "0"), "workers must be a whole number of at least 1, not 0"),
        (("--source", "corpus", "--name", "a b"), "name must be of letters"),
    ],
)
def test_what_cannot_work_is_a_clear_message_and_no_traceback(source, tokenizer_json, tmp_path, flags, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a file").touch()
    flags = flags if "--tokenizer" in flags else (*flags, "--tokenizer", tokenizer_json)
    done = run_prepare(*flags, cwd=tmp_path, check=False)
    said = " ".join(done.stderr.replace("│", " ").split())  # a usage error comes in a box
    assert done.returncode in (1, 2)
    assert message in said
    assert "rror" in said
    assert "Traceback" not in said
    assert done.stdout == ""


def test_a_wrong_column_is_told_once_and_a_glob_takes_its_folder_s_name(source, tokenizer_json, tmp_path):
    flags = ("--source", source / "*.parquet", "--tokenizer", tokenizer_json)
    done = run_prepare(*flags, "--text-column", "content", cwd=tmp_path, check=False)
    assert done.stderr.count("expected a text column 'content'") == 1
    assert "and 1 more that differ only in the file or line, up to shard " in done.stderr
    done = run_prepare(*flags, cwd=tmp_path)
    assert done.stdout.splitlines()[-1].startswith(f"data/tokens/{source.name}-")


def test_a_damaged_file_fails_alone_and_the_next_run_does_what_is_missing(source, tokenizer_json, tmp_path):
    path = source / "shard_1.parquet"
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:500] + bytes(500) + whole[1000:]):
        path.write_bytes(damaged)
        done = prepare(source, tokenizer_json, tmp_path, check=False)
        assert done.returncode == 1
        assert "shard_1.parquet: expected a whole parquet file, found damage" in done.stderr
        assert "failed; fix the cause" in done.stderr
        assert not list(tmp_path.rglob("manifest.json"))
        sources = {path.name.split(".")[0] for path in tmp_path.glob("data/tokens/*/shards/*.json")}
        assert {"shard_0", "shard_2", "shard_3"} <= sources
        path.write_bytes(whole)
    folder = prepare(source, tokenizer_json, tmp_path)
    assert tree(folder) == tree(prepare(source, tokenizer_json, tmp_path, "--tokens-root", "undisturbed"))


def test_a_source_file_that_changed_under_a_finished_shard_is_refused(source, tokenizer_json, tmp_path):
    folder = prepare(source, tokenizer_json, tmp_path)
    before = tree(folder)
    write_parquet(source / "shard_0.parquet", make_text(documents=40, seed=99), row_group_size=8)
    done = prepare(source, tokenizer_json, tmp_path, check=False)
    assert done.returncode == 1
    assert "was made from other data" in done.stderr
    assert tree(folder) == before


def test_null_and_empty_documents_are_counted_in_record_manifest_and_summary(tmp_path, tokenizer_json):
    for number in range(2):
        write_parquet(tmp_path / "corpus" / f"{number}.parquet", ["a", None, "", "b", None])
    done = run_prepare("--source", "corpus", "--tokenizer", tokenizer_json, cwd=tmp_path)
    folder = tmp_path / done.stdout.splitlines()[-1]
    for path in (folder / "manifest.json", folder / "shards/0.000.json"):
        counts, share = json.loads(path.read_text()), 1 if path.name == "manifest.json" else 2
        assert (counts["null_documents"] * share, counts["empty_documents"] * share) == (4, 2)
    assert "left out: 4 null and 2 empty documents" in done.stdout


def test_the_help_explains_every_flag():
    text = run_prepare("--help", cwd=ROOT).stdout
    for flag in ("source", "num-shards", "tokenizer", "name", "tokens-root", "raw-dir", "workers", "shard-text-bytes"):
        assert f"--{flag}" in text
    assert "leave out and count lines, and conversations" in " ".join(text.replace("│", "").split())
    fields = re.findall(
        r"^    \w+: .*",
        (ROOT / "tokenmill" / "prepare" / "prepare_config.py").read_text().partition("def __post_init__")[0],
        re.MULTILINE,
    )
    assert len(fields) > 20
    assert [field for field in fields if "  # " not in field] == [], "a comment on another line is no help text"
