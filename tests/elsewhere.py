"""A set that lies elsewhere, and what its rows are compared with."""

import itertools
import threading
import time
from pathlib import Path

import numpy as np
import torch

from tokenmill import RowLoader
from tokenmill.rows.windows import WindowSize

MIB = 1 << 20
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
