"""Batches for training: `from data import get_batch`.

    inputs, targets = get_batch("train", batch_size=32, seq_len=2048, device="cuda")

    loader = RowLoader("data/tokens/...", "train", batch_size=32, seq_len=2048, device="cuda")
    for inputs, targets in loader:
        checkpoint["data"] = loader.state_dict()      # the same dict on every rank

A loader memory-maps the shards of a token set, plans the rows of one shard at a time from its
document lengths, and copies this rank's rows out of the map. Nothing is stored beside the tokens:
the position is (epoch, shard, row) and what must match for it to mean anything, and going there
plans one shard anew. Rows, packings and ranks are told in tokenmill/packing.py and stream.py.
"""

import functools
import os
from pathlib import Path

import numpy as np
import torch

from config import LoaderConfig
from tokenmill.packing import plan_rows, plan_windows
from tokenmill.rows import ShardRows
from tokenmill.shards import TokenSet, find_token_set
from tokenmill.stream import Position, RowStream

TOKENS_ROOT = Path("data/tokens")
STATE_VERSION = 1
VAL_SEED = 0  # fixed: the first N validation batches are the same fair sample in every run


class RowLoader:
    """Endless batches of one split, for one rank: an iterator of (inputs, targets), each (B, T) int64.

    `tokens` is the token set's folder; without it, the one token set under data/tokens. The other
    settings are those of `LoaderConfig`: batch_size and seq_len must be given. Inputs are a row's first seq_len
    tokens, targets its last. Batches stay valid for as long as they are held.

    Raises FileNotFoundError where there is no token set, ValueError where a setting makes no
    sense, a file is not what the manifest says, or the split has fewer rows than one batch of all ranks.
    """

    def __init__(self, tokens=None, split: str = "train", **settings):
        self.config = config = LoaderConfig(tokens=tokens, split=split, **settings)
        self.device = _device(config.device)
        self.rank, self.world_size = _rank_and_world_size(config)
        self.token_set = TokenSet(config.tokens or find_token_set(TOKENS_ROOT))
        self._shards = self.token_set.split(split)
        self._shuffle = config.shuffle and split == "train"
        self._seed = config.seed if split == "train" else VAL_SEED
        self._rows = functools.lru_cache(maxsize=2)(self._plan)  # the shard at hand, and the next at its end
        self._stream = RowStream(
            len(self._shards),
            lambda epoch, shard: self._rows(self._plan_epoch(epoch), shard).num_rows,
            shuffle=self._shuffle,
            seed=self._seed,
            rank=self.rank,
            world_size=self.world_size,
        )
        self._require_one_batch()

    @property
    def epoch(self) -> int:
        """The epoch of the next row, from 0."""
        return self._stream.position.epoch

    def __iter__(self):
        return self

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self._next_rows()  # (B, T + 1) uint16 or uint32
        inputs = torch.from_numpy(rows[:, :-1].astype(np.int64))  # (B, T), contiguous: .view(-1) works
        targets = torch.from_numpy(rows[:, 1:].astype(np.int64))  # (B, T)
        return inputs.to(self.device), targets.to(self.device)

    def state_dict(self) -> dict:
        """The position after the last batch, plain numbers and strings, the same on every rank."""
        return self._identity | self._stream.position.as_dict()

    def load_state_dict(self, state: dict) -> None:
        """Goes on with exactly the next row, on this number of ranks or another.

        ValueError, naming both values, where the position is of another token set or other settings.
        """
        for key, here in self._identity.items():
            if state.get(key) != here:
                raise ValueError(
                    f"this position does not fit the loader: {key} is {state.get(key)!r} in the position, "
                    f"{here!r} here ({self.token_set.path}); load it with the settings and token set it was saved with"
                )
        self._stream.seek(Position(**{key: int(state[key]) for key in ("epoch", "shard", "row")}))

    @functools.cached_property
    def _identity(self) -> dict:
        """What must match for a position to mean the same row."""
        return {
            "version": STATE_VERSION,
            "fingerprint": self.token_set.tokenizer["fingerprint"],
            "split": self.config.split,
            "shards": self.token_set.digest(self.config.split),
            "seq_len": self.config.seq_len,
            "packing": self.config.packing,
            "long_documents": self.config.long_documents,
            "shuffle": self._shuffle,
            "seed": self._seed,
        }

    def _next_rows(self) -> np.ndarray:
        rows = np.empty((self.config.batch_size, self.config.seq_len + 1), self.token_set.numpy_dtype)
        filled = 0
        for some in self._stream.take(self.config.batch_size):
            shard_rows = self._rows(self._plan_epoch(some.epoch), some.shard)
            shard_rows.fill(rows[filled : filled + len(some.numbers)], some.numbers)
            filled += len(some.numbers)
        return rows

    def _plan_epoch(self, epoch: int) -> int:
        return epoch if self._shuffle else 0

    def _plan(self, epoch: int, number: int) -> ShardRows:
        """The rows of one shard at one epoch."""
        config, bos_id = self.config, self.token_set.tokenizer["bos_id"]
        shard, row_len = self.token_set.open(self._shards[number]), self.config.seq_len + 1
        key = (self._seed, epoch, number)
        if config.packing == "best_fit":
            plan = plan_rows(shard.lengths, row_len, long_documents=config.long_documents, seed=key)
            return ShardRows.packed(shard.tokens, shard.offsets, plan, bos_id)
        starts = plan_windows(len(shard.tokens), row_len, seed=key if config.packing == "random" else None)
        return ShardRows.windows(shard.tokens, starts, row_len, bos_id)

    def _require_one_batch(self) -> None:
        needed, found = self.config.batch_size * self.world_size, 0
        for shard in self._stream.order(0):
            found += self._stream.count_rows(0, int(shard))
            if found >= needed:
                return
        raise ValueError(
            f"{self.token_set.path}: split {self.config.split!r} has {found} rows of {self.config.seq_len} + 1 tokens, "
            f"fewer than one batch of {self.config.batch_size} on each of {self.world_size} ranks; "
            "lower batch_size or seq_len, or prepare more text"
        )


def _device(name) -> torch.device:
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {str(device)!r}: this machine, or this build of torch, has no CUDA; use device='cpu'")
    return device


def _rank_and_world_size(config: LoaderConfig) -> tuple[int, int]:
    """As given; else torch.distributed's where it is initialized; else torchrun's environment; else 0 of 1."""
    if config.rank is not None:
        return config.rank, config.world_size
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


# ---------------------------------------------------------------------------- get_batch

_loaders: dict[tuple, RowLoader] = {}
_positions: list[dict] = []  # loaded, and waiting for the get_batch that they belong to


def get_batch(split: str, batch_size: int, seq_len: int, device="cpu", **settings) -> tuple[torch.Tensor, torch.Tensor]:
    """The next (inputs, targets) of a split, each (B, T) int64 on `device`.

    Keeps one `RowLoader` for each distinct set of arguments, so training and validation each go
    on where they were. `settings` are RowLoader's: tokens, packing, seed ...
    """
    arguments = dict(settings, split=split, batch_size=batch_size, seq_len=seq_len, device=device)
    key = tuple(sorted((name, str(value)) for name, value in arguments.items()))
    if key not in _loaders:
        loader = RowLoader(**arguments)
        _resume(loader)
        _loaders[key] = loader
    return next(_loaders[key])


def state_dict() -> dict:
    """The positions of all loaders that get_batch keeps, the same on every rank."""
    return {"version": STATE_VERSION, "loaders": [loader.state_dict() for loader in _loaders.values()] + _positions}


def load_state_dict(state: dict) -> None:
    """Makes get_batch go on from `state_dict`, in this process or another, on any number of ranks.

    ValueError for a state that `state_dict` did not make. Whether each position fits is checked when the
    get_batch that it belongs to is called next.
    """
    if state.get("version") != STATE_VERSION or not isinstance(state.get("loaders"), list):
        raise ValueError(
            f"expected what data.state_dict() returned, version {STATE_VERSION}, found {state.get('version')!r}"
        )
    _loaders.clear()
    _positions[:] = state["loaders"]


def _resume(loader: RowLoader) -> None:
    """Gives a new loader the loaded position of its split, the one with its settings where there are several."""
    candidates = [position for position in _positions if position["split"] == loader.config.split]
    if not candidates:
        return
    fitting = [position for position in candidates if loader._identity.items() <= position.items()]
    position = (fitting or candidates)[0]
    loader.load_state_dict(position)  # refuses, with both values, where none fits
    _positions.remove(position)
