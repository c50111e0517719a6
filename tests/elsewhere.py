"""A set that lies elsewhere, and what its rows are compared with."""

import hashlib
import itertools
import threading
import time
from pathlib import Path

import numpy as np
import torch
import warm
from making import ROOT

from tokenmill import RowLoader
from tokenmill.rows.windows import WindowSize

MIB = 1 << 20
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
        "from tokenmill.feed import window_plans; from tokenmill.rows.windows import WindowSize\n"
        f"window_plans.DEFAULT_WINDOW_SIZE = WindowSize({SMALL.slice}, {SMALL.window})\n{setup}\n"
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
