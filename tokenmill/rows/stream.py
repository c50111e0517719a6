"""Which rows come next for this rank: epochs, windows, position.

Rows form one global order: epoch by epoch, window by window, row by row. At each call rank r of W takes `count`
consecutive rows of the next count * W. With windows of 3 and 4 rows, W = 2, count = 2:

    global order   0.0 0.1 0.2 1.0 | 1.1 1.2 1.3 0.0' ...      window.row, ' in the next epoch
    rank 0         0.0 0.1         | 1.1 1.2
    rank 1                 0.2 1.0 |         1.3 0.0'

So the order does not depend on how many ranks there are, and a position is three numbers, the same
on every rank. Where the last epoch ends with fewer rows than count * W, ranks get as many each, but for one.
Rows that are to be skipped (skipped.py) are no part of the order. This module knows counts alone: how many
rows a window has it asks `count_rows`, which may have to plan the window, and so asks only for the one that comes next.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

from tokenmill.rows.skipped import Skipped, format_rows


class Place(NamedTuple):
    """The next row of the global order: `window` counts the windows of this epoch that are done."""

    epoch: int = 0
    window: int = 0
    row: int = 0


class End(NamedTuple):
    """Where rows end: before a window, or after a `share` of it."""

    epoch: int
    window: int = 0
    share: Fraction = Fraction(0)


class Rows(NamedTuple):
    """Some consecutive rows of one window."""

    epoch: int
    window: int
    numbers: range


class Dealt(NamedTuple):
    """This rank's part of `total` rows of the global order."""

    rows: list[Rows]
    total: int


def range_of_rank(total: int, rank: int, world_size: int) -> tuple[int, int]:
    """Which of `total` rows, fewer than a batch of all ranks, are a rank's: (first, last + 1)."""
    return rank * total // world_size, (rank + 1) * total // world_size


class RowStream:
    """Deals the rows of epochs of `count_windows(epoch)` windows to `rank`, as far as `until` or endlessly.

    `count_rows(epoch, window)` is the number of rows of a window; at least one window of an epoch must have some.
    `skipped` are rows that are left out; ValueError, when their window's turn comes, where it has no such rows.
    """

    def __init__(
        self,
        count_windows: Callable[[int], int],
        count_rows: Callable[[int, int], int],
        *,
        rank: int = 0,
        world_size: int = 1,
        until: End | None = None,
        skipped: Skipped | None = None,
    ):
        self.count_windows, self.count_rows = count_windows, count_rows
        self.rank, self.world_size, self.until = rank, world_size, until
        self.skipped = skipped or {}
        self.place = Place()
        self.passed = 0  # rows of all ranks since the last seek

    def take(self, count: int) -> Dealt:
        """This rank's part of the next count * world_size rows, or of those that there are; moves past all of them."""
        return self._take_within(count) or self._take_across(count)

    def _take_within(self, count: int) -> Dealt | None:
        """Where all of them are of one window, and none is skipped in it, as mostly."""
        (epoch, window, row), total = self.place, count * self.world_size
        if (epoch, window) in self.skipped or (self.until is not None and (epoch, window) >= self.until[:2]):
            return None
        if row + total >= self.count_rows(epoch, window):
            return None
        self.place, self.passed = Place(epoch, window, row + total), self.passed + total
        first = row + self.rank * count
        return Dealt([Rows(epoch, window, range(first, first + count))], total)

    def _take_across(self, count: int) -> Dealt:
        walked, at = [], self.place
        for some, at in self.walk(count * self.world_size):  # noqa: B007 (at is where the walk ends)
            walked.append(some)
        total = sum(len(some.numbers) for some in walked)
        first, last = range_of_rank(total, self.rank, self.world_size)
        self.place, self.passed = at, self.passed + total
        return Dealt(list(_between(walked, first, last)), total)

    def skip(self, count: int) -> None:
        """Moves past `count` rows of all ranks together, or to the end of the last epoch."""
        at, passed = self.place, 0
        for some, at in self.walk(count):  # noqa: B007 (at is where the walk ends)
            passed += len(some.numbers)
        self.place, self.passed = at, self.passed + passed

    def seek(self, place: Place) -> None:
        """Goes to a place. ValueError where there is no such row."""
        epoch, window, row = place
        require_window(place, self.count_windows)
        if row and row >= (rows := self.count_rows(epoch, window)):
            raise no_such_row(place, f"the window has {rows} rows of this length")
        self.place, self.passed = place, 0

    def walk(self, count: int) -> Iterator[tuple[Rows, Place]]:
        """The next `count` rows of all ranks, some of a window at a time, each with the place after them; stays."""
        at = self.place
        while count:
            share = self._share(at)
            if not share:
                return
            num_rows = self.count_rows(at.epoch, at.window)
            if at.row and at.row >= num_rows:
                raise no_such_row(at, f"the window has {num_rows} rows of this length")
            start, end = self._stretch(at, num_rows)
            end = min(end, int(num_rows * share))
            if share < 1 and start >= end:
                return
            stop = min(end, start + count)
            count -= stop - start
            some = Rows(at.epoch, at.window, range(start, stop))
            at = self._after(Place(at.epoch, at.window, stop), num_rows)
            yield some, at

    def _share(self, at: Place) -> Fraction | int:
        """How much of a window is dealt."""
        if self.until is None or at[:2] < self.until[:2]:
            return 1
        return self.until.share if at[:2] == self.until[:2] else 0

    def _stretch(self, at: Place, num_rows: int) -> tuple[int, int]:
        """The next rows of a window up to one that is skipped: (first, one after the last), perhaps none."""
        start = at.row
        for rows in self.skipped.get((at.epoch, at.window), ()):
            if rows.stop > num_rows:
                raise no_such_rows(at.epoch, at.window, rows, num_rows)
            if start < rows.start:
                return start, rows.start
            start = max(start, rows.stop)
        return start, num_rows

    def _after(self, at: Place, num_rows: int) -> Place:
        """The same place, or the next window's or epoch's first row where a window is done."""
        if at.row < num_rows:
            return at
        if at.window + 1 < self.count_windows(at.epoch):
            return Place(at.epoch, at.window + 1, 0)
        return Place(at.epoch + 1, 0, 0)


def require_window(place: Place, count_windows: Callable[[int], int]) -> None:
    """ValueError where a place is in no window."""
    if min(place) < 0:
        raise no_such_row(place, "they are counted from 0")
    if place.window >= (windows := count_windows(place.epoch)):
        raise no_such_row(place, f"the epoch has {windows} windows")


def no_such_row(place: Place, found: str) -> ValueError:
    """The error for a place that there is not."""
    return ValueError(f"no such row: epoch {place.epoch}, window {place.window}, row {place.row}; {found}")


def no_such_rows(epoch: int, window: int, rows: range, num_rows: int, source: str = "") -> ValueError:
    """The error for rows to be skipped, of a mixture's source, that there are not."""
    place = format_rows(epoch, window, rows)
    place = f"{source}/{place}" if source else place
    return ValueError(f"skip_rows {place}: window {window} of epoch {epoch} has {num_rows} rows")


def _between(walked: list[Rows], first: int, last: int) -> Iterator[Rows]:
    """Of consecutive rows those from the `first` to before the `last`."""
    for some in walked:
        numbers = some.numbers[max(first, 0) : max(last, 0)]
        if numbers:
            yield Rows(some.epoch, some.window, numbers)
        first, last = first - len(some.numbers), last - len(some.numbers)
