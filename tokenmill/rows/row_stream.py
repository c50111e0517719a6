"""The rows of one token set in their global order: epoch by epoch, window by window, row by row.

With windows of 3 and 4 rows, and two ranks that take two rows at each call:

    global order   0.0 0.1 0.2 1.0 | 1.1 1.2 1.3 0.0' ...      window.row, ' in the next epoch
    rank 0         0.0 0.1         | 1.1 1.2
    rank 1                 0.2 1.0 |         1.3 0.0'

The order does not depend on the number of ranks, and a cursor is three numbers, the same on every rank. If the last
epoch ends with fewer rows than all ranks ask for, they share them equally, give or take one row. Rows to skip
(skip_rows.py) are not part of the order. This module works with counts only: it asks `count_rows` how many rows a
window has. That may require planning the window, so it asks only for the window that comes next.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

from tokenmill.rows.skip_rows import Skipped, format_rows


class Cursor(NamedTuple):
    """The next row of the global order. `window` is also the number of windows of this epoch that are done."""

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


def range_of_rank(total: int, rank: int, world_size: int) -> tuple[int, int]:
    """A rank's part of the last `total` rows, which are fewer than a global batch: (first, last + 1)."""
    return rank * total // world_size, (rank + 1) * total // world_size


class RowStream:
    """Walks through the rows of epochs that have `count_windows(epoch)` windows, up to `until` or without end.

    `count_rows(epoch, window)` is the number of rows of a window; at least one window of an epoch must have rows.
    `skipped` are rows to leave out. If a window has no such rows, ValueError is raised when the window's turn comes.
    """

    def __init__(
        self,
        count_windows: Callable[[int], int],
        count_rows: Callable[[int, int], int],
        *,
        until: End | None = None,
        skipped: Skipped | None = None,
    ):
        self.count_windows, self.count_rows = count_windows, count_rows
        self.until, self.skipped = until, skipped or {}
        self.place = Cursor()

    def seek(self, place: Cursor) -> None:
        """Moves to a place. Raises ValueError if there is no such row."""
        epoch, window, row = place
        require_window(place, self.count_windows)
        if row and row >= (rows := self.count_rows(epoch, window)):
            raise no_such_row(place, f"the window has {rows} rows of this length")
        self.place = place

    def walk(self, count: int) -> Iterator[tuple[Rows, Cursor]]:
        """The next `count` rows of all ranks, in parts of one window, each with the place after it. Does not move."""
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
            at = self._after(Cursor(at.epoch, at.window, stop), num_rows)
            yield some, at

    def _share(self, at: Cursor) -> Fraction | int:
        """The share of a window that is part of the stream."""
        if self.until is None or at[:2] < self.until[:2]:
            return 1
        return self.until.share if at[:2] == self.until[:2] else 0

    def _stretch(self, at: Cursor, num_rows: int) -> tuple[int, int]:
        """The next rows of a window up to one that is skipped: (first, last + 1), perhaps none."""
        start = at.row
        for rows in self.skipped.get((at.epoch, at.window), ()):
            if rows.stop > num_rows:
                raise no_such_rows(at.epoch, at.window, rows, num_rows)
            if start < rows.start:
                return start, rows.start
            start = max(start, rows.stop)
        return start, num_rows

    def _after(self, at: Cursor, num_rows: int) -> Cursor:
        """The same place, or the first row of the next window or epoch if the window is done."""
        if at.row < num_rows:
            return at
        if at.window + 1 < self.count_windows(at.epoch):
            return Cursor(at.epoch, at.window + 1, 0)
        return Cursor(at.epoch + 1, 0, 0)


def require_window(place: Cursor, count_windows: Callable[[int], int]) -> None:
    """Raises ValueError if a place is in no window."""
    if min(place) < 0:
        raise no_such_row(place, "all three are counted from 0")
    if place.window >= (windows := count_windows(place.epoch)):
        raise no_such_row(place, f"the epoch has {windows} windows")


def no_such_row(place: Cursor, found: str) -> ValueError:
    """The error for a place that does not exist."""
    return ValueError(f"no such row: epoch {place.epoch}, window {place.window}, row {place.row}; {found}")


def no_such_rows(epoch: int, window: int, rows: range, num_rows: int, source: str = "") -> ValueError:
    """The error for rows to skip, of a mixture's source, that do not exist."""
    place = format_rows(epoch, window, rows)
    place = f"{source}/{place}" if source else place
    return ValueError(f"skip_rows {place}: window {window} of epoch {epoch} has {num_rows} rows")
