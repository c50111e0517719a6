"""How evenly windows mix a corpus, and what packing a window does to its documents; writes benchmarks/order.md.

    python benchmarks/order.py [--quick]

Batches are compared with documents drawn at random. benchmarks/loader.py measures the speed.
"""

import argparse
import os
import sys
import tempfile
from itertools import islice
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import sets
from packing import fineweb_edu_lengths

from tokenmill.feed.mixed_rows import mixed_rows
from tokenmill.numpy import RowLoader
from tokenmill.rows.packing import plan_rows

FILES, BATCH_SIZE, SEQ_LEN = 20, 32, 2048


def batches_of(tokens: Path, count: int) -> list:
    """Of each batch, row by row, its pieces: (file, document, start, length); filler is left out."""
    loader = RowLoader(tokens, batch_size=BATCH_SIZE, seq_len=SEQ_LEN, prefetch=0)
    found = []
    for batch, _, _ in islice(mixed_rows(loader._sources(loader.run), loader.run, 0), count):
        rows = [part.table.pieces(row) for part in batch.parts for row in range(part.first, part.last)]
        found.append(
            [[(p.shard.entry.name, p.document, p.start, p.length) for p in row if not p.filler] for row in rows]
        )
    return found


def touched(batches: list) -> float:
    """Files that a batch's documents are of, on average."""
    return float(np.mean([len({piece[0] for row in rows for piece in row}) for rows in batches]))


def unevenness(batches: list, block: int) -> float:
    """Standard deviation of a file's share of a block of batches, of its share of the whole, by tokens."""
    names = sorted({piece[0] for rows in batches for row in rows for piece in row})
    shares = []
    for first in range(0, len(batches) - block + 1, block):
        counts = dict.fromkeys(names, 0)
        for row in (row for rows in batches[first : first + block] for row in rows):
            for name, _, _, length in row:
                counts[name] += length
        shares.append([counts[name] / sum(counts.values()) for name in names])
    return float(np.std(shares) * len(names))


def drawn(batches: list) -> list:
    """The same if every piece were of a file drawn at random, lengths as they are."""
    rng = np.random.default_rng(0)
    return [[[(int(rng.integers(FILES)), *piece[1:]) for piece in row] for row in rows] for rows in batches]


def fairness(folder: Path, count: int) -> list[str]:
    batches = batches_of(sets.sparse(folder / "files", FILES + 1, 10_000_000), count)  # the last file validates
    lines = [
        f"| {FILES} equal files, each of its own domain, 200M tokens | files in a batch of {BATCH_SIZE} rows | "
        "deviation of a file's share of 40 batches |",
        "| --- | --- | --- |",
    ]
    for name, some in (("**tokenmill**", batches), ("documents drawn at random", drawn(batches))):
        lines.append(f"| {name} | {touched(some):.1f} | {unevenness(some, 40):.0%} |")
    return lines


def repeats(path: Path) -> list[str]:
    rows = [row for batch in batches_of(path, 320) for row in batch]  # two epochs, about
    kept = [frozenset(piece[:3] for piece in row) for row in rows]
    half = len(kept) // 2
    first, second = ({row for row in part if len(row) > 1} for part in (kept[:half], kept[half:]))
    return [
        "| rows of two or more documents that are the same in epochs 0 and 1 | repeated |",
        "| --- | --- |",
        f"| **tokenmill**, {path.name} | {len(first & second) / len(first):.1%} |",
    ]


def small_files() -> list[str]:
    lengths = fineweb_edu_lengths(5_000)
    together = plan_rows(lengths, SEQ_LEN + 1, seed=(0,))
    alone = [plan_rows([n], SEQ_LEN + 1, seed=(0,)) for n in lengths]
    shares = [
        sum(int(p.length[p.filler].sum()) for p in plans) / sum(p.num_rows * (SEQ_LEN + 1) for p in plans)
        for plans in ([together], alone)
    ]
    return [
        "| 5,000 files of one document | filler |",
        "| --- | --- |",
        f"| in one window | {shares[0]:.2%} |",
        f"| each file packed alone | {shares[1]:.0%} |",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer batches; prints, and writes nothing")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _, path = sets.prepare(folder)
        tables = [fairness(folder, 80 if quick else 400), repeats(path), small_files()]
    text = "\n\n".join([f"{path.name}; {os.cpu_count()} cores.", *("\n".join(table) for table in tables)]) + "\n"
    print(text)
    if not quick:
        Path(__file__).with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
