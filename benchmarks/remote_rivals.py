"""The same rows from the same slow server, beside litdata and MosaicML streaming; writes benchmarks/remote_rivals.md.

    python -m venv /tmp/rivals && /tmp/rivals/bin/pip install litdata mosaicml-streaming torch numpy
    python benchmarks/remote_rivals.py /tmp/rivals/bin/python

Each writes the rows of a token set's epoch in its own format, with its own writer and defaults, and reads them by its
own loader with the defaults of its README, shuffled. Three figures, medians of 3, each from an empty cache: seconds to
the first batch; bytes fetched in an epoch, of the set's; and what a kill -9 in the middle costs.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from sets import random_set
from slow_server import DELAY, RATE, files_of, sent, serving

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tokenmill import RowLoader

BATCH, SEQ_LEN, ROUNDS = 32, 2048, 3
ROOT = Path(__file__).resolve().parent.parent

WRITE = {
    "litdata": """
import numpy as np, torch
from litdata import TokensLoader, optimize
rows = np.load({rows!r}, mmap_mode="r")
def row(number): return torch.from_numpy(rows[number].astype(np.uint16))
if __name__ == "__main__":
    optimize(row, list(range(len(rows))), {out!r}, chunk_bytes="64MB", num_workers=1,
             item_loader=TokensLoader(block_size={row_len}))
""",
    "streaming": """
import numpy as np
from streaming import MDSWriter
rows = np.load({rows!r}, mmap_mode="r")
with MDSWriter(out={out!r}, columns={{"tokens": "ndarray:uint16"}}) as writer:
    for row in rows: writer.write({{"tokens": np.array(row)}})
""",
}
READ = {
    "tokenmill": """
sys.path.insert(0, {root!r})
import tokenmill
def loader():
    from tokenmill import RowLoader
    made = RowLoader("s3://set/tokenmill", batch_size={batch}, seq_len={seq_len}, epochs=1, cache_dir={cache!r})
    for inputs, targets in made: yield torch.cat([inputs, targets[:, -1:]], 1)
""",
    "litdata": """
def loader():
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader
    from litdata.streaming import downloader
    from litdata.streaming.resolver import Dir
    downloader._OBSTORE_AVAILABLE = False  # it takes https alone; boto3 then fetches, as where obstore is not installed
    dataset = StreamingDataset(Dir(path={cache!r}, url="s3://set/litdata"), item_loader=TokensLoader({row_len}),
                               shuffle=True, storage_options={{"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}})
    yield from StreamingDataLoader(dataset, batch_size={batch})
""",
    "streaming": """
def loader():
    from streaming import StreamingDataset
    dataset = StreamingDataset(remote="s3://set/streaming", local={cache!r}, shuffle=True, batch_size={batch})
    for found in torch.utils.data.DataLoader(dataset, batch_size={batch}): yield found["tokens"]
""",
}
RUN = """
import hashlib, json, os, sys, time
import torch
import numpy as np
torch.set_num_threads(1)
{loader}
if __name__ == "__main__":
    began, seen, rows = time.perf_counter(), set(), 0
    for batch in loader():
        if not rows: print(json.dumps({{"first": time.perf_counter() - began}}), flush=True)
        rows += len(batch)
        seen.update(hashlib.md5(row.tobytes()).digest() for row in np.asarray(batch).astype(np.uint16))
    print(json.dumps({{"rows": rows, "distinct": len(seen)}}), flush=True)
    os._exit(0)
"""


class Reader:
    """One of the three, reading from a server in a process of its own."""

    def __init__(self, name, python, address, work, numbers):
        self.name, self.address, self.cache = name, address, work / f"cache-{name}"
        code = READ[name].format(cache=str(self.cache), root=str(ROOT), **numbers)
        (work / f"read_{name}.py").write_text(RUN.format(loader=code))
        self._command = [
            str(sys.executable if name == "tokenmill" else python),
            str(work / f"read_{name}.py"),
        ]
        keys = {
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        self._environment = os.environ | keys | {"AWS_ENDPOINT_URL": address.removesuffix("/set")}
        self._environment |= {
            "S3_ENDPOINT_URL": address.removesuffix("/set"),
            "AWS_ALLOW_HTTP": "true",
        }

    def begin(self):
        return subprocess.Popen(
            self._command,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, process):
        """What it said: seconds to the first batch, rows and distinct rows; or the last line of its error."""
        try:
            out, error = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return {"failed": "nothing for 300 s"}
        told = {}
        for line in out.splitlines():
            told |= json.loads(line) if line.startswith("{") else {}
        return (
            told
            if "rows" in told
            else told | {"failed": (error.strip().splitlines() or ["?"])[-1][:160]}
        )

    def epoch(self):
        shutil.rmtree(self.cache, ignore_errors=True)
        before = sent(self.address)
        return self.finish(self.begin()) | {"bytes": sent(self.address) - before}

    def killed(self, size):
        """An epoch whose process is killed when half of the bytes have come; and the next, in the same cache."""
        shutil.rmtree(self.cache, ignore_errors=True)
        before, process = sent(self.address), self.begin()
        while sent(self.address) - before < size / 2 and process.poll() is None:
            time.sleep(0.01)
        process.kill()
        process.communicate()
        return self.finish(self.begin()) | {"bytes": sent(self.address) - before}


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def write_all(work, python):
    """The same rows in three formats: how many rows."""
    bucket = work / "bucket"
    (bucket / "tokenmill").mkdir(parents=True)
    random_set(bucket / "tokenmill", 8, 10_000_000)
    with RowLoader(bucket / "tokenmill", batch_size=BATCH, seq_len=SEQ_LEN, epochs=1) as loader:
        rows = [
            np.concatenate([x.numpy(), y.numpy()[:, -1:]], 1).astype(np.uint16) for x, y in loader
        ]
    np.save(work / "rows.npy", np.concatenate(rows))
    for name, code in WRITE.items():
        told = {"rows": str(work / "rows.npy"), "out": str(bucket / name), "row_len": SEQ_LEN + 1}
        (work / f"write_{name}.py").write_text(code.format(**told))
        done = subprocess.run(
            [python, str(work / f"write_{name}.py")], capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(f"{name}: {done.stderr[-2000:]}")
    return sum(map(len, rows))


def line_of(name, whole, killed, size, rows):
    """A line of the table, of whole epochs and of those whose first process was killed."""

    def told(runs, value, unit=""):
        failed = [run["failed"] for run in runs if "failed" in run]
        found = (
            f"{statistics.median(value(run) for run in runs if value(run) is not None):.2f}{unit}"
        )
        return f"{len(failed)} of {ROUNDS} failed: {failed[-1]}" if failed else found

    seen = statistics.median(run.get("distinct", 0) for run in whole) / rows
    first, share = (lambda run: run.get("first")), (lambda run: run["bytes"] / size)
    return (
        f"| {name} | {told(whole, first, ' s')} | {told(whole, share)} | {seen:.4f} | "
        f"{told(killed, first, ' s')} | {told(killed, share)} |"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("python", help="an interpreter that has litdata and mosaicml-streaming")
    python = parser.parse_args().python
    work = Path(tempfile.mkdtemp(prefix="tokenmill-rivals-"))
    lines = []
    try:
        rows = write_all(work, python)
        numbers = {"batch": BATCH, "seq_len": SEQ_LEN, "row_len": SEQ_LEN + 1}
        with serving(files_of(work / "bucket")) as address:
            readers = [Reader(name, python, address, work, numbers) for name in READ]
            found = {reader.name: ([], []) for reader in readers}
            for _ in range(ROUNDS):
                for reader in readers:
                    size = size_of(work / "bucket" / reader.name)
                    found[reader.name][0].append(reader.epoch())
                    found[reader.name][1].append(reader.killed(size))
                    print(
                        reader.name,
                        found[reader.name][0][-1],
                        found[reader.name][1][-1],
                        flush=True,
                    )
            lines += [
                line_of(name, *runs, size_of(work / "bucket" / name), rows)
                for name, runs in found.items()
            ]
    finally:
        shutil.rmtree(work, ignore_errors=True)
    text = "\n".join(
        [
            f"{rows:,} rows of {SEQ_LEN + 1:,} uint16 tokens; a server on loopback, {1000 * DELAY:.0f} ms a request, "
            f"{RATE / 1e6:.0f} MB/s in all; batches of {BATCH}; medians of {ROUNDS}; {os.cpu_count()} cores.",
            "",
            "| | first batch, cold (imports counted) | bytes of an epoch, of the set's | of the rows, seen in it | "
            "first batch after kill -9 halfway | bytes of both runs |",
            "| --- | --- | --- | --- | --- | --- |",
            *lines,
            "",
        ]
    )
    print(text)
    (ROOT / "benchmarks" / "remote_rivals.md").write_text(text)


if __name__ == "__main__":
    main()
