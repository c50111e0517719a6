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

from functools import partial

import numpy as np

from tokenmill.batches.pieces import Piece
from tokenmill.batches.plans import WindowPlans
from tokenmill.batches.windows import Windows
from tokenmill.rows.skipped import Skipped
from tokenmill.rows.stream import Dealt, End, Place, RowStream

SOURCE = ""  # the one that there is


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
        self._begun: tuple[int, int] | None = None  # the window that the one after it is expected in
        self._none = np.empty((0, plans.row_len), plans.token_set.numpy_dtype)
        self._windows = Windows({SOURCE: plans}, threads=int(ahead))
        self._until = None if until is None else End(until)
        self._stream = RowStream(
            plans.count_windows,
            partial(self._windows.count_rows, SOURCE),
            rank=rank,
            world_size=world_size,
            until=self._until,
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

    def interrupt(self) -> None:
        """Ends the threads that plan; these rows are not asked again."""
        self._windows.interrupt()

    def seek(self, position: dict[str, int]) -> None:
        """Goes to a position. ValueError where there is no such row. No thread is begun: a process may fork next."""
        self._windows.stop()
        self._begun = None
        self._stream.seek(Place(**position))

    def skip(self, count: int) -> None:
        """Moves past the next `count` rows of every rank."""
        self._stream.skip(count * self.world_size)

    def take(self, count: int) -> Dealt:
        """This rank's part of the next `count` rows of every rank; fewer at the end of the last epoch."""
        if self._stream.place[:2] != self._begun:
            self._begin(*self._stream.place[:2])
        return self._stream.take(count)

    def read(self, dealt: Dealt) -> np.ndarray:
        """The rows that were taken last: (their number, row_len)."""
        parts = [self._windows.rows(SOURCE, epoch, window).read(numbers) for epoch, window, numbers in dealt.rows]
        return parts[0] if len(parts) == 1 else np.concatenate([self._none, *parts])

    def pieces(self, count: int) -> list[list[Piece]]:
        """What this rank's next `count` rows are made of, for people to look at; moves past them."""
        found = [(self._windows.rows(SOURCE, *some[:2]), some.numbers) for some in self.take(count).rows]
        return [rows.pieces(row) for rows, numbers in found for row in numbers]

    def _begin(self, epoch: int, window: int) -> None:
        """Lets go of the windows before this one; it and the next are expected."""
        self._begun = (epoch, window)
        self._windows.forget_before(SOURCE, epoch, window)
        last = window + 1 == self._stream.count_windows(epoch)
        coming = [(epoch, window), (epoch + 1, 0) if last else (epoch, window + 1)]
        coming = [key for key in coming if self._until is None or key < self._until[:2]]
        self._windows.expect_now((SOURCE, *key) for key in coming[:1])
        for key in coming[1:]:
            self._windows.expect(SOURCE, *key)
