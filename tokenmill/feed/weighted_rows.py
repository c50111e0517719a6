"""WeightedRows: the rows of weighted sources for one rank, in the global order.

    rows = WeightedRows(plans, skipped, schedule, rank=0, world_size=1)
    taken = rows.take(32)             this rank's part of the next turns
    rows.read(taken)                  their tokens, (32, 2049)
    rows.position                     a Turn; the cursor of each source there is worked out when somebody asks

One token set is a mixture with one source. rows/mixed_stream.py decides whose turn it is, and row_blocks.py looks up
where the rows are. Several calls are looked up at once. The first look-ups are short, so the first batch waits only for
the sources that it contains.

A window of a source is planned and read ahead as soon as its first row is less than one window of tokens ahead in the
run. So only a few windows are planned ahead, however many sources there are.
"""

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import numpy as np

from tokenmill.feed.pieces import Piece
from tokenmill.feed.row_blocks import BlockPart, count_targets, look_up, rows_at
from tokenmill.feed.window_planner import WindowPlanner
from tokenmill.feed.window_plans import WindowPlans
from tokenmill.feed.window_rows import ChangeCheck
from tokenmill.rows.mixed_stream import MixedStream, Schedule
from tokenmill.rows.row_stream import Cursor, RowStream, range_of_rank
from tokenmill.rows.segments import MixtureState, Span, Turn
from tokenmill.rows.skip_rows import Skipped

LOOKUP_ROWS = 8_192  # how many rows are looked up at once
THREADS = 4  # how many threads plan windows, at most


class Taken(NamedTuple):
    """This rank's part of `total` rows of the global order: parts of blocks, in order.

    `targets` of the targets in all of these rows bear loss.
    """

    parts: Sequence[BlockPart]
    total: int
    targets: int


class WeightedRows:
    """The rows of sources for one rank.

    At most `calls` calls are looked up at once. With `ahead`, threads plan windows ahead.
    """

    def __init__(
        self,
        plans: Mapping[str, WindowPlans],
        skipped: Mapping[str, Skipped],
        schedule: Schedule,
        *,
        rank: int,
        world_size: int,
        calls: int | None = None,
        ahead: bool = False,
    ):
        self.world_size, self._rank = world_size, rank
        self._plans, self._skipped, self._schedule = plans, skipped, schedule
        one = next(iter(plans.values()))
        self._none = np.empty((0, one.row_len), one.token_set.numpy_dtype)
        self._seq_len, self._ahead_rows = one.row_len - 1, one.window_size.window // one.row_len
        self._number = {name: number for number, name in enumerate(plans)}
        self._most_calls = calls
        self._is_masked = any(own.is_masked for own in plans.values())
        self._windows = WindowPlanner(plans, threads=min(THREADS, os.cpu_count() or 1) if ahead else 0)
        self._change_check = ChangeCheck()

    @property
    def position(self) -> MixtureState | Turn:
        """The place of the next row, the same on every rank."""
        return self._at

    @property
    def passed(self) -> int:
        """Rows of all ranks that were taken or skipped since the last seek."""
        return self._passed

    def interrupt(self) -> None:
        """Ends the threads that plan windows. These rows must not be used afterwards."""
        self._windows.interrupt()

    def seek(self, position: MixtureState | Turn) -> None:
        """Moves to a place. Starts no thread, because the process may fork next.

        Raises ValueError if a single source has no such row. With several sources, planning a window of each would take
        long, so the first look-up raises the error.
        """
        self._windows.stop()
        count_rows = {name: partial(self._windows.count_rows, name) for name in self._plans}
        self._streams, self._stream = streams_of(
            self._plans, self._skipped, self._schedule, position.mixture_state(), count_rows
        )
        if len(self._streams) == 1:
            for stream in self._streams.values():
                stream.seek(stream.place)
        self._at, self._passed, self._calls = position, 0, 1
        # (rows a call, its part, the place after it) of calls that are looked up and not taken yet
        self._ready: deque[tuple[int, Taken, MixtureState | Turn]] = deque()
        self._begun = False

    def skip(self, count: int) -> None:
        """Moves past the next `count` rows of every rank."""
        if not count:
            return
        assert not self._ready, "a loader that skips rows looks up one call at a time"
        self._expect()
        for span in self._stream.take(count * self.world_size):
            self._at, self._passed = Turn(span.segment, span.last), self._passed + len(span)

    def take(self, count: int) -> Taken:
        """This rank's part of the next `count` rows of every rank; fewer if all sources are used up.

        Raises ValueError if a source reaches its cap and the mixture says that this is an error.
        """
        if not self._ready:
            self._look_up(count)
        size, taken, after = self._ready.popleft()
        assert size == count, "a loader's batches have one size"
        self._at, self._passed = after, self._passed + taken.total
        return taken

    def read(self, taken: Taken) -> np.ndarray:
        """The rows that were taken: (number of rows, row_len)."""
        if len(taken.parts) == 1:
            ((block, numbers),) = taken.parts
            return block.read(numbers)
        return np.concatenate([self._none, *(block.read(numbers) for block, numbers in taken.parts)])

    def loss_mask(self, taken: Taken, rows: np.ndarray) -> np.ndarray | None:
        """Which tokens of the rows that were taken and read bear loss: (number of rows, row_len) bool; None: all."""
        if not self._is_masked:
            return None
        if len(taken.parts) == 1:
            ((block, numbers),) = taken.parts
            return block.loss_mask(numbers, rows)
        masks, done = [np.empty((0, rows.shape[1]), bool)], 0
        for block, numbers in taken.parts:
            masks.append(block.loss_mask(numbers, rows[done : done + len(numbers)]))
            done += len(numbers)
        return np.concatenate(masks)

    def sources(self, taken: Taken) -> np.ndarray:
        """The number of each row's source, in the order of the sources: (number of rows,) int64."""
        return np.concatenate([np.zeros(0, np.int64), *(block.sources(numbers) for block, numbers in taken.parts)])

    def counts(self, taken: Taken) -> np.ndarray:
        """What the rows that were taken hold, by source: (sources, 4) int64 of rows, filler, pieces, tokens."""
        counts = np.zeros((len(self._number), 4), np.int64)
        for block, numbers in taken.parts:
            block.add_counts(numbers, counts[:, :3])
        counts[:, 3] = counts[:, 0] * self._seq_len
        return counts

    def pieces(self, count: int) -> list[list[Piece]]:
        """The pieces of this rank's next `count` rows, for display; moves past them."""
        self._expect()
        spans = self._stream.take(count * self.world_size)
        first, last = range_of_rank(sum(map(len, spans)), self._rank, self.world_size)
        found: list[list[Piece]] = [[] for _ in range(last - first)]
        for some in rows_at(spans, np.arange(first, last)):
            rows = self._windows.rows(some.source, some.epoch, some.window)
            for number, place in zip(some.numbers.tolist(), some.places.tolist(), strict=True):
                found[place] = rows.pieces(number)
        return found

    # ------------------------------------------------------------------------ looking up

    def _look_up(self, count: int) -> None:
        """Looks up this rank's parts of the next calls, each of `count` rows of every rank."""
        self._expect()
        calls = min(self._calls, self._calls_in_window(count * self.world_size))
        self._calls = min(2 * self._calls, self._most_calls or max(1, LOOKUP_ROWS // count))
        try:
            self._look_up_calls(calls, count)
        except (ValueError, OSError):
            if calls == 1:
                raise
            passed = self._passed  # a later call fails: look up one call at a time until that call is reached
            self.seek(self._at)
            self._passed, self._calls = passed, 1
            self._look_up(count)

    def _calls_in_window(self, rows_a_call: int) -> int:
        """How many calls may be looked up.

        With one source, they stay within its current window, so that this call does not wait for the plan of the next
        one.
        """
        _, weights = self._stream.present()
        if len(weights) > 1:
            return self._calls
        ((name, _),) = weights.items()
        place = self._streams[name].place
        known = self._windows.known_rows(name, *place[:2])
        return 1 if known is None else max(1, (known - place.row) // rows_a_call)

    def _look_up_calls(self, calls: int, count: int) -> None:
        rows_a_call = count * self.world_size
        spans = self._stream.take(calls * rows_a_call)
        whole, left = divmod(sum(map(len, spans)), rows_a_call)
        if self._stream.failed is not None:
            left = 0
            if not whole:
                raise self._stream.failed
        bounds = [(call * rows_a_call + self._rank * count, count) for call in range(whole)]
        if not whole or left:
            first, last = range_of_rank(left, self._rank, self.world_size)
            bounds.append((whole * rows_a_call + first, last - first))
        totals = [rows_a_call if call < whole else left for call in range(len(bounds))]
        targets = self._targets(spans, totals, rows_a_call)
        for call, parts in enumerate(look_up(spans, bounds, self._windows, self._number, self._change_check)):
            total = totals[call]
            after = self._turn(spans, call * rows_a_call + total) if total else self._at
            self._ready.append((count, Taken(parts, total, targets[call]), after))

    def _targets(self, spans: list[Span], totals: list[int], rows_a_call: int) -> list[int]:
        """How many targets bear loss in the rows of all ranks, of each call."""
        if not self._is_masked:
            return [total * self._seq_len for total in totals]
        bounds = [(call * rows_a_call, total) for call, total in enumerate(totals)]
        return count_targets(spans, bounds, self._windows)

    def _turn(self, spans: list[Span], offset: int) -> Turn:
        """The place `offset` rows after the first row of the spans."""
        for span in spans:
            if offset <= len(span):
                return Turn(span.segment, span.first + offset)
            offset -= len(span)
        raise AssertionError("the turn is in one of the spans")

    # ------------------------------------------------------------------------ planning ahead

    def _expect(self) -> None:
        """Has the windows planned that the run needs within one window of tokens, and releases those that are done."""
        at, weights = self._stream.present()
        if not self._begun:
            self._begun = True
            order = sorted(weights, key=lambda name: -weights[name])  # the order of their first turns
            self._windows.expect_now((name, *self._streams[name].place[:2]) for name in order)
        total = sum(weights.values())
        soon = at is not None and at <= self._ahead_rows
        coming = {*weights, *(self._stream.coming() if soon else ())}
        for name, stream in self._streams.items():
            self._windows.release_before(name, stream.place.epoch + (name not in coming), stream.place.window)
        for name, weight in weights.items():
            place = self._streams[name].place
            left = self._windows.known_rows(name, *place[:2])
            if left is not None and (left - place.row) * total <= self._ahead_rows * weight:
                self._expect_next(name, place)
        for name in coming - weights.keys():
            self._windows.expect(name, *self._streams[name].place[:2])

    def _expect_next(self, name: str, place: Cursor) -> None:
        stream = self._streams[name]
        last = place.window + 1 == stream.count_windows(place.epoch)
        coming = (place.epoch + 1, 0) if last else (place.epoch, place.window + 1)
        if stream.until is None or coming < stream.until[:2] or (coming == stream.until[:2] and stream.until.share):
            self._windows.expect(name, *coming)


def streams_of(
    plans: Mapping[str, WindowPlans],
    skipped: Mapping[str, Skipped],
    schedule: Schedule,
    mixture_state: MixtureState,
    count_rows: Mapping[str, Callable[[int, int], int]],
) -> tuple[dict[str, RowStream], MixedStream]:
    """Each source's stream of rows, and the stream of the mixture, from a state on.

    `count_rows` counts the rows of each source's windows.
    """
    ends = {name: plans[name].end(cap) for name, cap in schedule.caps.items()}
    streams = {
        name: RowStream(own.count_windows, count_rows[name], until=ends.get(name), skipped=skipped[name])
        for name, own in plans.items()
    }
    seq_len = next(iter(plans.values())).row_len - 1
    return streams, MixedStream(streams, schedule, seq_len, mixture_state, partial(room_under, plans, schedule.caps))


def room_under(plans: Mapping[str, WindowPlans], caps: Mapping[str, Fraction], name: str, place: Cursor) -> Fraction:
    """The tokens that a source has left under its cap, estimated."""
    some = plans[name]
    return max(Fraction(0), caps[name] - some.epochs_at(place)) * some.about_rows() * (some.row_len - 1)
