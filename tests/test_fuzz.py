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
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
import warm
from making import ROOT, make_text, run_prepare, tree, write_parquet

from tokenmill import cli
from tokenmill.tokenize.train import train_tokenizer

FIRST, CASES, SEED = (
    int(os.environ.get(name, least)) for name, least in (("FIRST", 0), ("CASES", 30), ("SEED", 16))
)
WEIRD = [
    *(None, True, -1, 0, 1, 2, 255, 1 << 31, 10**9, 1 << 63, 10**30, 0.5, math.inf, math.nan),
    *(
        "",
        "../../home/diary",
        "/etc/hostname",
        "a\x1b[31m\n",
        "\ud800",
        "Train",
        "9" * 5000,
        "x" * 100_000,
    ),
    *([], {}, [[]], [None], {"a": 1}),
]
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
    base, texts = (
        tmp_path_factory.mktemp("fuzz"),
        [make_text(documents=40, seed=seed, words=60) for seed in range(3)],
    )
    every = [text for some in texts for text in some]
    (own, sources) = base / "tokenizers", base / "sources"
    own.mkdir()
    sources.mkdir()
    tokenizer = train_tokenizer(iter(every), 320, "fuzz")
    tokenizer.save(own / "ours.json")
    (own / "nanochat.pkl").write_bytes(pickle.dumps(tokenizer.encoding))
    theirs = tokenizers.ByteLevelBPETokenizer(unicode_normalizer="nfc")
    theirs.train_from_iterator(every, vocab_size=320, special_tokens=["<s>"], show_progress=False)
    theirs.save(str(own / "theirs.json"))
    for number, some in enumerate(texts):
        write_parquet(base / "corpus" / f"{number}.parquet", [*some, None, ""], row_group_size=9)
    lines = "".join(
        json.dumps({"text": text, "id": i}) + "\n" for i, text in enumerate(texts[0])
    ).encode()
    write_parquet(sources / "a.parquet", texts[0], row_group_size=9)
    pq.write_table(
        pa.table({"text": texts[0] * 3}),
        sources / "b.parquet",
        use_dictionary=True,
        compression="snappy",
    )
    for name, data in (("a.jsonl", lines), ("a.txt", "\n\n".join(texts[1]).encode())):
        (sources / name).write_bytes(data)
        (sources / f"{name}.gz").write_bytes(gzip.compress(data, mtime=0))
        (sources / f"{name}.zst").write_bytes(bytes(pa.Codec("zstd").compress(data)))
    done = run_prepare(*flags_of(base), cwd=base)
    shutil.copytree(base / done.stdout.splitlines()[-1], base / "set")
    for layout in LAYOUTS:
        eos = (
            [] if layout in ("raw", "npy", "parquet") else ["--eos", "--eos-token", "<|user_end|>"]
        )
        with contextlib.redirect_stdout(io.StringIO()):
            assert (
                cli.main(
                    [
                        "convert",
                        "out",
                        layout,
                        str(base / "set"),
                        str(base / "theirs" / layout),
                        *eos,
                    ]
                )
                == 0
            )
    return base


def flags_of(base: Path) -> list[str]:
    own = [
        "--source",
        base / "corpus",
        "--tokenizer",
        base / "tokenizers" / "ours.json",
        "--workers",
        "1",
    ]
    return [*map(str, own), "--shard-text-bytes", "9000", "--keep-columns", "text"]


# ---------------------------------------------------------------------------- damage


def damaged(rng: random.Random, paths: list[Path], home: Path) -> str:
    """Changes one of the files, or two; in words how."""
    told = []
    for path in {rng.choice(paths) for _ in range(rng.choice([1, 1, 1, 2]))}:
        kinds = [of_bytes, of_the_file] + [of_json] * 8 * (path.suffix == ".json")
        told.append(f"{path.name} {rng.choice(kinds)(rng, path, home)}")
    return "; ".join(told)


def of_json(rng: random.Random, path: Path, _) -> str:
    value = json.loads(path.read_text())
    parent, key = a_place(rng, value)
    told = f"at {ascii(key)[:40]} "
    match rng.randrange(5):
        case 0:
            del parent[key]
            told += "deleted"
        case 1 if isinstance(parent, list):
            parent.insert(key, copy.deepcopy(parent[key]))
            told += "twice"
        case 2 if isinstance(parent[key], int | float) and not isinstance(parent[key], bool):
            parent[key] = parent[key] + rng.choice([-1, 1, 1000, 0.5])
            told += f"now {parent[key]}"
        case 3:
            other, there = a_place(rng, value)
            parent[key] = copy.deepcopy(other[there])
            told += f"what is at {ascii(there)[:40]}"
        case _:
            parent[key] = rng.choice(WEIRD)
            told += f"now {ascii(parent[key])[:40]}"
    path.write_text(json.dumps(value))
    return told


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
        at = rng.choice([min(at, rng.randrange(64)), max(0, len(data) - 1 - rng.randrange(64))])
    some = slice(at, at + rng.choice([1, 1, 4, 8, 100]))
    instead, told = rng.choice(
        [
            (rng.randbytes(len(data[some])), "random"),
            (bytes([rng.choice([0, 255])]) * len(data[some]), "zeros or ones"),
            (bytes([byte ^ 1 << rng.randrange(8) for byte in data[some]]), "bits"),
            (rng.randbytes(9) + data[some], "more"),
            (b"", "fewer"),
            (None, "cut"),
        ]
    )
    data[some if instead is not None else slice(at, None)] = instead or b""
    path.write_bytes(data)
    return f"{told} bytes at {at:,}"


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
    return [
        "-c",
        BEGIN
        + "".join(f"    {line}\n" for line in lines)
        + "sys.exit(cli._exit_status(lambda: run() or 0))",
    ]


def loading(folder: Path, packing: str) -> list[str]:
    made = f"loader = RowLoader({str(folder)!r}, batch_size=2, seq_len=32, packing={packing!r}, prefetch=0)"
    return code(made, "for _ in range(4): next(loader)", "loader.state_dict()")


def of_a_set(rng, base, work):
    folder = shutil.copytree(base / "set", work / "set")
    files = [path for path in folder.rglob("*") if path.is_file()]
    told = damaged(
        rng,
        sorted([path for path in files if path.parent.name != "shards"] * 4 + files),
        work / "home",
    )
    words = [
        *(["verify", folder, "--workers", 1], ["verify", folder, "--quick"]) * 2,
        *(
            ["show", folder, "--row", 3, "--seq-len", 64],
            ["show", folder, "--document", 7, "--seq-len", 64],
        ),
        ["report", folder, "--out", work / "report.html"],
        ["convert", "out", rng.choice(LAYOUTS), folder, work / "out"],
        ["push", folder, work / "sent"],
    ]
    loads = [loading(folder, packing) for packing in ("best_fit", "nanochat", "concat", "random")]
    return told, rng.choice([*(["-m", "tokenmill", *some] for some in words), *loads])


def of_a_set_that_preparing_goes_on_with(rng, base, work):
    (was,) = (base / "data" / "tokens").glob("corpus-fuzz-*")
    folder = shutil.copytree(was, work / "tokens" / was.name)
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.suffix in (".json", ".idx")
    )
    told = damaged(rng, files, work / "home")
    return told, ["-m", "tokenmill", "prepare", *flags_of(base), "--tokens-root", work / "tokens"]


def of_a_tokenizer(rng, base, work):
    path = rng.choice(sorted(shutil.copytree(base / "tokenizers", work / "tokenizers").iterdir()))
    told, saved = damaged(rng, [path], work / "home"), str(work / "saved.json")
    used = "tokenizer.decode(tokenizer.encode('some text, 12 of it\\n\\n  é水' * 9))"
    lines = (
        f"tokenizer = load_any({str(path)!r})",
        used,
        f"tokenizer.save(Path({saved!r}))",
        f"load_any({saved!r})",
    )
    return told, code(*lines)


def of_a_source(rng, base, work):
    path = rng.choice(sorted(shutil.copytree(base / "sources", work / "sources").iterdir()))
    told = damaged(rng, [path], work / "home")
    how = f"ReadOptions(document_separator={rng.choice([None, chr(10) * 2])!r}, skip_broken={rng.random() < 0.5})"
    some = f"for some in read(Path({str(path)!r}), {how}, {rng.choice([500, 1 << 20])}): some.texts.validate(full=True)"
    return told, code(f"list_sources([{str(path)!r}])", some)


def of_another_program_s_files(rng, base, work):
    layout = rng.choice(LAYOUTS)
    folder = shutil.copytree(base / "theirs" / layout, work / "theirs")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    told = damaged(rng, files, work / "home")
    named = [path for path in files if path.suffix in (".bin", ".npy", ".parquet", ".ds")]
    flags = [
        "--name",
        "back",
        "--tokenizer",
        base / "tokenizers" / "ours.json",
        "--tokens-root",
        work / "back",
    ]
    return told, ["-m", "tokenmill", "convert", "in", layout, *named, *flags]


KINDS = [of_a_set] * 3 + [
    of_a_set_that_preparing_goes_on_with,
    of_a_tokenizer,
    of_a_source,
    of_another_program_s_files,
]


def test_damage_at_random_ends_in_no_traceback_no_signal_and_touches_nothing_else(base, tmp_path):
    wrong, ends = [], []
    for number in range(FIRST, FIRST + CASES):
        rng, work = random.Random(f"{SEED}:{number}"), tmp_path / str(number)
        (home := work / "home").mkdir(parents=True)
        for name in ("diary.txt", "diary.bin", "diary.json", "diary.idx"):
            (home / name).write_bytes(b"my own" * 50)
        before, (told, words) = tree(home), rng.choice(KINDS)(rng, base, work)
        run = partial(warm.run, cwd=work, env=ENV, timeout=30)
        done = run(*words)
        printed = done.stdout + done.stderr
        print(told, *words, printed, sep="\n")
        verified = words[2:3] == ["verify"] and "--quick" not in words and not done.returncode
        found = {
            f"ended by {done.returncode}": done.returncode not in (0, 1, 2),
            "a traceback": "Traceback (most recent call last)" in printed,
            "a file outside was changed": tree(home) != before,
            "verify finds nothing": verified and run(*loading(work / "set", "best_fit")).returncode,
        }
        wrong += [
            f"{number}: {told}, {words[:4]}: {one}: {printed[-300:]}" for one in found if found[one]
        ]
        ends.append(done.returncode)
        shutil.rmtree(work)
    assert not wrong, "\n".join(wrong)
    assert CASES < 20 or CASES // 10 < ends.count(0) < CASES * 2 // 3, (
        "most damage is seen, and some is harmless"
    )
