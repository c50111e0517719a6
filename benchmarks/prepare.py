"""Preparing against a plain single-process tiktoken loop, side by side in one run.

    python benchmarks/prepare.py SOURCE [TOKENIZER] [RUNS]

The loop is what most scripts do: read the text, `encode_ordinary` document by document, keep the
ids as uint16; it writes nothing. Ours is the whole command: start, workers, reading, hashing, writing.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from config import PrepareConfig
from prepare_data import prepare
from tokenmill.shards import TokenSet
from tokenmill.sources import local_files
from tokenmill.tokenizer import load_tokenizer


def plain_loop(source: str, encoding) -> float:
    started = time.perf_counter()
    for path in local_files(source).values():
        for text in pq.read_table(path)["text"].to_pylist():
            np.array(encoding.encode_ordinary(text), dtype=np.uint16)
    return time.perf_counter() - started


def ours(source: str, tokenizer: str, workers: int) -> tuple[float, int]:
    with tempfile.TemporaryDirectory() as root:
        config = PrepareConfig(
            source=source,
            tokenizer=tokenizer,
            name="bench",
            tokens_root=Path(root),
            workers=workers,
            shard_text_bytes=4 << 20,  # so that a small corpus is shared evenly too
        )
        started = time.perf_counter()
        folder = prepare(config)
        return time.perf_counter() - started, TokenSet(folder).manifest["text_bytes"]


def main(source: str, tokenizer: str = "gpt2", runs: str = "5") -> None:
    encoding = load_tokenizer(tokenizer).encoding
    loops, ones, twos = [], [], []
    for _ in range(int(runs)):
        loops.append(plain_loop(source, encoding))
        ones.append(ours(source, tokenizer, 1)[0])
        seconds, text_bytes = ours(source, tokenizer, 2)
        twos.append(seconds)
    print("\n| method | seconds | MB/s | against the loop |\n| --- | --- | --- | --- |")
    for name, seconds in (("plain loop", loops), ("tokenmill, 1 worker", ones), ("tokenmill, 2 workers", twos)):
        median = np.median(seconds)
        print(f"| {name} | {median:.2f} | {text_bytes / median / 1e6:.1f} | {np.median(loops) / median:.2f} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
