"""The rows of a mixture for one rank: whose turn it is (rows/mixed.py), and where each source's rows lie.

    rows = MixedRows(plans, ..., rank=0, world_size=1)
    lot = rows.take(32)               this rank's part of the next turns
    rows.read(lot)                    these, (32, 2049)
    rows.position                     a Turn: where each source stands there is worked out when somebody asks

Turns are looked up, and where their rows lie is gathered, for many calls at once (a Block): the work that each source
costs is shared by them. The first blocks are short, so that the first batch waits only for the sources that are in it.

A window of a source is planned and read ahead as soon as its first row is less than a window's tokens of the run away,
so a few windows are ahead however many sources there are. Same verbs as `PlannedRows` (planned.py).
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import numpy as np

from tokenmill.batches.mixture import Mixture
from tokenmill.batches.pieces import Piece
from tokenmill.batches.plans import WindowPlans
from tokenmill.batches.table import Table, gather
from tokenmill.batches.window_rows import Unchanged
from tokenmill.batches.windows import Windows
from tokenmill.rows.mixed import MixedStream
from tokenmill.rows.segments import Span, Standing, Track, Turn
from tokenmill.rows.skipped import Skipped
from tokenmill.rows.stream import Place, RowStream

BLOCK_ROWS = 8_192  # that are looked up at once
THREADS = 4  # that plan windows, at most


class WindowPart(NamedTuple):
    """Rows of this rank that lie in one window of a source: their numbers there, and in the block."""

    source: str
    epoch: int
    window: int
    numbers: np.ndarray
    places: np.ndarray


class Block(NamedTuple):
    """This rank's rows of some calls."""

    table: Table
    sources: np.ndarray  # (rows,) int64: the number of each row's source


class Lot(NamedTuple):
    """This rank's part of `total` rows of the global order."""

    block: Block | None
    rows: range  # of the block
    total: int


class MixedRows:
    """The rows of a mixture for one rank; at most `calls` calls are looked up at once."""

    def __init__(
        self,
        plans: Mapping[str, WindowPlans],
        skipped: Mapping[str, Skipped],
        mixture: Mixture,
        caps: Mapping[str, Fraction],
        *,
        rank: int,
        world_size: int,
        calls: int | None = None,
        ahead: bool = False,
    ):
        self.world_size, self._rank = world_size, rank
        self._plans, self._skipped, self._mixture, self._caps = plans, skipped, mixture, caps
        one = next(iter(plans.values()))
        self._none = np.empty((0, one.row_len), one.token_set.numpy_dtype)
        self._seq_len, self._ahead_rows = one.row_len - 1, one.grain.window // one.row_len
        self._number = {name: number for number, name in enumerate(mixture.names)}
        self._most_calls = calls
        self._windows = Windows(plans, threads=min(THREADS, os.cpu_count() or 1) if ahead else 0)
        self._unchanged = Unchanged()

    @property
    def position(self) -> Standing | Turn:
        """The next turn, the same on every rank."""
        return self._at

    @property
    def epoch(self) -> int:
        """None of its own: sources have epochs."""
        return 0

    @property
    def passed(self) -> int:
        """Rows of all ranks that were dealt or skipped since the last seek."""
        return self._passed

    def interrupt(self) -> None:
        """Ends the threads that plan; these rows are not asked again."""
        self._windows.interrupt()

    def seek(self, position: Standing | Turn) -> None:
        """Goes to a position. No thread is begun: a process may fork next."""
        self._windows.stop()
        count_rows = {name: partial(self._windows.count_rows, name) for name in self._plans}
        self._streams, self._stream = streams_of(
            self._plans, self._skipped, self._mixture, self._caps, position.standing(), count_rows
        )
        self._at, self._passed, self._calls = position, 0, 1
        # looked up for so many rows a call, each with the place after it, and not taken
        self._ready: deque[tuple[int, Lot, Standing | Turn]] = deque()
        self._begun = False

    def skip(self, count: int) -> None:
        """Moves past the next `count` rows of every rank."""
        if not count:
            return
        assert not self._ready, "a loader that skips rows looks up one call at a time"
        self._expect()
        for span in self._stream.take(count * self.world_size):
            self._at, self._passed = Turn(span.segment, span.last), self._passed + len(span)

    def take(self, count: int) -> Lot:
        """This rank's part of the next `count` rows of every rank; fewer where all sources are used up.

        ValueError where one of them comes to its cap, which the mixture says is an error.
        """
        if not self._ready:
            self._look_up(count)
        asked, lot, after = self._ready.popleft()
        assert asked == count, "a loader's batches are of one size"
        self._at, self._passed = after, self._passed + lot.total
        return lot

    def read(self, lot: Lot) -> np.ndarray:
        """The rows that were taken: (their number, row_len)."""
        if lot.block is None or not lot.rows:
            return self._none
        self._unchanged.require(lot.block.table.shards)
        return lot.block.table.read(lot.rows)

    def sources(self, lot: Lot) -> np.ndarray:
        """The number of each row's source, in the order of the mixture's names: (their number,) int64."""
        return np.zeros(0, np.int64) if lot.block is None else lot.block.sources[lot.rows.start : lot.rows.stop]

    def pieces(self, count: int) -> list[list[Piece]]:
        """What this rank's next `count` rows are made of, for people to look at; moves past them."""
        self._expect()
        spans = self._stream.take(count * self.world_size)
        total = sum(map(len, spans))
        first, last = self._rank * total // self.world_size, (self._rank + 1) * total // self.world_size
        found: list[list[Piece]] = [[] for _ in range(last - first)]
        for part in parts_of(spans, np.arange(first, last)):
            rows = self._windows.rows(part.source, part.epoch, part.window)
            for number, place in zip(part.numbers.tolist(), part.places.tolist(), strict=True):
                found[place] = rows.pieces(number)
        return found

    # ------------------------------------------------------------------------ looking up

    def _look_up(self, count: int) -> None:
        """Makes ready this rank's parts of the next calls, of `count` rows of every rank."""
        calls = self._calls
        self._calls = min(2 * calls, self._most_calls or max(1, BLOCK_ROWS // count))
        try:
            self._look_up_calls(calls, count)
        except (ValueError, OSError):
            if calls == 1:
                raise
            passed = self._passed  # something ahead is wrong: one call after the other, until it comes to that
            self.seek(self._at)
            self._passed, self._calls = passed, 1
            self._look_up(count)

    def _look_up_calls(self, calls: int, count: int) -> None:
        a_call = count * self.world_size
        self._expect()
        spans = self._stream.take(calls * a_call)
        whole, left = divmod(sum(map(len, spans)), a_call)
        if self._stream.failed is not None:
            left = 0
            if not whole:
                raise self._stream.failed
        own = np.arange(whole)[:, None] * a_call + self._rank * count + np.arange(count)
        first, last = self._rank * left // self.world_size, (self._rank + 1) * left // self.world_size
        offsets = np.concatenate([own.ravel(), whole * a_call + np.arange(first, last)])
        block = self._block(spans, offsets)
        for call in range(whole):
            rows = range(call * count, (call + 1) * count)
            self._ready.append((count, Lot(block, rows, a_call), self._turn(spans, (call + 1) * a_call)))
        if not whole or left:
            rows = range(whole * count, len(offsets))
            after = self._turn(spans, whole * a_call + left) if left else self._at
            self._ready.append((count, Lot(block, rows, left), after))

    def _turn(self, spans: list[Span], offset: int) -> Turn:
        """The turn that so many rows after the first of spans is."""
        for span in spans:
            if offset <= len(span):
                return Turn(span.segment, span.first + offset)
            offset -= len(span)
        raise AssertionError("the turn is in one of the spans")

    def _block(self, spans: list[Span], offsets: np.ndarray) -> Block | None:
        if not len(offsets):
            return None
        sources, parts = np.empty(len(offsets), np.int64), []
        for part in parts_of(spans, offsets):
            sources[part.places] = self._number[part.source]
            table = self._windows.rows(part.source, part.epoch, part.window).table
            parts.append((table, part.numbers, part.places))
        return Block(gather(parts), sources)

    # ------------------------------------------------------------------------ what will be needed

    def _expect(self) -> None:
        """Has the windows planned that come within the next tokens of the run, and lets go of those that are done."""
        at, weights = self._stream.present()
        if not self._begun:
            self._begun = True
            order = sorted(weights, key=lambda name: -weights[name])  # as their first turns come
            self._windows.expect_now((name, *self._streams[name].place[:2]) for name in order)
        total = sum(weights.values())
        soon = at is not None and at <= self._ahead_rows
        coming = {*weights, *(self._stream.coming() if soon else ())}
        for name, stream in self._streams.items():
            self._windows.forget_before(name, stream.place.epoch + (name not in coming), stream.place.window)
        for name, weight in weights.items():
            place = self._streams[name].place
            left = self._windows.known_rows(name, *place[:2])
            if left is not None and (left - place.row) * total <= self._ahead_rows * weight:
                self._expect_next(name, place)
        for name in coming - weights.keys():
            self._windows.expect(name, *self._streams[name].place[:2])

    def _expect_next(self, name: str, place: Place) -> None:
        stream = self._streams[name]
        last = place.window + 1 == stream.count_windows(place.epoch)
        coming = (place.epoch + 1, 0) if last else (place.epoch, place.window + 1)
        if stream.until is None or coming < stream.until[:2] or (coming == stream.until[:2] and stream.until.share):
            self._windows.expect(name, *coming)


def streams_of(
    plans: Mapping[str, WindowPlans],
    skipped: Mapping[str, Skipped],
    mixture: Mixture,
    caps: Mapping[str, Fraction],
    standing: Standing,
    count_rows: Mapping[str, Callable[[int, int], int]],
) -> tuple[dict[str, RowStream], MixedStream]:
    """Each source's rows, and those of the mixture, from a standing on; `count_rows` of each source's windows."""
    ends = {name: plans[name].end(cap) for name, cap in caps.items()}
    streams = {
        name: RowStream(own.count_windows, count_rows[name], until=ends.get(name), skipped=skipped[name])
        for name, own in plans.items()
    }
    seq_len = next(iter(plans.values())).row_len - 1
    mixed = MixedStream(
        streams,
        mixture.stages,
        seq_len,
        standing,
        caps=caps,
        on_cap=mixture.on_cap,
        room=partial(room_under, plans, caps),
        tokens=mixture.tokens,
    )
    return streams, mixed


def room_under(plans: Mapping[str, WindowPlans], caps: Mapping[str, Fraction], name: str, place: Place) -> Fraction:
    """The tokens that a source has left under its cap, about."""
    some = plans[name]
    return max(Fraction(0), caps[name] - some.share(place)) * some.about_rows() * (some.row_len - 1)


def parts_of(spans: list[Span], offsets: np.ndarray) -> Iterator[WindowPart]:
    """Where the rows lie that are `offsets`, ascending, after the first of spans."""
    begin = 0
    for span in spans:
        some = np.arange(*np.searchsorted(offsets, [begin, begin + len(span)]))
        source, row = span.segment.pattern.at(offsets[some] - begin + span.first)
        for number in np.unique(source).tolist():
            name, mine = span.segment.pattern.names[number], source == number
            yield from _in_windows(name, span.segment.tracks[name], row[mine], some[mine])
        begin += len(span)


def _in_windows(name: str, track: Track, row: np.ndarray, places: np.ndarray) -> Iterator[WindowPart]:
    """A source's rows of a segment, ascending, as rows of windows."""
    for begin, some in track.rows(int(row[0]), int(row[-1]) + 1):
        mine = slice(*np.searchsorted(row, [begin, begin + len(some.numbers)]))
        if mine.start < mine.stop:
            numbers = row[mine] - begin + some.numbers.start
            yield WindowPart(name, some.epoch, some.window, numbers, places[mine])
