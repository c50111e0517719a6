"""The parts of a mixture's run: stages, segments, and the state of its sources, as numbers and names.

Stage           weights from a number of tokens on, as the user gives them
Segment         turns by one pattern; a new stage or a change of settings begins a new one
SourceTrack     the rows that one source gives in a segment
Turn            a place in the rows: before a turn of a segment
MixtureState    the cursors of all sources; worked out from tracks when somebody asks (mixed_stream.py)
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from operator import itemgetter
from typing import NamedTuple

from tokenmill.rows.interleave import Pattern
from tokenmill.rows.row_stream import Cursor, Rows, RowStream


class Stage(NamedTuple):
    """Weights from a number of tokens on, counted over all sources together."""

    begin: int
    weights: Mapping[str, Fraction]


class SourceState(NamedTuple):
    """A source's cursor, and how much of it was used in all."""

    place: Cursor = Cursor()
    rows: int = 0
    tokens: int = 0


class SegmentStart(NamedTuple):
    """How a segment begins: after how many tokens, with which seq_len, whole-number weights, and cursors."""

    tokens: int
    seq_len: int
    weights: Mapping[str, int]
    places: Mapping[str, Cursor]


@dataclass(frozen=True)
class MixtureState:
    """The state of a mixture: before its first row, or after `turns` of the last of its `segments`.

    `weights_key` is a hash of what that segment's weights followed from. If it is still the same, the segment
    continues.
    """

    sources: Mapping[str, SourceState]
    tokens_seen: int = 0
    weights_key: str = ""
    turns: int = 0
    segments: Sequence[SegmentStart] = ()

    def mixture_state(self) -> "MixtureState":
        """Itself. A place of a mixture is anything that has a `mixture_state()`."""
        return self


class SourceTrack:
    """The rows that a source gives in a segment, found as far as somebody asked."""

    def __init__(self, count: int, place: Cursor):
        self._begin, self._place = count, place
        # (rows of the segment up to and including this stretch, the stretch, the cursor after it); a stretch that grows
        # is replaced in one assignment, because another thread may read it
        self._stretches: list[tuple[int, Rows, Cursor]] = []

    @property
    def count(self) -> int:
        """How many rows of the segment are known."""
        return self._stretches[-1][0] if self._stretches else self._begin

    def reach(self, count: int, stream: RowStream) -> int:
        """Asks the stream for rows until `count` are known. Returns how many are; fewer if the stream ends."""
        if count > self.count:
            for some, after in stream.walk(count - self.count):
                self._add(some, after)
                stream.place = after
        return min(count, self.count)

    def _add(self, some: Rows, after: Cursor) -> None:
        end, last = self.count + len(some.numbers), self._stretches[-1][1] if self._stretches else None
        if last is not None and last[:2] == some[:2] and last.numbers.stop == some.numbers.start:
            joined = some._replace(numbers=range(last.numbers.start, some.numbers.stop))
            self._stretches[-1] = end, joined, after
        else:
            self._stretches.append((end, some, after))

    def _index(self, count: int) -> int:
        return bisect_left(self._stretches, count, key=itemgetter(0))

    def place(self, count: int) -> Cursor:
        """The source's cursor after `count` rows of the segment."""
        if count == self._begin:
            return self._place
        end, some, after = self._stretches[self._index(count)]
        left = end - count
        return Cursor(some.epoch, some.window, some.numbers.stop - left) if left else after

    def rows(self, first: int, last: int) -> Iterator[tuple[int, Rows]]:
        """The whole stretches that contain rows `first` to `last` - 1, each with the number of its first row."""
        for index in range(self._index(first + 1), len(self._stretches)):
            end, some, _ = self._stretches[index]
            begin = end - len(some.numbers)
            if begin >= last:
                return
            yield begin, some


@dataclass
class Segment:
    """Turns by one pattern. `initial_state` is the state with which it was begun or resumed."""

    initial_state: MixtureState
    pattern: Pattern
    end: int | None  # the turn at which it ends, if known
    tracks: dict[str, SourceTrack] = field(init=False)

    def __post_init__(self) -> None:
        counts = self.pattern.counts(self.initial_state.turns)
        self.tracks = {
            name: SourceTrack(count, self.initial_state.sources[name].place)
            for name, count in zip(self.pattern.names, counts, strict=True)
        }
        self._counts = counts

    @property
    def start(self) -> SegmentStart:
        return self.initial_state.segments[-1]

    def mixture_state(self, turn: int) -> MixtureState:
        """The state before a turn, which must have been taken."""
        served = dict(self.initial_state.sources)
        counts = self.pattern.counts(turn)
        for name, before, count in zip(self.pattern.names, self._counts, counts, strict=True):
            was, more = served[name], count - before
            place = self.tracks[name].place(count)
            served[name] = SourceState(place, was.rows + more, was.tokens + more * self.start.seq_len)
        seen = self.initial_state.tokens_seen + (turn - self.initial_state.turns) * self.start.seq_len
        return replace(self.initial_state, sources=served, tokens_seen=seen, turns=turn)


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

    def mixture_state(self) -> MixtureState:
        """The state at this place."""
        return self.segment.mixture_state(self.number)
