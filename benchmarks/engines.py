"""How fast tokenizers are, by the engine that is used and by their library: one core, no files, in one run.

    python benchmarks/engines.py SOURCE gpt2 o200k_base path/to/llama3.json ...

SOURCE is a folder of parquet files with text, of which 20 MB are encoded. Each tokenizer is what --tokenizer takes.
Engine and library take turns, each with text that it has not seen; the library, which is slower, gets a tenth of it.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tokenmill.text.listing import list_sources
from tokenmill.tokenize.choose_encoder import choose_encoder
from tokenmill.tokenize.encoder import reference
from tokenmill.tokenize.load import load_any

MB = 1_000_000
SIZE = 20 * MB  # of text
ROUNDS = 3


def texts(source: str) -> pa.LargeStringArray:
    found, so_far = [], 0
    for path in (file.path for file in list_sources([source]).files):
        for batch in pq.ParquetFile(path).iter_batches(1024, columns=["text"]):
            found.append(batch.column(0).cast(pa.large_string()))
            if (so_far := so_far + found[-1].nbytes) > SIZE:
                return pa.concat_arrays(found)
    raise SystemExit(f"{source}: expected {SIZE // MB} MB of text, found {so_far / MB:.1f}")


def speed(encode, documents: pa.LargeStringArray) -> float:
    """MB a second."""
    started = time.perf_counter()
    encode(documents)
    return documents.nbytes / MB / (time.perf_counter() - started)


def row(name: str, documents: pa.LargeStringArray) -> str:
    tokenizer = load_any(name)
    started = time.perf_counter()
    encoder, why = choose_encoder("auto", tokenizer)
    proving = time.perf_counter() - started
    library, part, taken = reference(tokenizer), len(documents) // (ROUNDS + 1), []
    encoder.encode(documents[: part // 10 if why else part])  # fills the cache
    for some in (documents[part * number : part * (number + 1)] for number in range(1, ROUNDS + 1)):
        few = some[: part // 10]
        theirs = speed(library, few)
        taken.append((theirs if why else speed(encoder.encode, some), theirs))
    ours, theirs = (statistics.median(column) for column in zip(*taken, strict=True))
    left = 1 if why else encoder.encode(documents)[2] / len(documents)
    reason = why.replace("|", "\\|").partition("\n")[0][:90]
    facts = (
        f"{ours:.1f}",
        f"{theirs:.1f}",
        f"{ours / theirs:.1f}",
        f"{left:.2%}",
        f"{proving:.1f}",
        reason,
    )
    return f"| {tokenizer.name} | {encoder.engine} | {' | '.join(facts)} |"


def main(source: str, tokenizers: list[str]) -> None:
    documents = texts(source)
    print(
        "| tokenizer | engine | MB/s | library's MB/s | ratio | documents left to it | seconds to prove | why |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in tokenizers:
        print(row(name, documents), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", help="a folder of parquet files")
    parser.add_argument("tokenizers", nargs="+", help="as --tokenizer takes them")
    main(**vars(parser.parse_args()))
