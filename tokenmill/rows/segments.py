"""What a mixture's run is made of: stages, segments, and where everything stands; numbers and names alone.

Stage       weights that hold from a number of tokens on, as the user says
Segment     turns by one pattern, from where the sources were: what a stage, or a change, begins
Track       what one source gives in a segment
Turn        a place in the rows: before a turn of a segment
Standing    where each source stands there; worked out of tracks when somebody asks (mixed.py deals)
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from operator import itemgetter
from typing import NamedTuple

from tokenmill.rows.stream import Place, Rows, RowStream
from tokenmill.rows.turns import Pattern


class Stage(NamedTuple):
    """Weights that hold from a number of tokens on, those of all sources together."""

    begin: int
    weights: Mapping[str, Fraction]


class Served(NamedTuple):
    """Where a source stands, and what of it was dealt in all."""

    place: Place = Place()
    rows: int = 0
    tokens: int = 0


class Line(NamedTuple):
    """A segment's beginning: after how many tokens, rows of what length, whole weights, where each source stood."""

    tokens: int
    seq_len: int
    weights: Mapping[str, int]
    places: Mapping[str, Place]


@dataclass(frozen=True)
class Standing:
    """Where a mixture stands: before its first row, or in the segment of the last of its `lines`, after `turns`.

    `asked` is that which the segment's weights followed from: where it is still the same, the segment goes on.
    """

    sources: Mapping[str, Served]
    tokens_seen: int = 0
    asked: str = ""
    turns: int = 0
    lines: Sequence[Line] = ()

    def standing(self) -> "Standing":
        """Itself: a place of a mixture is anything that has a standing."""
        return self


class Track:
    """What a source gives in a segment: stretches of rows, found as far as somebody asked."""

    def __init__(self, count: int, place: Place):
        self._begin, self._place = count, place
        # each with the source's rows in the segment after it, and the place; one that goes on is replaced at once, as
        # another thread may read
        self._stretches: list[tuple[int, Rows, Place]] = []

    @property
    def count(self) -> int:
        """How many rows of the segment are known."""
        return self._stretches[-1][0] if self._stretches else self._begin

    def reach(self, count: int, stream: RowStream) -> int:
        """Asks the stream for rows until `count` are known; how many are, fewer where it has no more."""
        if count > self.count:
            for some, after in stream.walk(count - self.count):
                self._add(some, after)
                stream.place = after
        return min(count, self.count)

    def _add(self, some: Rows, after: Place) -> None:
        end, last = self.count + len(some.numbers), self._stretches[-1][1] if self._stretches else None
        if last is not None and last[:2] == some[:2] and last.numbers.stop == some.numbers.start:
            joined = some._replace(numbers=range(last.numbers.start, some.numbers.stop))
            self._stretches[-1] = end, joined, after
        else:
            self._stretches.append((end, some, after))

    def _index(self, count: int) -> int:
        return bisect_left(self._stretches, count, key=itemgetter(0))

    def place(self, count: int) -> Place:
        """Where the source stands after `count` rows of the segment."""
        if count == self._begin:
            return self._place
        end, some, after = self._stretches[self._index(count)]
        left = end - count
        return Place(some.epoch, some.window, some.numbers.stop - left) if left else after

    def rows(self, first: int, last: int) -> Iterator[tuple[int, Rows]]:
        """The stretches that rows `first` to before `last` lie in, whole, each with the number of its first row."""
        for index in range(self._index(first + 1), len(self._stretches)):
            end, some, _ = self._stretches[index]
            begin = end - len(some.numbers)
            if begin >= last:
                return
            yield begin, some


@dataclass
class Segment:
    """Turns by one pattern, from where the sources were. `entered` is where it was begun, or resumed."""

    entered: Standing
    pattern: Pattern
    end: int | None  # the turn with which it is over, as far as is known
    tracks: dict[str, Track] = field(init=False)

    def __post_init__(self) -> None:
        counts = self.pattern.counts(self.entered.turns)
        self.tracks = {
            name: Track(count, self.entered.sources[name].place)
            for name, count in zip(self.pattern.names, counts, strict=True)
        }
        self._counts = counts

    @property
    def line(self) -> Line:
        return self.entered.lines[-1]

    def standing(self, turn: int) -> Standing:
        """Where the mixture stands before a turn that was taken."""
        served = dict(self.entered.sources)
        counts = self.pattern.counts(turn)
        for name, before, count in zip(self.pattern.names, self._counts, counts, strict=True):
            was, more = served[name], count - before
            place = self.tracks[name].place(count)
            served[name] = Served(place, was.rows + more, was.tokens + more * self.line.seq_len)
        seen = self.entered.tokens_seen + (turn - self.entered.turns) * self.line.seq_len
        return replace(self.entered, sources=served, tokens_seen=seen, turns=turn)


class Span(NamedTuple):
    """Consecutive turns of a segment."""

    segment: Segment
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first


class Turn(NamedTuple):
    """A place in a mixture's rows: before a turn of a segment."""

    segment: Segment
    number: int

    def standing(self) -> Standing:
        """Where the mixture stands there."""
        return self.segment.standing(self.number)
