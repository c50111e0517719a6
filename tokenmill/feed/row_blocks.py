"""Looks up where the rows of some turns are: which windows, which rows there, and blocks to read them from.

A span of turns names rows by source: "row 812 of web in this segment". Looking them up gives their windows. If all rows
are from one source, they are read from their windows directly. If several sources take turns, their rows are gathered
into one table, so that many calls share the work that each source costs:

    turns        web 7   math 3   web 8              of a window of web and a window of math
    block        row 0   row 1    row 2              of one table, read in order
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from tokenmill.feed.row_table import RowTable, gather
from tokenmill.feed.window_planner import WindowPlanner
from tokenmill.feed.window_rows import ChangeCheck, WindowRows
from tokenmill.rows.segments import SourceTrack, Span


class RowBlock(Protocol):
    """Rows that were looked up, by number."""

    def read(self, numbers: range) -> np.ndarray:
        """These rows: (len(numbers), row_len)."""

    def loss_mask(self, numbers: range, rows: np.ndarray) -> np.ndarray:
        """Which of their tokens bear loss: (len(numbers), row_len) bool."""

    def sources(self, numbers: range) -> np.ndarray:
        """The number of each row's source: (len(numbers),) int64."""

    def add_counts(self, numbers: range, counts: np.ndarray) -> None:
        """Adds what these rows hold to counts: (number of sources, 3) int64 of rows, filler, pieces."""


BlockPart = tuple[RowBlock, range]  # consecutive rows of a block


class WindowBlock:
    """The rows of one window of one source, read where they are."""

    def __init__(self, rows: WindowRows, source: int):
        self._source, self._table, self.read, self.loss_mask = source, rows.table, rows.read, rows.loss_mask

    def sources(self, numbers: range) -> np.ndarray:
        return np.full(len(numbers), self._source, np.int64)

    def add_counts(self, numbers: range, counts: np.ndarray) -> None:
        some = slice(numbers.start, numbers.stop)
        counts[self._source] += (len(numbers), self._table.filler[some].sum(), self._table.pieces[some].sum())


class GatheredBlock:
    """Rows from windows of several sources, gathered into one table."""

    def __init__(self, table: RowTable, sources: np.ndarray, change_check: ChangeCheck):
        self._table, self._sources, self._change_check = table, sources, change_check

    def read(self, numbers: range) -> np.ndarray:
        self._change_check.require(self._table.shards)
        return self._table.read(numbers)

    def loss_mask(self, numbers: range, rows: np.ndarray) -> np.ndarray:
        return self._table.loss_mask(numbers, rows)

    def sources(self, numbers: range) -> np.ndarray:
        return self._sources[numbers.start : numbers.stop]

    def add_counts(self, numbers: range, counts: np.ndarray) -> None:
        some = slice(numbers.start, numbers.stop)
        sources = self._sources[some]
        for column, of_row in enumerate((None, self._table.filler[some], self._table.pieces[some])):
            counts[:, column] += np.bincount(sources, of_row, minlength=len(counts)).astype(np.int64)


class SourceRows(NamedTuple):
    """Rows of one window of a source: their numbers in the window, and their places among the rows looked up."""

    source: str
    epoch: int
    window: int
    numbers: np.ndarray
    places: np.ndarray


def look_up(
    spans: list[Span],
    bounds: list[tuple[int, int]],
    windows: WindowPlanner,
    source_numbers: Mapping[str, int],
    change_check: ChangeCheck,
) -> Iterator[list[BlockPart]]:
    """The blocks and rows of each of `bounds`, (first, count) of rows counted from the first row of the spans."""
    if all(len(span.segment.pattern.names) == 1 for span in spans):
        return _in_place(spans, bounds, windows, source_numbers)
    return _gathered(spans, bounds, windows, source_numbers, change_check)


def _in_place(
    spans: list[Span], bounds: list[tuple[int, int]], windows: WindowPlanner, source_numbers: Mapping[str, int]
) -> Iterator[list[BlockPart]]:
    """If each span has one source: the rows of its windows, not copied."""
    stretches: list[tuple[int, int, RowBlock]] = []  # (first row, last row + 1) of the spans, and their block
    begins: list[int] = []  # the number of the first row of each stretch in its window
    before = 0
    for span in spans:
        (name,) = span.segment.pattern.names
        for first, some in span.segment.tracks[name].rows(span.first, span.last):
            rows = windows.rows(name, some.epoch, some.window)
            begin, end = max(first, span.first), min(first + len(some.numbers), span.last)
            block: RowBlock = WindowBlock(rows, source_numbers[name])
            stretches.append((before + begin - span.first, before + end - span.first, block))
            begins.append(some.numbers.start + begin - first)
        before += len(span)
    if len(stretches) == 1 and len(bounds) > 1:  # the usual case: many calls in one window
        ((_, _, one),), (offset,) = stretches, begins
        for first, count in bounds:
            yield [(one, range(offset + first, offset + first + count))] if count else []
        return
    for first, count in bounds:
        parts: list[BlockPart] = []
        for (begin, end, block), number in zip(stretches, begins, strict=True):
            low, high = max(begin, first), min(end, first + count)
            if low < high:
                parts.append((block, range(number + low - begin, number + high - begin)))
        yield parts


def _gathered(
    spans: list[Span],
    bounds: list[tuple[int, int]],
    windows: WindowPlanner,
    source_numbers: Mapping[str, int],
    change_check: ChangeCheck,
) -> Iterator[list[BlockPart]]:
    """If several sources take turns: the rows of all of `bounds` in one table."""
    offsets = np.concatenate([np.arange(first, first + count) for first, count in bounds])
    sources, tables = np.empty(len(offsets), np.int64), []
    for some in rows_at(spans, offsets):
        sources[some.places] = source_numbers[some.source]
        table = windows.rows(some.source, some.epoch, some.window).table
        tables.append((table, some.numbers, some.places))
    block = GatheredBlock(gather(tables), sources, change_check) if tables else None
    done = 0
    for _, count in bounds:
        yield [(block, range(done, done + count))] if block is not None and count else []
        done += count


def count_targets(spans: list[Span], bounds: list[tuple[int, int]], windows: WindowPlanner) -> list[int]:
    """How many targets bear loss in each of `bounds`: (first, count) of rows, from the first row of the spans on."""
    targets = np.zeros(sum(map(len, spans)), np.int64)
    for some in rows_at(spans, np.arange(len(targets))):
        table = windows.rows(some.source, some.epoch, some.window).table
        targets[some.places] = table.targets[some.numbers]
    done = np.concatenate([[0], np.cumsum(targets)])
    return [int(done[first + count] - done[first]) for first, count in bounds]


def rows_at(spans: list[Span], offsets: np.ndarray) -> Iterator[SourceRows]:
    """Where the rows are that come `offsets` after the first row of the spans; `offsets` ascend."""
    begin = 0
    for span in spans:
        places = np.arange(*np.searchsorted(offsets, [begin, begin + len(span)]))
        source, row = span.segment.pattern.at(offsets[places] - begin + span.first)
        for number in np.unique(source).tolist():
            name, own = span.segment.pattern.names[number], source == number
            yield from _in_windows(name, span.segment.tracks[name], row[own], places[own])
        begin += len(span)


def _in_windows(name: str, track: SourceTrack, row: np.ndarray, places: np.ndarray) -> Iterator[SourceRows]:
    """Splits a source's rows of a segment, which ascend, by window."""
    for begin, some in track.rows(int(row[0]), int(row[-1]) + 1):
        own = slice(*np.searchsorted(row, [begin, begin + len(some.numbers)]))
        if own.start < own.stop:
            numbers = row[own] - begin + some.numbers.start
            yield SourceRows(name, some.epoch, some.window, numbers, places[own])
