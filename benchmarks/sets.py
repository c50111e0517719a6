"""Token sets for the benchmarks: one prepared from real text, one of any size made of sparse files."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from packing import fineweb_edu_lengths

from tokenmill.store.manifests import write_manifest
from tokenmill.store.shard_writer import ShardWriter
from tokenmill.store.shards import TEXT_COUNTS

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"


def prepare(folder: Path, *more: str) -> tuple[list[Path], Path]:
    """Prepares ../shared/corpus with GPT-2 or, where that is not there, the demo: (training files, token set)."""
    flags, environment = ["demo"], dict(os.environ)
    if (SHARED / "corpus").is_dir():
        flags = ["--source", str(SHARED / "corpus"), "--tokenizer", "gpt2"]
        environment.setdefault("TIKTOKEN_CACHE_DIR", str(SHARED / "tiktoken_cache"))
    command = [sys.executable, str(ROOT / "prepare_data.py"), *flags, *more]
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    source = SHARED / "corpus" if len(flags) > 1 else folder / "data" / "raw" / "stdlib"
    return sorted(source.glob("*.parquet"))[:-1], folder / done.stdout.splitlines()[-1]


def sparse(folder: Path, num_shards: int, shard_tokens: int = 50_000_000) -> Path:
    """A token set of `num_shards` shards of FineWeb-Edu-like lengths; the tokens are holes in files, and all BOS."""
    ends = np.cumsum(fineweb_edu_lengths(shard_tokens // 1000))
    offsets = np.concatenate([[0], ends[ends < shard_tokens], [shard_tokens]])
    (folder / "shards").mkdir(parents=True)
    index = folder / "shards" / "lengths"
    index.write_bytes(offsets.astype("<u8").tobytes())
    counts = {
        "documents": len(offsets) - 1,
        "tokens": shard_tokens,
        **dict.fromkeys(TEXT_COUNTS, 0),
    }
    shards, facts = [], {"dtype": "uint16"} | counts
    for number in range(num_shards):
        name = f"zeros_{number:05}.000"
        os.link(index, folder / "shards" / f"{name}.idx")  # one index for all of them
        with open(folder / "shards" / f"{name}.bin", "wb") as file:
            file.truncate(2 * shard_tokens)
        digest = hashlib.sha256(
            f"{folder.name}/{name}".encode()
        ).hexdigest()  # of no bytes, but one of each file
        checksums = {kind: {"sha256": digest} for kind in ("bin", "idx")}
        record = (
            facts | checksums | {"name": name, "source": {"file": f"zeros_{number:05}.parquet"}}
        )
        (folder / "shards" / f"{name}.json").write_text(
            json.dumps(record)
        )  # so that the manifest lists it
        shards.append((record, "val" if number == num_shards - 1 else "train"))
    tokenizer = {
        "name": "zeros",
        "fingerprint": "0" * 64,
        "vocab_size": 50257,
        "bos_token": "<|bos|>",
        "bos_id": 0,
    }
    write_manifest(folder, "zeros", tokenizer, shards)
    return folder


def random_set(folder, shards, tokens, seed=0):
    """A set of random tokens on this disk: documents of 100 to 3,000."""
    rng, made = np.random.default_rng(seed), []
    for number in range(shards):
        lengths = rng.integers(100, 3000, tokens // 1550)
        ids = rng.integers(1, 50_000, int(lengths.sum()))
        ids[np.cumsum([0, *lengths[:-1]])] = 0
        with ShardWriter(folder, f"shard_{number:03d}.000", "uint16") as writer:
            writer.write(ids, lengths)
            facts = dict.fromkeys(TEXT_COUNTS, 0) | {"fingerprint": "f" * 64}
            made.append(
                writer.finish(facts | {"source": {"file": f"{number}.parquet", "shards": 1}})
            )
    vocabulary = {
        "name": "bench",
        "fingerprint": "f" * 64,
        "vocab_size": 50_000,
        "bos_token": "<|bos|>",
        "bos_id": 0,
    }
    write_manifest(folder, "random", vocabulary, [(record, "train") for record in made])
