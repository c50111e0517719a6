"""Rows planned shard by shard: best_fit, concat and random, from a token set to filled arrays.

A shard's rows are planned from its lengths when its turn comes, or while the shard before it is read,
and forgotten when it is done: at most three plans and as many open files are held, whatever the size
of the set. How many rows a shard has is the same at every epoch and under every seed.

    plans = ShardPlans(token_set, "train", 2049, packing="best_fit", ...)
    rows = PlannedRows(plans, rank=0, world_size=1)
    rows.deal(32, out)        fills out, (32, 2049), with this rank's next rows
    rows.position             {"epoch": 0, "shard": 3, "row": 512}, after them

`NanochatRows` (nanochat_rows.py) has the same verbs.
"""

import os
import weakref
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import numpy as np

from tokenmill.batches.pieces import Piece
from tokenmill.batches.shard_rows import ShardRows
from tokenmill.rows.packing import LongDocuments, count_rows, count_windows, plan_rows, plan_windows
from tokenmill.rows.skipped import Skipped
from tokenmill.rows.stream import Position, RowStream
from tokenmill.store.shards import ShardEntry
from tokenmill.store.token_sets import TokenSet

PLANS_HELD = 3  # the shard at hand, the next, and at a shard's end the one before


class ShardPlans:
    """The planned rows of each shard of a split, `row_len` tokens each.

    With `ahead`, plans are made in a thread, and `prepare` does not wait for them. ValueError where a shard
    is too short for a row of a packing that joins no shards' tokens.
    """

    def __init__(
        self,
        token_set: TokenSet,
        split: str,
        row_len: int,
        *,
        packing: str,
        long_documents: LongDocuments,
        shuffle: bool,
        seed: int,
        ahead: bool = False,
    ):
        self.token_set, self.row_len = token_set, row_len
        self.packing, self.long_documents = packing, long_documents
        self.shuffle, self.seed = shuffle, seed
        self.shards = token_set.split(split)
        self._counts: dict[int, int] = {}  # rows of the shards that were planned or counted
        self._plans: OrderedDict[tuple[int, int], Future[ShardRows]] = OrderedDict()
        self._planner = None
        if ahead:
            self._planner = ThreadPoolExecutor(1, "tokenmill-plan")
            weakref.finalize(self, _end, self._planner, os.getpid())
        self._require_shards_of_a_row()

    def rows(self, epoch: int, shard: int) -> ShardRows:
        """The rows of a shard at an epoch. An error is raised at each call, not remembered."""
        try:
            return self._plan_once(epoch, shard).result()
        except BaseException:
            self._plans.clear()
            raise

    def prepare(self, epoch: int, shard: int) -> None:
        """Begins to plan a shard that comes next, where there is a thread for it."""
        if self._planner is not None:
            self._plan_once(epoch, shard)

    def count_rows(self, epoch: int, shard: int) -> int:
        """The rows of a shard, the same at every epoch."""
        if shard not in self._counts:  # what is asked for next is its rows
            self._counts[shard] = self.rows(epoch, shard).num_rows
        return self._counts[shard]

    def count(self, up_to: int | None = None) -> int:
        """Rows of all shards, from their lengths; stops counting at `up_to`."""
        if up_to is not None and sum(map(self._fewest_rows, self.shards)) >= up_to:
            return up_to
        rows = 0
        for number in range(len(self.shards)):
            rows += self.count_shard(number)
            if up_to is not None and rows >= up_to:
                return up_to
        return rows

    def count_shard(self, shard: int) -> int:
        """The rows of a shard, from its lengths, where it is not to be read."""
        if shard not in self._counts:
            self._counts[shard] = self._count(self.shards[shard])
        return self._counts[shard]

    def _plan_once(self, epoch: int, shard: int) -> Future[ShardRows]:
        """Plans a shard, or finds its plan, and lets older plans go."""
        key = (epoch if self.shuffle else 0, shard)
        if key not in self._plans:
            how = (self.row_len, self.packing, self.long_documents, (self.seed, *key))
            plan = partial(_plan_shard, self.token_set, self.shards[shard], *how)  # no reference to self: see _end
            self._plans[key] = self._planner.submit(plan) if self._planner else _done(plan())
        self._plans.move_to_end(key)
        while len(self._plans) > PLANS_HELD:
            self._plans.popitem(last=False)
        return self._plans[key]

    def _count(self, entry: ShardEntry) -> int:
        if self.packing == "best_fit":
            lengths = self.token_set.open(entry).lengths
            return count_rows(lengths, self.row_len, long_documents=self.long_documents)
        return count_windows(entry.tokens, self.row_len)

    def _fewest_rows(self, entry: ShardEntry) -> int:
        """What is known of a shard's rows without opening it."""
        if self.packing == "best_fit":  # "split" keeps every token, "crop" at least one of a document
            return -(-(entry.tokens if self.long_documents == "split" else entry.documents) // self.row_len)
        return count_windows(entry.tokens, self.row_len)

    def _require_shards_of_a_row(self) -> None:
        for entry in self.shards if self.packing != "best_fit" else ():
            if 0 < entry.tokens < self.row_len:
                raise ValueError(
                    f"{self.token_set.path}: shard {entry.name} has {entry.tokens} tokens, fewer than a row of "
                    f"{self.row_len - 1} + 1, and packing {self.packing!r} joins no shards, so all of it would be "
                    "left out; use packing='best_fit' or a smaller seq_len"
                )


def _plan_shard(
    token_set: TokenSet,
    entry: ShardEntry,
    row_len: int,
    packing: str,
    long_documents: LongDocuments,
    seed: tuple[int, int, int],
) -> ShardRows:
    """The rows of a shard, in an order that `seed` (seed, epoch, number of the shard) decides."""
    shard, bos_id = token_set.open(entry), token_set.bos_id
    if packing == "best_fit":
        return ShardRows.packed(
            shard, plan_rows(shard.lengths, row_len, long_documents=long_documents, seed=seed), bos_id
        )
    starts = plan_windows(len(shard.tokens), row_len, seed=seed if packing == "random" else None)
    return ShardRows.windows(shard, starts, row_len, bos_id)


def _end(planner: ThreadPoolExecutor, pid: int) -> None:
    """Waits for the thread of `ShardPlans` that are dropped: a process may fork next, and should have none by then."""
    if os.getpid() == pid:  # in a fork the thread did not come along, but locks that it held are held for ever
        planner.shutdown(wait=True, cancel_futures=True)


def _done(rows: ShardRows) -> Future[ShardRows]:
    future: Future[ShardRows] = Future()
    future.set_result(rows)
    return future


class PlannedRows:
    """The rows of `plans` for one rank, for `epochs` epochs or endlessly."""

    def __init__(
        self,
        plans: ShardPlans,
        *,
        rank: int,
        world_size: int,
        epochs: int | None = None,
        skipped: Skipped | None = None,
    ):
        self.plans, self.world_size = plans, world_size
        self._stream = RowStream(
            len(plans.shards),
            plans.count_rows,
            shuffle=plans.shuffle,
            seed=plans.seed,
            rank=rank,
            world_size=world_size,
            epochs=epochs,
            skipped=skipped,
        )

    @property
    def position(self) -> dict[str, int]:
        """The next row of the global order, the same on every rank."""
        return self._stream.position.as_dict()

    @property
    def epoch(self) -> int:
        """The epoch of the next row, from 0."""
        return self._stream.position.epoch

    @property
    def passed(self) -> int:
        """Rows of all ranks that were dealt or skipped since the last seek."""
        return self._stream.passed

    def rows_before(self, position: dict[str, int], skipped: Skipped) -> int:
        """Rows of all ranks that come before a position, without those `skipped`: lengths up to it are packed."""
        return self._stream.rows_before(Position(**position), self.plans.count_shard, skipped)

    def seek(self, position: dict[str, int]) -> None:
        """Goes to a position. ValueError where there is no such row."""
        self._stream.seek(Position(**position))

    def available(self, count: int) -> int:
        """How many rows there are for the next `count` of every rank, all ranks together."""
        return self._stream.available(count * self.world_size)

    def skip(self, count: int) -> None:
        """Moves past the next `count` rows of every rank."""
        self._stream.skip(count * self.world_size)

    def deal(self, count: int, out: np.ndarray) -> None:
        """Fills out with this rank's next `count` rows: (count, row_len), fewer at the end of the last epoch."""
        filled = 0
        for some in self._stream.take(count):
            self.plans.rows(some.epoch, some.shard).fill(out[filled : filled + len(some.numbers)], some.numbers)
            filled += len(some.numbers)
        assert filled == len(out), "out has room for just the rows that are there"
        self.plans.prepare(*self._stream.next_shard())

    def pieces(self, count: int) -> list[list[Piece]]:
        """What this rank's next `count` rows are made of, for people to look at; moves past them."""
        some = list(self._stream.take(count))
        return [self.plans.rows(rows.epoch, rows.shard).pieces(number) for rows in some for number in rows.numbers]
