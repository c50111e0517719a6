"""Turns of a pattern, and the rows of them that are a rank's.

turns            A A A B A A A B     two ranks of 4 rows, from turn 0 on
rows             0 1 2 0 3 4 5 1     of each source's window
rank 1                   A A A B     its rows 3, 4, 5 and 1: two parts of a batch
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tokenmill.feed.batch import Batch, TableRows
from tokenmill.feed.source import RowRange, Source
from tokenmill.rows.interleave import Pattern

Sources = Mapping[str, Source]


class Turns(NamedTuple):
    """Turns `first` to before `last` of a pattern, and the rows that its sources give in them."""

    pattern: Pattern
    first: int
    last: int
    before: list[int]  # the rows that each source gives before them
    spans: Mapping[str, list[RowRange]]

    @property
    def num_rows(self) -> int:
        return self.last - self.first


def count_rows(turns: list[Turns]) -> int:
    return sum(stretch.num_rows for stretch in turns)


def batch_of(sources: Sources, turns: list[Turns], first: int, last: int) -> Batch:
    """Rows number `first` to before `last` of these turns."""
    if len(turns) == 1 and len(turns[0].spans) == 1:  # one source: its rows are in order
        ((name, spans),) = turns[0].spans.items()
        return Batch(_parts(sources[name], spans, first, last - first), slice(None))
    parts: list[TableRows] = []
    places: list[np.ndarray] = []
    done = 0
    for stretch in turns:
        begin = max(0, first - done)
        end = min(stretch.num_rows, last - done)
        if begin < end:
            own_turns = np.arange(stretch.first + begin, stretch.first + end)
            numbers, rows = stretch.pattern.at(own_turns)
            order = np.argsort(numbers, kind="stable")
            places.append(order + max(0, done - first))
            parts += _parts_by_source(sources, stretch, numbers, rows[order])
        done += stretch.num_rows
    if not places:  # of a rank without rows in a last batch
        return Batch([], np.zeros(0, np.int64))
    return Batch(parts, np.concatenate(places))


def _parts_by_source(
    sources: Sources, stretch: Turns, numbers: np.ndarray, rows: np.ndarray
) -> list[TableRows]:
    """The parts of turns, by the source's number of each; their rows are in the sources' order."""
    counts = np.bincount(numbers, minlength=len(stretch.before)).tolist()
    firsts = rows.tolist()
    parts: list[TableRows] = []
    taken = 0
    for name, count, before in zip(stretch.pattern.names, counts, stretch.before, strict=True):
        if count:
            first = firsts[taken] - before
            parts += _parts(sources[name], stretch.spans[name], first, count)
            taken += count
    return parts


def _parts(source: Source, spans: list[RowRange], first: int, count: int) -> list[TableRows]:
    """`count` rows of some spans from their row `first` on."""
    parts: list[TableRows] = []
    for span in spans:
        if count <= 0:
            break
        begin = span.first + first
        if begin >= span.last:  # all of this span is before
            first = begin - span.last
            continue
        end = min(span.last, begin + count)
        table = source.table(span.epoch, span.window)
        parts.append(TableRows(source.number, table, begin, end))
        count -= end - begin
        first = 0
    return parts


def targets_of(sources: Sources, turns: list[Turns]) -> int:
    """How many targets of all rows of these turns are in the loss."""
    targets = 0
    for stretch in turns:
        for name, spans in stretch.spans.items():
            for epoch, window, first, last in spans:
                targets += sources[name].table(epoch, window).targets(first, last)
    return targets
