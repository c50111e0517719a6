"""Preparing beside other ways to tokenize the same files, whole commands side by side in one run.

    python benchmarks/prepare.py SOURCE [TOKENIZER] [RUNS] [METHOD ...]     the plain loop, and all methods or these

Every method is a process of its own, started anew each time: its time has imports and workers in it, its memory
is that of all its processes. Engines remember text that they have seen, so give it distinct text, and enough of
it: a few hundred MB, as starting takes about a second. Only tokenmill, and what is called written, writes anything.
"""

import argparse
import base64
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tokenmill import PrepareConfig, prepare
from tokenmill.text.listing import list_sources
from tokenmill.tokenize.vocabularies import load_tokenizer

PROCESSES = 2


def texts(source: str):
    for path in (file.path for file in list_sources([source]).files):
        for batch in pq.ParquetFile(path).iter_batches(1024, columns=["text"]):
            yield from batch.column(0).to_pylist()


# ---------------------------------------------------------------------------- the methods, each run in a new process


def tokenmill(source: str, tokenizer: str, engine: str, workers: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        settings = {
            "name": "bench",
            "tokens_root": Path(root),
            "engine": engine,
            "workers": workers,
        }
        prepare(PrepareConfig(source=source, tokenizer=tokenizer, **settings))


def plain_loop(source: str, tokenizer: str) -> None:
    encoding = load_tokenizer(tokenizer).encoding
    for text in texts(source):
        np.array(encoding.encode_ordinary(text), dtype=np.uint16)


def _build_nanogpt_document(text: str, encoding) -> np.ndarray:
    return np.array([0, *encoding.encode_ordinary(text)], dtype=np.uint16)


def build_nanogpt(source: str, tokenizer: str) -> None:
    """Its fineweb.py: a pool that takes documents 16 at a time and sends ids back."""
    import multiprocessing

    encode = partial(_build_nanogpt_document, encoding=load_tokenizer(tokenizer).encoding)
    with multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
        for _ in pool.imap(encode, texts(source), chunksize=16):
            pass


def nanochat(source: str, tokenizer: str) -> None:
    """Its dataloader's call: batches of 128 to tiktoken's own threads."""
    encoding, batch = load_tokenizer(tokenizer).encoding, []
    for text in texts(source):
        batch.append(text)
        if len(batch) == 128:
            encoding.encode_ordinary_batch(batch, num_threads=PROCESSES)
            batch = []


def nanogpt(source: str, tokenizer: str) -> None:
    """Its openwebtext/prepare.py: datasets.map in processes, into an Arrow file, and from there into one of uint16."""
    import datasets

    encoding = load_tokenizer(tokenizer).encoding

    def process(example: dict) -> dict:
        ids = encoding.encode_ordinary(example["text"])
        ids.append(0)
        return {"ids": ids, "len": len(ids)}

    with tempfile.TemporaryDirectory() as root:
        files = [file.path for file in list_sources([source]).files]
        dataset = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=root)
        tokenized = dataset.map(process, remove_columns=["text"], num_proc=PROCESSES)
        out = np.memmap(Path(root) / "train.bin", np.uint16, "w+", shape=(sum(tokenized["len"]),))
        at = 0
        for number in range(100):
            shard = tokenized.shard(num_shards=100, index=number, contiguous=True).with_format(
                "numpy"
            )
            if len(shard):
                ids = np.concatenate(shard["ids"])
                out[at : at + len(ids)] = ids
                at += len(ids)
        out.flush()


@contextlib.contextmanager
def _rank_file(ranks: dict[bytes, int]):
    """A .tiktoken file of ranks."""
    with tempfile.NamedTemporaryFile(suffix=".tiktoken") as file:
        file.writelines(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())
        file.flush()
        yield file


def gigatoken_written(source: str, tokenizer: str) -> None:
    """As Megatron-LM has it: gigatoken over a whole file, and then the ids written."""
    import gigatoken

    with _rank_file(load_tokenizer(tokenizer).ranks) as file, tempfile.TemporaryFile() as out:
        engine = gigatoken.Tokenizer.from_tiktoken(file.name, pretokenizer="gpt2")
        for path in (file.path for file in list_sources([source]).files):
            layout = engine.encode_files(
                gigatoken.ParquetFileSource([path], column="text"), parallel=True
            ).layout
            out.write(np.asarray(layout.content.data).astype(np.uint16).data)


METHODS = {
    "plain tiktoken loop": plain_loop,
    "build-nanogpt's Pool.imap, 2 processes": build_nanogpt,
    "nanochat's encode_ordinary_batch, 2 threads": nanochat,
    "nanoGPT's datasets.map, 2 processes": nanogpt,
    "gigatoken's encode_files, 2 threads, written": gigatoken_written,
    **{
        f"**tokenmill**, {engine}, {workers} worker{'s' * (workers > 1)}": partial(
            tokenmill, engine=engine, workers=workers
        )
        for engine in ("tiktoken", "gigatoken")
        for workers in (1, PROCESSES)
    },
}


# ---------------------------------------------------------------------------- measuring them


def memory_of(pid: int) -> int:
    """Bytes that a process and all below it hold; pages that they share are counted for each."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += one.memory_info().rss
    return total


def measure(method: str, source: str, tokenizer: str) -> tuple[float, float] | None:
    """Seconds and peak memory of a whole command; None where it fails, as an engine does with another pattern."""
    started, peak = time.perf_counter(), 0
    command = [sys.executable, __file__, "--method", method, source, tokenizer]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        done = threading.Event()
        threading.Thread(target=lambda: (process.wait(), done.set()), daemon=True).start()
        while not done.wait(0.02):
            peak = max(peak, memory_of(process.pid))
    return (time.perf_counter() - started, peak) if process.returncode == 0 else None


def main(source: str, tokenizer: str, runs: int, only: list[str]) -> None:
    loop_name = next(iter(METHODS))
    methods = [name for name in METHODS if not only or name in (loop_name, *only)]
    text_bytes = sum(pa.array([len(text.encode()) for text in texts(source)]).to_numpy())
    rounds = [{name: measure(name, source, tokenizer) for name in methods} for _ in range(runs)]
    loop = np.median([one[loop_name][0] for one in rounds])
    lines = [
        f"{text_bytes / 1e6:,.0f} MB of text, {Path(tokenizer).name}, {os.cpu_count()} cores, medians of {runs}.",
        "",
        "| whole command | MB/s | of the plain loop | peak memory |",
        "| --- | --- | --- | --- |",
    ]
    for name in methods:
        if all(one[name] for one in rounds):
            seconds, peak = (np.median([one[name][i] for one in rounds]) for i in (0, 1))
            speed = f"{text_bytes / seconds / 1e6:.1f} | {loop / seconds:.2f}"
            lines.append(f"| {name} | {speed} | {peak / 1e6:,.0f} MB |")
        else:
            lines.append(f"| {name} | not with this tokenizer, or not installed | | |")
    print("\n".join(lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--method"]:
        METHODS[sys.argv[2]](*sys.argv[3:])
    else:
        parser = argparse.ArgumentParser(
            description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("source", help="a folder of parquet files")
        parser.add_argument("tokenizer", nargs="?", default="gpt2", help="as prepare's --tokenizer")
        parser.add_argument(
            "runs", nargs="?", type=int, default=5, help="of each method; medians are given"
        )
        parser.add_argument(
            "only", nargs="*", metavar="METHOD", help=f"these alone: {', '.join(METHODS)}"
        )
        main(**vars(parser.parse_args()))
