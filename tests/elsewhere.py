"""A set that lies elsewhere, and what its rows are compared with."""

import hashlib
import itertools
from pathlib import Path

import numpy as np
import torch
from making import ROOT

from tokenmill import RowLoader
from tokenmill.rows.windows import WindowSize

MIB = 1 << 20
SMALL = WindowSize(slice=MIB // 4, window=MIB // 2)  # windows of a part, of two slices
WINDOW = (
    7 * MIB
)  # of parts that a window may need: two slices and the cut, with a part more at each end


def lengths(total: int, seed: int) -> list[int]:
    """Documents of 5 to 3,000 tokens."""
    return np.random.default_rng(seed).integers(5, 3000, total // 1500).tolist()


def size(folder: Path, split: str = "train") -> int:
    return sum(path.stat().st_size for path in folder.rglob(f"shards/{split}*.bin"))


def batches(tokens, count=None, **more) -> list[torch.Tensor]:
    settings = {"batch_size": 8, "seq_len": 512, "epochs": 1} | more
    with RowLoader(tokens, **settings) as loader:
        return [torch.stack(batch) for batch in itertools.islice(loader, count)]


def same(one, other) -> bool:
    return len(one) == len(other) > 0 and all(map(torch.equal, one, other))


def parts(cache: Path) -> list[Path]:
    """The parts in a cache."""
    return [path for path in cache.glob("parts/*/*") if path.name.isdigit()]


READ = f"""
import hashlib, sys, time
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
from elsewhere import SMALL
from tokenmill.rows import windows
windows.DEFAULT_WINDOW_SIZE = SMALL
from tokenmill import RowLoader
"""


def read_code(address: str, cache: Path, **more) -> str:
    """A program that reads an epoch and prints the digest of its rows."""
    settings = {"batch_size": 32, "seq_len": 512, "epochs": 1, "cache_dir": str(cache)} | more
    return f"""{READ}
digest = hashlib.sha256()
for inputs, targets in RowLoader({address!r}, **{settings!r}):
    digest.update(inputs.numpy().tobytes() + targets.numpy().tobytes())
print(digest.hexdigest())
"""


def digest_of(tokens, **more) -> str:
    """The digest of an epoch's rows, as `read_code` prints it."""
    digest = hashlib.sha256()
    for batch in batches(tokens, **{"batch_size": 32} | more):
        digest.update(batch.numpy().tobytes())
    return digest.hexdigest()
