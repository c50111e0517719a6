"""The rows of several sources in one global order, by weights that may change during the run.

The rows of each source come from its own stream (row_stream.py). This module only decides whose turn it is
(interleave.py). As long as the weights stay the same, the run is in one segment, with one pattern of turns. A new
segment begins with a new stage, when a source is added, removed or used up, or when the row length changes. Turns then
start from 0 again, and every source continues where it was:

    weights 2:1         A A B A A B | A B A B A B ...        weights 1:1 from 6 rows on
    rows of A           0 1   2 3     4   5   6
    rows of B               0     1     2   3   4

So no row comes twice and none is left out. A source with a cap gives rows as far as its stream goes. What happens then
is a setting of the mixture:

    error     its next turn is an error
    retire    the segment ends with its last row, and the others continue without it
    spread    the same, but each segment's weights are chosen so that no source ends before its stage does

The state at a turn follows from what the sources have given, so a state, and a position made from it, is only worked
out when somebody asks for it.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Literal, NamedTuple, get_args

from tokenmill.rows.interleave import pattern_of
from tokenmill.rows.row_stream import Cursor, RowStream
from tokenmill.rows.segments import MixtureState, Segment, SegmentStart, Span, Stage, Turn
from tokenmill.rows.weights import TURNS, fit, whole_weights

OnCap = Literal["error", "retire", "spread"]
ON_CAP = get_args(OnCap)


class Schedule(NamedTuple):
    """What decides whose turn it is: the stages, each with weights from a number of tokens on, and the caps."""

    stages: Sequence[Stage]
    caps: Mapping[str, Fraction] = {}  # epochs that a source may give; its stream ends there
    on_cap: OnCap = "error"
    tokens: int | None = None  # of the whole run; "spread" needs it


class MixedStream:
    """The global order of the rows of `streams`, by name, according to a schedule, from a state on.

    `room(name, cursor)` is the number of tokens that a source with a cap has left at a cursor. Only "spread" uses it.
    """

    def __init__(
        self,
        streams: Mapping[str, RowStream],
        schedule: Schedule,
        seq_len: int,
        mixture_state: MixtureState,
        room: Callable[[str, Cursor], Fraction] | None = None,
    ):
        self._streams, self._seq_len, self._room = streams, seq_len, room
        self._stages, self._caps, self._on_cap, self._tokens = schedule
        for name, served in mixture_state.sources.items():
            if name in streams:
                streams[name].place = served.place
        self.at: MixtureState | Turn = mixture_state  # the place of the next row
        self._segment: Segment | None = None
        self.failed: ValueError | None = None  # why there are fewer rows than were asked for

    def take(self, count: int) -> list[Span]:
        """Takes the next `count` turns and moves past them; fewer if the sources are used up or if there is an error.

        If there is an error before the first turn, it is raised. A later one is stored in `failed`.
        """
        spans: list[Span] = []
        while count and self.failed is None:
            try:
                segment = self._current_segment()
            except ValueError as error:
                if not spans:
                    raise
                self.failed = error.with_traceback(None)  # the error of the turns after these
                break
            if segment is None:
                break
            first = segment.initial_state.turns if isinstance(self.at, MixtureState) else self.at.number
            last = self._reach(segment, first, first + count)
            if last > first:
                spans.append(Span(segment, first, last))
            count -= last - first
            self.at = Turn(segment, last)
        return spans

    def present(self) -> tuple[int | None, Mapping[str, int]]:
        """The number of turns before the next stage, None if unknown; and the weights of the current segment."""
        if isinstance(self.at, MixtureState):
            stage = self._stage(self.at.tokens_seen)[1]
            return None, whole_weights(stage.weights)
        segment, number = self.at
        return None if segment.end is None else segment.end - number, segment.start.weights

    def coming(self) -> Iterable[str]:
        """The sources of the next stage."""
        seen = self.at.mixture_state().tokens_seen
        return next((stage.weights for stage in self._stages if stage.begin > seen), ())

    def _current_segment(self) -> Segment | None:
        """The segment of the next turn; None if all sources are used up."""
        over = isinstance(self.at, Turn) and self.at.number == self.at.segment.end
        if self._segment is None or over:
            mixture_state = self.at.mixture_state()
            self._segment = self._begin(mixture_state)
            if self._segment is not None:
                self.at = self._segment.initial_state
        return self._segment

    def _begin(self, mixture_state: MixtureState) -> Segment | None:
        """The segment that continues or begins at this state."""
        number, stage = self._stage(mixture_state.tokens_seen)
        for name in stage.weights:
            self._streams[name].place = mixture_state.sources[name].place
        retired = {name for name in stage.weights if self._on_cap != "error" and self._is_used_up(name)}
        live = {name: weight for name, weight in stage.weights.items() if name not in retired}
        later = [other for other in self._stages if other.begin > stage.begin]
        if not live:
            if later:
                raise ValueError(
                    f"all sources of stage {number} are used up after {mixture_state.tokens_seen:,} tokens, before the "
                    f"next stage begins at {later[0].begin:,}: {', '.join(sorted(retired))}; raise a max_epochs, or "
                    "begin the next stage earlier"
                )
            return None
        weights_key = self._weights_key(live, retired, stage)
        if (
            weights_key != mixture_state.weights_key
            or not mixture_state.segments
            or mixture_state.segments[-1].seq_len != self._seq_len
        ):
            weights = self._weigh(live, mixture_state, stage)
            places = {name: mixture_state.sources[name].place for name in sorted(mixture_state.sources)}
            start = SegmentStart(mixture_state.tokens_seen, self._seq_len, weights, places)
            # segments without a turn are left out
            segments = [other for other in mixture_state.segments if other.tokens < start.tokens]
            mixture_state = replace(mixture_state, weights_key=weights_key, turns=0, segments=(*segments, start))
        end = None  # the first turn at which the next stage's first token is reached
        if later:
            end = mixture_state.turns - (mixture_state.tokens_seen - later[0].begin) // self._seq_len
        return Segment(mixture_state, pattern_of(mixture_state.segments[-1].weights), end)

    def _stage(self, seen: int) -> tuple[int, Stage]:
        return [(number, stage) for number, stage in enumerate(self._stages) if stage.begin <= seen][-1]

    def _is_used_up(self, name: str) -> bool:
        return name in self._caps and not any(some.numbers for some, _ in self._streams[name].walk(1))

    def _weights_key(self, live: Mapping[str, Fraction], retired: set[str], stage: Stage) -> str:
        """A short hash of everything that a segment's weights follow from."""
        caps = sorted((name, str(cap)) for name, cap in self._caps.items())
        later = [(begin, sorted(whole_weights(some).items())) for begin, some in self._stages if begin > stage.begin]
        spread = (caps, later, self._tokens) if self._on_cap == "spread" and caps else ()
        what = (sorted(whole_weights(live).items()), sorted(retired), spread)
        return hashlib.sha256(repr(what).encode()).hexdigest()[:16]

    def _weigh(self, live: Mapping[str, Fraction], mixture_state: MixtureState, stage: Stage) -> dict[str, int]:
        """The whole-number weights of a segment that begins here."""
        to_come = self._to_come(stage, mixture_state.tokens_seen)
        if self._on_cap != "spread" or to_come <= 0 or self._room is None:
            return whole_weights(live)
        room = {}
        for name in live:
            if name in self._caps:  # each stage gets a part of what is left in proportion to its demand
                demand = [self._to_come(one, mixture_state.tokens_seen) * _share(one, name) for one in self._stages]
                part = demand[self._stages.index(stage)] / sum(demand)
                room[name] = self._room(name, mixture_state.sources[name].place) * part
        tokens = fit(live, room, Fraction(to_come))
        return whole_weights({name: given for name, given in tokens.items() if given * TURNS >= to_come})

    def _to_come(self, stage: Stage, seen: int) -> int:
        """The tokens of a stage that are still to come; the last stage ends with the run."""
        later = [other.begin for other in self._stages if other.begin > stage.begin]
        end = later[0] if later else self._tokens or 0
        return max(0, end - max(seen, stage.begin))

    def _reach(self, segment: Segment, first: int, last: int) -> int:
        """How far the segment goes from turn `first` on, up to `last`; asks the streams for rows up to there."""
        last = last if segment.end is None else min(last, segment.end)
        for source, (name, count) in enumerate(zip(segment.pattern.names, segment.pattern.counts(last), strict=True)):
            track, stream = segment.tracks[name], self._streams[name]
            ends = name in self._caps and self._on_cap != "error"
            known = track.reach(count + ends, stream)
            if ends and known <= count:  # the segment ends with the source's last row
                segment.end = min(last, segment.pattern.turn_of(source, known - 1) + 1)
                last = segment.end
            elif known < count and (turn := segment.pattern.turn_of(source, known)) < last:
                last, self.failed = turn, used_up(name, segment, turn)
        return last


def _share(stage: Stage, name: str) -> Fraction:
    return Fraction(stage.weights.get(name, 0)) / sum(stage.weights.values())


def used_up(name: str, segment: Segment, turn: int) -> ValueError:
    """The error for a source whose turn comes after its cap."""
    seen = segment.initial_state.tokens_seen + (turn - segment.initial_state.turns) * segment.start.seq_len
    return ValueError(
        f"source {name!r} is used up: it reaches its max_epochs after {seen:,} tokens of the run; raise max_epochs, "
        "lower its weight (`tokenmill mix` prints how much would fit), or set on_cap='retire' or 'spread'"
    )
