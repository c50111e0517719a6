"""Damages what tokenmill reads, at random: every reader does its work, or says in words what is
wrong.

    make fuzz CASES=5000 SEED=7                      more cases than `make test` runs
    FIRST=123 CASES=1 SEED=7 pytest tests/test_fuzz.py -s       one of them, with what it printed

A case takes one thing that is in order (a token set, a tokenizer, a source, another program's
files), changes some of it, and gives it to one reader, in a process of its own. Positions, and what
a server sends, have tests of their own. Wrong are a traceback or a panic, the end by a signal, more
than 30 seconds, a file that changed outside the folders that were named, and a `verify` that finds
nothing where a loader then refuses the set.
"""

import contextlib
import copy
import gzip
import io
import json
import math
import os
import pickle
import random
import shutil
from functools import partial
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
import warm
from making import ROOT, make_text, run_prepare, tree, write_parquet

from tokenmill import cli
from tokenmill.tokenize.train import train_tokenizer

FIRST = int(os.environ.get("FIRST", 0))
CASES = int(os.environ.get("CASES", 30))
SEED = int(os.environ.get("SEED", 16))
WEIRD = [None, True, -1, 0, 1, 2, 255, 1 << 31, 10**9, 1 << 63, 10**30, 0.5, math.inf, math.nan]
WEIRD += ["", "../../home/diary", "/etc/hostname", "a\x1b[31m\n", "\ud800", "Train"]
WEIRD += ["9" * 5000, "x" * 100_000, [], {}, [[]], [None], {"a": 1}]
LAYOUTS = ("nanogpt", "raw", "llm.c", "npy", "megatron", "parquet", "datatrove")
ENV = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
BEGIN = """
import sys
from pathlib import Path
from reading import read
from tokenmill import RowLoader, cli
from tokenmill.text.formats import ReadOptions
from tokenmill.text.listing import list_sources
from tokenmill.tokenize.load import load_any
def run():
"""


# ---------------------------------------------------------------------------- what is in order


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """A folder with one of each kind."""
    base = tmp_path_factory.mktemp("fuzz")
    texts = [make_text(documents=40, seed=seed, words=60) for seed in range(3)]
    for number, documents in enumerate(texts):
        path = base / "corpus" / f"{number}.parquet"
        write_parquet(path, [*documents, None, ""], row_group_size=9)
    make_tokenizers(base / "tokenizers", [*chain(*texts)])
    make_sources(base / "sources", texts)
    done = run_prepare(*flags_of(base), cwd=base)
    shutil.copytree(base / done.stdout.splitlines()[-1], base / "set")
    for layout in LAYOUTS:
        words = ["convert", "out", layout, str(base / "set"), str(base / "theirs" / layout)]
        if layout not in ("raw", "npy", "parquet"):
            words += ["--eos", "--eos-token", "<|user_end|>"]
        with contextlib.redirect_stdout(io.StringIO()):
            assert cli.main(words) == 0
    return base


def make_tokenizers(folder: Path, texts: list[str]) -> None:
    folder.mkdir()
    tokenizer = train_tokenizer(iter(texts), 320, "fuzz")
    tokenizer.save(folder / "ours.json")
    (folder / "nanochat.pkl").write_bytes(pickle.dumps(tokenizer.encoding))
    theirs = tokenizers.ByteLevelBPETokenizer(unicode_normalizer="nfc")
    theirs.train_from_iterator(texts, vocab_size=320, special_tokens=["<s>"], show_progress=False)
    theirs.save(str(folder / "theirs.json"))


def make_sources(folder: Path, texts: list[list[str]]) -> None:
    write_parquet(folder / "a.parquet", texts[0], row_group_size=9)
    table = pa.table({"text": texts[0] * 3})
    pq.write_table(table, folder / "b.parquet", use_dictionary=True, compression="snappy")
    lines = [json.dumps({"text": text, "id": i}) + "\n" for i, text in enumerate(texts[0])]
    for name, data in (("a.jsonl", "".join(lines)), ("a.txt", "\n\n".join(texts[1]))):
        data = data.encode()
        (folder / name).write_bytes(data)
        (folder / f"{name}.gz").write_bytes(gzip.compress(data, mtime=0))
        (folder / f"{name}.zst").write_bytes(bytes(pa.Codec("zstd").compress(data)))


def flags_of(base: Path) -> list[str]:
    paths = f"--source {base}/corpus --tokenizer {base}/tokenizers/ours.json --workers 1"
    return [*paths.split(), "--shard-text-bytes", "9000", "--keep-columns", "text"]


# ---------------------------------------------------------------------------- damage


def damaged(rng: random.Random, paths: list[Path], home: Path) -> str:
    """Changes one of the files, or two; in words how."""
    changes = []
    for path in {rng.choice(paths) for _ in range(rng.choice([1, 1, 1, 2]))}:
        kinds = [of_bytes, of_the_file]
        if path.suffix == ".json":
            kinds += [of_json] * 8
        damage = rng.choice(kinds)
        changes.append(f"{path.name} {damage(rng, path, home)}")
    return "; ".join(changes)


def of_json(rng: random.Random, path: Path, _) -> str:
    value = json.loads(path.read_text())
    parent, key = a_place(rng, value)
    change = f"at {ascii(key)[:40]} "
    match rng.randrange(5):
        case 0:
            del parent[key]
            change += "deleted"
        case 1 if isinstance(parent, list):
            parent.insert(key, copy.deepcopy(parent[key]))
            change += "twice"
        case 2 if isinstance(parent[key], int | float) and not isinstance(parent[key], bool):
            parent[key] = parent[key] + rng.choice([-1, 1, 1000, 0.5])
            change += f"now {parent[key]}"
        case 3:
            source, there = a_place(rng, value)
            parent[key] = copy.deepcopy(source[there])
            change += f"what is at {ascii(there)[:40]}"
        case _:
            parent[key] = rng.choice(WEIRD)
            change += f"now {ascii(parent[key])[:40]}"
    path.write_text(json.dumps(value))
    return change


def a_place(rng: random.Random, value) -> tuple[dict | list, str | int]:
    """A container within a value, and a key of it; the deeper ones are as likely as the outer."""
    while True:
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if not isinstance(value[key], dict | list) or not value[key] or rng.random() < 0.15:
            return value, key
        value = value[key]


def of_bytes(rng: random.Random, path: Path, _) -> str:
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data)) if data else 0
    if rng.random() < 0.4:  # headers and footers
        near_begin = min(at, rng.randrange(64))
        near_end = max(0, len(data) - 1 - rng.randrange(64))
        at = rng.choice([near_begin, near_end])
    end = at + rng.choice([1, 1, 4, 8, 100])
    before = data[at:end]
    kinds = {
        "random": rng.randbytes(len(before)),
        "zeros or ones": bytes([rng.choice([0, 255])]) * len(before),
        "bits": bytes([byte ^ 1 << rng.randrange(8) for byte in before]),
        "more": rng.randbytes(9) + before,
        "fewer": b"",
        "cut": b"",
    }
    kind = rng.choice([*kinds])
    if kind == "cut":
        end = len(data)
    data[at:end] = kinds[kind]
    path.write_bytes(data)
    return f"{kind} bytes at {at:,}"


def of_the_file(rng: random.Random, path: Path, home: Path) -> str:
    kind = rng.choice(
        ["gone", "empty", "a folder", "a pipe", "a link to itself", "a link to another", "zeros"]
    )
    size = path.stat().st_size
    path.unlink()
    match kind:
        case "empty":
            path.write_bytes(b"")
        case "a folder":
            path.mkdir()
        case "a pipe":
            os.mkfifo(path)
        case "a link to itself":
            path.symlink_to(path)
        case "a link to another":
            path.symlink_to(home / "diary.bin")
        case "zeros":
            path.write_bytes(bytes(size))
    return kind


# ---------------------------------------------------------------------------- readers


def code(*lines: str) -> list[str]:
    """A command that runs lines of Python, and ends as tokenmill's own do."""
    body = "".join(f"    {line}\n" for line in lines)
    return ["-c", f"{BEGIN}{body}sys.exit(cli._exit_status(lambda: run() or 0))"]


def loading(folder: Path, packing: str) -> list[str]:
    settings = f"batch_size=2, seq_len=32, packing={packing!r}, prefetch=0"
    made = f"loader = RowLoader({str(folder)!r}, {settings})"
    return code(made, "for _ in range(4): next(loader)", "loader.state_dict()")


def of_a_set(rng, base, work):
    folder = shutil.copytree(base / "set", work / "set")
    files = files_in(folder)
    small = [path for path in files if path.parent.name != "shards"]
    change = damaged(rng, sorted(small * 4 + files), work / "home")
    verbs = [["verify", folder, "--workers", 1], ["verify", folder, "--quick"]] * 2
    verbs += [
        ["show", folder, "--row", 3, "--seq-len", 64],
        ["show", folder, "--document", 7, "--seq-len", 64],
        ["report", folder, "--out", work / "report.html"],
        ["convert", "out", rng.choice(LAYOUTS), folder, work / "out"],
        ["push", folder, work / "sent"],
    ]
    commands = [["-m", "tokenmill", *words] for words in verbs]
    for packing in ("best_fit", "nanochat", "concat", "random"):
        commands.append(loading(folder, packing))
    return change, rng.choice(commands)


def of_a_set_that_preparing_goes_on_with(rng, base, work):
    (former,) = (base / "data" / "tokens").glob("corpus-fuzz-*")
    folder = shutil.copytree(former, work / "tokens" / former.name)
    files = [path for path in files_in(folder) if path.suffix in (".json", ".idx")]
    change = damaged(rng, sorted(files), work / "home")
    return change, ["-m", "tokenmill", "prepare", *flags_of(base), "--tokens-root", work / "tokens"]


def of_a_tokenizer(rng, base, work):
    path, change = damaged_file(rng, base / "tokenizers", work)
    saved = str(work / "saved.json")
    lines = (
        f"tokenizer = load_any({str(path)!r})",
        "tokenizer.decode(tokenizer.encode('some text, 12 of it\\n\\n  é水' * 9))",
        f"tokenizer.save(Path({saved!r}))",
        f"load_any({saved!r})",
    )
    return change, code(*lines)


def of_a_source(rng, base, work):
    path, change = damaged_file(rng, base / "sources", work)
    separator = rng.choice([None, "\n\n"])
    skips = rng.random() < 0.5
    size = rng.choice([500, 1 << 20])
    lines = (
        f"path = {str(path)!r}",
        "list_sources([path])",
        f"options = ReadOptions(document_separator={separator!r}, skip_broken={skips})",
        f"for batch in read(Path(path), options, {size}): batch.texts.validate(full=True)",
    )
    return change, code(*lines)


def of_another_program_s_files(rng, base, work):
    layout = rng.choice(LAYOUTS)
    folder = shutil.copytree(base / "theirs" / layout, work / "theirs")
    files = sorted(files_in(folder))
    change = damaged(rng, files, work / "home")
    named = [path for path in files if path.suffix in (".bin", ".npy", ".parquet", ".ds")]
    flags = ["--name", "back", "--tokenizer", base / "tokenizers" / "ours.json"]
    flags += ["--tokens-root", work / "back"]
    return change, ["-m", "tokenmill", "convert", "in", layout, *named, *flags]


def damaged_file(rng, folder, work):
    """One file of a copy of the folder, and how it was damaged."""
    path = rng.choice(sorted(shutil.copytree(folder, work / folder.name).iterdir()))
    return path, damaged(rng, [path], work / "home")


def files_in(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


KINDS = [of_a_set] * 3
KINDS += [of_a_set_that_preparing_goes_on_with, of_a_tokenizer, of_a_source]
KINDS += [of_another_program_s_files]


@pytest.mark.slow
def test_damage_at_random_ends_in_no_traceback_no_signal_and_touches_nothing_else(base, tmp_path):
    wrong = []
    harmless = 0
    for number in range(FIRST, FIRST + CASES):
        rng = random.Random(f"{SEED}:{number}")
        work = tmp_path / str(number)
        home = work / "home"
        home.mkdir(parents=True)
        for name in ("diary.txt", "diary.bin", "diary.json", "diary.idx"):
            (home / name).write_bytes(b"my own" * 50)
        before = tree(home)
        kind = rng.choice(KINDS)
        change, words = kind(rng, base, work)
        run = partial(warm.run, cwd=work, env=ENV, timeout=30)
        done = run(*words)
        printed = done.stdout + done.stderr
        print(change, *words, printed, sep="\n")
        harmless += not done.returncode
        problems = []
        if done.returncode not in (0, 1, 2):
            problems.append(f"ended by {done.returncode}")
        if "Traceback (most recent call last)" in printed:
            problems.append("a traceback")
        if tree(home) != before:
            problems.append("a file outside was changed")
        verified = words[2:3] == ["verify"] and "--quick" not in words and not done.returncode
        if verified and run(*loading(work / "set", "best_fit")).returncode:
            problems.append("verify finds nothing")
        for problem in problems:
            wrong.append(f"{number}: {change}, {words[:4]}: {problem}: {printed[-300:]}")
        shutil.rmtree(work)
    assert not wrong, "\n".join(wrong)
    if CASES >= 20:
        assert CASES // 10 < harmless < CASES * 2 // 3, "most damage is seen, and some is harmless"
