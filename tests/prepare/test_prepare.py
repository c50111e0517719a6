"""Preparing: the same bytes whatever the workers and what was killed; a fault has its message."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import tasks
from making import ROOT, make_text, read_manifest, run_prepare, tree, write_parquet

from tokenmill.messages import in_bytes
from tokenmill.prepare import choose_tokenizer
from tokenmill.prepare.destination import Destination
from tokenmill.prepare.made import Work
from tokenmill.prepare.make import begin_workers
from tokenmill.prepare.pool import Pool
from tokenmill.store.token_sets import TokenSet
from tokenmill.text.formats import ReadOptions
from tokenmill.tokenize.tokenizer import Tokenizer
from tokenmill.tokenize.train import train_tokenizer


def prepare(source, tokenizer_json, cwd, *flags, **more):
    """Prepares `source` with small shards; the token set's folder, as stdout's last line has it."""
    fixed = ("--source", source, "--tokenizer", tokenizer_json, "--shard-text-bytes", 5_000)
    fixed += () if "--val-fraction" in flags else ("--val-file", "shard_3.parquet")
    done = run_prepare(*fixed, *flags, cwd=cwd, **more)
    return cwd / done.stdout.splitlines()[-1] if done.returncode == 0 else done


def documents_of(folder, split):
    token_set = TokenSet(folder)
    for entry in token_set.split(split):
        shard = token_set.open(entry)
        yield from np.split(shard.tokens, shard.offsets[1:-1].astype(int))


def texts_of(*paths):
    columns = [pq.read_table(path)["text"].to_pylist() for path in paths]
    return list(filter(None, chain.from_iterable(columns)))


def test_every_document_is_there_in_order_and_equal_to_tiktoken_s_ids(
    source, tokenizer, tokenizer_json, tmp_path
):
    folder = prepare(source, tokenizer_json, tmp_path)
    files = sorted(source.glob("*.parquet"))
    for split, paths in (("train", files[:3]), ("val", files[3:])):
        expected = [
            [tokenizer.bos_id, *tokenizer.encoding.encode_ordinary(text)]
            for text in texts_of(*paths)
        ]
        assert [document.tolist() for document in documents_of(folder, split)] == expected
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["documents"] == 160
    assert manifest["text_bytes"] == sum(len(text.encode()) for text in texts_of(*files))
    assert Tokenizer.load(folder / "tokenizer.json") == tokenizer
    assert np.array_equal(np.load(folder / "token_bytes.npy"), tokenizer.token_bytes())
    assert folder.name == f"corpus-bpe400-{tokenizer.fingerprint[:8]}"


def test_the_result_does_not_depend_on_the_number_of_workers(source, tokenizer_json, tmp_path):
    by_one_worker = prepare(
        source, tokenizer_json, tmp_path, "--workers", 1, "--tokens-root", "one"
    )
    three = prepare(source, tokenizer_json, tmp_path, "--workers", 3, "--tokens-root", "three")
    assert tree(by_one_worker) == tree(three)
    assert len(TokenSet(by_one_worker).entries) > 4


def test_the_disk_that_is_needed_is_estimated_from_a_sample(source, tokenizer_json, tmp_path):
    flags = ("--source", source, "--tokenizer", tokenizer_json)
    ahead = run_prepare(*flags, "--dry-run", cwd=tmp_path).stdout
    amounts = re.search(r"about ([\d.]+) kB of text to tokenize, about ([\d.]+) kB", ahead)
    wrong = run_prepare(*flags, "--text-column", "body", "--dry-run", cwd=tmp_path, check=False)
    assert "expected text in column 'body', found columns" in wrong.stderr
    folder = tmp_path / run_prepare(*flags, cwd=tmp_path).stdout.splitlines()[-1]
    sizes = [path.stat().st_size for path in folder.glob("shards/*.[bi][id][nx]")]
    assert float(amounts[1]) == pytest.approx(read_manifest(folder)["text_bytes"] / 1000, rel=0.1)
    assert float(amounts[2]) == pytest.approx(sum(sizes) / 1000, rel=0.1)


def test_running_again_tokenizes_nothing_and_touches_nothing(source, tokenizer_json, tmp_path):
    folder = prepare(source, tokenizer_json, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    flags = ("--source", source, "--tokenizer", tokenizer_json, "--dry-run")
    assert "all shards are made" in run_prepare(*flags, cwd=tmp_path).stdout
    assert prepare(source, tokenizer_json, tmp_path) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before


def test_a_set_that_is_named_alone_is_prepared_as_it_was_made(source, tokenizer_json, tmp_path):
    flags = ("--source", source, "--name", "mine", "--tokenizer", tokenizer_json)
    flags += ("--val-file", "shard_3.parquet")
    folder = run_prepare(*flags, cwd=tmp_path).stdout.splitlines()[-1]
    write_parquet(source / "shard_4.parquet", make_text(documents=9, seed=4))
    for words in (("--name", "mine"), (folder,)):
        grown = run_prepare(*words, cwd=tmp_path)
        assert grown.stdout.splitlines()[-1] == folder
    assert (("shard_4.parquet",), 9) in [
        (entry.sources, entry.documents) for entry in TokenSet(tmp_path / folder).entries
    ]
    refused = run_prepare(folder, "--text-column", "body", cwd=tmp_path, check=False)
    assert "text_column was 'text', is 'body'" in refused.stderr
    command = shlex.join(["tokenmill", "prepare", *map(str, flags)])
    parts = refused.stderr.split(f"the command that made it: cd {tmp_path} && tokenmill prepare ")
    assert sorted(parts[1].split()) == sorted(command.split()[2:])
    assert run_prepare("--name", "yours", cwd=tmp_path, check=False).returncode == 2
    (tmp_path / "below").mkdir()
    elsewhere = run_prepare(tmp_path / folder, cwd=tmp_path / "below", check=False)
    assert f"run it there: cd {tmp_path} && tokenmill prepare {tmp_path / folder}" in (
        elsewhere.stderr
    )
    (command,) = tmp_path.glob("data/tokens/.*.command")
    kept = command.read_bytes()
    command.write_text("cd 'unclosed")
    damaged = run_prepare(folder, cwd=tmp_path, check=False)
    assert f"{command.name}: expected the command that made the set, found damage" in damaged.stderr
    command.write_bytes(kept)
    shutil.rmtree(tmp_path / folder)
    gone = run_prepare("--name", "mine", cwd=tmp_path, check=False)
    assert "no set 'mine' in data/tokens says how it was made" in gone.stderr


def test_workers_have_the_encoder_that_was_made_before_they_were_forked(source, tokenizer_json):
    folder = Path(tokenizer_json).parent
    shutil.copy(tokenizer_json, folder / "tokenizer.json")
    destination = Destination(folder, str(folder))
    work = Work(destination, ReadOptions(), "", "tiktoken", 1000)
    counts = []
    with Pool(2) as pool:
        pool.run(
            tasks.cached_encoders,
            range(4),
            on_outcome=lambda task, count: counts.append(count),
            begin=partial(begin_workers, work),
        )
    assert counts == [1] * 4


def test_a_set_that_is_continued_validates_by_its_own_rule(source, tokenizer_json, tmp_path):
    flags = ("--source", source, "--name", "mine", "--tokenizer", tokenizer_json)
    folder = run_prepare(*flags, cwd=tmp_path).stdout.splitlines()[-1]
    assert read_manifest(tmp_path / folder)["prepared"]["validation"] == {"fraction": 0.1}
    run_prepare(folder, cwd=tmp_path)
    (command,) = tmp_path.glob("data/tokens/.*.command")
    assert "--val-fraction 0.1" in command.read_text()


def test_an_attempt_that_fails_leaves_the_command_that_made_the_set(
    source, tokenizer_json, tmp_path
):
    flags = ("--source", source, "--name", "mine", "--tokenizer", tokenizer_json)
    folder = run_prepare(*flags, cwd=tmp_path).stdout.splitlines()[-1]
    (command,) = tmp_path.glob("data/tokens/.*.command")
    kept = command.read_bytes()
    shard = bytearray((source / "shard_3.parquet").read_bytes())
    shard[20:200] = bytes(180)  # a page, which only making reads
    (source / "shard_4.parquet").write_bytes(shard)
    failed = run_prepare(folder, "--skip-broken", cwd=tmp_path, check=False)
    assert "failed: " in failed.stderr
    assert command.read_bytes() == kept


def test_a_remembered_command_keeps_every_character(tmp_path, tokenizer_json):
    (tmp_path / "text").mkdir()
    flags = ("--source", "text", "--name", "mine", "--tokenizer", tokenizer_json)
    flags += ("--document-separator", "\r\n\r\n", "--val-file", "b.txt")
    for name, text in (("a.txt", b"one\r\n\r\ntwo\r\n\r\nthree"), ("b.txt", b"four")):
        (tmp_path / "text" / name).write_bytes(text)
    folder = tmp_path / run_prepare(*flags, cwd=tmp_path).stdout.splitlines()[-1]
    (tmp_path / "text" / "c.txt").write_bytes(b"five\r\n\r\nsix")
    run_prepare("--name", "mine", cwd=tmp_path)
    assert read_manifest(folder)["documents"] == 6


def test_another_tokenizer_prepares_beside_the_old(source, tokenizer_json, tmp_path):
    old = prepare(source, tokenizer_json, tmp_path)
    before = tree(old)
    other_path = tmp_path / "other.json"
    train_tokenizer(make_text(documents=50, seed=9), 350, "bpe350").save(other_path)
    new = prepare(source, other_path, tmp_path)
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


def test_training_a_tokenizer_says_what_it_does_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setattr(choose_tokenizer, "LINE_SECONDS", 0.01)
    said = []

    def texts():
        yield from make_text(documents=50, seed=9)
        yield "é " * 50_000
        while not said:
            time.sleep(0.01)

    choose_tokenizer._train(texts(), 300, tmp_path / "bpe300.json", said.append)
    assert re.fullmatch(r"training for \d+ s: [\d.]+ (bytes|kB) of text is read", said[0])
    texts_read = [*make_text(documents=50, seed=9), "é " * 50_000]
    size = sum(len(text.encode()) for text in texts_read)
    merging = f"all {in_bytes(size)} of text is read; now tokens are merged"
    assert [line for line in said if merging in line]


def test_a_trained_tokenizer_is_kept_and_used_again(source, tmp_path):
    flags = ("--source", source, "--tokenizer", "train:300")
    first = run_prepare(*flags, cwd=tmp_path)
    second = run_prepare(*flags, cwd=tmp_path)
    assert (tmp_path / "data/tokenizers/corpus-bpe300.json").exists()
    assert "using the tokenizer trained before" in second.stderr
    assert first.stdout.splitlines()[-1] == second.stdout.splitlines()[-1]


# ---------------------------------------------------------------------------- killed


def start(source, tokenizer_json, cwd):
    """A preparation with one worker, in a group of its own, that has finished a shard or more."""
    flags = (
        "--source",
        source,
        "--tokenizer",
        tokenizer_json,
        "--shard-text-bytes",
        100_000,
        "--workers",
        "1",
    )
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
        texts = make_text(documents=250, seed=number, words=500)
        write_parquet(folder / f"shard_{number}.parquet", texts, row_group_size=50)
    return folder


def test_ctrl_c_stops_promptly_and_leaves_nothing_half_written(
    large_source, tokenizer_json, tmp_path
):
    process, flags = start(large_source, tokenizer_json, tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"interrupted; run the same command to continue from here" in stderr
    assert b"Traceback" not in stderr
    run_prepare(*flags, cwd=tmp_path)
    assert not list(tmp_path.rglob("data/**/*.tmp"))


def test_two_preparations_of_one_set_at_once_write_the_same_bytes(
    large_source, tokenizer_json, tmp_path
):
    process, flags = start(large_source, tokenizer_json, tmp_path)
    second = run_prepare(*flags, cwd=tmp_path)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    undisturbed = run_prepare(*flags, "--tokens-root", "undisturbed", cwd=tmp_path)
    trees = [tree(tmp_path / run.stdout.splitlines()[-1]) for run in (second, undisturbed)]
    assert trees[0] == trees[1]


# ---------------------------------------------------------------------------- faults of a user


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--source", "nowhere.parquet"), "nowhere.parquet: no such file or folder; expected"),
        (
            ("--source", "empty"),
            "empty: expected parquet/arrow/jsonl/json/csv/txt/md files in this folder, found none",
        ),
        (("--source", "corpus", "--tokenizer", "gpt7"), "unknown tokenizer 'gpt7'"),
        (("--source", "corpus", "--tokenizer", "train:many"), "expected train:N of up to"),
        (("--source", "corpus", "--tokenizer", "train:5"), "expected at least 265"),
        (
            ("--source", "corpus", "--text-column", "content"),
            "expected text in column 'content', found columns text",
        ),
        (
            ("--source", "corpus", "--tokens-root", "a file"),
            "a file: cannot be made (File exists); choose another folder",
        ),
        (
            ("--source", "corpus", "--workers", "0"),
            "workers must be a whole number of at least 1, not 0",
        ),
        (("--source", "corpus", "--name", "a b"), "name must be of letters"),
    ],
)
def test_what_cannot_work_is_a_clear_message_and_no_traceback(
    source, tokenizer_json, tmp_path, flags, message
):
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


def test_a_wrong_column_is_told_once_and_a_glob_takes_its_folder_s_name(
    source, tokenizer_json, tmp_path
):
    flags = ("--source", source / "*.parquet", "--tokenizer", tokenizer_json)
    done = run_prepare(
        *flags, "--text-column", "content", "--shard-text-bytes", 5_000, cwd=tmp_path, check=False
    )
    assert done.stderr.count("expected text in column 'content'") == 1
    assert re.search("and [0-9]+ more that differ only in the file or line", done.stderr)
    assert list(tmp_path.glob("data/tokens/*")) == [], "a refusal leaves nothing"
    done = run_prepare(*flags, cwd=tmp_path)
    *summary, folder = done.stdout.splitlines()
    assert folder.startswith(f"data/tokens/{source.name}-")
    assert summary[0].endswith(" of 400 tokens, BOS <|bos|>")
    assert any(line.endswith(f" -m tokenmill report {folder}") for line in summary), (
        "as it is typed here"
    )


def test_a_damaged_file_fails_alone_and_the_next_run_does_what_is_missing(
    source, tokenizer_json, tmp_path
):
    path = source / "shard_1.parquet"
    intact = path.read_bytes()
    for damaged in (intact[: len(intact) // 2], intact[:500] + bytes(500) + intact[1000:]):
        path.write_bytes(damaged)
        done = prepare(source, tokenizer_json, tmp_path, check=False)
        assert done.returncode == 1
        assert "shard_1.parquet: expected a whole parquet file, found damage" in done.stderr
        assert "fix the cause and run the same command again" in done.stderr
        assert not list(tmp_path.rglob("manifest.json"))
        sources = {path.name.split(".")[0] for path in tmp_path.glob("data/tokens/*/shards/*.json")}
        assert {"shard_0", "shard_2", "shard_3"} <= sources
        path.write_bytes(intact)
    flags = ("--source", source, "--tokenizer", tokenizer_json, "--shard-text-bytes", 5_000)
    done = run_prepare(*flags, "--val-file", "shard_3.parquet", cwd=tmp_path)
    assert re.search(r"the shards of \d+ of \d+ units are there", done.stderr)
    folder = tmp_path / done.stdout.splitlines()[-1]
    assert tree(folder) == tree(
        prepare(source, tokenizer_json, tmp_path, "--tokens-root", "undisturbed")
    )


def test_null_and_empty_documents_are_counted_in_record_manifest_and_summary(
    tmp_path, tokenizer_json
):
    for name in ("a", "val"):
        write_parquet(
            tmp_path / "corpus" / f"{name}.parquet",
            ["a" * 50, None, "", "b", None] * (9 if name == "a" else 1),
        )
    flags = ("--source", "corpus", "--tokenizer", tokenizer_json, "--val-file", "val.parquet")
    done = run_prepare(*flags, cwd=tmp_path)
    folder = tmp_path / done.stdout.splitlines()[-1]
    for path, count in ((folder / "manifest.json", 10), (folder / "shards/a.000.json", 9)):
        counts = json.loads(path.read_text())
        assert (counts["null_documents"], counts["empty_documents"]) == (2 * count, count)
    assert "20 null documents (the first in a.parquet)" in done.stdout
    assert "10 empty documents (the first in a.parquet)" in done.stdout
