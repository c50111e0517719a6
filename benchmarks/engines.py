"""How fast each family of tokenizers is, by its library and by the engine that is used: one core, no files.

    python benchmarks/engines.py SOURCE

SOURCE is a folder of parquet files with text: the first 2 MB train a tokenizer of each family, of up to 30,000 tokens,
and the next 20 MB are encoded.
"""

import argparse
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Regex, normalizers, pre_tokenizers

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import json_kinds
from json_kinds import BYTES, bpe, llama2, unigram, word_piece

from tokenmill.text.listing import list_sources
from tokenmill.tokenize.encoder import choose_encoder, reference
from tokenmill.tokenize.load import load_foreign
from tokenmill.tokenize.patterns import LLAMA3_PATTERN, QWEN2_PATTERN
from tokenmill.tokenize.tokenizer import load_tokenizer, train_tokenizer

MB = 1_000_000
SIZE = 20 * MB  # of text


def split(pattern: str):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), BYTES])


FAMILIES = {
    "byte-level, Llama 3's split": lambda: bpe(split(LLAMA3_PATTERN)),
    "byte-level, Qwen's split and NFC": lambda: bpe(split(QWEN2_PATTERN), normalizers.NFC()),
    "byte-level, GPT-2's split and NFC (NeoX, Pythia, OLMo 1)": lambda: bpe(
        pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC()
    ),
    "byte-level, another split (single digits, as SmolLM)": json_kinds.KINDS["digits"],
    "byte-level, several splits (as DeepSeek)": json_kinds.KINDS["splits"],
    "SentencePiece's BPE with byte fallback (Llama 2, Gemma)": llama2,
    "Unigram (T5)": unigram,
    "WordPiece (BERT)": word_piece,
}


def texts(source: str):
    for path in (file.path for file in list_sources([source]).files):
        for batch in pq.ParquetFile(path).iter_batches(1024, columns=["text"]):
            yield from batch.column(0).to_pylist()


def some(stream, size: int) -> list[str]:
    found, so_far = [], 0
    while so_far < size:
        found += (more := list(islice(stream, 100)))
        so_far += sum(map(len, more))
    return found


def speed(encode, documents: pa.LargeStringArray) -> float:
    """MB a second, after a quarter of the text has been encoded once."""
    encode(documents[: len(documents) // 4])
    started = time.perf_counter()
    encode(documents)
    return documents.nbytes / MB / (time.perf_counter() - started)


def row(family: str, tokenizer, documents: pa.LargeStringArray) -> str:
    encoder, why = choose_encoder("auto", tokenizer)
    by_library = speed(reference(tokenizer), documents)
    used = by_library if encoder.is_reference else speed(encoder.encode, documents)
    reason = why.replace("|", "\\|").partition("\n")[0][:120]
    return f"| {family} | {encoder.engine} | {used:.1f} | {by_library:.1f} | {used / by_library:.1f} | {reason} |"


def main(source: str) -> None:
    stream = texts(source)
    json_kinds.TEXTS, json_kinds.FACTOR = some(stream, SIZE // 10), 40
    documents = pa.array(some(stream, SIZE), pa.large_string())
    print("| tokenizer | used | MB/s | MB/s of its library | ratio | why no faster engine |")
    print("| --- | --- | --- | --- | --- | --- |")
    print(row("GPT-2", load_tokenizer("gpt2"), documents))
    print(row("nanochat, train:32768", train_tokenizer(json_kinds.TEXTS, 32768, "n"), documents), flush=True)
    for family, make in FAMILIES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tokenizer.json"
            make().save(str(path))
            print(row(family, load_foreign(path, "<s>"), documents), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a folder of parquet files")
    main(**vars(parser.parse_args()))
