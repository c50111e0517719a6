"""NumPy's and JAX's loaders beside torch's and beside other libraries' loops, in one run; writes benchmarks/arrays.md.

    python benchmarks/arrays.py [--quick]

Batches of 32 x 2,048 on the CPU, from a token set prepared of ../shared/corpus (or of the Python library), in the page
cache. All contenders take turns, and medians of the rounds are given. Grain and tf.data read rows of fixed length from
the same `.bin` file, as their users do with tokens that are prepared: they shuffle rows, and cut documents anywhere.
tf.data is left out if TensorFlow is not installed: pip install tensorflow-cpu
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import sets

from tokenmill.store.token_sets import TokenSet

BATCH_SIZE, SEQ_LEN = 32, 2048
TOKENS = BATCH_SIZE * SEQ_LEN
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds; prints, and writes nothing")
QUICK = parser.parse_args().quick
ROUNDS, SECONDS = (3, 0.2) if QUICK else (9, 0.5)


# ---------------------------------------------------------------------------- tokens/s, taking turns


def of_numpy(path: Path, **settings):
    from tokenmill.numpy import RowLoader

    loader = RowLoader(path, batch_size=BATCH_SIZE, seq_len=SEQ_LEN, **settings)
    return lambda: next(loader)


def of_torch(path: Path, **settings):
    from tokenmill import RowLoader

    loader = RowLoader(path, batch_size=BATCH_SIZE, seq_len=SEQ_LEN, **settings)
    return lambda: next(loader)


def of_jax(path: Path, **settings):
    import jax

    from tokenmill.jax import RowLoader

    loader = RowLoader(path, batch_size=BATCH_SIZE, seq_len=SEQ_LEN, **settings)
    return lambda: jax.block_until_ready(next(loader))


def fixed_rows(path: Path) -> np.ndarray:
    """A shard's tokens as rows of fixed length: (rows, SEQ_LEN + 1) uint16, mapped."""
    token_set = TokenSet(path)
    largest = max(token_set.split("train"), key=lambda entry: entry.tokens)
    tokens = np.memmap(token_set.open(largest).path, np.uint16, "r")
    return tokens[: len(tokens) // (SEQ_LEN + 1) * (SEQ_LEN + 1)].reshape(-1, SEQ_LEN + 1)


def of_grain(path: Path):
    import grain

    rows = grain.MapDataset.source(fixed_rows(path)).shuffle(seed=0).repeat()
    batches = rows.map(lambda row: row.astype(np.int32)).batch(BATCH_SIZE)
    batches = iter(batches.map(lambda batch: (batch[:, :-1], batch[:, 1:])).to_iter_dataset())
    return lambda: next(batches)


def of_tf_data(path: Path):
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices(np.asarray(fixed_rows(path)))
    rows = rows.shuffle(10_000, seed=0).repeat().batch(BATCH_SIZE, drop_remainder=True)
    widened = rows.map(lambda batch: tf.cast(batch, tf.int32), num_parallel_calls=tf.data.AUTOTUNE)
    pairs = widened.map(lambda batch: (batch[:, :-1], batch[:, 1:])).prefetch(tf.data.AUTOTUNE)
    batches = iter(pairs.as_numpy_iterator())
    return lambda: next(batches)


def contenders(path: Path) -> dict:
    steps = {}
    for title, settings in (("no thread (`prefetch=0`)", {"prefetch": 0}), ("prefetch 2", {})):
        steps[f"**tokenmill**, torch on the CPU, int64, {title}"] = of_torch(path, **settings)
        for dtype in ("int32", "uint16"):
            steps[f"**tokenmill.numpy**, {dtype}, {title}"] = of_numpy(path, dtype=dtype, **settings)
        steps[f"**tokenmill.jax**, int32, {title}"] = of_jax(path, **settings)
    steps["Grain, rows of fixed length, int32"] = of_grain(path)
    try:
        steps["tf.data, rows of fixed length, int32"] = of_tf_data(path)
    except ModuleNotFoundError:
        print("TensorFlow is not installed: tf.data is left out", file=sys.stderr)
    return steps


def tokens_per_second(step) -> float:
    started, steps = time.perf_counter(), 0
    while (seconds := time.perf_counter() - started) < SECONDS:
        step()
        steps += 1
    return steps * TOKENS / seconds


def speeds(path: Path) -> list[str]:
    steps = contenders(path)
    for step in steps.values():
        step()
    rounds = [{name: tokens_per_second(step) for name, step in steps.items()} for _ in range(ROUNDS)]
    medians = {name: float(np.median([one[name] for one in rounds])) for name in steps}
    of_torch_alone = next(iter(medians.values()))
    lines = ["| batches of 32 x 2,048 on the CPU | tokens/s | of torch's, no thread |", "| --- | --- | --- |"]
    return lines + [
        f"| {name} | {speed / 1e6:,.1f}M | {speed / of_torch_alone:.2f} |" for name, speed in medians.items()
    ]


# ---------------------------------------------------------------------------- a process of its own

MEASURE = """
import sys, time
sys.path.insert(0, {root!r})
def private():
    return int(open("/proc/self/status").read().split("RssAnon:")[1].split()[0]) / 1024
started = time.perf_counter()
from {module} import RowLoader
imported = time.perf_counter() - started
loader = RowLoader({tokens!r}, batch_size={batch_size}, seq_len={seq_len})
next(loader)
print(imported, private(), int("torch" in sys.modules))
"""


def measure(module: str, tokens: Path) -> list[float]:
    """Seconds of the import, MB after the first batch, and whether torch was imported."""
    program = MEASURE.format(
        root=str(sets.ROOT), tokens=str(tokens), module=module, batch_size=BATCH_SIZE, seq_len=SEQ_LEN
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    return [float(number) for number in done.stdout.split()]


def processes(folder: Path) -> list[str]:
    tokens = sets.sparse(folder, 1_000)
    lines = ["| a process of its own, 1,000 shards, 5e10 tokens | import | private memory after the first batch |"]
    lines += ["| --- | --- | --- |"]
    modules = {"tokenmill.numpy": 0, "tokenmill": 1, "tokenmill.jax": 0}
    found = [{module: measure(module, tokens) for module in modules} for _ in range(ROUNDS)]
    for module, has_torch in modules.items():
        seconds, memory, torch = (
            float(np.median(column)) for column in zip(*(one[module] for one in found), strict=True)
        )
        assert torch == has_torch
        lines.append(f"| `from {module} import RowLoader` | {seconds:.2f} s | {memory:.0f} MB |")
    return lines


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _, path = sets.prepare(folder)
        tables = [processes(folder / "1000"), speeds(path)]
        heading = f"{path.name}; {os.cpu_count()} cores."
    text = "\n\n".join([heading, *("\n".join(table) for table in tables)]) + "\n"
    print(text)
    if not QUICK:
        Path(__file__).with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
