"""Traces training: from a step to its rows and documents, and from a document to when it was seen.

    tracer = Tracer.of(config)                              from the beginning of training, or from a loader's state
    tracer.rows(first=24_690, count=2)                      rows 24,690 and 24,691 of the global order
    tracer.past_rows(first=96, count=32, log=log_of(state))   rows 96 to 127 of the run, before the state
    tracer.row_at("", Cursor(0, 3, 512))                    the row at a place
    tracer.sightings("", entry, 17, tokens=1_000_000)       when document 17 of a shard was seen

It walks through the loader's own order. Rows before the first are counted, not planned, and the counts are cached
(row_counts.py). A document, and a row from before the state, are searched segment by segment: a position says where
each source was when a segment began, with which weights and row length. Its log says which token set, view and skipped
rows a source had. In a per-rank order (nanochat) rows have no places: use `rank_rows`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from tokenmill.feed.epoch_documents import EpochPart
from tokenmill.feed.feed import make_feed
from tokenmill.feed.loader_config import LoaderConfig
from tokenmill.feed.pieces import Piece
from tokenmill.feed.protocol import RankShare
from tokenmill.feed.row_blocks import rows_at
from tokenmill.feed.split_cursor import SplitCursor
from tokenmill.feed.weighted_feed import WeightedFeed
from tokenmill.feed.weighted_rows import streams_of
from tokenmill.look.row_counts import RowCounts
from tokenmill.look.run_steps import rows_before
from tokenmill.look.segment_rows import SegmentRows, SourceHistory
from tokenmill.rows.mixed_stream import MixedStream
from tokenmill.rows.position import Documents, documents_of, read_position, upgrade
from tokenmill.rows.row_stream import Cursor, RowStream
from tokenmill.rows.run_log import LogEntry
from tokenmill.rows.segments import MixtureState, SegmentStart, SourceState
from tokenmill.rows.skip_rows import format_rows
from tokenmill.store.shards import ShardEntry
from tokenmill.store.token_sets import TokenSet


@dataclass(frozen=True)
class TracedRow:
    """A row of training, and its pieces."""

    number: int | None  # in the global order (nanochat: of its rank); None if rows before it were not counted
    place: str | None  # epoch:window:row (in a mixture source/epoch:window:row) for skip_rows; None with nanochat
    pieces: list[Piece]


class Sighting(NamedTuple):
    """A row that held a part of a document."""

    segment: int
    tokens: int  # of the run before this row
    seq_len: int
    place: Cursor
    filler: bool  # whether the row held only a copy as filler


class Tracer:
    """The global order of the rows of weighted sources, without reading their tokens."""

    def __init__(self, feed: WeightedFeed, mixture_state: MixtureState):
        self.feed, self.mixture_state = feed, mixture_state
        self._plans = {name: source.plans() for name, source in feed.sources.items()}
        self._counts = {name: RowCounts(plans) for name, plans in self._plans.items()}
        self._documents: dict[str, Documents] = {}  # that a state names, by source

    @classmethod
    def of(cls, config: LoaderConfig, state: dict[str, Any] | None = None) -> "Tracer":
        """A tracer from the beginning, or from a loader's state. Raises what a loader with these settings raises."""
        feed = WeightedFeed.of(config, RankShare(0, 1))
        for source in feed.sources.values():
            if not any(entry.tokens for entry in source.token_set.split(config.split)):
                raise ValueError(
                    f"{source.token_set.display_name}: split {config.split!r} has no documents, so no rows"
                )
        if state is None:
            return cls(*feed.begin(0))
        resumed = feed.resume(state)
        tracer = cls(resumed.feed, resumed.place)
        parts = upgrade(state)["sources"]
        for name, manifest in zip(parts["name"], parts["manifest"], strict=True):
            *_, documents = documents_of(manifest)
            known = [own for own, split in resumed.feed.sources.items() if split.token_set.knows(documents.manifest)]
            tracer._documents |= dict.fromkeys([name] * (name in resumed.feed.sources) or known[:1], documents)
        return tracer._as_the_run_had_it()

    def _as_the_run_had_it(self) -> "Tracer":
        """The tracer with the current epoch of each source as it was when the state was saved.

        A loader that resumes at the first row of an epoch includes shards that were added since. The run that saved the
        state went on without them.
        """
        sources = dict(self.feed.sources)
        for name in self.grown_at_epoch_start():
            was = sources[name].as_it_was(self._documents[name])
            epoch = self.mixture_state.sources[name].place.epoch
            sources[name] = replace(sources[name], former=(epoch, (EpochPart(0, was),)))
        traced = Tracer(replace(self.feed, sources=sources), self.mixture_state)
        traced._documents = self._documents
        return traced

    def grown_at_epoch_start(self) -> list[str]:
        """The sources that were at the first row of an epoch when the state was saved, and have other documents now."""
        places = {name: served.place for name, served in self.mixture_state.sources.items()}
        return [
            name
            for name, (_, *was) in self._documents.items()
            for now in [self.feed.sources[name].token_set]
            if tuple(was) != (now.digest, now.view_digest) and places[name] == Cursor(places[name].epoch)
        ]

    def at(self, cursor: Cursor) -> "Tracer":
        """The tracer from a place of the only source on."""
        (name,) = self.feed.sources
        return Tracer(self.feed, MixtureState({name: SourceState(cursor)}))

    def of_manifest(self, digest: str) -> "Tracer":
        """The tracer of the only token set as it was with this manifest."""
        ((name, source),) = self.feed.sources.items()
        was = source.as_it_was(Documents(0, digest))
        former = None if name in self.grown_at_epoch_start() else source.former
        source = replace(source, token_set=was, former=former)
        return Tracer(replace(self.feed, sources={name: source}), self.mixture_state)

    # ------------------------------------------------------------------------ from a step to rows

    def rows(self, first: int, count: int) -> Iterator[TracedRow]:
        """`count` rows of the global order, starting `first` rows after the current state."""
        stream = self._stream()
        stream.take(first)
        spans = stream.take(count)
        if stream.failed is not None:
            raise stream.failed
        for span in spans:
            self._require_length(span.segment.mixture_state(span.first).tokens_seen)
        cursors = [served.place for served in self.mixture_state.sources.values()]
        numbered = not self.mixture_state.tokens_seen and cursors == [Cursor()] * len(cursors)
        found: dict[int, TracedRow] = {}
        for some in rows_at(spans, np.arange(sum(map(len, spans)))):
            rows = self._plans[some.source].rows(some.epoch, some.window)
            for row, place in zip(some.numbers.tolist(), some.places.tolist(), strict=True):
                name = named_place(some.source, format_rows(some.epoch, some.window, range(row, row + 1)))
                found[place] = TracedRow(first + place if numbered else None, name, rows.pieces(row))
        self._keep()
        yield from (found[place] for place in sorted(found))

    def _require_length(self, tokens: int) -> None:
        """Raises ValueError if rows have another length at a moment of the run, as a stage of the mixture says."""
        mixture, seq_len = self.feed.mixture, self.feed.config.seq_len
        named = mixture.seq_len_at(tokens)
        if named not in (None, seq_len):
            raise ValueError(
                f"at {tokens:,} tokens the mixture's stage has rows of {named:,} + 1, and steps are counted with rows "
                f"of {seq_len:,} + 1 here; pass --since with a state file of that stage, and its --batch-size"
            )

    def past_rows(self, first: int, count: int, log: Sequence[LogEntry]) -> Iterator[TracedRow]:
        """`count` rows of the run from row `first` on, all from before the state, each with its number in the run.

        `log` is that of the state. Raises ValueError if it does not say which rows these were.
        """
        found: dict[int, TracedRow] = {}
        for stretch in self._stretches(log, first, first + count):
            for source in stretch.line.weights:
                rows = self._rows_of(stretch, source)
                for turn, place, pieces in rows.between(stretch.first, stretch.last):
                    name = named_place(source, ":".join(map(str, place)))
                    found[stretch.row + turn] = TracedRow(stretch.row + turn, name, pieces)
        yield from (found[number] for number in sorted(found))

    def _stretches(self, log: Sequence[LogEntry], first: int, last: int) -> Iterator["_Stretch"]:
        """The rows `first` to `last` - 1 of the run, in stretches between segments and changes of the sources."""
        segments = self.segments()
        lines = [line for line, _ in segments]
        stated = [(rows_before(lines, entry.tokens), entry) for entry in log if entry.sources]
        if first < last and (not stated or stated[0][0] > first):
            raise ValueError(
                "the position has no log of its run at that time, because an older tokenmill made it, or because the "
                "run was changed too often since; use --since with a checkpoint from before the step"
            )
        starts = [0, *accumulate(turns for _, turns in segments)]  # the row of the run with which each begins
        for number, (row, (line, turns)) in enumerate(zip(starts, segments, strict=False)):
            bounds = sorted({row, row + turns, *(at for at, _ in stated if row < at < row + turns)})
            for begin, end in pairwise(bounds):
                if max(begin, first) < min(end, last):
                    _, entry = [one for one in stated if one[0] <= begin][-1]
                    begun = [later for later in lines[: number + 1] if later.tokens > entry.tokens]
                    asked = max(begin, first) - row, min(end, last) - row
                    yield _Stretch(number, row, line, begin - row, *asked, entry, begun)

    def _rows_of(self, stretch: "_Stretch", source: str) -> SegmentRows:
        """The rows of a source in a stretch, from the source as it was then."""
        parts = stretch.entry.parts()
        if source not in parts or source not in self.feed.sources:
            raise ValueError(
                f"the run also read source {source!r} then, which this mixture does not name; pass a mixture file that "
                "does"
            )
        part, line = parts[source], stretch.line
        if part["seq_len"] != line.seq_len:
            raise ValueError("the log of the position contradicts its segments; load it as state_dict made it")
        own = self.feed.sources[source]
        cursor = SplitCursor(
            own.as_it_was(Documents(0, part["set_manifest"], part["set_view"])),
            replace(own.config, seq_len=line.seq_len),
            part["drawn_from"],
            window_size=own.window_size,
            order_version=own.order_version,
        )
        cursor, place = cursor.resume(read_position(part | {"tokens_seen": 0}), None)
        for later in stretch.begun:
            begun = later.places[source]
            if len(later.weights) == 1 and begun == Cursor(begun.epoch):
                cursor = cursor.from_epoch(begun.epoch)
        if stretch.begun:
            place = stretch.begun[-1].places[source]
        begin = stretch.begin if not stretch.begun or stretch.begun[-1] is not line else 0
        return SegmentRows(cursor.plans(), cursor.skipped, source, line, stretch.last, (begin, place))

    def segments(self) -> list[tuple[SegmentStart, int]]:
        """The segments up to the state, each with its turns. ValueError if the state does not say all of them."""
        lines, seen = list(self.mixture_state.segments) or [self._first_line()], self.mixture_state.tokens_seen
        if lines[0].tokens:
            raise ValueError(
                f"the position does not say which rows the first {lines[0].tokens:,} tokens of the run were; use "
                "--since with a checkpoint from before the step"
            )
        ends = [*(line.tokens for line in lines[1:]), seen]
        return [(line, (end - line.tokens) // line.seq_len) for line, end in zip(lines, ends, strict=True)]

    def row_at(self, source: str, cursor: Cursor) -> TracedRow:
        """The row of a source at a place. Raises ValueError if there is none."""
        plans = self._plans[source]
        stream = RowStream(plans.count_windows, lambda epoch, window: plans.rows(epoch, window).num_rows)
        stream.seek(cursor)
        ((some, _),) = stream.walk(1)
        (row,) = some.numbers
        name = named_place(source, format_rows(some.epoch, some.window, some.numbers))
        return TracedRow(None, name, plans.rows(some.epoch, some.window).pieces(row))

    # ------------------------------------------------------------------------ from a document to when it was seen

    def history(self, source: str, until: Cursor | None, of_state: bool) -> tuple[list[SegmentStart], int]:
        """The segments of the run and its tokens, up to a place, or as the state says.

        Without either, up to the end of the source's first epoch.
        """
        if until is not None:
            rows = self.count_before(source, until)
            return [self._first_line()], rows * self.feed.config.seq_len
        if of_state:
            lines = list(self.mixture_state.segments)
            return lines or [self._first_line()], self.mixture_state.tokens_seen
        stream = self._stream()
        while stream.at.mixture_state().sources[source].place.epoch < 1 and self._still_comes(source, stream):
            if not stream.take(10_000):
                break
        mixture_state = stream.at.mixture_state()
        return list(mixture_state.segments), mixture_state.tokens_seen

    def _still_comes(self, source: str, stream: MixedStream) -> bool:
        """Whether a source has a weight in the present stage or a later one, before the end of the run if that is
        known.
        """
        seen, mixture = stream.at.mixture_state().tokens_seen, self.feed.mixture
        ends = [*(stage.begin for stage in mixture.stages[1:]), seen + 1]
        coming = [stage for stage, end in zip(mixture.stages, ends, strict=True) if end > seen]
        is_over = mixture.tokens is not None and seen >= mixture.tokens
        return not is_over and any(source in stage.weights for stage in coming)

    def _first_line(self) -> SegmentStart:
        """The only segment of a run whose settings never changed."""
        names = list(self.feed.sources)
        return SegmentStart(0, self.feed.config.seq_len, dict.fromkeys(names, 1), dict.fromkeys(names, Cursor()))

    def count_before(self, source: str, until: Cursor) -> int:
        """How many rows of a source come before a place, excluding skipped ones."""
        plans, counts, skipped = self._plans[source], self._counts[source], self.feed.sources[source].skipped
        before = [(epoch, window) for epoch in range(until.epoch) for window in range(plans.count_windows(epoch))]
        before += [(until.epoch, window) for window in range(until.window)]
        left_out = sum((*window, row) < until for window, many in skipped.items() for rows in many for row in rows)
        return sum(counts.count_rows(*window) for window in before) + until.row - left_out

    def sightings(
        self,
        source: str,
        entry: ShardEntry,
        document: int,
        lines: Sequence[SegmentStart],
        tokens: int,
        log: Sequence[LogEntry] = (),
    ) -> Iterator[Sighting]:
        """The rows of these segments, in the first `tokens` tokens of the run, that held a part of a document.

        With the log of the state, they are exactly those of the run. Without it, the run is taken to have had the same
        token set and skipped rows throughout.
        """
        if log:
            stretches = self._stretches(log, 0, rows_before(lines, tokens))
            found: Iterator[tuple[int, SegmentStart, SegmentRows]] = (
                (stretch.segment, stretch.line, self._rows_of(stretch, source))
                for stretch in stretches
                if source in stretch.line.weights
            )
        else:
            found = self._as_if_unchanged(source, lines, tokens)
        for number, line, rows in found:
            for turn, place, filler in rows.rows_with(entry, document):
                yield Sighting(number, line.tokens + turn * line.seq_len, line.seq_len, place, filler)

    def _as_if_unchanged(
        self, source: str, lines: Sequence[SegmentStart], tokens: int
    ) -> Iterator[tuple[int, SegmentStart, SegmentRows]]:
        """The segments with a source, and its rows in them, if its set and its skipped rows never changed."""
        history = SourceHistory(self._before_it_grew(source))
        for number, (line, end) in enumerate(zip(lines, [*(one.tokens for one in lines[1:]), tokens], strict=True)):
            if source in line.weights:
                yield number, line, history.enter(line, source, turns=(end - line.tokens) // line.seq_len)

    def _before_it_grew(self, source: str) -> SplitCursor:
        """A source with the token set that the state is of: rows before it never hold tokens of later shards."""
        own = self.feed.sources[source]
        if source not in self._documents:
            return own
        return replace(own, token_set=own.as_it_was(self._documents[source]), former=own.former_of_views)

    # ------------------------------------------------------------------------

    def _stream(self) -> MixedStream:
        skipped = {name: source.skipped for name, source in self.feed.sources.items()}
        count_rows = {name: counts.count_rows for name, counts in self._counts.items()}
        return streams_of(self._plans, skipped, self.feed.schedule, self.mixture_state, count_rows)[1]

    def _keep(self) -> None:
        for counts in self._counts.values():
            counts.keep()


class _Stretch(NamedTuple):
    """Turns of a segment, before which the sources were as a log entry says."""

    segment: int
    row: int  # of the run, with which the segment begins
    line: SegmentStart
    begin: int  # the turn with which the stretch begins
    first: int  # the turns that are asked for
    last: int
    entry: LogEntry
    begun: list[SegmentStart]  # the segments that began after the entry, up to this one


def rank_rows(config: LoaderConfig, rank: int, first: int, count: int) -> Iterator[TracedRow]:
    """`count` rows of a rank in a per-rank order (nanochat), from row `first`. Earlier rows are picked, not read."""
    feed, place = make_feed(config, RankShare(rank, config.world_size or 1)).begin(0)
    rows = feed.rows(None, ahead=False)
    rows.seek(place)
    rows.skip(first)
    for number, pieces in enumerate(rows.pieces(count), first):
        yield TracedRow(number, None, pieces)


def named_place(source: str, place: str) -> str:
    """A place in the form that skip_rows uses."""
    return f"{source}/{place}" if source else place


def find_document(number: int, token_set: TokenSet, split: str) -> tuple[ShardEntry, int]:
    """The shard of the split's document with this number, and the document's number in the shard."""
    entries, left = token_set.split(split), number
    for entry in entries:
        if left < entry.documents:
            return entry, left
        left -= entry.documents
    total = sum(entry.documents for entry in entries)
    raise ValueError(f"{token_set.display_name}: split {split!r} has {total:,} documents, 0 to {total - 1:,}")


def of_one_length(lines: Sequence[SegmentStart]) -> bool:
    """Whether all segments have the same row length, so that steps can be counted."""
    return all(a.seq_len == b.seq_len for a, b in pairwise(lines))
