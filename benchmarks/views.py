"""Time and memory of views of a large set, and how fast their windows are planned; writes benchmarks/views.md.

    python benchmarks/views.py [--quick]

The set has 20,000 shards of 50 million tokens and 49,500 documents, 10^12 tokens and 10^9 documents in all, of
FineWeb-Edu-like lengths; with --quick, 200 shards. Tokens are holes in files, and offsets and metadata (a score, a
language, a URL) are links to a few files, so what is measured is computing, and not reading from a disk. Each command
runs in a process of its own. Windows of the whole set and of views are planned in turns, in one process.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from packing import fineweb_edu_lengths

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tokenmill.numpy import RowLoader
from tokenmill.store.files import header
from tokenmill.store.shards import TEXT_COUNTS
from tokenmill.store.tables import parquet_of
from tokenmill.store.token_sets import TokenSet, write_manifest

ROOT = Path(__file__).resolve().parent.parent
SHARD_TOKENS, VARIANTS = 50_000_000, 7
RULES = {
    "half": ("--where", "score >= 2.5"),
    "hundredth": ("--where", "score >= 4.95 and language <> 'fr'"),
    "upsampled": ("--repeat", "case when score >= 4 then 3 when score >= 3 then 1.5 else 0 end"),
}
WINDOWS = 6  # planned of each


def make_set(folder: Path, shards: int) -> Path:
    """The simulated set."""
    ends = np.cumsum(fineweb_edu_lengths(SHARD_TOKENS // 1000))
    offsets = np.concatenate([[0], ends[ends < SHARD_TOKENS], [SHARD_TOKENS]])
    documents, files = len(offsets) - 1, folder / "files"
    (folder / "shards").mkdir(parents=True)
    files.mkdir()
    (files / "idx").write_bytes(offsets.astype("<u8").tobytes())
    with open(files / "bin", "wb") as file:
        file.truncate(2 * SHARD_TOKENS)
    tables = []
    for variant in range(VARIANTS):
        rng = np.random.default_rng(variant)
        table = pa.table(
            {
                "score": rng.random(documents) * 5,
                "language": pa.array(rng.choice(["en", "de", "fr"], documents)).dictionary_encode(),
                "url": [f"https://example.org/{variant}/{n}" for n in range(documents)],
            }
        )
        data = bytes(parquet_of(table))
        (files / f"meta{variant}").write_bytes(data)
        tables.append(
            {
                "bytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
                "crc32": [0] * (len(data) // (1 << 20) + 1),
            }
        )
    made = []
    for number in range(shards):
        name, variant = f"web_{number:05}.000", number % VARIANTS
        for suffix, file in (("idx", "idx"), ("bin", "bin"), ("meta.parquet", f"meta{variant}")):
            os.link(files / file, folder / "shards" / f"{name}.{suffix}")
        facts = {"documents": documents, "tokens": SHARD_TOKENS, **dict.fromkeys(TEXT_COUNTS, 0)}
        record = header("shard") | {"name": name, "dtype": "uint16", "fingerprint": "0" * 64} | facts
        for suffix, size in (("bin", 2 * SHARD_TOKENS), ("idx", 8 * len(offsets))):
            digest = hashlib.sha256(f"{name}.{suffix}".encode()).hexdigest()
            record[suffix] = {"bytes": size, "sha256": digest, "crc32": [0] * -(-size >> 20)}
        record |= {"meta.parquet": tables[variant], "metadata": ["score", "language", "url"]}
        record["source"] = {"file": f"web_{number:05}.parquet", "row_groups": [0], "row_group_documents": [documents]}
        (folder / "shards" / f"{name}.json").write_text(json.dumps(record))
        made.append((record, "val" if number == shards - 1 else "train"))
    tokenizer = {"name": "zeros", "fingerprint": "0" * 64, "vocab_size": 50257, "bos_token": "<|bos|>", "bos_id": 0}
    write_manifest(folder, "web", tokenizer, made)
    return folder


def measured(code: str) -> tuple[float, int]:
    """(seconds, peak MiB) of a program in a process of its own."""
    ending = "\nimport resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)"
    began = time.perf_counter()
    words = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}{ending}"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return time.perf_counter() - began, int(done.stdout.split()[-1])


def first_batch(folder: Path, view: str | None) -> tuple[float, int]:
    return measured(
        f"from tokenmill.numpy import RowLoader\n"
        f"next(RowLoader({str(folder)!r}, view={view!r}, batch_size=32, seq_len=2048))"
    )


def planned(folder: Path) -> dict[str, float]:
    """Tokens that are planned a second, of the whole set and of each view."""
    found: dict[str, list[float]] = {}
    loaders = {name: RowLoader(folder, view=name, batch_size=1, seq_len=2048, prefetch=0) for name in (None, *RULES)}
    sources = {name: loader._sources(loader.run)[""] for name, loader in loaders.items()}
    for window in range(WINDOWS):
        for name, source in sources.items():
            if window < source.count_windows(0):
                began = time.perf_counter()
                rate = source.table(0, window).num_rows * 2049 / (time.perf_counter() - began)
                found.setdefault(name or "the whole set", []).append(rate)
    return {name: statistics.median(rates) for name, rates in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="200 shards; prints, and writes nothing")
    shards = 200 if parser.parse_args().quick else 20_000
    lines = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = make_set(Path(temporary) / "web", shards)
        documents = TokenSet(folder).manifest["documents"]
        lines += [f"A set of {documents:,} documents and {shards * SHARD_TOKENS:,} tokens in {shards:,} shards.", ""]
        lines += ["| making a view | seconds | peak MiB |", "| --- | --- | --- |"]
        for name, (flag, rule) in RULES.items():
            words = ["view", str(folder), "--name", name, flag, rule]
            seconds, peak = measured(f"from tokenmill import cli; assert cli.main({words!r}) == 0")
            lines.append(f'| `{flag} "{rule}"` | {seconds:.1f} | {peak:,} |')
            print(lines[-1], file=sys.stderr, flush=True)
        lines += ["", "| first batch of a new process (numpy) | seconds | peak MiB |", "| --- | --- | --- |"]
        for name in (None, *RULES):
            runs = sorted(first_batch(folder, name) for _ in range(3))
            lines.append(f"| {name or 'the whole set'} | {runs[1][0]:.2f} | {runs[1][1]:,} |")
            print(lines[-1], file=sys.stderr, flush=True)
        rates = planned(folder)
        lines += ["", "| planning windows | M tokens/s | of the whole set's |", "| --- | --- | --- |"]
        for name, rate in rates.items():
            lines.append(f"| {name} | {rate / 1e6:.0f} | {rate / rates['the whole set']:.2f} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if shards == 20_000:
        (ROOT / "benchmarks" / "views.md").write_text(
            f"# Views\n\nMade by `python benchmarks/views.py`, on two cores.\n\n{text}"
        )


if __name__ == "__main__":
    main()
