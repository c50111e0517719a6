"""A mixture's rows traced: from a step to rows, their sources and documents; from a document to when it was seen.

    tracer.rows(first=24_690, count=2)                  rows 24,690 and 24,691 of the global order, with their sources
    tracer.sightings("web", entry, 17, tokens)          when document 17 of a shard of web was seen

Rows before the first are counted, not planned, and the counts kept (counts.py). A document is looked for segment by
segment: a position's log tells where each source stood when one began, with what weights and what length of rows.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tokenmill.batches.config import LoaderConfig
from tokenmill.batches.mixed import Mixed
from tokenmill.batches.mixed_rows import parts_of, streams_of
from tokenmill.batches.mixture import Mixture
from tokenmill.batches.one_set import Part
from tokenmill.batches.plans import WindowPlans
from tokenmill.look.counts import Counts
from tokenmill.look.trace import TracedRow, Tracer
from tokenmill.rows.mixed import MixedStream
from tokenmill.rows.position import Pasts
from tokenmill.rows.repack import Past
from tokenmill.rows.segments import Line, Track
from tokenmill.rows.skipped import format_rows
from tokenmill.rows.stream import Place, RowStream
from tokenmill.rows.turns import pattern_of
from tokenmill.store.shards import ShardEntry


class MixedSighting(NamedTuple):
    """A row that held some of a document of a source."""

    segment: int
    tokens: int  # of the run before it
    seq_len: int
    place: Place
    filler: bool  # a copy that closed the row, and no more of it


class MixedTracer:
    """The global order of a mixture's rows, from the beginning or from a loader's `state`.

    Raises what a loader of these settings does.
    """

    def __init__(self, config: LoaderConfig, state: dict[str, Any] | None = None):
        assert isinstance(config.tokens, Mixture), "the settings are a mixture's"
        self._mixture = config.tokens
        feed, standing = Mixed.of(config.tokens, config, Part(0, 1)).begin(0)
        if state is not None:
            gone = feed.following(state)
            feed, standing = gone.feed, gone.place
        self.feed, self.standing = feed, standing
        self._plans = {name: source.plans() for name, source in feed.sources.items()}
        self._counts = {name: Counts(plans) for name, plans in self._plans.items()}

    def rows(self, first: int, count: int) -> Iterator[TracedRow]:
        """`count` rows of the global order from the `first` after the beginning, or after the state, on."""
        stream = self._stream()
        stream.take(first)
        spans = stream.take(count)
        if stream.failed is not None:
            raise stream.failed
        found: dict[int, TracedRow] = {}
        number = first if not self.standing.lines else None
        for part in parts_of(spans, np.arange(sum(map(len, spans)))):
            rows = self._plans[part.source].rows(part.epoch, part.window)
            for row, place in zip(part.numbers.tolist(), part.places.tolist(), strict=True):
                told = f"{part.source}/{format_rows(part.epoch, part.window, range(row, row + 1))}"
                found[place] = TracedRow(None if number is None else number + place, told, rows.pieces(row))
        self._keep()
        yield from (found[place] for place in sorted(found))

    def row_at(self, source: str, place: Place) -> TracedRow:
        """The row of a source at a place. ValueError where there is none."""
        traced = Tracer(self._plans[source], {}).row_at(place)
        return replace(traced, place=f"{source}/{traced.place}")

    def lines_of_epoch(self, source: str) -> tuple[list[Line], int]:
        """The segments of the run from its beginning until a source's first epoch is over, and the tokens then."""
        stream = self._stream()
        while stream.at.standing().sources[source].place.epoch < 1 and stream.take(10_000):
            pass
        standing = stream.at.standing()
        return list(standing.lines), standing.tokens_seen

    def sightings(
        self, source: str, entry: ShardEntry, document: int, lines: list[Line], tokens: int
    ) -> Iterator[MixedSighting]:
        """The rows of segments, before so many tokens of the run, that held some of a document of a source's shard."""
        pasts: dict[tuple[int, int], list[Past]] = {}
        left = Place(), 0  # where the source was left, and the length of its rows then
        for number, (line, end) in enumerate(zip(lines, [*(one.tokens for one in lines[1:]), tokens], strict=True)):
            if source not in line.weights:
                continue
            was, seq_len = left
            if was.row and line.places[source] != was:  # this much of the window is gone, and the rest packed anew
                pasts.setdefault(was[:2], []).append(Past(seq_len + 1, was.row))
            turns = (end - line.tokens) // line.seq_len
            given = self._given(source, line, turns, pasts)
            for turn, place, filler in given.rows_with(entry, document):
                yield MixedSighting(number, line.tokens + turn * line.seq_len, line.seq_len, place, filler)
            left = given.end, line.seq_len
        self._keep()

    def _given(self, source: str, line: Line, turns: int, pasts: Pasts) -> "_Given":
        own = self.feed.sources[source]
        plans = replace(own, config=replace(own.config, seq_len=line.seq_len), pasts=dict(pasts)).plans()
        stream = RowStream(plans.count_windows, Counts(plans).count_rows, skipped=own.skipped)
        return _Given(plans, stream, source, line, turns)

    def _stream(self) -> MixedStream:
        skipped = {name: source.skipped for name, source in self.feed.sources.items()}
        count_rows = {name: counts.count_rows for name, counts in self._counts.items()}
        return streams_of(self._plans, skipped, self._mixture, self.feed.caps, self.standing, count_rows)[1]

    def _keep(self) -> None:
        for counts in self._counts.values():
            counts.keep()


class _Given:
    """The rows that a source gave in a segment of so many turns; `end` is where that left it."""

    def __init__(self, plans: WindowPlans, stream: RowStream, source: str, line: Line, turns: int):
        self._plans, self._pattern = plans, pattern_of(line.weights)
        self._which = self._pattern.names.index(source)
        stream.place = line.places[source]
        self._track = Track(0, stream.place)
        self._count = self._track.reach(self._pattern.counts(turns)[self._which], stream)
        self.end = self._track.place(self._count)

    def rows_with(self, entry: ShardEntry, document: int) -> Iterator[tuple[int, Place, bool]]:
        """Those that held some of a document of a shard: (turn of the segment, place, whether as filler alone)."""
        shard, tracer = self._plans.token_set.open(entry), Tracer(self._plans, {})
        begin, end = (int(offset) for offset in shard.offsets[document : document + 2])
        for first, rows in self._track.rows(0, self._count):
            if rows.window not in tracer.windows_with(rows.epoch, entry, begin, end):
                continue
            for row, filler in self._plans.rows(rows.epoch, rows.window).rows_with(entry.name, begin, end):
                number = first + row - rows.numbers.start
                if row in rows.numbers and number < self._count:
                    yield self._pattern.turn_of(self._which, number), Place(rows.epoch, rows.window, row), filler


def of_one_length(lines: list[Line]) -> bool:
    """Whether all segments have rows of one length, so that steps can be counted."""
    return all(a.seq_len == b.seq_len for a, b in pairwise(lines))
