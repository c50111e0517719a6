"""PackedRows: RowLoader's batches as a dataset, for PyTorch's DataLoader and what is built on it.

A DataLoader adds nothing to the batches but processes; so it must not batch what is batched already:

    DataLoader(PackedRows(batch_size=2, seq_len=64), batch_size=None)     (2, 64) each
    DataLoader(PackedRows(batch_size=2, seq_len=64), batch_size=8)        would be (8, 2, 64): refused
    DataLoader(PackedRows(seq_len=64), batch_size=8)                      (8, 64) each, of single rows
"""

import os
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Generic, Literal, overload

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tokenmill.batches.chain import TOKENS_ROOT, of_this_rank, rank_of
from tokenmill.batches.config import LoaderConfig, Packing, Tokens
from tokenmill.batches.frameworks import (
    require_no_batches_of,
    require_undivided,
    warn_of_lost_position,
    warn_of_skipped_data,
)
from tokenmill.batches.loader import Item, Pair, RowLoader, Tensors, Triple
from tokenmill.batches.mixture import Mixture
from tokenmill.batches.ranks import is_distributed, require_same_on_all_ranks
from tokenmill.checks import whole_number
from tokenmill.remote.addresses import is_address
from tokenmill.remote.sets import Kept, open_set
from tokenmill.rows.packing import LongDocuments
from tokenmill.rows.stream import range_of_rank
from tokenmill.store.shards import Split
from tokenmill.store.token_sets import find_token_set


class PackedRows(IterableDataset[Item], Generic[Item]):
    """The same batches as a dataset, for DataLoader and what is built on it.

        DataLoader(PackedRows(tokens, batch_size=32, seq_len=2048), batch_size=None, num_workers=2)

    Parameters are RowLoader's, but for the device: a DataLoader hands over CPU tensors, so "cpu" is the only one. In a
    worker process, which makes batches ahead itself, `prefetch` is 0.

    An item is a batch, and item i comes from worker i % num_workers, so the order is that of RowLoader with any number
    of workers. Without batch_size an item is one row, each (T,), for a DataLoader that makes the batches: every row
    once too, though with n workers each batch is one worker's, rows k, k + n, k + 2n ...

    Its iterators have state_dict and load_state_dict, which torchdata's StatefulDataLoader calls. With two or more
    workers a position is resumed by as many, with the same batch_size, seq_len, number of ranks and token set, as each
    worker knows of its own batches alone; with fewer these may change.

    Each iteration begins anew, with epoch 0 or that of `set_epoch`, in the rank that this process is by then. With
    `epochs` it has a len, that of the next iteration.

    Raises what RowLoader does, where iterating begins; ValueError where a DataLoader makes batches of batches, or
    Accelerate deals a rank's rows among the ranks once more. Warns where Lightning cannot save the position.
    """

    # fmt: off
    @overload
    def __init__(
        self: "PackedRows[Pair]", tokens: Tokens = None, split: Split = "train", *,
        batch_size: int | None = None, seq_len: int, device: str | int | torch.device = "cpu",
        packing: Packing = "best_fit", long_documents: LongDocuments = "split", shuffle: bool = True, seed: int = 1337,
        skip_rows: Iterable[str] | None = None, epochs: int | None = None, drop_last: bool = True,
        documents: Literal[False] = False, sources: Literal[False] = False, prefetch: int = 2,
        rank: int | None = None, world_size: int | None = None, mesh: Any = None,
        cache_dir: str | os.PathLike[str] | None = None, cache_bytes: int | str | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: "PackedRows[Triple]", tokens: Tokens = None, split: Split = "train", *,
        batch_size: int | None = None, seq_len: int, device: str | int | torch.device = "cpu",
        packing: Packing = "best_fit", long_documents: LongDocuments = "split", shuffle: bool = True, seed: int = 1337,
        skip_rows: Iterable[str] | None = None, epochs: int | None = None, drop_last: bool = True,
        documents: Literal[True], sources: Literal[False] = False, prefetch: int = 2,
        rank: int | None = None, world_size: int | None = None, mesh: Any = None,
        cache_dir: str | os.PathLike[str] | None = None, cache_bytes: int | str | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: "PackedRows[Tensors]", tokens: Tokens = None, split: Split = "train", *,
        batch_size: int | None = None, seq_len: int, device: str | int | torch.device = "cpu",
        packing: Packing = "best_fit", long_documents: LongDocuments = "split", shuffle: bool = True, seed: int = 1337,
        skip_rows: Iterable[str] | None = None, epochs: int | None = None, drop_last: bool = True,
        documents: bool = False, sources: bool = False, prefetch: int = 2,
        rank: int | None = None, world_size: int | None = None, mesh: Any = None,
        cache_dir: str | os.PathLike[str] | None = None, cache_bytes: int | str | None = None,
    ) -> None: ...
    # fmt: on

    def __init__(
        self,
        tokens: Tokens = None,
        split: Split = "train",
        *,
        batch_size: int | None = None,
        seq_len: int,
        device: str | int | torch.device = "cpu",
        packing: Packing = "best_fit",
        long_documents: LongDocuments = "split",
        shuffle: bool = True,
        seed: int = 1337,
        skip_rows: Iterable[str] | None = None,
        epochs: int | None = None,
        drop_last: bool = True,
        documents: bool = False,
        sources: bool = False,
        prefetch: int = 2,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Any = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
    ) -> None:
        self._loader: type[RowLoader[Any]] = _SingleRows if batch_size is None else RowLoader
        self.config = LoaderConfig.of(locals() | {"batch_size": 1 if batch_size is None else batch_size})
        if str(device) != "cpu":
            raise ValueError(f"PackedRows gives CPU tensors, found device={device!r}; leave it out")
        # a folder that is named from here, whatever folder a worker is started in
        asked = self.config.tokens
        if not isinstance(asked, Mixture) and not (asked is not None and is_address(asked)):
            asked = Path(os.path.abspath(asked or find_token_set(TOKENS_ROOT)))
        self.config = replace(self.config, tokens=asked)
        self._of_worker: LoaderConfig | None = None
        if is_distributed() and self.config.rank is None:  # a worker could not ask the others
            own = (
                "mesh",
                "tokens",
                "device",
                "prefetch",
                "cache_dir",
                "cache_bytes",
            )  # which change no row, and may differ from rank to rank
            names = [field.name for field in fields(self.config) if field.name not in own]
            told = {name: repr(getattr(self.config, name)) for name in names}
            require_same_on_all_ranks(told | manifests_of(asked, self.config.kept))
        self._counted: dict[tuple[int, int], int] = {}
        self._epoch = torch.zeros((), dtype=torch.int64, device="cpu")
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]  # persistent workers see it too

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration begin with an epoch, in all workers; without it each begins with epoch 0."""
        epoch = whole_number("epoch", epoch, 0)
        if self.config.rank is None:
            require_same_on_all_ranks({"set_epoch": epoch})
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        """Items of the next iteration, where `epochs` are counted; TypeError for an endless one."""
        if self.config.epochs is None:
            raise TypeError("this dataset is endless and has no len(); give epochs=")
        epoch, (rank, world_size) = int(self._epoch), rank_of(self.config)
        single = self._loader is _SingleRows  # of which the last ones are not on every rank
        ranks = 1 if single else world_size
        if (epoch, ranks) not in self._counted:
            config = replace(self.config, prefetch=0, rank=0, world_size=ranks, mesh=None)
            with RowLoader[Tensors].of(config) as loader:
                loader.set_epoch(epoch)
                self._counted[epoch, ranks] = len(loader)
        items, left = divmod(self._counted[epoch, ranks], world_size if single else 1)
        first, last = range_of_rank(left, rank, world_size)
        return items if self.config.drop_last else items + last - first

    def __bool__(self) -> bool:
        return True  # and not whether it has a len

    def __repr__(self) -> str:
        config = self.config
        items = "single rows" if self._loader is _SingleRows else f"batches of {config.batch_size:,}"
        told = repr(config.tokens) if isinstance(config.tokens, Mixture) else repr(str(config.tokens))
        return (
            f"PackedRows({told}, {config.split!r}: rows of {config.seq_len:,} + 1 tokens, {config.packing}; {items}, "
            f"{'endless' if config.epochs is None else f'{config.epochs:,} epochs from epoch {int(self._epoch):,}'})"
        )

    def __iter__(self) -> RowLoader[Item]:
        worker = get_worker_info()
        config, place = self.config, (0, 1)
        if self._loader is RowLoader:
            require_no_batches_of(self, config.batch_size)
        if worker is None or worker.id == 0:
            self._warn()
        if worker is not None:
            place = (worker.id, worker.num_workers)
            if not is_distributed() and self._of_worker is not None:
                config = self._of_worker
            config = replace(of_this_rank(config), prefetch=0)  # the DataLoader makes batches ahead
        require_undivided(rank_of(config)[1])
        loader = self._loader.of(config, place)
        if int(self._epoch):
            loader.set_epoch(int(self._epoch))
        return loader

    def _warn(self) -> None:
        warn_of_lost_position(self.config.epochs)
        warn_of_skipped_data(self.config.split)

    def __getstate__(self) -> dict[str, Any]:
        """What another process gets: a worker of this rank's, which cannot ask which rank it works for, knows it.

        Only where torch.distributed has told it by now. What a launcher pickles for its ranks says nothing of a rank.
        """
        here = of_this_rank(self.config) if is_distributed() or self.config.mesh is not None else None
        if here is not None and here.world_size is not None:  # a worker that is spawned sees no frames of its parent's
            require_undivided(here.world_size)
        self._warn()
        config = here if self.config.mesh is not None else self.config  # a mesh is of this process alone
        return vars(self) | {"config": config, "_of_worker": here}


def manifests_of(tokens: str | os.PathLike[str] | Mixture, kept: Kept) -> dict[str, Any]:
    """What ranks must have in common of what they read, wherever it lies on each."""
    if isinstance(tokens, Mixture):
        return tokens.told | {name: open_set(path, kept).digest for name, path in tokens.paths.items()}
    return {"manifest": open_set(tokens, kept).digest}


class _SingleRows(RowLoader[Tensors]):
    """Rows one by one, (T,) each."""

    def __next__(self) -> Tensors:
        tensors = super().__next__()
        if not len(tensors[0]):
            raise StopIteration  # drop_last=False, and this rank has no row of the last ones
        return tuple(tensor[0] for tensor in tensors)
