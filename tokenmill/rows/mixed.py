"""The rows of several sources in one global order, by weights that change on the way.

Each source's rows come from a stream of its own (stream.py); here is only whose turn it is (turns.py). While weights
stay the same it is one segment, with one pattern of turns. Another stage, a source more, less or used up, another
length of rows begins the next segment: turns are counted anew, and every source goes on where it was:

    weights 2:1         A A B A A B | A B A B A B ...        weights 1:1 from 6 rows on
    rows of A           0 1   2 3     4   5   6
    rows of B               0     1     2   3   4

So nothing comes twice and nothing is left out. A source that is capped gives rows as far as its stream does; what then
happens is the mixture's to say:

    error     its next turn is an error
    retire    with its last row a segment ends, and the others go on without it
    spread    the same, and each segment's weights are chosen so that no source has to end before its stage does

Where a segment stands at a turn follows from what its sources were dealt, so a standing, and with it a position, is
made when somebody asks for it.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from operator import itemgetter
from typing import Literal, NamedTuple, get_args

from tokenmill.rows.stream import Place, Rows, RowStream
from tokenmill.rows.turns import Pattern, pattern_of
from tokenmill.rows.weights import TURNS, fit, whole_weights

OnCap = Literal["error", "retire", "spread"]
ON_CAP = get_args(OnCap)


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


class MixedStream:
    """The global order of the rows of `streams`, by name, in `stages`, from a standing on.

    `caps` are sources' max_epochs, where their streams have an `until`. `room(name, place)` is the tokens that a capped
    source has left at a place; `tokens` are those of the whole run, where "spread" needs to know them.
    """

    def __init__(
        self,
        streams: Mapping[str, RowStream],
        stages: Sequence[Stage],
        seq_len: int,
        standing: Standing,
        *,
        caps: Mapping[str, Fraction] | None = None,
        on_cap: OnCap = "error",
        room: Callable[[str, Place], Fraction] | None = None,
        tokens: int | None = None,
    ):
        self._streams, self._stages, self._seq_len = streams, stages, seq_len
        self._caps, self._on_cap, self._room, self._tokens = caps or {}, on_cap, room, tokens
        for name, served in standing.sources.items():
            if name in streams:
                streams[name].place = served.place
        self.at: Standing | Turn = standing  # the next row
        self._segment: Segment | None = None
        self.failed: ValueError | None = None  # why there are fewer rows than were asked for

    def take(self, count: int) -> list[Span]:
        """The next `count` turns, moving past them; fewer where the sources are used up, or where `failed` says why."""
        spans: list[Span] = []
        while count and self.failed is None:
            try:
                segment = self._at_hand()
            except ValueError as error:
                if not spans:
                    raise
                self.failed = error  # of what comes after these
                break
            if segment is None:
                break
            first = segment.entered.turns if isinstance(self.at, Standing) else self.at.number
            last = self._reach(segment, first, first + count)
            if last > first:
                spans.append(Span(segment, first, last))
            count -= last - first
            self.at = Turn(segment, last)
        return spans

    def present(self) -> tuple[int | None, Mapping[str, int]]:
        """Turns before the next stage begins, None where that is not known; and the weights of the segment at hand."""
        if isinstance(self.at, Standing):
            stage = self._stage(self.at.tokens_seen)[1]
            return None, whole_weights(stage.weights)
        segment, number = self.at
        return None if segment.end is None else segment.end - number, segment.line.weights

    def coming(self) -> Iterable[str]:
        """The sources of the stage that comes next."""
        seen = self.at.standing().tokens_seen
        return next((stage.weights for stage in self._stages if stage.begin > seen), ())

    def _at_hand(self) -> Segment | None:
        """The segment of the next turn; None where all sources are used up."""
        over = isinstance(self.at, Turn) and self.at.number == self.at.segment.end
        if self._segment is None or over:
            standing = self.at.standing()
            self._segment = self._begin(standing)
            if self._segment is not None:
                self.at = self._segment.entered
        return self._segment

    def _begin(self, standing: Standing) -> Segment | None:
        """The segment that goes on from here, or begins here."""
        number, stage = self._stage(standing.tokens_seen)
        for name in stage.weights:
            self._streams[name].place = standing.sources[name].place
        gone = {name for name in stage.weights if self._on_cap != "error" and self._is_used_up(name)}
        live = {name: weight for name, weight in stage.weights.items() if name not in gone}
        later = [other for other in self._stages if other.begin > stage.begin]
        if not live:
            if later:
                raise ValueError(
                    f"all sources of stage {number} are used up after {standing.tokens_seen:,} tokens, before the next "
                    f"stage begins at {later[0].begin:,}: {', '.join(sorted(gone))}; raise a max_epochs, or begin the "
                    "next stage earlier"
                )
            return None
        asked = self._asked(live, gone, stage)
        if asked != standing.asked or not standing.lines or standing.lines[-1].seq_len != self._seq_len:
            weights = self._weigh(live, standing, stage)
            places = {name: standing.sources[name].place for name in sorted(standing.sources)}
            line = Line(standing.tokens_seen, self._seq_len, weights, places)
            turned = [other for other in standing.lines if other.tokens < line.tokens]  # segments that had a turn
            standing = replace(standing, asked=asked, turns=0, lines=(*turned, line))
        over = None  # the first turn at which as many tokens, or more, were dealt
        if later:
            over = standing.turns - (standing.tokens_seen - later[0].begin) // self._seq_len
        return Segment(standing, pattern_of(standing.lines[-1].weights), over)

    def _stage(self, seen: int) -> tuple[int, Stage]:
        return [(number, stage) for number, stage in enumerate(self._stages) if stage.begin <= seen][-1]

    def _is_used_up(self, name: str) -> bool:
        return name in self._caps and not any(some.numbers for some, _ in self._streams[name].walk(1))

    def _asked(self, live: Mapping[str, Fraction], gone: set[str], stage: Stage) -> str:
        """What a segment's weights follow from, in a few letters."""
        caps = sorted((name, str(cap)) for name, cap in self._caps.items())
        later = [(begin, sorted(whole_weights(some).items())) for begin, some in self._stages if begin > stage.begin]
        spread = (caps, later, self._tokens) if self._on_cap == "spread" and caps else ()
        what = (sorted(whole_weights(live).items()), sorted(gone), spread)
        return hashlib.sha256(repr(what).encode()).hexdigest()[:16]

    def _weigh(self, live: Mapping[str, Fraction], standing: Standing, stage: Stage) -> dict[str, int]:
        """The whole weights of a segment that begins here."""
        to_come = self._to_come(stage, standing.tokens_seen)
        if self._on_cap != "spread" or to_come <= 0 or self._room is None:
            return whole_weights(live)
        room = {}
        for name in live:
            if name in self._caps:  # a stage gets as much of what is left as it asks for, of all that is asked for
                asked = [self._to_come(one, standing.tokens_seen) * _share(one, name) for one in self._stages]
                here = asked[self._stages.index(stage)] / sum(asked)
                room[name] = self._room(name, standing.sources[name].place) * here
        tokens = fit(live, room, Fraction(to_come))
        return whole_weights({name: given for name, given in tokens.items() if given * TURNS >= to_come})

    def _to_come(self, stage: Stage, seen: int) -> int:
        """The tokens of a stage that are to come; of the last, as the whole run has them."""
        later = [other.begin for other in self._stages if other.begin > stage.begin]
        end = later[0] if later else self._tokens or 0
        return max(0, end - max(seen, stage.begin))

    def _reach(self, segment: Segment, first: int, last: int) -> int:
        """How far from turn `first` on, up to `last`, the segment goes; what its sources give is known up to there."""
        last = last if segment.end is None else min(last, segment.end)
        for source, (name, count) in enumerate(zip(segment.pattern.names, segment.pattern.counts(last), strict=True)):
            track, stream = segment.tracks[name], self._streams[name]
            ends = name in self._caps and self._on_cap != "error"
            known = track.reach(count + ends, stream)
            if ends and known <= count:  # it gave its last row: the segment ends with it
                segment.end = min(last, segment.pattern.turn_of(source, known - 1) + 1)
                last = segment.end
            elif known < count and (turn := segment.pattern.turn_of(source, known)) < last:
                last, self.failed = turn, used_up(name, segment, turn)
        return last


def _share(stage: Stage, name: str) -> Fraction:
    return Fraction(stage.weights.get(name, 0)) / sum(stage.weights.values())


def used_up(name: str, segment: Segment, turn: int) -> ValueError:
    """The error for a source whose turn comes after its cap."""
    seen = segment.entered.tokens_seen + (turn - segment.entered.turns) * segment.line.seq_len
    return ValueError(
        f"source {name!r} is used up: its max_epochs are reached after {seen:,} tokens of the run; give it more, or "
        "less weight (`tokenmill mix` tells how much would fit), or the mixture on_cap='retire' or 'spread'"
    )
