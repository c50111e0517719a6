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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Literal, get_args

from tokenmill.rows.segments import Line, Segment, Span, Stage, Standing, Turn
from tokenmill.rows.stream import Place, RowStream
from tokenmill.rows.turns import pattern_of
from tokenmill.rows.weights import TURNS, fit, whole_weights

OnCap = Literal["error", "retire", "spread"]
ON_CAP = get_args(OnCap)


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
