"""The rows of one source in the segments of a run that is over, for trace.py.

    history = SourceHistory(source)
    rows = history.enter(line, "web", turns=4096)       the rows of the first segment, then of the next one ...
    list(rows.between(96, 128))                         those of turns 96 to 127
    list(rows.rows_with(entry, 17))                     those that held a part of document 17 of a shard

Rows follow from where the source was when the segment began, and from the windows that were begun with another row
length before.
"""

from collections.abc import Iterator
from dataclasses import replace

from tokenmill.feed.pieces import Piece
from tokenmill.feed.split_cursor import SplitCursor
from tokenmill.feed.window_plans import WindowPlans
from tokenmill.look.row_counts import RowCounts
from tokenmill.rows.interleave import pattern_of
from tokenmill.rows.packers import Past
from tokenmill.rows.packings import find_packing
from tokenmill.rows.row_stream import Cursor, RowStream
from tokenmill.rows.segments import SegmentStart, SourceTrack
from tokenmill.rows.skip_rows import Skipped
from tokenmill.store.shards import Shard, ShardEntry


class SegmentRows:
    """The rows that a source gave in the first `turns` turns of a segment; `end` is its cursor after them.

    `begin` is a turn of the segment, and the source's cursor then; by default the segment's first.
    """

    def __init__(
        self,
        plans: WindowPlans,
        skipped: Skipped,
        source: str,
        line: SegmentStart,
        turns: int,
        begin: tuple[int, Cursor] | None = None,
    ):
        self._plans, self._pattern = plans, pattern_of(line.weights)
        self._which = self._pattern.names.index(source)
        turn, place = begin or (0, line.places[source])
        counts = RowCounts(plans)
        stream = RowStream(plans.count_windows, counts.count_rows, skipped=skipped)
        stream.place = place
        self._first = self._pattern.counts(turn)[self._which]
        self._track = SourceTrack(self._first, stream.place)
        self._count = self._track.reach(self._pattern.counts(turns)[self._which], stream)
        self.end = self._track.place(self._count)
        counts.keep()

    def between(self, first: int, last: int) -> Iterator[tuple[int, Cursor, list[Piece]]]:
        """The rows of turns `first` to `last` - 1 of the segment that were this source's: (turn, place, pieces)."""
        begin, end = (min(self._pattern.counts(max(0, turn))[self._which], self._count) for turn in (first, last))
        for number, some in self._track.rows(begin, end):
            rows = self._plans.rows(some.epoch, some.window)
            for row in some.numbers[max(0, begin - number) : end - number]:
                place = Cursor(some.epoch, some.window, row)
                turn = self._pattern.turn_of(self._which, number + row - some.numbers.start)
                yield turn, place, rows.pieces(row)

    def rows_with(self, entry: ShardEntry, document: int) -> Iterator[tuple[int, Cursor, bool]]:
        """The rows that held a part of a document of a shard: (turn of the segment, place, whether only as filler)."""
        shard = self._plans.token_set.open(entry)
        known = dict[int, bool]()  # whether an epoch goes over the shard
        begin, end = (int(offset) for offset in shard.offsets[document : document + 2])
        epoch, windows = -1, set[int]()
        for first, rows in self._track.rows(self._first, self._count):
            if not known.setdefault(rows.epoch, entry.name in {one.name for one in self._plans.entries(rows.epoch)}):
                continue
            if rows.epoch != epoch:
                epoch, windows = rows.epoch, self._windows_with(rows.epoch, shard, document)
            if rows.window not in windows:
                continue
            for row, filler in self._plans.rows(rows.epoch, rows.window).rows_with(entry.name, begin, end):
                number = first + row - rows.numbers.start
                if row in rows.numbers and self._first <= number < self._count:
                    yield self._pattern.turn_of(self._which, number), Cursor(rows.epoch, rows.window, row), filler

    def _windows_with(self, epoch: int, shard: Shard, document: int) -> set[int]:
        """The windows of an epoch whose rows may hold tokens of a document."""
        plans = self._plans
        begin, end = (int(offset) for offset in shard.offsets[document : document + 2])
        if plans.packing.packs_documents:  # a document is entirely in the windows in which it begins
            tokens = {begin}
        else:  # rows that begin before the document may reach into it
            first, last = max(0, begin - plans.row_len + 1), end - 1
            tokens = {*range(first, last, plans.window_size.slice), last}  # at least one token of each slice
        return plans.documents.windows_with(epoch, plans.order_epoch(epoch), shard.entry.name, document, tokens)


class SourceHistory:
    """Follows one source through a run's segments: which windows were begun with rows of another length."""

    def __init__(self, source: SplitCursor):
        self._source = source
        self._pasts: dict[tuple[int, int], list[Past]] = {}
        self._began: tuple[int, int] | None = None  # (epoch, row_len) if an epoch began with rows of another length
        self._end, self._seq_len = Cursor(), 0  # the cursor after the last segment, and that segment's seq_len

    def enter(self, line: SegmentStart, source: str, turns: int) -> SegmentRows:
        """The rows that the source gave in a segment of this many turns."""
        place, was = line.places[source], self._end
        changed = self._seq_len not in (0, line.seq_len)
        if not changed and place != was:  # an epoch was begun, perhaps again
            self._pasts = {window: pasts for window, pasts in self._pasts.items() if window[0] < place.epoch}
            self._began = None
        if changed and was.row and place[:2] == was[:2]:  # the rest of that window was packed again
            self._pasts.setdefault(was[:2], self._first_past(was.epoch)).append(Past(self._seq_len + 1, was.row))
        if changed and place.epoch == was.epoch and was != Cursor(was.epoch):
            self._began = self._began if self._began and self._began[0] == was.epoch else (was.epoch, self._seq_len + 1)
        config = replace(self._source.config, seq_len=line.seq_len)
        plans = replace(self._source, config=config, pasts=dict(self._pasts), began=self._began).plans()
        rows = SegmentRows(plans, self._skipped(line.seq_len), source, line, turns)
        self._end, self._seq_len = rows.end, line.seq_len
        return rows

    def _first_past(self, epoch: int) -> list[Past]:
        """How all windows of an epoch were cut first, if its rows go over the ends of slices."""
        cut = find_packing(self._source.config.packing).cuts_epoch_once
        return [Past(self._began[1], 0)] if cut and self._began is not None and self._began[0] == epoch else []

    def _skipped(self, seq_len: int) -> Skipped:
        """The rows that were skipped when rows had this length, as far as the position says."""
        if seq_len == self._source.config.seq_len:
            return self._source.skipped
        return {
            window: list(past.skipped)
            for window, many in self._source.pasts.items()
            for past in many
            if past.row_len == seq_len + 1 and past.skipped
        }
