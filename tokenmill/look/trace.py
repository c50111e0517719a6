"""From a training step back to its rows and their documents; and forth.

    tracer.rows(first=24_690, count=2)            rows 24,690 and 24,691 of the global order
    tracer.sightings(entry, 17, until)            the rows that document 17 of a shard was in
    trace_nanochat(token_set, ..., rank=0, first, count)  of nanochat's rows of one rank

The rows before the first are counted, not planned, and the counts kept (counts.py). A place
(epoch, window of the epoch, row) is gone to at once.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

from tokenmill.batches.nanochat_rows import NanochatRows
from tokenmill.batches.pieces import Piece
from tokenmill.batches.plans import WindowPlans
from tokenmill.look.counts import Counts
from tokenmill.rows.skipped import Skipped, format_rows
from tokenmill.rows.stream import Dealt, Place, RowStream
from tokenmill.store.shards import ShardEntry
from tokenmill.store.token_sets import TokenSet


@dataclass(frozen=True)
class TracedRow:
    """A row of training, and what it is made of."""

    number: int | None  # in the global order, with nanochat of its rank; None where rows before it were not counted
    place: str | None  # epoch:window:row, as skip_rows names it; with nanochat None
    pieces: list[Piece]


@dataclass(frozen=True)
class Sighting:
    """A row that held some of a document."""

    place: Place
    number: int | None  # in the global order; None where rows were of another length by then
    filler: bool  # a copy that closed the row, and no more of it
    seq_len: int


class Tracer:
    """The global order of the planned rows of a split, without their tokens.

    `skipped` is what skip_rows left out from the beginning on. ValueError where the split has no documents.
    """

    def __init__(self, plans: WindowPlans, skipped: Skipped):
        if not any(entry.tokens for entry in plans.entries(0)):
            raise ValueError(f"{plans.token_set.told}: split {plans.split!r} has no documents, so no rows")
        self.plans, self._skipped, self._counts = plans, skipped, Counts(plans)

    def rows(self, first: int, count: int, start: Place | None = None) -> Iterator[TracedRow]:
        """`count` rows of the global order from its row `first` on, or from the `first` after a place."""
        stream = RowStream(self.plans.count_windows, self._counts.count_rows, skipped=self._skipped)
        if start is not None:
            stream.seek(start)
        stream.skip(first)
        traced = self._take(stream, first if start is None else None, count)
        self._counts.keep()
        yield from traced

    def row_at(self, place: Place) -> TracedRow:
        """The row at a place. ValueError where there is none."""
        planned = lambda epoch, window: self.plans.rows(epoch, window).num_rows  # noqa: E731
        stream = RowStream(self.plans.count_windows, planned)
        stream.seek(place)
        (traced,) = self._take(stream, None, 1)
        return traced

    def sightings(self, entry: ShardEntry, document: int, until: Place) -> Iterator[Sighting]:
        """The rows before a place that held some of a document of a shard, epoch by epoch."""
        shard = self.plans.token_set.open(entry)
        begin, end = (int(offset) for offset in shard.offsets[document : document + 2])
        for epoch in range(until.epoch + 1):
            for window in self.windows_with(epoch, entry, begin, end):
                yield from self._before_the_length_changed(epoch, window, entry.name, begin, end)
                for row, filler in self.plans.rows(epoch, window).rows_with(entry.name, begin, end):
                    place = Place(epoch, window, row)
                    if place < until and not self._is_skipped(place):
                        yield Sighting(place, self.count_before(place), filler, self.plans.row_len - 1)
        self._counts.keep()

    def _before_the_length_changed(
        self, epoch: int, window: int, shard: str, begin: int, end: int
    ) -> Iterator[Sighting]:
        """The rows of a window that were dealt before the length of rows changed in it."""
        pasts = self.plans.pasts.get((epoch, window), ())
        for number, past in enumerate(pasts):
            plans = copy.copy(self.plans)
            plans.row_len, plans.pasts = past.row_len, {(epoch, window): pasts[:number]}
            for row, filler in plans.rows(epoch, window).rows_with(shard, begin, end):
                if row < past.dealt and not any(row in rows for rows in past.skipped):
                    yield Sighting(Place(epoch, window, row), None, filler, past.row_len - 1)

    def windows_with(self, epoch: int, entry: ShardEntry, begin: int, end: int) -> list[int]:
        """The windows of an epoch whose rows may hold some of a stretch of a shard."""
        shards = self.plans.entries(epoch)
        places = [place for place, other in enumerate(shards) if other.name == entry.name]
        if not places:
            return []  # it came later
        if self.plans.packing == "best_fit":  # a document is all in the window in which it begins
            first = last = begin
        else:  # rows that begin before it may reach into it
            first, last = max(0, begin - self.plans.row_len + 1), end - 1
        tokens = {*range(first, last, self.plans.grain.slice), last}  # one of each slice at least
        return sorted({self.plans.epoch(epoch).window_of(places[0], token) for token in tokens})

    def _is_skipped(self, place: Place) -> bool:
        return any(place.row in rows for rows in self._skipped.get(place[:2], ()))

    def count_before(self, place: Place) -> int:
        """How many rows of the global order come before a place."""
        before = [(epoch, window) for epoch in range(place.epoch) for window in range(self.plans.count_windows(epoch))]
        before += [(place.epoch, window) for window in range(place.window)]
        left_out = sum(
            (*window, row) < place for window, many in self._skipped.items() for rows in many for row in rows
        )
        return sum(self._counts.count_rows(*window) for window in before) + place.row - left_out

    def _take(self, stream: RowStream, number: int | None, count: int) -> Iterator[TracedRow]:
        return self._traced(stream.take(count), number)

    def _traced(self, dealt: Dealt, number: int | None) -> Iterator[TracedRow]:
        for epoch, window, numbers in dealt.rows:
            for row in numbers:
                pieces = self.plans.rows(epoch, window).pieces(row)
                yield TracedRow(number, format_rows(epoch, window, range(row, row + 1)), pieces)
                number = None if number is None else number + 1


def trace_nanochat(
    token_set: TokenSet, split: str, row_len: int, *, rank: int, world_size: int, first: int, count: int
) -> Iterator[TracedRow]:
    """`count` of nanochat's rows of a rank, from its row `first` on; those before are picked again, 1G tokens/s."""
    rows = NanochatRows(token_set, split, row_len, rank=rank, world_size=world_size)
    rows.skip(first)
    for number in range(first, first + count):
        (pieces,) = rows.pieces(1)
        yield TracedRow(number, None, pieces)


def find_document(number: int, token_set: TokenSet, split: str) -> tuple[ShardEntry, int]:
    """The shard of a document of the split, and its number there."""
    entries, left = token_set.split(split), number
    for entry in entries:
        if left < entry.documents:
            return entry, left
        left -= entry.documents
    total = sum(entry.documents for entry in entries)
    raise ValueError(f"{token_set.told}: split {split!r} has {total:,} documents, 0 to {total - 1:,}")
