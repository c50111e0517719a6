"""Time and memory of what people do with very large sets; writes benchmarks/scale.md.

    python benchmarks/scale.py [--quick]

Three layouts, of links to one shard each, so that 30 TB take a GB: 60,000 shards of 2^28 tokens (15T tokens), a mixture
of 50 sources of 1,000 shards, and 10^8 documents in one set of 10 shards. Each command runs in a process of its own.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from packing import fineweb_edu_lengths

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tokenmill.store.files import header
from tokenmill.store.shards import TEXT_COUNTS
from tokenmill.store.token_sets import write_manifest, write_token_bytes
from tokenmill.tokenize.patterns import NANOCHAT_PATTERN
from tokenmill.tokenize.tokenizer import Tokenizer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--quick", action="store_true", help="a hundredth of the shards; prints, and writes nothing")
QUICK = parser.parse_args().quick

ROOT = Path(__file__).resolve().parent.parent
LIMIT_SECONDS = 600
MIB = 1 << 20


def offsets_of(lengths: np.ndarray, tokens: int) -> np.ndarray:
    ends = np.cumsum(lengths)
    return np.concatenate([[0], ends[ends < tokens], [tokens]])


def linked_set(folder: Path, *more: Any) -> Path:
    """Has a set made in a process of its own: a child that is spawned begins with its parent's peak of memory."""
    process = multiprocessing.get_context("fork").Process(target=make_linked_set, args=(folder, *more))
    process.start()
    process.join()
    assert not process.exitcode
    return folder


def make_linked_set(folder: Path, shards: int, tokens: int, offsets: np.ndarray, tokenizer: Tokenizer) -> None:
    """A set whose shards are links to the same tokens and offsets, each with a record of its own."""
    (folder / "shards").mkdir(parents=True)
    index, ids = folder / "lengths", folder / "ids"
    values = np.ones(tokens, np.uint16)
    values[offsets[:-1]] = 0  # BOS
    values.tofile(ids)
    index.write_bytes(offsets.astype("<u8").tobytes())
    idx = {"bytes": index.stat().st_size, "sha256": hashlib.sha256(index.read_bytes()).hexdigest()}
    idx |= {"crc32": [0] * -(-idx["bytes"] // MIB)}
    counts = {"documents": len(offsets) - 1, "tokens": tokens, **dict.fromkeys(TEXT_COUNTS, 0)}
    tokenizer.save(folder / "tokenizer.json")
    write_token_bytes(folder, tokenizer.token_bytes())
    made = []
    for number in range(shards):
        name, split = f"shard_{number:05}.000", "val" if number == shards - 1 else "train"
        os.link(index, folder / "shards" / f"{name}.idx")
        os.link(ids, folder / "shards" / f"{name}.bin")
        digest = hashlib.sha256(f"{folder.name}/{name}".encode()).hexdigest()
        tokens_file = {"bytes": 2 * tokens, "sha256": digest, "crc32": [0] * -(-2 * tokens // MIB)}
        record = header("shard") | {"name": name, "dtype": "uint16", "fingerprint": tokenizer.fingerprint} | counts
        record |= {"bin": tokens_file, "idx": idx, "source": {"file": f"{number:05}.jsonl"}}
        (folder / "shards" / f"{name}.json").write_text(json.dumps(record))
        made.append((record, split))
    write_manifest(folder, "scale", tokenizer.facts(), made)


def measured(words: list[str]) -> tuple[float, int, int]:
    """(seconds, peak MiB, exit status) of a command."""
    began = time.perf_counter()
    nowhere = [(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
    pid = os.posix_spawn(words[0], words, os.environ, file_actions=nowhere)
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            return time.perf_counter() - began, usage.ru_maxrss >> 10, os.waitstatus_to_exitcode(status)
        if time.perf_counter() - began > LIMIT_SECONDS:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            return LIMIT_SECONDS, 0, -9
        time.sleep(0.01)


def python(code: str) -> list[str]:
    ending = "sys.stdout.flush(); import os; os._exit(status)"
    return [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); status = 0\n{code}\n{ending}"]


def command(*words: object) -> list[str]:
    return python(f"from tokenmill import cli; status = cli.main({[*map(str, words)]!r})")


def loader(tokens: str, deep: bool = False) -> list[str]:
    """Makes a loader and takes a batch, perhaps from the middle of epoch 1."""
    code = f"from tokenmill import RowLoader, Mixture\nloader = RowLoader({tokens}, batch_size=32, seq_len=2048)\n"
    if deep:
        code += (
            "from tokenmill.rows.run import Cursor\n"
            "loader.run = loader.run._replace(now=loader.run.now._replace(cursors={'': Cursor(1, MIDDLE, 0)}))\n"
        )
    return python(code + "next(loader)")


def rows_of(folder: Path, many: int) -> list[tuple[str, tuple[float, int, int]]]:
    """(what, what was measured) of each layout."""
    ranks = {bytes([byte]): byte + 1 for byte in range(256)}
    tokenizer = Tokenizer("bytes", NANOCHAT_PATTERN, ranks, {"<|bos|>": 0}, "<|bos|>")
    window = 1 << 28
    large = linked_set(
        folder / "large", 60_000 // many, window, offsets_of(fineweb_edu_lengths(window // 900), window), tokenizer
    )
    small = offsets_of(fineweb_edu_lengths((1 << 22) // 900), 1 << 22)
    sources = [linked_set(folder / f"s{n:02}", 1000 // many, 1 << 22, small, tokenizer) for n in range(50)]
    short = np.full(10_000_000 // many, 5, np.int64)
    documents = linked_set(folder / "documents", 10, int(short.sum()), offsets_of(short, int(short.sum())), tokenizer)
    mixture = f"Mixture({ ({str(path): number % 3 + 1 for number, path in enumerate(sources)})!r})"
    toml = folder / "mixture.toml"
    listed = "".join(f'[sources.s{n:02}]\npath = "{path}"\n' for n, path in enumerate(sources))
    weights = ", ".join(f"s{n:02} = 1" for n in range(len(sources)))
    toml.write_text(f"{listed}[[stages]]\nbegin = 0\nweights = {{ {weights} }}\n")
    listing = (
        "from pathlib import Path\nfrom tokenmill.remote.files import sizes\n"
        "import fsspec\nmemory = fsspec.filesystem('memory')\n"
        f"for path in Path({str(large)!r}, 'shards').iterdir(): memory.pipe_file('/there/shards/' + path.name, b'')\n"
        "print(len(sizes('memory://there')))"
    )
    named = {"15T tokens in 60,000 shards": large, "10^8 documents": documents}
    found = []

    def add(what: str, words: list[str]) -> None:
        found.append((what, measured(words)))
        print(*found[-1], file=sys.stderr, flush=True)

    for what, path in named.items():
        add(f"{what}: first batch", loader(repr(str(path))))
        middle = 0 if path is documents else 30_000 // many
        deep = [word.replace("MIDDLE", str(middle)) for word in loader(repr(str(path)), deep=True)]
        add(f"{what}: first batch from the middle of epoch 1", deep)
        add(f"{what}: show --row 5", command("show", path, "--row", 5, "--seq-len", 2048))
        add(f"{what}: verify --quick", command("verify", path, "--quick"))
        add(f"{what}: report", command("report", path, "--out", folder / "r.html"))
    add("15T tokens in 60,000 shards: the list of files that push compares with", python(listing))
    add("50 sources of 1,000 shards: first batch", loader(mixture))
    add("50 sources of 1,000 shards: mix", command("mix", toml, "--tokens", "10B"))
    return found


def main() -> None:
    many = 100 if QUICK else 1
    with tempfile.TemporaryDirectory() as name:
        found = rows_of(Path(name), many)
    lines = [f"| {what} | {seconds:,.1f} s | {mib:,} MiB |" for what, (seconds, mib, _) in found]
    text = "\n".join(["| | time | memory |", "| --- | --- | --- |", *lines]) + "\n"
    print(text)
    if failed := [what for what, (_, _, status) in found if status]:
        sys.exit(f"failed: {failed}")
    if not QUICK:
        head = "2 cores; the shards of a set are links to one. Memory is the peak of the process, mapped files too.\n"
        (Path(__file__).parent / "scale.md").write_text(f"{head}\n{text}")


if __name__ == "__main__":
    main()
