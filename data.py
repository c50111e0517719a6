"""Batches for training: `from data import get_batch`.

    inputs, targets = get_batch("train", batch_size=32, seq_len=2048, device="cuda")

    loader = RowLoader("data/tokens/...", "train", batch_size=32, seq_len=2048, device="cuda")
    for inputs, targets in loader:
        checkpoint["data"] = loader.state_dict()      # the same dict on every rank

A loader is a chain: rows (tokenmill/planned.py or nanochat.py) are dealt to this rank and copied out of
the memory map, transferred to the device (transfer.py), a few batches ahead in a thread (ahead.py).
Nothing is stored beside the tokens: the position is (epoch, shard, row) and what must match for it to
mean anything, and going there plans one shard anew. Packings and ranks are told in packing.py,
nanochat.py and stream.py.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from torch.utils.data import IterableDataset, get_worker_info

from config import LoaderConfig
from tokenmill.ahead import Ahead
from tokenmill.kept import KeptLoaders
from tokenmill.nanochat import NanochatRows
from tokenmill.planned import PlannedRows, ShardPlans
from tokenmill.position import VERSION, position_of, read_position
from tokenmill.ranks import rank_and_world_size, require_same_on_all_ranks
from tokenmill.shards import TokenSet, find_token_set
from tokenmill.skipped import parse_skipped
from tokenmill.transfer import Batch, find_device, make_transfer

TOKENS_ROOT = Path("data/tokens")


class RowLoader:
    """Batches of one split for one rank: an iterator of (inputs, targets), each (B, T) int64.

    `tokens` is the token set's folder; without it, the one token set under data/tokens. The other
    settings are those of `LoaderConfig`: batch_size and seq_len must be given. Inputs are a row's first
    seq_len tokens, targets its last. Batches stay valid for as long as they are held.

    It is endless, or ends after `epochs` epochs; `iter` on one that has ended begins anew, on any other
    goes on. With drop_last=False its last batch may be shorter, on some ranks by a row and even empty, so
    that all ranks make the same number of calls.

    Raises FileNotFoundError where there is no token set; ValueError where a setting makes no
    sense, a file is not what the manifest says, or the split has fewer rows than one batch of all
    ranks. What goes wrong in the thread is raised by the next call; the one after tries again.
    """

    def __init__(self, tokens=None, split: str = "train", *, worker: tuple[int, int] = (0, 1), **settings):
        self.config = config = LoaderConfig(tokens=tokens, split=split, **settings)
        self.device = find_device(config.device)
        self.rank, self.world_size = _rank_and_world_size(config)
        self.token_set = TokenSet(config.tokens or find_token_set(TOKENS_ROOT))
        self._worker, self._workers = worker  # of n DataLoader workers the k-th makes every n-th batch
        self._skipped = parse_skipped(config.skip_rows)
        self._rows = self._make_rows()  # what `_batches` deals from, once it is there
        self._batches = None
        self._require_one_batch()
        if config.rank is None and get_worker_info() is None:  # a worker must leave its parent's connections alone
            require_same_on_all_ranks("batch_size", repr(self.identity), config.batch_size)
        self._begin()

    @property
    def epoch(self) -> int:
        """The epoch of the next row, from 0; with nanochat, that in which this rank reads documents."""
        return self._epoch

    @cached_property
    def rows(self) -> int | None:
        """Rows of one epoch, of all ranks, with those to skip; None with nanochat, whose rows do not end with an epoch.

        With best_fit all lengths of the split are read and packed once: about 10 ms for 60,000 documents.
        """
        return None if self.config.packing == "nanochat" else self._make_plans().count()

    def batches_per_epoch(self, world_size: int | None = None) -> int | None:
        """Calls in which `world_size` ranks (by default as many as there are) take an epoch's rows."""
        if self.rows is None:
            return None
        rows_a_call = self.config.batch_size * (world_size or self.world_size)
        return self.rows // rows_a_call if self.config.drop_last else -(-self.rows // rows_a_call)

    def __iter__(self):
        if self._ended:
            self._begin()
        return self

    def __next__(self) -> tuple[torch.Tensor, ...]:
        try:
            batch, self._position, self._epoch = next(self._running())
        except BaseException as error:
            self._ended = isinstance(error, StopIteration)
            self._stop()
            raise
        return batch.receive()

    def state_dict(self) -> dict:
        """The position after the batch that was returned last: plain numbers and strings, the same on every rank."""
        return position_of(self.identity, self._position, self._skipped)

    def load_state_dict(self, state: dict) -> None:
        """Goes on with exactly the next row, on this number of ranks or, but for nanochat, another.

        Rows that the position knows to be skipped stay so; this loader's own skip_rows are skipped from here on too.
        ValueError, naming both values, where the position is of another token set or other settings.
        """
        place, skip_rows = read_position(state, self.identity, self._position, self.token_set.path)
        skipped = parse_skipped([*skip_rows, *self.config.skip_rows])
        if skipped != self._skipped:
            self._stop()
            self._skipped, self._rows = skipped, None
        self._go_to(place)

    @cached_property
    def identity(self) -> dict:
        """What must match for a position to mean the same row."""
        nanochat = self.config.packing == "nanochat"
        return {
            "version": VERSION,
            "fingerprint": self.token_set.tokenizer["fingerprint"],
            "split": self.config.split,
            "shards": self.token_set.digest(self.config.split),
            "seq_len": self.config.seq_len,
            "packing": self.config.packing,
            **({"world_size": self.world_size} if nanochat else self.config.order),
            **({} if self._workers == 1 else {"worker": self._worker, "workers": self._workers}),
        }

    def _make_rows(self) -> PlannedRows | NanochatRows:
        ranks = {"rank": self.rank, "world_size": self.world_size}
        if self.config.packing == "nanochat":
            return NanochatRows(self.token_set, self.config.split, self.config.seq_len + 1, **ranks)
        return PlannedRows(self._make_plans(), epochs=self.config.epochs, skipped=self._skipped, **ranks)

    def _make_plans(self) -> ShardPlans:
        config = self.config
        return ShardPlans(
            self.token_set,
            config.split,
            config.seq_len + 1,
            packing=config.packing,
            ahead=config.prefetch > 0,
            **config.order,
        )

    def _begin(self) -> None:
        """Goes to the first row, in a DataLoader worker to that of its first batch."""
        self._go_to(dict.fromkeys(self._rows_at_hand().position, 0))
        self._rows.skip(self._worker * self.config.batch_size)
        self._position = self._rows.position

    def _go_to(self, position: dict[str, int]) -> None:
        self._stop()
        rows = self._rows_at_hand()
        rows.seek(position)
        self._position, self._epoch, self._ended = position, rows.epoch, False

    def _rows_at_hand(self) -> PlannedRows | NanochatRows:
        if self._rows is None:
            self._rows = self._make_rows()
        return self._rows

    def _running(self) -> Iterator[tuple[Batch, dict, int]]:
        """The batches from the position on, each with the position and the epoch after it."""
        if self._batches is not None and self._pid != os.getpid():
            self._batches = self._rows = None  # this is a fork, and the thread did not come along
        if self._batches is None:
            rows = self._rows_at_hand()
            rows.seek(self._position)
            batches = _batches(rows, self._transfer(), self.config, self.rank, self.world_size, self._workers)
            self._batches = Ahead(batches, self.config.prefetch) if self.config.prefetch else batches
            self._pid = os.getpid()
        return self._batches

    def _stop(self) -> None:
        """Ends what runs ahead, and leaves it the rows that it dealt from: they are past the position."""
        if isinstance(self._batches, Ahead):
            self._batches.stop()
        if self._batches is not None:
            self._batches = self._rows = None

    def _transfer(self):
        config, bos_id = self.config, self.token_set.bos_id if self.config.documents else None
        shape = (config.batch_size, config.seq_len + 1)
        return make_transfer(self.device, shape, self.token_set.numpy_dtype, bos_id, max(2, config.prefetch))

    def _require_one_batch(self) -> None:
        if self.config.packing == "nanochat":
            return  # endless wherever the rank has a document
        whole_batch = self.config.epochs is None or self.config.drop_last
        needed = self.config.batch_size * self.world_size if whole_batch else 1
        found = self._rows.plans.count(up_to=needed)
        if found < needed:
            raise ValueError(
                f"{self.token_set.path}: split {self.config.split!r} has {found} rows of {self.config.seq_len} + 1 "
                f"tokens, fewer than one batch of {self.config.batch_size} on each of {self.world_size} ranks; "
                "lower batch_size or seq_len, or prepare more text"
            )


def _batches(rows, transfer, config: LoaderConfig, rank: int, world_size: int, workers: int):
    """Deals and transfers batch after batch: (batch, position after it, epoch after it)."""
    size = config.batch_size
    while (available := rows.available(size)) == size * world_size or (available and not config.drop_last):
        out = transfer.buffer()[: len(range(rank, available, world_size))]
        rows.deal(size, out)
        batch = transfer.send(out)
        rows.skip(size * (workers - 1))  # the other workers' batches
        yield batch, rows.position, rows.epoch


def _rank_and_world_size(config: LoaderConfig) -> tuple[int, int]:
    return rank_and_world_size() if config.rank is None else (config.rank, config.world_size)


# ---------------------------------------------------------------------------- PyTorch's DataLoader


class PackedRows(IterableDataset):
    """The same batches as a dataset, for DataLoader and what is built on it.

        DataLoader(PackedRows(tokens, batch_size=32, seq_len=2048), batch_size=None, num_workers=2)

    Settings are RowLoader's, but for `device`: a DataLoader hands over CPU tensors. An item is a batch, and
    item i comes from worker i % num_workers, so the order is that of RowLoader with any number of workers.
    Without batch_size an item is one row, each (T,), for a DataLoader that makes the batches: every row once too,
    though with n workers each batch is one worker's, rows k, k + n, k + 2n ...

    Its iterators have state_dict and load_state_dict, which torchdata's StatefulDataLoader calls.
    """

    def __init__(self, tokens=None, split: str = "train", *, batch_size: int | None = None, **settings):
        tokens = tokens or find_token_set(TOKENS_ROOT)
        self._loader = RowLoader if batch_size is not None else _SingleRows
        self.config = LoaderConfig(
            tokens=tokens, split=split, batch_size=1 if batch_size is None else batch_size, **settings
        )
        if self.config.device != "cpu":
            raise ValueError(f"PackedRows gives CPU tensors, found device={self.config.device!r}; leave it out")

    def __iter__(self) -> RowLoader:
        worker = get_worker_info()
        if worker is None:
            return self._loader(**vars(self.config))
        return self._loader(**vars(self._of_this_rank()), worker=(worker.id, worker.num_workers))

    def __getstate__(self):
        """What a worker in another process gets: it cannot ask which rank it works for."""
        return vars(self) | {"config": self._of_this_rank()}

    def _of_this_rank(self) -> LoaderConfig:
        rank, world_size = _rank_and_world_size(self.config)
        return replace(self.config, rank=rank, world_size=world_size, prefetch=0)  # the DataLoader makes batches ahead


class _SingleRows(RowLoader):
    """Rows one by one, (T,) each."""

    def __next__(self) -> tuple[torch.Tensor, ...]:
        tensors = super().__next__()
        if not len(tensors[0]):
            raise StopIteration  # drop_last=False, and this rank has no row of the last ones
        return tuple(tensor[0] for tensor in tensors)


# ---------------------------------------------------------------------------- get_batch

_loaders = KeptLoaders(RowLoader)


def get_batch(split: str, batch_size: int, seq_len: int, device="cpu", **settings) -> tuple[torch.Tensor, torch.Tensor]:
    """The next (inputs, targets) of a split, each (B, T) int64 on `device`; with documents=True, document_ids too.

    Keeps one `RowLoader` for each distinct set of arguments, so training and validation each go
    on where they were. `settings` are RowLoader's: tokens, packing, seed ...
    """
    if settings.get("epochs") is not None:
        raise ValueError("get_batch is endless; for epochs, iterate over a RowLoader")
    return next(_loaders.get(split=split, batch_size=batch_size, seq_len=seq_len, device=device, **settings))


def state_dict() -> dict:
    """The positions of all loaders that get_batch keeps, the same on every rank."""
    return _loaders.state_dict()


def load_state_dict(state: dict) -> None:
    """Makes get_batch go on from `state_dict`, in this process or another, on any number of ranks.

    ValueError for a state that `state_dict` did not make. Whether each position fits is checked when the
    get_batch that it belongs to is called next.
    """
    _loaders.load_state_dict(state)
