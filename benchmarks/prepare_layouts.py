"""Preparing, by how the source is cut into files, beside earlier commits: python benchmarks/prepare_layouts.py --help

    git clone . /tmp/before && git -C /tmp/before checkout 41c3cfa
    python benchmarks/prepare_layouts.py SOURCE --beside /tmp/before

Whole commands with a user's defaults take turns in one run: every checkout with two workers, and this one with one
worker too. SOURCE is a folder of parquet files with 700 MB of distinct text or more. The layouts are written into a
folder that stays, so that they are in the page cache of every command alike.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from layouts import LAYOUTS, write_layouts

from tokenmill.text.listing import list_sources
from tokenmill.tokenize.load import load_any

HERE = Path(__file__).resolve().parent.parent
SMALLER, LARGER = "6 parquet files, 40 MB", "31 parquet files, 207 MB"
LOOP_BYTES = 20_000_000  # of text, for the plain loop


def texts(source: str):
    for path in (file.path for file in list_sources([source]).files):
        for batch in pq.ParquetFile(path).iter_batches(1024, columns=["text"]):
            yield from batch.column(0).to_pylist()


def plain_loop(source: str, tokenizer: str) -> float:
    """Bytes of text a second of tiktoken's encode_ordinary, a document at a time, in one process."""
    encoding, size = load_any(tokenizer).encoding, 0
    encoding.encode_ordinary("warm")
    started = time.perf_counter()
    for text in texts(source):
        np.array(encoding.encode_ordinary(text), dtype=np.uint16)
        size += len(text.encode())
        if size > LOOP_BYTES:
            break
    return size / (time.perf_counter() - started)


def seconds(checkout: Path, source: Path, tokenizer: str, workers: int) -> float:
    """How long a whole command takes."""
    with tempfile.TemporaryDirectory(dir=source.parent) as root:
        command = [sys.executable, checkout / "prepare_data.py", "--source", source, "--tokens-root", f"{root}/tokens"]
        command += ["--name", "bench", "--tokenizer", tokenizer, "--workers", workers]
        started = time.perf_counter()
        subprocess.run([str(word) for word in command], cwd=checkout, check=True, capture_output=True)
        return time.perf_counter() - started


def main(source: str, tokenizer: str, beside: list[Path], runs: int, layouts: Path, only: list[str]) -> None:
    names = [name for name in LAYOUTS if not only or name in only]
    folders = write_layouts(texts(source), layouts, names)
    methods = [(checkout, 2) for checkout in (*beside, HERE)] + [(HERE, 1)]
    took: dict[tuple[str, Path, int], list[float]] = {}
    loops = []
    for _ in range(runs):
        loops.append(plain_loop(source, tokenizer))
        for name in names:
            for checkout, workers in methods:
                took.setdefault((name, checkout, workers), []).append(
                    seconds(checkout, folders[name], tokenizer, workers)
                )
    median = {key: float(np.median(several)) for key, several in took.items()}
    heads = [f"{path.name}, 2 workers" for path in beside] + ["now, 2 workers", "now, 1 worker", "second worker"]
    heads += [f"as fast as {path.name}" for path in beside]
    print(f"{Path(tokenizer).name}, medians of {runs}; seconds of whole commands\n")
    print(f"| | {' | '.join(heads)} |\n| --- |{' --- |' * len(heads)}")
    for name in names:
        now, one = median[name, HERE, 2], median[name, HERE, 1]
        old = [median[name, path, 2] for path in beside]
        cells = [*(f"{t:.2f}" for t in old), f"{now:.2f}", f"{one:.2f}", f"{one / now:.2f}"]
        print(f"| {name} | {' | '.join([*cells, *(f'{t / now:.2f}' for t in old)])} |")
    if SMALLER in names and LARGER in names:
        print_marginal(median, methods, float(np.median(loops)))


def print_marginal(median: dict[tuple[str, Path, int], float], methods: list[tuple[Path, int]], loop: float) -> None:
    """What a MB more takes, apart from starting: the time for 207 MB less that for 40 MB."""
    size = sum(LAYOUTS[name].files * LAYOUTS[name].text_bytes * sign for name, sign in ((LARGER, 1), (SMALLER, -1)))
    print(
        f"\nThe plain tiktoken loop: {loop / 1e6:.1f} MB/s. {size / 1e6:.0f} MB more of parquet, apart from starting:\n"
    )
    print("| | MB/s | of the plain loop |\n| --- | --- | --- |")
    for checkout, workers in methods:
        rate = size / (median[LARGER, checkout, workers] - median[SMALLER, checkout, workers])
        name = "now" if checkout == HERE else checkout.name
        print(f"| {name}, {workers} worker{'s' * (workers > 1)} | {rate / 1e6:.0f} | {rate / loop:.1f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a folder of parquet files")
    parser.add_argument("--tokenizer", default="gpt2", help="as prepare's --tokenizer")
    parser.add_argument("--beside", nargs="*", type=Path, default=[], help="checkouts of earlier commits")
    parser.add_argument("--runs", type=int, default=3, help="of each command; medians are given")
    parser.add_argument("--layouts", type=Path, default=Path("/tmp/tokenmill-layouts"), help="where layouts are kept")
    parser.add_argument("--only", nargs="*", default=[], help=f"these layouts alone: {', '.join(LAYOUTS)}")
    main(**vars(parser.parse_args()))
