"""Damages what tokenmill reads, at random, and sees that it says so: `make fuzz`.

    python tests/fuzz.py --cases 2000 --seed 7       that many; of a case that went wrong it prints how to see it again
    python tests/fuzz.py --only 7:1234               one case, with what it printed

A case takes one thing that is in order (a token set, a set at an address, a cache, a position, a tokenizer, a source,
another program's files, a mixture), changes some of it, and gives it to one reader, in a process of its own. A reader
may do its work, or end with an error that it tells in words. Wrong are

    a traceback, or a panic
    the end by a signal
    more than SECONDS, or MEMORY
    a file that changed outside the folders that were named
    `verify` that finds nothing, of a set that a loader then refuses
"""

import argparse
import contextlib
import copy
import faulthandler
import gzip
import importlib
import io
import json
import math
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import zlib
from base64 import b85decode, b85encode
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from file_server import FileServer
from making import make_text, run_prepare, tree, write_parquet
from reading import read

from tokenmill import Mixture, RowLoader, cli
from tokenmill.remote import files, ranges
from tokenmill.text.formats import ReadOptions
from tokenmill.text.listing import list_sources
from tokenmill.tokenize.load import load_any
from tokenmill.tokenize.tokenizer import train_tokenizer

SECONDS, MEMORY = 30, 6 << 30
WEIRD = [
    *(None, True, -1, 0, 1, 2, 255, 1 << 31, 10**9, 1 << 63, 10**30, 0.5, math.inf, math.nan),
    *("", "../../home/diary", "/etc/hostname", "a\x1b[31m\n", "\ud800", "Train", "9" * 5000, "x" * 100_000),
    *([], {}, [[]], [None], {"a": 1}),
]
MIXTURE = """[sources.web]
path = "set"
max_epochs = 2

[sources.more]
path = "set"

[[stages]]
begin = 0
weights = { web = 7, more = 3 }

[[stages]]
begin = "10K"
weights = { web = 1, more = 3 }
"""
SERVERS: list[FileServer] = []  # of the case at hand
FORMATS = ("nanogpt", "raw", "llm.c", "npy", "megatron", "parquet", "datatrove")


# ---------------------------------------------------------------------------- what is in order


def make_all(base: Path) -> None:
    """One of each kind, below `base`."""
    texts = [make_text(documents=40, seed=seed, words=60) for seed in range(4)]
    tokenizers, sources = base / "tokenizers", base / "sources"
    tokenizers.mkdir(parents=True)
    sources.mkdir()
    tokenizer = train_tokenizer(iter(text for some in texts for text in some), 320, "fuzz")
    tokenizer.save(tokenizers / "ours.json")
    (tokenizers / "nanochat.pkl").write_bytes(pickle.dumps(tokenizer.encoding))
    _hugging_face([text for some in texts for text in some], tokenizers / "theirs.json")
    for number, some in enumerate(texts[:3]):
        write_parquet(base / "corpus" / f"{number}.parquet", [*some, None, ""], row_group_size=9)
    lines = "".join(json.dumps({"text": text, "id": i}) + "\n" for i, text in enumerate(texts[0])).encode()
    write_parquet(sources / "a.parquet", texts[0], row_group_size=9)
    pq.write_table(pa.table({"text": texts[0] * 3}), sources / "b.parquet", use_dictionary=True, compression="snappy")
    for name, data in (("a.jsonl", lines), ("a.txt", "\n\n".join(texts[1]).encode())):
        (sources / name).write_bytes(data)
        (sources / f"{name}.gz").write_bytes(gzip.compress(data, mtime=0))
        (sources / f"{name}.zst").write_bytes(bytes(pa.Codec("zstd").compress(data)))
    write_parquet(base / "more" / "0.parquet", texts[3][:20])
    write_parquet(base / "more" / "1.parquet", texts[3][20:])
    for source, name in (("corpus", "set"), ("more", "other")):
        flags = ("--source", base / source, "--tokenizer", tokenizers / "ours.json", "--shard-text-bytes", 9000)
        shutil.copytree(
            base / run_prepare(*flags, "--keep-columns", "text", cwd=base).stdout.splitlines()[-1], base / name
        )
    for format in FORMATS:
        done = ["convert", "out", format, base / "set", base / "theirs" / format]
        eos = [] if format in ("raw", "npy", "parquet") else ["--eos"]
        with contextlib.redirect_stdout(io.StringIO()):
            command = [*done, *eos, *(["--eos-token", "<|user_end|>"] if eos else [])]
            assert cli.main([str(word) for word in command]) == 0
    (base / "mixture.toml").write_text(MIXTURE)
    with RowLoader(base / "set", batch_size=2, seq_len=64, epochs=3) as loader:
        for _ in range(5):
            next(loader)
        state = loader.state_dict()
    with RowLoader(base / "set", batch_size=2, seq_len=32, epochs=3) as loader:
        loader.load_state_dict(state)
        next(loader)
        loader.skip(2)
        next(loader)
        state = loader.state_dict()
    (base / "position.json").write_text(json.dumps(state))
    with RowLoader(Mixture({base / "set": 7, base / "other": 3}), batch_size=2, seq_len=32) as loader:
        for _ in range(5):
            next(loader)
        (base / "mixed.json").write_text(json.dumps(loader.state_dict()))


def _hugging_face(texts: list[str], path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    made.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=320, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False),
    )
    made.save(str(path))


# ---------------------------------------------------------------------------- damage


def damage(rng: random.Random, path: Path, home: Path) -> str:
    """Changes one file; in words how."""
    kinds: list[Callable[[], str]] = [lambda: _of_bytes(rng, path), lambda: _of_the_file(rng, path, home)]
    if path.suffix in (".json", ".toml"):
        kinds = [*([lambda: _of_json(rng, path)] * 8 if path.suffix == ".json" else []), *kinds]
    return f"{path.name}: {rng.choice(kinds)()}"


def _of_json(rng: random.Random, path: Path) -> str:
    value = json.loads(path.read_text())
    parent, key = _a_place(rng, value)
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
            other, there = _a_place(rng, value)
            parent[key] = copy.deepcopy(other[there])
            told += f"what is at {ascii(there)[:40]}"
        case _:
            parent[key] = rng.choice(WEIRD)
            told += f"now {ascii(parent[key])[:40]}"
    path.write_text(json.dumps(value))
    return told


def _a_place(rng: random.Random, value: object) -> tuple[dict | list, str | int]:
    """A container within a value, and a key of it; the deeper ones are as likely as the outer."""
    while True:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = rng.choice(keys)
        inner = value[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.15:
            return value, key
        value = inner


def _of_bytes(rng: random.Random, path: Path) -> str:
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data)) if data else 0
    if rng.random() < 0.4:  # headers and footers
        at = rng.choice([min(at, rng.randrange(64)), max(0, len(data) - 1 - rng.randrange(64))])
    size = rng.choice([1, 1, 4, 8, 100])
    match rng.randrange(6):
        case 0:
            del data[at:]
            told = "cut"
        case 1:
            data[at : at + size] = rng.randbytes(len(data[at : at + size]))
            told = "random bytes"
        case 2:
            data[at : at + size] = bytes([rng.choice([0, 255])]) * len(data[at : at + size])
            told = "zeros or ones"
        case 3:
            data[at:at] = rng.randbytes(size)
            told = "more bytes"
        case 4:
            del data[at : at + size]
            told = "fewer bytes"
        case _:
            if data:
                data[at] ^= 1 << rng.randrange(8)
            told = "a bit"
    path.write_bytes(data)
    return f"{told} at {at:,}"


def _of_the_file(rng: random.Random, path: Path, home: Path) -> str:
    kind = rng.choice(["gone", "empty", "a folder", "a pipe", "a link to itself", "a link to another", "zeros"])
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


@dataclass(frozen=True)
class Case:
    """One thing, damaged, and one reader."""

    seed: int
    number: int
    what: str
    done: str
    command: list[str] | Callable[[], int | None]
    said: str  # the command, in words


def make_case(base: Path, work: Path, seed: int, number: int) -> Case:
    """The case of this number: the same every time."""
    rng = random.Random(f"{seed}:{number}")
    home = work / "home"
    home.mkdir(parents=True)
    for name in ("diary.txt", "diary.bin", "diary.json", "diary.idx"):
        (home / name).write_bytes(b"my own" * 50)
    what = rng.choice(
        [*["set"] * 5, *["address", "position", "tokenizers", "sources"] * 2, *sorted(set(KINDS) - {"set"})]
    )
    return KINDS[what](rng, base, work, seed, number)


def _set(rng, base, work, seed, number):
    shutil.copytree(base / "set", work / "set")
    files = [path for path in (work / "set").rglob("*") if path.is_file()]
    by_name = sorted([path for path in files if path.parent.name != "shards"] * 4 + files)
    done = "; ".join(damage(rng, path, work / "home") for path in _some(rng, by_name))
    folder = str(work / "set")
    commands = [
        *(
            ["verify", folder, "--workers", "1"],
            ["verify", folder, "--quick"],
            ["show", folder, "--row", "3", "--seq-len", "64"],
        )
        * 2,
        ["show", folder, "--document", f"{rng.randrange(90)}", "--seq-len", "64"],
        ["report", folder, "--out", str(work / "report.html")],
        ["convert", "out", rng.choice(FORMATS), folder, str(work / "out")],
        ["push", folder, str(work / "sent")],
    ]
    loads = [partial(_load, work / "set", packing) for packing in ("best_fit", "nanochat", "concat", "random")]
    command = rng.choice([*commands, *loads])
    return Case(seed, number, "set", done, command, " ".join(command) if isinstance(command, list) else "RowLoader")


def _prepared(rng, base, work, seed, number):
    """A set that preparing goes on with."""
    (was,) = (base / "data" / "tokens").glob("corpus-fuzz-*")
    folder = work / "tokens" / was.name
    shutil.copytree(was, folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in (".json", ".idx"))
    done = "; ".join(damage(rng, path, work / "home") for path in _some(rng, files))
    flags = ["--source", base / "corpus", "--tokenizer", base / "tokenizers" / "ours.json", "--workers", "1"]
    command = [
        "prepare",
        *flags,
        "--shard-text-bytes",
        "9000",
        "--keep-columns",
        "text",
        "--tokens-root",
        work / "tokens",
    ]
    return Case(seed, number, "prepared", done, list(map(str, command)), "prepare")


def _load(folder: Path | str | Mixture, packing: str = "best_fit", state: dict | None = None, **more) -> None:
    settings = {"batch_size": 2, "seq_len": 32, "packing": packing} | more
    with RowLoader(folder, **settings) as loader:
        if state is not None:
            loader.load_state_dict(state)
        for _ in range(4):
            next(loader)
        loader.state_dict()


def _position(rng, base, work, seed, number, name="position.json"):
    """A position of which one value is another, in what is packed too."""
    path, whole = work / "position.json", json.loads((base / name).read_text())
    found = json.loads(whole["tokenmill"])
    found["legs"] = json.loads(zlib.decompress(b85decode(found["legs"])))
    parent, key = _a_place(rng, found if rng.random() < 0.9 else whole)
    done = f"at {ascii(key)[:40]} "
    if rng.random() < 0.1:
        del parent[key]
    else:
        parent[key] = rng.choice([*WEIRD, -1, 1 << 31, 1 << 63, 10**30, 99, 3, [0, 99, 0], [9, 0, 1]])
        done += f"now {ascii(parent[key])[:60]}"
    if whole.get("tokenmill") and "legs" in found:
        found["legs"] = b85encode(zlib.compress(json.dumps(found["legs"]).encode())).decode()
        whole["tokenmill"] = json.dumps(found)
    path.write_text(json.dumps(whole))
    shutil.copytree(base / "set", work / "set")
    command = rng.choice([lambda: _load(work / "set", state=whole), ["show", str(work / "set"), "--step", "5"]])
    if isinstance(command, list):
        command += ["--checkpoint", str(path)]
    return Case(seed, number, "position", done, command, command[0] if isinstance(command, list) else "load_state")


def _mixed_position(rng, base, work, seed, number):
    case = _position(rng, base, work, seed, number, "mixed.json")
    state, mixture = json.loads((work / "position.json").read_text()), Mixture({work / "set": 7, base / "other": 3})
    command = partial(_load, mixture, state=state)
    return Case(seed, number, "position of a mixture", case.done, command, "load_state")


def _address(rng, base, work, seed, number):
    """A set at an address, of a server that this process is."""
    case = _set(rng, base, work, seed, number)
    url = _served(work)
    commands = [
        ["pull", url, str(work / "here")],
        ["verify", url, "--workers", "1"],
        ["show", url, "--row", "3", "--seq-len", "64"],
    ]
    loads = partial(_load, url, cache_dir=work / "cache")
    command = rng.choice([*commands, ["report", url, "--out", str(work / "report.html")], loads])
    return Case(seed, number, "address", case.done, command, command[0] if isinstance(command, list) else "RowLoader")


def _some(rng: random.Random, paths: list[Path]) -> list[Path]:
    """One of the paths, or two that are not the same."""
    return list(dict.fromkeys(rng.choice(paths) for _ in range(rng.choice([1, 1, 1, 2]))))


def _served(work: Path) -> str:
    os.environ["TOKENMILL_CACHE"] = str(work / "cache")
    server = FileServer({})
    SERVERS.append(server)
    for path in (work / "set").rglob("*"):
        if path.is_file():
            server.files[f"set/{path.relative_to(work / 'set')}"] = path.read_bytes()
    return f"{server.url}/set"


def _cache(rng, base, work, seed, number):
    """A cache of a set at an address, that was in order."""
    shutil.copytree(base / "set", work / "set")
    url = _served(work)
    loads = partial(_load, url, cache_dir=work / "cache")
    status, printed = _in_a_process(loads, work)
    assert status == 0, printed
    files = [path for path in (work / "cache").rglob("*") if path.is_file()]
    done = "; ".join(damage(rng, path, work / "home") for path in _some(rng, sorted(files)))
    command = rng.choice(
        [loads, loads, ["verify", url, "--workers", "1"], ["report", url, "--out", str(work / "report.html")]]
    )
    return Case(seed, number, "cache", done, command, command[0] if isinstance(command, list) else "RowLoader")


def _tokenizer(rng, base, work, seed, number):
    shutil.copytree(base / "tokenizers", work / "tokenizers")
    path = rng.choice(sorted((work / "tokenizers").iterdir()))
    done = damage(rng, path, work / "home")

    def run():
        tokenizer = load_any(str(path))
        tokenizer.decode(tokenizer.encode("some text, 12 of it\n\n  é水" * 9))
        tokenizer.save(work / "saved.json")
        load_any(str(work / "saved.json"))

    return Case(seed, number, "tokenizer", done, run, f"load_any({path.name})")


def _source(rng, base, work, seed, number):
    shutil.copytree(base / "sources", work / "sources")
    path = rng.choice(sorted((work / "sources").iterdir()))
    done = damage(rng, path, work / "home")
    how = ReadOptions(document_separator=rng.choice([None, "\n\n"]), skip_broken=rng.random() < 0.5)
    most = rng.choice([500, 1 << 20])

    def run():
        list_sources([str(path)])
        for documents in read(path, how, most):
            documents.texts.validate(full=True)

    return Case(seed, number, "source", done, run, f"read({path.name})")


def _theirs(rng, base, work, seed, number):
    format = rng.choice(FORMATS)
    shutil.copytree(base / "theirs" / format, work / "theirs")
    files = [path for path in (work / "theirs").rglob("*") if path.is_file()]
    done = damage(rng, rng.choice(files), work / "home")
    named = sorted(str(path) for path in files if path.suffix in (".bin", ".npy", ".parquet", ".ds"))
    flags = [
        "--tokenizer",
        str(base / "tokenizers" / "ours.json"),
        "--name",
        "back",
        "--tokens-root",
        str(work / "back"),
    ]
    command = ["convert", "in", format, *named, *flags]
    return Case(seed, number, "theirs", done, command, f"convert in {format}")


def _mixture(rng, base, work, seed, number):
    shutil.copytree(base / "set", work / "set")
    (work / "mixture.toml").write_text((base / "mixture.toml").read_text())
    lines = (work / "mixture.toml").read_text().splitlines()
    at = rng.randrange(len(lines))
    lines[at] = rng.choice(
        [lines[at].partition("=")[0] + f"= {json.dumps(rng.choice(WEIRD[:-1]))}", lines[at] * 2, "", "[x]", 'a."b" = 1']
    )
    (work / "mixture.toml").write_text("\n".join(lines), errors="replace")
    command = ["mix", str(work / "mixture.toml"), "--tokens", "20K"]
    return Case(seed, number, "mixture", f"line {at}: {ascii(lines[at])[:60]}", command, "mix")


KINDS = {
    "set": _set,
    "prepared": _prepared,
    "address": _address,
    "cache": _cache,
    "position": _position,
    "mixed": _mixed_position,
    "tokenizers": _tokenizer,
    "sources": _source,
    "theirs": _theirs,
    "mixture": _mixture,
}


# ---------------------------------------------------------------------------- running them


def run_case(base: Path, seed: int, number: int) -> tuple[str, Case, str]:
    """(how it ended: "done", "refused", or what is wrong; the case; what it printed)."""
    with tempfile.TemporaryDirectory(prefix="fuzz") as folder:
        work = Path(folder)
        case = make_case(base, work, seed, number)
        before = tree(work / "home")
        status, printed = _in_a_process(case.command, work)
        wrong = _wrong(status, printed)
        if not wrong and tree(work / "home") != before:
            wrong = "it changed a file outside"
        if not wrong and status == 0 and isinstance(case.command, list) and case.said.endswith("--workers 1"):
            status, more = _in_a_process(lambda: _load(work / "set"), work)
            wrong = _wrong(status, more) or ("verify finds nothing, and a loader refuses it" if status else None)
            printed += more
        while SERVERS:
            server = SERVERS.pop()
            server.shutdown()
            server.server_close()
        return wrong or ("refused" if status else "done"), case, printed


def _wrong(status: int | None, printed: str) -> str | None:
    if status is None:
        return f"it took more than {SECONDS} s: {printed[-3000:]}"
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    if "Traceback (most recent call last)" in printed:
        return "a traceback: " + printed.strip().splitlines()[-1][:200]
    return None


def _be_impatient() -> None:
    """With a server that serves damage: in the fork alone, as the tests beside this one have servers of their own."""
    files.PATIENCE_SECONDS, files.FIRST_PAUSE = 2.0, 0.01
    ranges.SILENCE_SECONDS, ranges.SECONDS = 0.3, 0.8


def _in_a_process(command: list[str] | Callable[[], int | None], work: Path) -> tuple[int | None, str]:
    """Runs it in a fork: (its exit status, negative for a signal, None where it took too long; what it printed)."""
    output = work / "printed"
    process = os.fork()
    if not process:
        status = 70
        with contextlib.suppress(BaseException):
            os.setpgid(0, 0)
            os.chdir(work)
            descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            faulthandler.register(signal.SIGUSR1, file=2)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            _be_impatient()
            try:
                does = (
                    (lambda: cli.main(command)) if isinstance(command, list) else lambda: cli._exit_status(command) or 0
                )
                status = does()
            except SystemExit as error:
                status = error.code if isinstance(error.code, int) else 1
            except BaseException:
                import traceback

                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
    deadline = time.monotonic() + SECONDS
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGUSR1)  # it prints where its threads are
                time.sleep(0.5)
                os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return None, output.read_text(errors="replace") if output.exists() else ""
        time.sleep(0.002)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)  # workers that it left
    return os.waitstatus_to_exitcode(status), output.read_text(errors="replace")


def fuzz(base: Path, seed: int, numbers, say=lambda line: None) -> tuple[Counter, list[str]]:
    """Runs cases: (how many ended how; what went wrong, a line each)."""
    counts: Counter = Counter()
    wrongs: list[str] = []
    for verb in cli.VERBS.values():
        importlib.import_module(verb.module)  # once, and not in each fork
    for number in numbers:
        ended, case, _ = run_case(base, seed, number)
        counts[ended if ended in ("done", "refused") else "wrong"] += 1
        if ended not in ("done", "refused"):
            wrongs.append(f"{seed}:{number} {case.what}, {case.said}, {case.done}: {ended}")
            say(wrongs[-1])
    return counts, wrongs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="SEED:NUMBER of a case")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-base") as folder:
        base = Path(folder)
        make_all(base)
        if asked.only:
            ended, case, printed = run_case(base, *map(int, asked.only.split(":")))
            print(f"{case.what}, {case.said}, {case.done}\n{printed}\n{ended}")
            return 0 if ended in ("done", "refused") else 1
        print(f"{asked.cases:,} cases of seed {asked.seed}; what goes wrong is told as it is found", flush=True)
        counts, wrongs = fuzz(base, asked.seed, range(asked.cases), say=lambda line: print(line, flush=True))
    told = {"done": "did their work", "refused": "ended with an error in words", "wrong": "went wrong"}
    print(", ".join(f"{counts[ended]:,} {words}" for ended, words in told.items()))
    return 1 if wrongs else 0


if __name__ == "__main__":
    sys.exit(main())
