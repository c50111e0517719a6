"""NumPy's and JAX's loaders beside torch's and beside other libraries' loops, in one run; writes benchmarks/arrays.md.

    python benchmarks/arrays.py [--quick]

Batches of 32 x 2,048 on the CPU, from a token set prepared of ../shared/corpus (or of the Python library), in the page
cache. All contenders take turns, each in a process of its own, and medians of the rounds are given. Grain and tf.data
read rows of fixed length from the same `.bin` file, as their users do with tokens that are prepared: they shuffle rows,
and cut documents anywhere. tf.data is left out if TensorFlow is not installed: pip install tensorflow-cpu
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
WARM_UP = 20  # batches


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


CONTENDERS = {
    f"**{module}**, {title}{kind}, {thread}": (function, {**settings, **more})
    for thread, more in (("no thread (`prefetch=0`)", {"prefetch": 0}), ("prefetch 2", {}))
    for module, title, kind, function, settings in (
        ("tokenmill", "torch on the CPU, ", "int64", of_torch, {}),
        ("tokenmill.numpy", "", "int32", of_numpy, {}),
        ("tokenmill.numpy", "", "uint16", of_numpy, {"dtype": "uint16"}),
        ("tokenmill.jax", "", "int32", of_jax, {}),
    )
}
CONTENDERS |= {
    "Grain, rows of fixed length, int32": (of_grain, {}),
    "tf.data, rows of fixed length, int32": (of_tf_data, {}),
}


def tokens_per_second(name: str, path: Path, seconds: float) -> float:
    """Of one contender, in this process."""
    function, settings = CONTENDERS[name]
    step = function(path, **settings)
    for _ in range(WARM_UP):
        step()
    started, steps = time.perf_counter(), 0
    while (passed := time.perf_counter() - started) < seconds:
        step()
        steps += 1
    return steps * TOKENS / passed


def in_a_process(name: str, path: Path, seconds: float) -> float | None:
    """The same in a process of its own, as Grain's threads go on after its turn; None if a rival is not installed."""
    code = f"import arrays; from pathlib import Path; print(arrays.tokens_per_second({name!r}, Path({str(path)!r}), "
    command = [sys.executable, "-c", code + f"{seconds}))"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    if any(f"No module named '{rival}'" in done.stderr for rival in ("grain", "tensorflow")):
        print(f"left out, as it is not installed: {name}", file=sys.stderr)
        return None
    assert done.returncode == 0, done.stderr
    return float(done.stdout.split()[-1])


def speeds(path: Path, rounds: int, seconds: float) -> list[str]:
    found: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(rounds):
        for name in CONTENDERS:
            if (speed := in_a_process(name, path, seconds)) is not None:
                found[name].append(speed)
    medians = {name: float(np.median(some)) for name, some in found.items() if some}
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
import numpy
of_numpy = time.perf_counter() - started
from {module} import RowLoader
imported = time.perf_counter() - started
loader = RowLoader({tokens!r}, batch_size={batch_size}, seq_len={seq_len})
next(loader)
print(imported, of_numpy, private(), int("torch" in sys.modules))
"""


def measure(module: str, tokens: Path) -> list[float]:
    """Seconds of the import, those of NumPy's in it, MB after the first batch, and whether torch was imported."""
    program = MEASURE.format(
        root=str(sets.ROOT), tokens=str(tokens), module=module, batch_size=BATCH_SIZE, seq_len=SEQ_LEN
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    return [float(number) for number in done.stdout.split()]


def processes(folder: Path, rounds: int) -> list[str]:
    tokens = sets.sparse(folder, 1_000)
    lines = [
        "| a process of its own, 1,000 shards, 5e10 tokens | import | of which NumPy | private memory after a batch |"
    ]
    lines += ["| --- | --- | --- | --- |"]
    modules = {"tokenmill.numpy": 0, "tokenmill": 1, "tokenmill.jax": 0}
    found = [{module: measure(module, tokens) for module in modules} for _ in range(rounds)]
    for module, has_torch in modules.items():
        columns = zip(*(one[module] for one in found), strict=True)
        seconds, of_numpy, memory, torch = (float(np.median(column)) for column in columns)
        assert torch == has_torch
        lines.append(f"| `from {module} import RowLoader` | {seconds:.2f} s | {of_numpy:.2f} s | {memory:.0f} MB |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds; prints, and writes nothing")
    quick = parser.parse_args().quick
    rounds, seconds = (2, 0.3) if quick else (9, 1.0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _, path = sets.prepare(folder)
        tables = [processes(folder / "1000", rounds), speeds(path, rounds, seconds)]
        heading = f"{path.name}; {os.cpu_count()} cores."
    text = "\n\n".join([heading, *("\n".join(table) for table in tables)]) + "\n"
    print(text)
    if not quick:
        Path(__file__).with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
