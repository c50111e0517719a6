"""PackedRows: RowLoader's batches as a dataset, for PyTorch's DataLoader and frameworks built on it.

A DataLoader adds only worker processes. The dataset's items are batches already, so it must not batch them again:

    DataLoader(PackedRows(batch_size=2, seq_len=64), batch_size=None)     (2, 64) each
    DataLoader(PackedRows(batch_size=2, seq_len=64), batch_size=8)        would be (8, 2, 64): an error
    DataLoader(PackedRows(seq_len=64), batch_size=8)                      (8, 64) each, from single rows
"""

import copy
import os
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Generic, Literal, NoReturn, Self, overload

import torch
import torch.utils._pytree as pytree
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from tokenmill.addresses import is_address
from tokenmill.batches.loader import Item, Pair, RowLoader, Tensors, Triple
from tokenmill.batches.loader_core import rank_of, with_rank
from tokenmill.batches.ranks import is_distributed, require_same_on_all_ranks
from tokenmill.checks import whole_number
from tokenmill.feed.loader_config import LoaderConfig, Loss, Packing, Tokens
from tokenmill.feed.mixture import ONE_SET, Mixture
from tokenmill.rows.packing import LongDocuments
from tokenmill.rows.row_stream import range_of_rank
from tokenmill.sanitize import redact
from tokenmill.store.set_names import TOKENS_ROOT, find_token_set
from tokenmill.store.shards import Split


class PackedRows(IterableDataset[Item], Generic[Item]):
    """RowLoader's batches as a dataset, for DataLoader and frameworks built on it.

        DataLoader(PackedRows(tokens, batch_size=32, seq_len=2048), batch_size=None, num_workers=2)

    The parameters are those of RowLoader, with two differences. `device` must be "cpu", because a DataLoader returns
    CPU tensors. `prefetch` has no effect in a worker process, which makes batches ahead itself.

    An item is a batch. Item i comes from worker i % num_workers, so the order is that of RowLoader for any number of
    workers. Without batch_size an item is one row, each (T,), and the DataLoader makes the batches. Every row still
    comes once, but with n workers each batch has the rows of one worker: rows k, k + n, k + 2n ...

    Its iterators have state_dict and load_state_dict, which torchdata's StatefulDataLoader calls. With two or more
    workers, each worker knows only its own batches, so you must resume with the same number of workers, batch_size,
    seq_len, number of ranks and token set. With fewer workers these may change.

    Each iteration starts again, with epoch 0 or that of `set_epoch`, and with the rank that this process has then. If
    you set `epochs`, it has a len, that of the next iteration.

    When iteration starts, it raises the same errors as RowLoader. It raises ValueError if a DataLoader makes batches of
    batches. It cannot see what a framework does around it: docs/clients.md explains how to use it with Lightning,
    Accelerate and the Hugging Face Trainer.
    """

    # fmt: off
    @overload
    def __init__(
        self: "PackedRows[Pair]", tokens: Tokens = None, split: Split = "train", *,
        batch_size: int | None = None, seq_len: int, device: str | int | torch.device = "cpu",
        view: str | None = None, packing: Packing = "best_fit", long_documents: LongDocuments = "split",
        shuffle: bool = True, seed: int = 1337,
        skip_rows: Iterable[str] | None = None, epochs: int | None = None, drop_last: bool = True,
        documents: Literal[False] = False, sources: Literal[False] = False, prefetch: int = 2,
        loss: Loss = "all", ignore_index: int = -100,
        rank: int | None = None, world_size: int | None = None, mesh: Any = None,
        cache_dir: str | os.PathLike[str] | None = None, cache_bytes: int | str | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: "PackedRows[Triple]", tokens: Tokens = None, split: Split = "train", *,
        batch_size: int | None = None, seq_len: int, device: str | int | torch.device = "cpu",
        view: str | None = None, packing: Packing = "best_fit", long_documents: LongDocuments = "split",
        shuffle: bool = True, seed: int = 1337,
        skip_rows: Iterable[str] | None = None, epochs: int | None = None, drop_last: bool = True,
        documents: Literal[True], sources: Literal[False] = False, prefetch: int = 2,
        loss: Loss = "all", ignore_index: int = -100,
        rank: int | None = None, world_size: int | None = None, mesh: Any = None,
        cache_dir: str | os.PathLike[str] | None = None, cache_bytes: int | str | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: "PackedRows[Tensors]", tokens: Tokens = None, split: Split = "train", *,
        batch_size: int | None = None, seq_len: int, device: str | int | torch.device = "cpu",
        view: str | None = None, packing: Packing = "best_fit", long_documents: LongDocuments = "split",
        shuffle: bool = True, seed: int = 1337,
        skip_rows: Iterable[str] | None = None, epochs: int | None = None, drop_last: bool = True,
        documents: bool = False, sources: bool = False, prefetch: int = 2,
        loss: Loss = "all", ignore_index: int = -100,
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
        view: str | None = None,
        packing: Packing = "best_fit",
        long_documents: LongDocuments = "split",
        shuffle: bool = True,
        seed: int = 1337,
        skip_rows: Iterable[str] | None = None,
        epochs: int | None = None,
        drop_last: bool = True,
        documents: bool = False,
        sources: bool = False,
        loss: Loss = "all",
        ignore_index: int = -100,
        prefetch: int = 2,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Any = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
    ) -> None:
        self._loader: type[RowLoader[Any]] = _SingleRows if batch_size is None else _WholeBatches
        self.config = LoaderConfig.of(locals() | {"batch_size": 1 if batch_size is None else batch_size})
        if str(device) != "cpu":
            raise ValueError(f"PackedRows returns CPU tensors, found device={device!r}; leave it out")
        source = self.config.tokens
        if isinstance(source, Mixture) and source.seq_lens:
            raise ValueError(
                "a mixture whose stages name a seq_len needs RowLoader, as the workers of a DataLoader would not all "
                "change their rows with the same batch; leave seq_len out of its stages, or use RowLoader"
            )
        if not isinstance(source, Mixture) and not (source is not None and is_address(source)):
            # absolute, because a worker may start in another folder
            source = Path(os.path.abspath(source or find_token_set(TOKENS_ROOT)))
        self.config = replace(self.config, tokens=source)
        # every iteration, in whatever process, reads the sets as they are now: ranks that begin an epoch while a set
        # grows would otherwise deal the rows of different sets
        sets = self.config.open_sets().items()
        pinned = tuple((name, token_set.digest, token_set.view_digest) for name, token_set in sets)
        self.config = replace(self.config, pinned=pinned)
        self._worker_config: LoaderConfig | None = None  # in a pickled copy: with the rank of the sending process
        if is_distributed() and self.config.rank is None:  # here, because a worker cannot reach the other ranks
            # these change no row, and may differ from rank to rank
            local = ("mesh", "tokens", "device", "prefetch", "cache_dir", "cache_bytes", "pinned")
            names = [field.name for field in fields(self.config) if field.name not in local]
            settings = {name: repr(getattr(self.config, name)) for name in names}
            weights = source.description if isinstance(source, Mixture) else {}
            manifests = {name: manifest for name, manifest, _ in pinned}
            views = {"views": {name: view for name, _, view in pinned if view}}
            require_same_on_all_ranks(settings | weights | views | {"manifest": manifests.get(ONE_SET, manifests)})
        self._lengths: dict[tuple[int, int], int] = {}  # by (epoch, ranks)
        self._epoch = SharedEpoch()

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration begin with this epoch, in all workers. The default is epoch 0 for each iteration."""
        epoch = whole_number("epoch", epoch, 0)
        if self.config.rank is None:
            require_same_on_all_ranks({"set_epoch": epoch})
        self._epoch.set(epoch)

    def __len__(self) -> int:
        """Items of the next iteration if you set `epochs`; TypeError if the dataset is endless."""
        if self.config.epochs is None:
            raise TypeError("this dataset is endless and has no len(); pass epochs=")
        epoch, (rank, world_size) = self._epoch.get(), rank_of(self.config)
        single = self._loader is _SingleRows  # the last single rows are not on every rank
        ranks = 1 if single else world_size
        if (epoch, ranks) not in self._lengths:
            config = replace(self.config, prefetch=0, rank=0, world_size=ranks, mesh=None)
            with RowLoader[Tensors].of(config) as loader:
                loader.set_epoch(epoch)
                self._lengths[epoch, ranks] = len(loader)
        items, left = divmod(self._lengths[epoch, ranks], world_size if single else 1)
        first, last = range_of_rank(left, rank, world_size)
        return items if self.config.drop_last else items + last - first

    def __bool__(self) -> bool:
        return True  # otherwise Python would call __len__

    def __repr__(self) -> str:
        config = self.config
        items = "single rows" if self._loader is _SingleRows else f"batches of {config.batch_size:,}"
        tokens = redact(repr(config.tokens if isinstance(config.tokens, Mixture) else str(config.tokens)))
        return (
            f"PackedRows({tokens}, {config.split!r}: rows of {config.seq_len:,} + 1 tokens, {config.packing}; {items}, "
            f"{'endless' if config.epochs is None else f'{config.epochs:,} epochs from epoch {self._epoch.get():,}'})"
        )

    def __iter__(self) -> RowLoader[Item]:
        info = get_worker_info()
        config, worker = self.config, (0, 1)
        if info is not None:
            worker = (info.id, info.num_workers)
            if not is_distributed() and self._worker_config is not None:
                config = self._worker_config
            config = replace(with_rank(config), prefetch=0)  # the DataLoader makes batches ahead
        loader = self._loader.of(config, worker)
        if epoch := self._epoch.get():
            loader.set_epoch(epoch)
        return loader

    def __copy__(self) -> Self:
        return copy.deepcopy(self)  # with an epoch of its own

    def __getstate__(self) -> dict[str, Any]:
        """The state for another process.

        A DataLoader worker cannot find out its rank, so it gets the rank of this process. This applies only if
        torch.distributed or jax.distributed is initialized, or a mesh is set. What a launcher pickles for its ranks
        contains no rank.
        """
        ranked = with_rank(self.config) if is_distributed() or self.config.mesh is not None else None
        config = ranked if self.config.mesh is not None else self.config  # a mesh is valid in this process only
        return vars(self) | {"config": config, "_worker_config": ranked}


class SharedEpoch:
    """The epoch of a dataset and of its DataLoader workers. Every other copy has its own.

    A worker that was forked has this object, whose number is in shared memory. A worker that was spawned has a copy,
    which reads the number of the process that sent it. A copy anywhere else, for example what a launcher pickles for
    its ranks, begins with the same number and is then independent.
    """

    def __init__(self, epoch: int = 0):
        self._own = torch.full((), epoch, dtype=torch.int64, device="cpu")
        self._own.share_memory_()  # type: ignore[no-untyped-call]
        self._sender: torch.Tensor | None = None
        self._copied_in: int | None = None  # the process that made this copy

    def get(self) -> int:
        in_spawned_worker = get_worker_info() is not None and self._copied_in == os.getpid()
        return int(self._sender if in_spawned_worker and self._sender is not None else self._own)

    def set(self, epoch: int) -> None:
        self._own.fill_(epoch)

    def __getstate__(self) -> torch.Tensor:
        return self._own  # in shared memory if it is sent to a process, by value if it is copied or saved

    def __setstate__(self, sender: torch.Tensor) -> None:
        self.__init__(int(sender))  # type: ignore[misc]
        self._sender, self._copied_in = sender, os.getpid()


class PackedBatch(tuple[torch.Tensor, ...]):
    """A batch of PackedRows(batch_size=...). Its type lets a DataLoader that would batch it again raise an error."""


def _refuse_batches_of_batches(batches: Sequence[PackedBatch], **_: object) -> NoReturn:
    raise ValueError(
        f"PackedRows(batch_size={len(batches[0][0])}) makes batches itself, and this DataLoader would make batches of "
        "batches: write DataLoader(..., batch_size=None), or leave out PackedRows' batch_size"
    )


pytree.register_pytree_node(PackedBatch, lambda batch: (list(batch), None), lambda items, _: PackedBatch(items))
default_collate_fn_map[PackedBatch] = _refuse_batches_of_batches


class _WholeBatches(RowLoader[Tensors]):
    """Yields batches that a DataLoader must not batch again."""

    def __next__(self) -> Tensors:
        return PackedBatch(super().__next__())


class _SingleRows(RowLoader[Tensors]):
    """Yields rows one by one, each (T,)."""

    _gives_batches = False

    def __next__(self) -> Tensors:
        tensors = super().__next__()
        if not len(tensors[0]):
            raise StopIteration  # with drop_last=False, this rank may have none of the last rows
        return tuple(tensor[0] for tensor in tensors)
