"""Small inputs for tests: text, parquet files, token sets; and how to look at what came of them."""

import json
import os
import random
import resource
import shutil
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import warm

from tokenmill.store.json_files import write_json
from tokenmill.store.manifests import SMALL_FILES, checksums_of_files, digest_of, write_manifest
from tokenmill.store.shard_writer import ShardWriter
from tokenmill.store.shards import TEXT_COUNTS
from tokenmill.tokenize.chat_rule import ChatRule

ROOT = Path(__file__).resolve().parents[1]
BOS = 0
VOCAB = 1000
SYLLABLES = [
    "mil",
    "to",
    "ken",
    "ra",
    "grin",
    "flou",
    "wa",
    "ter",
    "whe",
    "el",
    "ba",
    "tch",
    "ro",
    "st",
    "one",
]
ODDITIES = [
    "'ll",
    "1984",
    "naïve",
    "水車",
    "and\n",
    "\n\n",
    "    ",
    "        ",
    "fast!\t",
    "...",
    "x_y",
    "42",
]
WORDS = [*map("".join, product(SYLLABLES, repeat=2)), *ODDITIES * 5]


def make_text(documents: int, seed: int, words: int = 200) -> list[str]:
    """Documents of 1 to 2 * words random words."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 2 * words))) for _ in range(documents)]


def write_parquet(
    path: Path, texts: list, row_group_size: int = 1000, column: str = "text", type=None
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({column: pa.array(texts, type or pa.string())})
    pq.write_table(table, path, compression="zstd", row_group_size=row_group_size)
    return path


def make_token_set(
    folder: Path,
    train: list[list[int]],
    val: list[list[int]],
    seed: int = 0,
    vocab: int = VOCAB,
    bos: int = BOS,
) -> Path:
    """A token set of random ids, of which none is 0; `train` and `val` give the document lengths of
    each shard.
    """
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    shards = []
    for split, lengths_of_shards in (("train", train), ("val", val)):
        for number, lengths in enumerate(lengths_of_shards):
            name = f"{split}_{number}.000"
            with ShardWriter(folder, name, "uint16" if vocab <= 65536 else "uint32") as writer:
                tokens = rng.integers(1, vocab, sum(lengths))
                tokens[np.cumsum([0, *lengths[:-1]])[: len(lengths)]] = bos
                writer.write(tokens, lengths)
                facts = dict.fromkeys(TEXT_COUNTS, 0) | {"fingerprint": "f" * 64}
                record = writer.finish(
                    facts | {"source": source_of(f"{split}_{number}.parquet", len(lengths))}
                )
            shards.append((record, split))
    facts = {
        "name": "random",
        "fingerprint": "f" * 64,
        "vocab_size": vocab,
        "bos_token": "<|bos|>",
        "bos_id": bos,
    }
    write_manifest(folder, "synthetic", facts, shards)
    return folder


def make_sources(folder: Path, documents: int) -> Path:
    """Token sets web, code and math in a folder, each of two shards with so many documents of
    random lengths.
    """
    for number, name in enumerate(("web", "code", "math")):
        rng = random.Random(number)
        lengths = [[rng.randint(1, 40) for _ in range(documents)] for _ in range(2)]
        make_token_set(folder / name, train=lengths, val=[[20] * 5], seed=number)
    return folder


def give_tokenizer(folder: Path, tokenizer) -> None:
    """Makes a tokenizer the one of a token set of random ids."""
    tokenizer.save(folder / "tokenizer.json")
    manifest = read_manifest(folder)
    manifest["tokenizer"]["fingerprint"] = tokenizer.fingerprint
    (folder / "manifest.json").write_text(
        json.dumps(manifest | {"files": checksums_of_files(folder)})
    )


def give_small_files(folder: Path, of: Path) -> None:
    """Gives a token set of random ids the tokenizer.json and token_bytes.npy of another set."""
    for name in SMALL_FILES:
        shutil.copy(of / name, folder)
    manifest = read_manifest(folder) | {"files": checksums_of_files(folder)}
    for path in (folder / "manifest.json", folder / "manifests" / f"{digest_of(manifest)}.json"):
        write_json(path, manifest)


def of_shards(manifest: dict, shards: list[dict]) -> dict:
    """A manifest with these shards in place of its own."""
    counts = ("documents", "tokens", "text_bytes")
    totals = {count: sum(shard[count] for shard in shards) for count in counts}
    records = {shard["name"]: manifest["records"].get(shard["name"], "0" * 64) for shard in shards}
    return manifest | {"shards": shards, "records": records} | totals


def read_manifest(folder: Path) -> dict:
    """A token set's manifest, shards and all."""
    return json.loads((folder / "manifest.json").read_text())


def source_of(file: str, documents: int, group: int = 4) -> dict:
    """What a shard's record says of its source, in row groups of `group` documents."""
    counts = [min(group, documents - first) for first in range(0, documents, group)]
    return {"file": file, "row_groups": list(range(len(counts))), "row_group_documents": counts}


def run_prepare(
    *flags, cwd, check: bool = True, env=None, prefix=(), **more
) -> subprocess.CompletedProcess:
    """Runs prepare_data.py in a process that has its imports already (warm.py).

    Behind the command `prefix`, or with `more` of subprocess.run's settings, it is a Python of its
    own.
    """
    words = [ROOT / "prepare_data.py", *flags]
    if prefix or more:
        command = [*prefix, sys.executable, *map(str, words)]
        done = subprocess.run(
            command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, **more
        )
    else:
        done = warm.run(*words, cwd=cwd, env=env)
    assert not check or done.returncode == 0, done.stderr
    return done


# a report that measures nanochat's buffer after 3,000 documents, and not 300,000: words for Python
QUICK_REPORT = (
    "-c",
    "import sys\nfrom tokenmill import cli\nfrom tokenmill.look import packing_stats\n"
    "packing_stats.NANOCHAT_SETTLED = 3000\nsys.exit(cli.main(['report', *sys.argv[1:]]))",
)


def full_after(size: int) -> dict:
    """What makes a disk seem full to `subprocess.run`: no file grows past `size` bytes.

    Bytecode is none of these files: Python puts a cut one in place, and fails on it ever after.
    """
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))  # noqa: E731
    return {"preexec_fn": limit, "env": dict(os.environ, PYTHONDONTWRITEBYTECODE="1")}


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, with its bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def some_slow(names, quick):
    """Parameters of a test: all of them for `make test-all`, and only those of `quick` for `make
    test`.
    """
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


def wait_until(true, seconds: float = 30) -> None:
    """Waits for what another thread or process does."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def on_ranks(code, tmp_path, ranks=2, spawned=False):
    """Runs code on some ranks; what each gave to `tell` in the end.

    With `spawned`, processes of their own run none.
    """
    script = tmp_path / "train.py"
    script.write_text(
        f"import json, sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import torch.distributed as dist\n"
        "from data import RowLoader\n"
        "if __name__ == '__main__': dist.init_process_group('gloo')\n"
        "def tell(value):\n"
        "    open(f'{sys.argv[1]}/{dist.get_rank()}.json', 'w').write(json.dumps(value))\n"
        + (f"if __name__ == '__main__':\n{textwrap.indent(code, '    ')}" if spawned else code)
        + "if __name__ == '__main__':\n    dist.barrier(); dist.destroy_process_group()\n"
    )
    for done in warm.run_ranks(ranks, script, tmp_path):
        assert done.returncode == 0, done.stderr
    return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]


def make_chat_set(
    folder: Path, train: list[list[int]], val: list[list[int]], seed: int = 0, vocab: int = VOCAB
) -> Path:
    """A chat set of random ids: lengths as of `make_token_set`, and a loss mask of random spans."""
    make_token_set(folder, train, val, seed, vocab)
    rng = np.random.default_rng(seed + 1)
    manifest = read_manifest(folder)
    shards = []
    for entry in manifest["shards"]:
        record = json.loads((folder / "shards" / f"{entry['name']}.json").read_text())
        tokens = np.fromfile(
            folder / "shards" / f"{entry['name']}.bin", np.uint16 if vocab <= 65536 else np.uint32
        )
        offsets = np.fromfile(folder / "shards" / f"{entry['name']}.idx", np.uint64).astype(
            np.int64
        )
        mask = np.repeat(rng.integers(0, 2, len(tokens) // 7 + 1), 7)[: len(tokens)].astype(bool)
        mask[offsets[:-1]] = False
        with ShardWriter(folder, entry["name"], record["dtype"], ["mask", "targets"]) as writer:
            writer.write(tokens, np.diff(offsets))
            writer.write_column("mask", mask)
            done = np.concatenate([[0], np.cumsum(mask)])
            writer.write_column("targets", done[offsets[1:]] - done[offsets[:-1]])
            facts = dict.fromkeys(TEXT_COUNTS, 0) | {
                "fingerprint": "e" * 64,
                "source": record["source"],
            }
            shards.append((writer.finish(facts), entry["split"]))
    rule = ChatRule.named("chatml", "all")
    chat = replace(rule, text_fingerprint="f" * 64).as_dict()
    (folder / "manifest.json").unlink()
    shutil.rmtree(folder / "manifests")
    write_manifest(
        folder,
        "synthetic-chat",
        manifest["tokenizer"] | {"fingerprint": "e" * 64, "chat": chat},
        shards,
    )
    return folder
