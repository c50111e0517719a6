"""Rows planned window by window: best_fit, concat and random, from a token set to arrays.

A window's rows are planned (plans.py) when its turn comes, or while the window before it is read,
and forgotten when it is done: few plans, and the maps of as many windows' files, are held, whatever the size
of the set.

    rows = PlannedRows(plans, rank=0, world_size=1)
    dealt = rows.take(32)             which of the next rows are this rank's
    rows.read(dealt)                  these, (32, 2049)
    rows.position                     {"epoch": 0, "window": 3, "row": 512}, after them

`NanochatRows` (nanochat_rows.py) has the same verbs.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tokenmill.batches.ahead import PAUSE, Ahead
from tokenmill.batches.pieces import Piece
from tokenmill.batches.plans import WindowPlans
from tokenmill.batches.window_rows import WindowRows
from tokenmill.rows.skipped import Skipped
from tokenmill.rows.stream import Dealt, Place, RowStream

AHEAD = 1  # windows that are planned before they are asked for


class PlannedRows:
    """The rows of `plans` for one rank, before epoch `until` or endlessly; with `ahead`, planned by a thread."""

    def __init__(
        self,
        plans: WindowPlans,
        *,
        rank: int,
        world_size: int,
        until: int | None = None,
        skipped: Skipped | None = None,
        ahead: bool = False,
    ):
        self.world_size = world_size
        self._none = np.empty((0, plans.row_len), plans.token_set.numpy_dtype)
        self._windows = _Windows(plans, until, ahead)
        self._stream = RowStream(
            plans.count_windows,
            self._windows.count_rows,
            rank=rank,
            world_size=world_size,
            until=until,
            skipped=skipped,
        )

    @property
    def position(self) -> dict[str, int]:
        """The next row of the global order, the same on every rank."""
        epoch, window, row = self._stream.place
        return {"epoch": epoch, "window": window, "row": row}

    @property
    def epoch(self) -> int:
        """The epoch of the next row, from 0."""
        return self._stream.place.epoch

    @property
    def passed(self) -> int:
        """Rows of all ranks that were dealt or skipped since the last seek."""
        return self._stream.passed

    def seek(self, position: dict[str, int]) -> None:
        """Goes to a position. ValueError where there is no such row. No thread is begun: a process may fork next."""
        self._windows.stop()
        self._stream.seek(Place(**position))

    def skip(self, count: int) -> None:
        """Moves past the next `count` rows of every rank."""
        self._stream.skip(count * self.world_size)

    def take(self, count: int) -> Dealt:
        """This rank's part of the next `count` rows of every rank; fewer at the end of the last epoch."""
        self._windows.begin(self._stream.place.epoch, self._stream.place.window)
        return self._stream.take(count)

    def read(self, dealt: Dealt) -> np.ndarray:
        """The rows that were taken last: (their number, row_len)."""
        parts = [self._windows.rows(epoch, window).read(numbers) for epoch, window, numbers in dealt.rows]
        return parts[0] if len(parts) == 1 else np.concatenate([self._none, *parts])

    def pieces(self, count: int) -> list[list[Piece]]:
        """What this rank's next `count` rows are made of, for people to look at; moves past them."""
        found = self.take(count).rows
        return [self._windows.rows(epoch, window).pieces(row) for epoch, window, numbers in found for row in numbers]


class _Windows:
    """The windows that come, planned in a thread or when they are asked for. Without a reference to who asks.

    Before `begin` and after `stop` single windows may be asked for, and are planned at once.
    """

    def __init__(self, plans: WindowPlans, until: int | None, ahead: bool):
        self._plans, self._until, self._ahead = plans, until, ahead
        self._coming: Iterator[Any] | None = None
        self._held: dict[tuple[int, int], WindowRows] = {}  # that came, and are not done

    def begin(self, epoch: int, window: int) -> None:
        """Lets go of the windows before this one, and has those from it on come if they do not yet."""
        if self._coming is not None and next(iter(self._held), None) == (epoch, window):
            return
        for key in [key for key in self._held if key < (epoch, window)]:
            del self._held[key]
        if self._coming is None:
            coming = _coming(self._plans, epoch, window, self._until, self._ahead)
            self._coming = Ahead(coming, AHEAD) if self._ahead else coming

    def stop(self) -> None:
        coming, self._coming = self._coming, None
        self._held.clear()
        if isinstance(coming, Ahead):
            coming.stop()

    def rows(self, epoch: int, window: int) -> WindowRows:
        """The rows of a window, once it comes."""
        key = (epoch, window)
        if key not in self._held and self._coming is None:
            return self._plans.rows(epoch, window)
        while key not in self._held:
            assert self._coming is not None, "windows come until one has failed"
            try:
                came, rows = next(self._coming)
            except BaseException:
                self._coming = None
                raise
            self._held[came] = rows
        return self._held[key]

    def count_rows(self, epoch: int, window: int) -> int:
        return self.rows(epoch, window).num_rows


def _coming(plans: WindowPlans, epoch: int, window: int, until: int | None, ahead: bool) -> Iterator[Any]:
    """The windows from one on, each with its (epoch, window), read ahead.

    In a thread, the kernel reads a window before it is asked for; but the first, which is asked for already.
    """
    first = True
    while until is None or epoch < until:
        while window < plans.count_windows(epoch):
            rows = plans.rows(epoch, window)
            if not ahead:
                rows.read_ahead()
            elif not first:
                yield from _read(rows)
            yield (epoch, window), rows
            if ahead and first:
                yield from _read(rows)
            window, first = window + 1, False
        epoch, window = epoch + 1, 0


def _read(rows: WindowRows) -> Iterator[object]:
    for _ in rows.reading():
        yield PAUSE
