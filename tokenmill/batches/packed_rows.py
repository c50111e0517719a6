"""PackedRows: RowLoader's batches as a dataset, for DataLoader and frameworks built on it."""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tokenmill.batches.loader import RowLoader
from tokenmill.batches.ranks import is_distributed, rank_and_world_size, require_same_on_all_ranks
from tokenmill.batches.resume import setting_of
from tokenmill.checks import whole_number
from tokenmill.feed.config import LoaderConfig, PackingName, Tokens
from tokenmill.feed.table import Loss
from tokenmill.messages import redact
from tokenmill.rows.packing import LongDocuments
from tokenmill.store.set_names import TOKENS_ROOT, find_token_set
from tokenmill.store.shards import Split

Pair = tuple[torch.Tensor, torch.Tensor]
LOCAL = {"mesh", "tokens", "device", "prefetch", "cache_dir", "cache_bytes"}  # of one rank


class PackedRows(IterableDataset[Pair]):
    """RowLoader's batches as a dataset, for DataLoader and frameworks built on it.

        DataLoader(PackedRows(tokens, batch_size=32, seq_len=2048), batch_size=None, num_workers=1)
        DataLoader(PackedRows(tokens, seq_len=2048), batch_size=32)

    The parameters are those of RowLoader, but for `device`, which a DataLoader decides. An item is
    a batch. Without batch_size it is one row, each (T,), and the DataLoader makes the batches.

    With num_workers=0, a thread makes batches ahead; with num_workers=1, a process does. More
    workers would deal the same rows, and are an error, as is a second epoch with
    persistent_workers=True, which `set_epoch` cannot reach.

    Each iteration starts again, with epoch 0 or that of `set_epoch`, and with the rank that this
    process has then. If you set `epochs`, it has a len, that of the next iteration. The token sets
    must not grow while the dataset is used. Its iterators are RowLoaders: they have state_dict and
    load_state_dict, which torchdata's StatefulDataLoader calls.

    Raises the errors of RowLoader. docs/clients.md has Lightning, Accelerate and the Hugging Face
    Trainer.
    """

    def __init__(
        self,
        tokens: Tokens = None,
        split: Split = "train",
        *,
        batch_size: int | None = None,
        seq_len: int,
        view: str | None = None,
        packing: PackingName = "best_fit",
        long_documents: LongDocuments = "split",
        shuffle: bool = True,
        seed: int = 1337,
        epochs: int | None = None,
        drop_last: bool = True,
        loss: Loss = "all",
        ignore_index: int = -100,
        prefetch: int = 2,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Any = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
    ) -> None:
        self._is_single = batch_size is None
        config = LoaderConfig.of(locals() | {"batch_size": 1 if batch_size is None else batch_size})
        if self._is_single and not config.drop_last:
            raise ValueError(
                "drop_last=False needs a batch_size: ranks would have unequal numbers of single "
                "rows"
            )
        # found here, as a worker may start in another folder
        self.config = replace(config, tokens=config.tokens or find_token_set(TOKENS_ROOT))
        self._epoch = 0
        self._iterated_in = -1  # a process
        self._length: tuple[Any, int] = ((), 0)  # of an epoch and world_size
        self._sets = setting_of(self.config, self.config.mixture.open(self.config.cache), 1).sets
        # here, because a worker cannot reach the other ranks
        if is_distributed() and config.rank is None:
            require_same_on_all_ranks(self._shared_settings())

    def __repr__(self) -> str:
        config = self.config
        sets = ", ".join(redact(str(path)) for path in config.mixture.paths.values())
        rows = "a row" if self._is_single else f"{config.batch_size:,} rows"
        return (
            f"<PackedRows of {sets}, {config.split}: {rows} of {config.seq_len:,} tokens an item>"
        )

    def _shared_settings(self) -> dict[str, Any]:
        """What must be the same on all ranks."""
        settings = {}
        for key, value in vars(self.config).items():
            if key not in LOCAL:
                settings[key] = repr(value)
        stages = repr(self.config.mixture.stages)
        return settings | {"sets": self._sets, "tokens": stages}

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration begin with this epoch. By default each begins with epoch 0."""
        self._epoch = whole_number("epoch", epoch, 0)

    def __iter__(self) -> Iterator[Pair]:
        config = self._of_rank()
        worker = get_worker_info()
        if worker is not None:
            if worker.num_workers > 1:
                raise ValueError(
                    f"use num_workers=0 or 1, not {worker.num_workers}: "
                    "all would deal the same rows"
                )
            if self._iterated_in == os.getpid():
                return _refused(
                    "a worker that persists cannot be told its epoch: "
                    "leave out persistent_workers=True"
                )
            self._iterated_in = os.getpid()
            config = replace(config, prefetch=0)  # the DataLoader makes batches ahead
        loader = (_SingleRows if self._is_single else RowLoader).of(config)
        if loader.run.setting.sets != self._sets:
            raise ValueError(
                "a token set has changed since this PackedRows was made; make another one"
            )
        if self._epoch:
            loader.set_epoch(self._epoch)
        return loader

    def _of_rank(self) -> LoaderConfig:
        """The settings with the rank that this process has now."""
        if self.config.rank is not None:
            return self.config
        rank, world_size = rank_and_world_size(self.config.mesh)
        return replace(self.config, rank=rank, world_size=world_size, mesh=None)

    def __len__(self) -> int:
        """Items of the next iteration if you set `epochs`; TypeError if the dataset is endless."""
        if self.config.epochs is None:
            raise TypeError("this dataset is endless and has no len(); pass epochs=")
        config = replace(self._of_rank(), prefetch=0)
        key = (self._epoch, config.world_size)
        known, length = self._length
        if known != key:
            with RowLoader.of(config) as loader:
                loader.set_epoch(self._epoch)
                length = len(loader)
            self._length = key, length
        return length

    def __bool__(self) -> bool:
        return True  # otherwise Python would call __len__

    def __getstate__(self) -> dict[str, Any]:
        """The state for a worker process, which gets the rank of this process.

        What a launcher pickles has none.
        """
        has_rank = is_distributed() or self.config.mesh is not None
        config = self._of_rank() if has_rank else self.config
        return vars(self) | {"config": config}


def _refused(why: str) -> Iterator[Pair]:
    """Raises ValueError in the first `next`, from which DataLoader hands it to the main process."""
    raise ValueError(why)
    yield


class _SingleRows(RowLoader):
    def __next__(self) -> Pair:
        inputs, targets = super().__next__()
        return inputs[0], targets[0]
