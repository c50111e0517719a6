"""What is learned of a source is kept, parts plan their own files, and no batch is larger than its text has to be."""

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import warm
from making import ROOT, make_text, run_prepare, tree, write_parquet

from tokenmill.prepare import plan
from tokenmill.prepare.choose_tokenizer import training_texts
from tokenmill.prepare.input_files import InputFiles
from tokenmill.prepare.inventory import Inventory
from tokenmill.store.files import AtomicFile, remove_temporary_files, write_file
from tokenmill.store.token_sets import TokenSet
from tokenmill.text import separated
from tokenmill.text.formats import ReadOptions
from tokenmill.text.listing import local_files
from tokenmill.text.sources import plan_units, read_documents, split_files
from tokenmill.text.units import SourceFile


@pytest.fixture
def compressed(tmp_path):
    """Five jsonl.gz files, large beside the shards that they are cut into."""
    folder = tmp_path / "gz"
    folder.mkdir()
    for number in range(5):
        data = "".join(json.dumps({"text": text}) + "\n" for text in make_text(200, seed=number, words=40))
        (folder / f"{number}.jsonl.gz").write_bytes(gzip.compress(data.encode()))
    return folder


def flags_of(compressed, tokenizer_json):
    return ("--source", compressed, "--tokenizer", tokenizer_json, "--shard-text-bytes", 30_000)


def test_parts_decompress_each_their_own_files_and_finish_none(compressed, tokenizer_json, tmp_path):
    flags = flags_of(compressed, tokenizer_json)
    whole = run_prepare(*flags, "--tokens-root", "whole", cwd=tmp_path)
    said = []
    for part in ("2/3", "1/3", "3/3"):
        said.append(run_prepare(*flags, "--part", part, cwd=tmp_path).stderr)
    for many, text in zip(("2 compressed files", "2 compressed files", "1 compressed file,"), said, strict=True):
        assert f"looking through {many}" in text
    done = run_prepare(*flags, cwd=tmp_path)
    assert "looking through" not in done.stderr
    found, expected = (tree(tmp_path / one.stdout.splitlines()[-1]) for one in (done, whole))
    assert {n: d for n, d in found.items() if "planned" not in n} == {
        n: d for n, d in expected.items() if "planned" not in n
    }
    again = run_prepare(*flags, cwd=tmp_path)
    assert "looking through" not in again.stderr
    assert " 0 to make" in again.stderr


def test_what_decompressing_told_is_kept_and_forgotten_when_the_file_changes(compressed, tmp_path, monkeypatch):
    inventory = Inventory(tmp_path / "set", "f" * 64, ReadOptions(), [], 30_000)
    (tmp_path / "set").mkdir()
    files = split_files(local_files(str(compressed)))
    first = inventory.plan((files[0],))

    def refuse(*_):
        raise AssertionError("it was decompressed again")

    with monkeypatch.context() as patch:
        patch.setattr(separated, "_text_size", refuse)
        assert inventory.plan((files[0],)) == first
        Path(files[0].path).write_bytes(gzip.compress(b'{"text": "another"}\n'))
        with pytest.raises(AssertionError, match="decompressed again"):
            inventory.plan((files[0],))


def test_ctrl_c_does_not_wait_for_files_that_are_being_looked_through(tokenizer_json, tmp_path):
    folder = tmp_path / "large"
    folder.mkdir()
    line = (json.dumps({"text": "word " * 200}) + "\n").encode() * 1000
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        (folder / name).write_bytes(gzip.compress(line, 1) * 1500)  # a GB and a half
    command = [sys.executable, ROOT / "prepare_data.py", *map(str, flags_of(folder, tokenizer_json))]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert "looking through 2 compressed files" in process.stderr.readline()
    time.sleep(0.3)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert "interrupted" in stderr
    assert process.returncode == 128 + signal.SIGINT
    assert not list(tmp_path.rglob("planned/*.json")), f"it waited {time.monotonic() - started:.1f} s for the plan"


def test_a_few_long_documents_among_many_short_ones_are_read_a_few_at_a_time(tmp_path):
    rng = random.Random(0)
    texts = ["tiny text"] * 20_000
    texts[10_000:10_000] = [rng.randbytes(500_000).hex() for _ in range(40)]
    path = write_parquet(tmp_path / "a.parquet", texts, row_group_size=100_000)
    (unit,) = plan_units(split_files({"a.parquet": path, "z.parquet": path})[0], ReadOptions(), 1 << 40)
    sizes, count = [], 0
    for documents in read_documents(unit):
        sizes.append(documents.text_bytes)
        count += len(documents.texts)
    assert count == len(texts)
    assert max(sizes) <= 40 << 20
    assert len(sizes) < 50


def test_a_tokenizer_is_trained_on_all_of_the_source_not_on_its_beginning(tmp_path):
    for number in range(10):
        words = make_text(1000, seed=number, words=60)
        texts = [f"file{number}part{n // 200} {text}" for n, text in enumerate(words)]
        write_parquet(tmp_path / "corpus" / f"{number}.parquet", texts, row_group_size=100)
    files = split_files(local_files(str(tmp_path / "corpus")))
    sampled = list(training_texts(InputFiles(files), ReadOptions(), 1_000_000))
    assert 800_000 < sum(map(len, sampled)) < 1_200_000
    assert {text.split("part")[0] for text in sampled} == {f"file{number}" for number in range(9)}
    parts = {text.split(" ")[0] for text in sampled}
    assert len(parts) >= 9 * 3, "from several places of each file"
    assert len(list(training_texts(InputFiles(files), ReadOptions(), 1 << 30))) == 9000


def test_an_end_of_text_where_asked_after_bos_and_the_text(source, tokenizer, tokenizer_json, tmp_path):
    flags = ("--source", source, "--tokenizer", tokenizer_json)
    plain = TokenSet(tmp_path / run_prepare(*flags, cwd=tmp_path).stdout.splitlines()[-1])
    done = run_prepare(*flags, "--eot-token", "<|assistant_end|>", cwd=tmp_path)
    ended = TokenSet(tmp_path / done.stdout.splitlines()[-1])
    assert ended.path != plain.path
    eot = tokenizer.special_tokens["<|assistant_end|>"]
    assert (ended.tokenizer["eot_token"], ended.tokenizer["eot_id"]) == ("<|assistant_end|>", eot)
    for one, other in zip(plain.entries, ended.entries, strict=True):
        without, with_it = plain.open(one), ended.open(other)
        for n in range(one.documents):
            document = with_it.tokens[with_it.offsets[n] : with_it.offsets[n + 1]]
            assert document[-1] == eot
            assert np.array_equal(document[:-1], without.tokens[without.offsets[n] : without.offsets[n + 1]])
    assert warm.run("-m", "tokenmill", "verify", ended.path, cwd=ROOT).returncode == 0
    none = run_prepare(*flags, "--eot-token", "<|end|>", cwd=tmp_path, check=False)
    assert "'<|end|>': the special tokens of bpe400 are <|bos|>" in none.stderr
    same = run_prepare(*flags, "--eot-token", "<|bos|>", cwd=tmp_path, check=False)
    assert "<|bos|>: begins documents in bpe400, and cannot end them too" in same.stderr


def test_temporary_files_of_killed_processes_go_and_of_others_stay(tmp_path):
    code = (
        "import sys, os, time; from pathlib import Path; from tokenmill.store.files import AtomicFile\n"
        "file = AtomicFile(Path(sys.argv[1])); file.write(b'half'); print(flush=True); time.sleep(60)"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", code, tmp_path / name], cwd=ROOT, stdout=subprocess.PIPE)
        for name in ("killed", "alive")
    ]
    for writer in writers:
        writer.stdout.readline()
    writers[0].kill()
    writers[0].wait()
    with AtomicFile(tmp_path / "mine") as file:
        remove_temporary_files(tmp_path)
        assert sorted(path.name.partition(".")[0] for path in tmp_path.iterdir()) == ["alive", "mine"]
        file.commit()
    writers[1].kill()
    writers[1].wait()
    remove_temporary_files(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"a\.bin: cannot be written \(No space left on device\); make room") as caught:
        write_file(tmp_path / "a.bin", b"x")
    assert caught.value.errno == 28
    assert list(tmp_path.iterdir()) == []


def test_more_workers_than_cores_are_warned_of(source, tokenizer_json, tmp_path):
    done = run_prepare("--source", source, "--tokenizer", tokenizer_json, "--workers", 64, cwd=tmp_path)
    assert "warning: 64 workers for " in done.stderr


def test_a_jsonl_line_that_is_nested_too_deep_and_an_empty_gz(tokenizer_json, tmp_path):
    folder = tmp_path / "odd"
    folder.mkdir()
    deep = '{"text": "a", "x": ' + "[" * 2000 + "]" * 2000 + "}\n"
    (folder / "a.jsonl").write_text('{"text": "fine"}\n' + deep)
    (folder / "b.jsonl").write_text('{"text": "fine"}\n')
    flags = ("--source", folder, "--tokenizer", tokenizer_json)
    done = run_prepare(*flags, cwd=tmp_path, check=False)
    assert "a.jsonl: line 2: expected a JSON object" in done.stderr
    assert "nested too deep" in done.stderr
    assert "Traceback" not in done.stderr
    assert "left out: 1 broken line\n" in run_prepare(*flags, "--skip-broken", cwd=tmp_path).stdout
    (folder / "c.jsonl.gz").write_bytes(b"")
    done = run_prepare(*flags, "--skip-broken", cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "c.jsonl.gz: expected a whole jsonl file, found damage (0 bytes" in done.stderr


def test_an_empty_validation_file_is_warned_of(tokenizer_json, tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"text": "fine"}\n')
    (folder / "b.jsonl").write_text("")
    done = run_prepare("--source", folder, "--tokenizer", tokenizer_json, cwd=tmp_path)
    assert "warning: no document is there to validate with" in done.stdout


def test_reading_tells_memory_permission_and_a_large_window_from_damage(tmp_path):
    from tokenmill.text.units import naming_file

    file = SourceFile("a.jsonl", str(tmp_path / "a.jsonl"), "train")
    for error, kind, message in (
        (MemoryError(), MemoryError, "there is not memory enough to read it; use fewer --workers"),
        (PermissionError(13, "Permission denied"), PermissionError, "cannot be read .Permission denied.; give access"),
        (OSError("ZSTD: Frame requires too much memory for decoding"), ValueError, "larger window than Arrow decodes"),
        (OSError("torn"), ValueError, "found damage .torn."),
    ):
        with pytest.raises(kind, match=message), naming_file(file):
            raise error


def test_files_at_addresses_are_looked_at_side_by_side():
    """Each waits for some answers: one after the other, 20,000 files at 100 ms were 45 minutes."""
    together = threading.Barrier(plan.REQUESTS)

    class Inventory:
        def plan(self, group):
            together.wait(timeout=60)  # as slow as all of them
            return []

        def take(self, units):
            pass

    files = [SourceFile(f"{n}.parquet", f"https://host/{n}.parquet", "train") for n in range(2 * plan.REQUESTS)]
    assert plan._plan(Inventory(), [(file,) for file in files], 2) == ([], [])
