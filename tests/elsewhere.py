"""A set that lies elsewhere, and what its rows are compared with."""

import ctypes
import hashlib
import itertools
import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import warm
from making import ROOT, read_manifest

from tokenmill import RowLoader
from tokenmill.rows.windows import WindowSize
from tokenmill.store.shard_writer import ShardWriter
from tokenmill.store.shards import TEXT_COUNTS
from tokenmill.store.token_sets import write_manifest

MIB = 1 << 20
SOMEBODY = 4242  # a user id
PUNCH_AND_KEEP_SIZE = 3
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
WINDOW = 11 * MIB  # of blocks that a window may need: five slices of a block, one behind each, and one for the cuts
SMALL = WindowSize(slice=MIB // 2, window=MIB * 2)  # slices of a block, windows of four


def lengths(total: int, seed: int) -> list[int]:
    """Documents of 5 to 3,000 tokens."""
    rng = np.random.default_rng(seed)
    found = rng.integers(5, 3000, total // 1500)
    return found.tolist()


def size(folder: Path, split: str = "train") -> int:
    return sum(path.stat().st_size for path in folder.rglob(f"shards/{split}*.bin"))


def batches(tokens, count=None, **more) -> list[torch.Tensor]:
    settings = {"batch_size": 8, "seq_len": 512, "epochs": 1} | more
    with RowLoader(tokens, **settings) as loader:
        return [inputs.clone() for inputs, _ in itertools.islice(loader, count)]


def same(one, other) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def used(cache: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in cache.rglob("*.bin"))


class Watcher:
    """The most that a cache took."""

    def __init__(self, cache: Path):
        self.most, self._cache, self._ended = 0, cache, False
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self):
        while not self._ended:
            try:
                self.most = max(self.most, used(self._cache))
            except FileNotFoundError:
                continue
            time.sleep(0.005)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended = True
        self._thread.join()


def read_code(server, cache, more="", setup="", count=None) -> str:
    """Reads an epoch in another process, and compares it with nothing: the tests look at the cache."""
    return (
        f"import sys, itertools; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests')!r}]\n"
        "from tokenmill.rows import windows\n"
        f"windows.DEFAULT_WINDOW_SIZE = windows.WindowSize({SMALL.slice}, {SMALL.window})\n{setup}\n"
        "from tokenmill import RowLoader\n"
        f"loader = RowLoader({server.url + '/set'!r}, batch_size=8, seq_len=512, epochs=1,\n"
        f"    cache_dir={str(cache)!r}{more})\n"
        "import hashlib; digest = hashlib.sha256()\n"
        f"for inputs, _ in itertools.islice(loader, {count}): digest.update(inputs.numpy().tobytes())\n"
        "print(digest.hexdigest())\n"
    )


def digest_of(folder, **more) -> str:
    digest = hashlib.sha256()
    for inputs in batches(folder, **more):
        digest.update(inputs.numpy().tobytes())
    return digest.hexdigest()


def begin(code: str) -> warm.Command:
    return warm.Command("-c", code)


def told(command: warm.Command) -> tuple[str, str]:
    """What a command has said once it ended, and what it said of errors."""
    done = command.done(240)
    return done.stdout, done.stderr


def cached_set(server, cache) -> Path:
    """The folder of the server's set in the cache, with all blocks, so that no thread still writes to it."""
    assert batches(f"{server.url}/set", cache_dir=cache)
    (folder,) = cache.iterdir()
    return folder


def in_a_new_process(server, cache) -> None:
    """What this process knows of caches below a folder is forgotten."""
    from tokenmill.remote import caches

    for folder in [folder for folder in caches._caches if cache in folder.parents]:
        caches.forget(caches._caches[folder])


def punch(path, begin: int, size: int) -> None:
    """Makes a hole in a file, as another process does that evicts a block; the marks say nothing of it."""
    with open(path, "r+b") as file:
        assert not ctypes.CDLL(None, use_errno=True).fallocate(
            file.fileno(), PUNCH_AND_KEEP_SIZE, ctypes.c_int64(begin), ctypes.c_int64(size)
        )


def write_records_anew(folder) -> None:
    """Records and manifest of shards whose tokens were changed, in their sizes."""
    manifest, shards = read_manifest(folder), []
    for entry in manifest["shards"]:
        path = folder / "shards" / f"{entry['name']}.bin"
        tokens, offsets = np.fromfile(path, np.uint16), np.fromfile(path.with_suffix(".idx"), np.uint64)
        facts = json.loads(path.with_suffix(".json").read_text())
        with ShardWriter(folder, entry["name"], "uint16") as writer:
            writer.write(tokens, np.diff(offsets.astype(np.int64)))
            kept = {key: facts[key] for key in (*TEXT_COUNTS, "fingerprint", "source")}
            shards.append((writer.finish(kept), entry["split"]))
    (folder / "manifest.json").unlink()
    write_manifest(folder, "other", manifest["tokenizer"], shards)
