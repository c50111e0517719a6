"""The chain behind a loader: rows are dealt, transferred, made ahead; begun anew from any place.

    planned.py or nanochat_rows.py   ->   _batches   ->   transfer.py   ->   ahead.py   ->   RowLoader.__next__

Every batch comes with the place after it, so where the chain stands is where the batch that was returned last left
it, whatever was made ahead. To go elsewhere, or on after an error, a Ctrl-C or a fork, the chain is dropped and begun
anew from that place: nothing else has to be remembered.
"""

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from torch.utils.data import get_worker_info

from tokenmill.batches.ahead import Ahead
from tokenmill.batches.config import LoaderConfig
from tokenmill.batches.nanochat_rows import NanochatRows
from tokenmill.batches.planned import PlannedRows, ShardPlans
from tokenmill.batches.ranks import rank_and_world_size, require_same_on_all_ranks
from tokenmill.batches.transfer import Batch, Transfer, find_device, make_transfer
from tokenmill.rows.position import VERSION
from tokenmill.rows.skipped import parse_skipped
from tokenmill.store.token_sets import TokenSet, find_token_set

TOKENS_ROOT = Path("data/tokens")
Place = tuple[dict[str, int], int, int]  # position, epoch, rows of all ranks since the loader's start


class Chain:
    """The rows of a loader's settings for one rank, and where it stands in them."""

    _start: dict[str, int]  # the position from which on `_passed` rows are counted
    _seen_at_start: int | None  # input tokens before it, where they are known

    def _set_up(self, config: LoaderConfig, worker: tuple[int, int] = (0, 1)) -> None:
        self.config = config
        self.device = find_device(config.device)
        self.rank, self.world_size = rank_of(config)
        self.token_set = TokenSet(config.tokens or find_token_set(TOKENS_ROOT))
        self._worker, self._workers = worker
        self._skipped = parse_skipped(config.skip_rows)
        self._batches: Iterator[tuple[Batch, Place]] | None = None
        self._closed = False
        self._skipped_at_start = self._skipped
        self._pid = os.getpid()
        rows = self._make_rows()
        self._rows: PlannedRows | NanochatRows | None = rows  # what `_batches` deals from, once it is there
        self._require_one_batch(rows)
        if config.rank is None and get_worker_info() is None:  # a worker must leave its parent's connections alone
            require_same_on_all_ranks("batch_size", repr(self.identity), config.batch_size)
        self._begin()

    @cached_property
    def identity(self) -> dict[str, Any]:
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

    def _make_rows(self, ahead: bool = True) -> PlannedRows | NanochatRows:
        config = self.config
        if config.packing == "nanochat":
            return NanochatRows(
                self.token_set, config.split, config.seq_len + 1, rank=self.rank, world_size=self.world_size
            )
        return PlannedRows(
            self._make_plans(ahead),
            rank=self.rank,
            world_size=self.world_size,
            epochs=config.epochs,
            skipped=self._skipped,
        )

    def _make_plans(self, ahead: bool = True) -> ShardPlans:
        config = self.config
        return ShardPlans(
            self.token_set,
            config.split,
            config.seq_len + 1,
            packing=config.packing,
            ahead=ahead and config.prefetch > 0,
            **config.order,
        )

    def _begin(self) -> None:
        """Goes to the first row, in a DataLoader worker to that of its first batch."""
        self._go_to(dict.fromkeys(self._rows_at_hand().position, 0), 0)
        rows = self._rows_at_hand()
        rows.skip(self._worker * self.config.batch_size)
        self._position, self._passed = rows.position, rows.passed

    def _go_to(self, position: dict[str, int], seen: int | None) -> None:
        self._stop()
        rows = self._rows_at_hand()
        rows.seek(position)
        self._position, self._epoch, self._ended = position, rows.epoch, False
        # of tokens seen: those before this start, unless an older position does not say, and rows since; where it does
        # not, no later position says so either, as they are the same on every rank, whoever asks for tokens_seen
        self._start, self._seen_at_start, self._says_seen, self._passed = position, seen, seen is not None, 0

    def _rows_at_hand(self) -> PlannedRows | NanochatRows:
        if self._closed:
            self._raise_closed()
        self._leave_the_parent_s()
        if self._rows is None:
            self._rows = self._make_rows()
        return self._rows

    def _raise_closed(self) -> NoReturn:
        raise ValueError(
            f"this RowLoader of {self.token_set.path}, {self.config.split!r}, is closed; make another, and give it "
            "this one's state_dict()"
        )

    def _leave_the_parent_s(self) -> None:
        """In a fork: threads did not come along, so nothing of what uses them is used."""
        if self._pid != os.getpid():
            self._batches, self._rows, self._pid = None, None, os.getpid()

    def _running(self) -> "Iterator[tuple[Batch, Place]]":
        """The batches from the position on, each with the place after it."""
        self._leave_the_parent_s()
        if self._batches is None:
            rows = self._rows_at_hand()
            rows.seek(self._position)
            batches = _batches(rows, self._transfer(), self.config, self.rank, self._workers, self._passed)
            self._batches = Ahead(batches, self.config.prefetch) if self.config.prefetch else batches
        return self._batches

    def _stop(self) -> None:
        """Ends what runs ahead, and leaves it the rows that it dealt from: they are past the position."""
        batches, self._batches = self._batches, None  # first, as a second Ctrl-C may come while this one waits
        if batches is not None:
            self._rows = None
        if isinstance(batches, Ahead):
            batches.stop()

    def _transfer(self) -> Transfer:
        config, bos_id = self.config, self.token_set.bos_id if self.config.documents else None
        shape = (config.batch_size, config.seq_len + 1)
        return make_transfer(self.device, shape, self.token_set.numpy_dtype, bos_id, max(2, config.prefetch))

    def _require_one_batch(self, rows: PlannedRows | NanochatRows) -> None:
        if isinstance(rows, NanochatRows):
            return  # endless wherever the rank has a document
        whole_batch = self.config.epochs is None or self.config.drop_last
        needed = self.config.batch_size * self.world_size if whole_batch else 1
        found = rows.plans.count(up_to=needed)
        if found < needed:
            raise ValueError(
                f"{self.token_set.path}: split {self.config.split!r} has {found} rows of {self.config.seq_len} + 1 "
                f"tokens, fewer than one batch of {self.config.batch_size} on each of {self.world_size} ranks; "
                "lower batch_size or seq_len, or prepare more text"
            )


def _batches(
    rows: PlannedRows | NanochatRows,
    transfer: Transfer,
    config: LoaderConfig,
    rank: int,
    workers: int,
    passed: int,
) -> Iterator[tuple[Batch, Place]]:
    """Deals and transfers batch after batch, each with the place after it. `passed` rows came before the first."""
    size = config.batch_size
    whole = size * rows.world_size
    while (available := rows.available(size)) == whole or (available and not config.drop_last):
        out = transfer.buffer()[: len(range(rank, available, rows.world_size))]
        rows.deal(size, out)
        batch = transfer.send(out)
        rows.skip(size * (workers - 1))  # the other workers' batches
        yield batch, (rows.position, rows.epoch, passed + rows.passed)


def rank_of(config: LoaderConfig) -> tuple[int, int]:
    """(rank, world_size): those that were given, or this process's."""
    if config.rank is None or config.world_size is None:
        return rank_and_world_size()
    return config.rank, config.world_size
