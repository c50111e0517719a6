"""Which rows come next for this rank: epochs, shuffling, position.

Rows form one global order: epoch by epoch, shard by shard, row by row. At each call rank r of W
takes rows r, r + W, r + 2W ... of the next count * W. With shards of 3 and 4 rows, W = 2, count = 2:

    global order   0.0 0.1 0.2 1.0 | 1.1 1.2 1.3 0.0' ...      shard.row, ' in the next epoch
    rank 0         0.0     0.2     | 1.1     1.3
    rank 1             0.1     1.0 |     1.2     0.0'

So the order does not depend on how many ranks there are, and a position is three numbers, the same
on every rank. Rows that are to be skipped (skipped.py) are no part of it. This module knows counts alone: how many
rows a shard has it asks `count_rows`, which may have to plan the shard, and so asks only for the shard that comes next.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np

from tokenmill.rows.order import permutation
from tokenmill.rows.skipped import Skipped, format_rows


@dataclass(frozen=True)
class Position:
    """The next row of the global order: `shard` counts the shards of this epoch that are done."""

    epoch: int = 0
    shard: int = 0
    row: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True)
class Rows:
    """Some rows of one shard, by number; `shard` is its place in the split, not in the epoch."""

    epoch: int
    shard: int
    numbers: range


class RowStream:
    """Deals the rows of `num_shards` shards to `rank`, for `epochs` epochs or endlessly.

    `count_rows(epoch, shard)` is the number of rows that a shard has in an epoch; at least one
    shard must have some. With `shuffle`, the shards of an epoch come in an order drawn from
    (seed, epoch); without, in theirs. `skipped` are rows that are left out; ValueError, when their shard's
    turn comes, where it has no such rows.
    """

    def __init__(
        self,
        num_shards: int,
        count_rows: Callable[[int, int], int],
        *,
        shuffle: bool,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        epochs: int | None = None,
        skipped: Skipped | None = None,
    ):
        self.num_shards, self.count_rows = num_shards, count_rows
        self.shuffle, self.seed, self.epochs = shuffle, seed, epochs
        self.rank, self.world_size = rank, world_size
        self.skipped = skipped or {}
        for (epoch, shard), (rows, *_) in self.skipped.items():
            if shard >= num_shards:
                raise ValueError(f"skip_rows {format_rows(epoch, shard, rows)}: an epoch has {num_shards} shards")
        self.position = Position()
        self.passed = 0  # rows of all ranks since the last seek
        self._order_of = (-1, np.arange(num_shards))

    def order(self, epoch: int) -> np.ndarray:
        """The shards of an epoch, in order: (num_shards,) int64."""
        if self.shuffle and self._order_of[0] != epoch:
            self._order_of = (epoch, permutation(self.num_shards, "shards", self.seed, epoch))
        return self._order_of[1]

    def take(self, count: int) -> Iterator[Rows]:
        """This rank's next `count` rows, a few of one shard at a time; fewer at the end of the last epoch.

        The position moves on, past the rows of all ranks, once the last of them was taken.
        """
        at, dealt = self.position, 0
        for some, at in self._walk(count * self.world_size):  # noqa: B007 (at is where the walk ends)
            first = some.numbers.start + (self.rank - dealt) % self.world_size
            mine = range(first, some.numbers.stop, self.world_size)
            if mine:
                yield Rows(some.epoch, some.shard, mine)
            dealt += len(some.numbers)
        self.position, self.passed = at, self.passed + dealt

    def available(self, count: int) -> int:
        """How many of the next `count` rows, of all ranks together, there are before the last epoch ends."""
        return sum(len(some.numbers) for some, _ in self._walk(count))

    def skip(self, count: int) -> None:
        """Moves the position past `count` rows of all ranks together, or to the end of the last epoch."""
        at, passed = self.position, 0
        for some, at in self._walk(count):  # noqa: B007 (at is where the walk ends)
            passed += len(some.numbers)
        self.position, self.passed = at, self.passed + passed

    def seek(self, position: Position) -> None:
        """Goes to a position. ValueError where there is no such row."""
        epoch, shard, row = position.epoch, position.shard, position.row
        valid = epoch >= 0 and 0 <= shard < self.num_shards and row >= 0
        if not valid or (row and row >= self.count_rows(epoch, int(self.order(epoch)[shard]))):
            raise ValueError(f"no such row: epoch {epoch}, shard {shard} of {self.num_shards}, row {row}")
        self.position, self.passed = position, 0

    def rows_before(self, position: Position, count_rows: Callable[[int], int], skipped: Skipped) -> int:
        """How many rows of the global order come before a position, but for those `skipped`.

        `count_rows` counts a shard's rows without planning it.
        """

        def rows_of(epoch: int, shards: int) -> int:
            return sum(count_rows(int(shard)) for shard in self.order(epoch)[:shards])

        whole_epochs = position.epoch * rows_of(0, self.num_shards) if position.epoch else 0
        here = (position.epoch, position.shard, position.row)
        left_out = sum((*at, row) < here for at, many in skipped.items() for rows in many for row in rows)
        return whole_epochs + rows_of(position.epoch, position.shard) + position.row - left_out

    def next_shard(self) -> tuple[int, int]:
        """The shard after the one of the position: (epoch, its place in the split)."""
        at = self._after(self.position, 0)
        return at.epoch, int(self.order(at.epoch)[at.shard])

    def _walk(self, count: int) -> Iterator[tuple[Rows, Position]]:
        """The next `count` rows of all ranks, a shard at a time, each with the position after them."""
        at = self.position
        while count and (self.epochs is None or at.epoch < self.epochs):
            shard = int(self.order(at.epoch)[at.shard])
            num_rows = self.count_rows(at.epoch, shard)
            start, end = self._stretch(at, num_rows)
            stop = min(end, start + count)
            count -= stop - start
            some = Rows(at.epoch, shard, range(start, stop))
            at = self._after(Position(at.epoch, at.shard, stop), num_rows)
            yield some, at

    def _stretch(self, at: Position, num_rows: int) -> tuple[int, int]:
        """The next rows of a shard up to one that is skipped: (first, one after the last), perhaps none."""
        start = at.row
        for rows in self.skipped.get((at.epoch, at.shard), ()):
            if rows.stop > num_rows:
                place = format_rows(at.epoch, at.shard, rows)
                raise ValueError(f"skip_rows {place}: shard {at.shard} of epoch {at.epoch} has {num_rows} rows")
            if start < rows.start:
                return start, rows.start
            start = max(start, rows.stop)
        return start, num_rows

    def _after(self, at: Position, num_rows: int) -> Position:
        """The same place, or the next shard's or epoch's first row where a shard is done."""
        if at.row < num_rows:
            return at
        if at.shard + 1 < self.num_shards:
            return Position(at.epoch, at.shard + 1, 0)
        return Position(at.epoch + 1, 0, 0)
