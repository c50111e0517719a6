"""What windows do, beside the code before them, in one run; writes benchmarks/order.md.

    python benchmarks/order.py [--quick]

The rival is tokenmill 0.2.0 (commit BEFORE), which read shard by shard; it is taken from this repository's history, and
left out where that is not there. Both run in processes of their own that take turns, on one torch thread each.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import sets
from packing import fineweb_edu_lengths

from tokenmill.rows.packing import plan_rows

BEFORE = "8f7bb5c"
FILES, BATCH_SIZE, SEQ_LEN, BATCHES = 20, 32, 2048, 400
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds; prints, and writes nothing")
QUICK = parser.parse_args().quick
ROUNDS = 3 if QUICK else 11

SERVER = """
import json, sys, time
sys.path.insert(0, {code!r})
import numpy as np, torch
torch.set_num_threads(1)
from tokenmill import RowLoader
SECONDS = {seconds}
TOKENS = {batch_size} * {seq_len}

def make(tokens, **settings):
    return RowLoader(tokens, batch_size={batch_size}, seq_len={seq_len}, **settings)

def rate(step):
    step()
    started, steps = time.perf_counter(), 0
    while (seconds := time.perf_counter() - started) < SECONDS:
        step()
        steps += 1
    return steps * TOKENS / seconds

def rows_of(tokens, batches):
    # of each batch the (file, document, filler) of its pieces, row by row
    rows = make(tokens, prefetch=0)._make_rows(ahead=False)
    told = lambda p: (p.shard.entry.name, p.document, p.start, p.length, p.filler)
    return [[[told(piece) for piece in row] for row in rows.pieces({batch_size})] for _ in range(batches)]

loaders = {{}}
def speed(tokens, prefetch):
    if (tokens, prefetch) not in loaders:
        loaders[tokens, prefetch] = make(tokens, prefetch=prefetch)
    loader = loaders[tokens, prefetch]
    return rate(lambda: next(loader))

def widening():
    tokens, out, at = np.zeros(1 << 18, np.uint16), np.empty((2, TOKENS), np.int64), [0]
    def step():
        at[0] = (at[0] + 777) % 100_000
        out[0] = tokens[at[0] : at[0] + TOKENS]
        out[1] = tokens[at[0] + 1 : at[0] + 1 + TOKENS]
    return rate(step)

def filling(tokens, populated):
    # rows of a window alone, in their order, each once: maps are made anew
    rows = make(tokens, prefetch=0)._feed.only.plans().rows(0, 0)
    if populated:
        for _ in rows.reading():
            pass
    started = time.perf_counter()
    for first in range(0, rows.num_rows - {batch_size}, {batch_size}):
        rows.read(range(first, first + {batch_size}))
    return rows.num_rows * {seq_len} / (time.perf_counter() - started)

for line in sys.stdin:
    name, *arguments = json.loads(line)
    print(json.dumps(globals()[name](*arguments)), flush=True)
"""


class Server:
    """A process that runs one version of the code."""

    def __init__(self, code: Path):
        seconds = 0.2 if QUICK else 0.5
        program = SERVER.format(code=str(code), batch_size=BATCH_SIZE, seq_len=SEQ_LEN, seconds=seconds)
        self._process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=code
        )

    def ask(self, *what):
        self._process.stdin.write(json.dumps([str(w) if isinstance(w, Path) else w for w in what]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def before(folder: Path) -> Path | None:
    """The code before windows, from the history, where that is there."""
    done = subprocess.run(["git", "archive", BEFORE], cwd=sets.ROOT, capture_output=True)
    if done.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder / "before", filter="data")
    return folder / "before"


# ---------------------------------------------------------------------------- fairness


def touched(batches) -> float:
    """Files that a batch's documents are of, on average; fillers are not counted."""
    return float(np.mean([len({piece[0] for row in rows for piece in row if not piece[4]}) for rows in batches]))


def touched_by_draws(batches) -> float:
    """The same if every document of a batch were of a file drawn at random."""
    rng = np.random.default_rng(0)
    pieces = [sum(not piece[4] for row in rows for piece in row) for rows in batches]
    return float(np.mean([len(set(rng.integers(FILES, size=n).tolist())) for n in pieces]))


def unevenness(batches, block: int) -> float:
    """Standard deviation of a file's share of a block of batches, of its share of the whole, by tokens."""
    names = sorted({piece[0] for rows in batches for row in rows for piece in row})
    shares = []
    for first in range(0, len(batches) - block + 1, block):
        counts = dict.fromkeys(names, 0)
        for row in (row for rows in batches[first : first + block] for row in rows):
            for name, _, _, length, _ in row:
                counts[name] += length
        shares.append([counts[name] / sum(counts.values()) for name in names])
    return float(np.std(shares) * len(names))


def unevenness_of_draws(batches, block: int) -> float:
    """The same if every piece were of a file drawn at random, lengths as they are."""
    rng = np.random.default_rng(0)
    drawn = [
        [[(int(rng.integers(FILES)), 0, 0, piece[3], piece[4]) for piece in row] for row in rows] for rows in batches
    ]
    return unevenness(drawn, block)


def fairness(servers: dict[str, Server], folder: Path) -> list[str]:
    tokens = sets.sparse(folder / "files", FILES + 1, 10_000_000)  # the last one validates
    lines = [
        f"| {FILES} equal files, each of its own domain, 200M tokens | files in a batch of {BATCH_SIZE} rows | "
        "deviation of a file's share of 40 batches |",
        "| --- | --- | --- |",
    ]
    for name, server in servers.items():
        batches = server.ask("rows_of", tokens, BATCHES)
        lines.append(f"| {name} | {touched(batches):.1f} | {unevenness(batches, 40):.0%} |")
    drawn = f"{touched_by_draws(batches):.1f} | {unevenness_of_draws(batches, 40):.0%}"
    return [*lines, f"| documents drawn at random | {drawn} |"]


def repeats(servers: dict[str, Server], path: Path) -> list[str]:
    lines = ["| rows of two or more documents that are the same in epochs 0 and 1, and filler | repeated | filler |"]
    lines.append("| --- | --- | --- |")
    for name, server in servers.items():
        rows = [row for batch in server.ask("rows_of", path, 320) for row in batch]  # two epochs, about
        kept = [frozenset(tuple(piece[:3]) for piece in row if not piece[4]) for row in rows]
        half = len(kept) // 2
        first, second = ({row for row in part if len(row) > 1} for part in (kept[:half], kept[half:]))
        filler = sum(piece[3] for row in rows for piece in row if piece[4]) / (len(rows) * (SEQ_LEN + 1))
        lines.append(f"| {name}, {path.name} | {len(first & second) / len(first):.1%} | {filler:.2%} |")
    return lines


def small_files() -> list[str]:
    lengths = fineweb_edu_lengths(5_000)
    together, alone = plan_rows(lengths, SEQ_LEN + 1, seed=0), [plan_rows([n], SEQ_LEN + 1, seed=0) for n in lengths]
    shares = [
        sum(int(p.length[p.filler].sum()) for p in plans) / sum(p.num_rows * (SEQ_LEN + 1) for p in plans)
        for plans in ([together], alone)
    ]
    return [
        "| 5,000 files of one document | filler |",
        "| --- | --- |",
        f"| in one window | {shares[0]:.2%} |",
        f"| each shard packed alone, as before | {shares[1]:.0%} |",
    ]


# ---------------------------------------------------------------------------- speed


def speeds(servers: dict[str, Server], path: Path) -> list[str]:
    found: dict[tuple, list[float]] = {}
    for _ in range(ROUNDS):
        for name, server in servers.items():
            for what in (("widening",), ("speed", path, 0), ("speed", path, 2)):
                found.setdefault((name, *what), []).append(server.ask(*what))
    medians = {key: float(np.median(values)) for key, values in found.items()}
    lines = [
        "| int64 (32, 2,048) on the CPU, warm, best_fit | no thread | of bare widening | prefetch 2 | of no thread |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in servers:
        wide = medians[name, "widening"]
        plain, ahead = (medians[name, "speed", path, prefetch] for prefetch in (0, 2))
        shares = (f"{plain / wide:.2f}", f"{ahead / 1e6:,.0f}M", f"{ahead / plain:.2f}")
        lines.append(f"| {name} | {plain / 1e6:,.0f}M tokens/s | {' | '.join(shares)} |")
    return [*lines, f"| widening of a batch into two int64 arrays | {wide / 1e6:,.0f}M | 1.00 | | |"]


def filling(server: Server, folder: Path) -> list[str]:
    large = sets.sparse(folder / "large", 400)
    populated, faulting = [], []
    for _ in range(ROUNDS):
        populated.append(server.ask("filling", large, True))
        faulting.append(server.ask("filling", large, False))
    return [
        "| rows of a window of 256 slices of 400 shards alone, uint16, in the page cache | tokens/s |",
        "| --- | --- |",
        f"| read ahead by the planning thread | {np.median(populated) / 1e6:,.0f}M |",
        f"| not read ahead: each page is mapped when it is touched | {np.median(faulting) / 1e6:,.0f}M |",
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _, path = sets.prepare(folder, "--shard-text-bytes", "64000000")  # a shard a file, as 0.2.0 knows
        code = {"tokenmill, shard by shard (0.2.0)": before(folder), "**tokenmill**": sets.ROOT}
        servers = {label: Server(where) for label, where in code.items() if where is not None}
        tables = [
            fairness(servers, folder),
            repeats(servers, path),
            small_files(),
            speeds(servers, path),
            filling(servers["**tokenmill**"], folder),
        ]
    text = "\n\n".join([f"{path.name}; {os.cpu_count()} cores.", *("\n".join(table) for table in tables)]) + "\n"
    print(text)
    if not QUICK:
        Path(__file__).with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
