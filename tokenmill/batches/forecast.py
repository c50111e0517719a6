"""What a mixture will give of each source, before the run: tokens, epochs, and caps that would be passed.

    for line in forecast(Mixture.load("mixture.toml"), seq_len=4096, tokens="1T").lines:
        print(line.stage, line.source, line.tokens, line.epochs)

The run's own order is gone through (rows/mixed.py). The rows of a source's first windows are counted, from lengths, a
tenth of a second each, and the others taken to have as many: windows are fair samples of their source.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from tokenmill.batches.config import LoaderConfig, Packing
from tokenmill.batches.mixed import Mixed
from tokenmill.batches.mixture import Mixture, tokens_of
from tokenmill.batches.notebook import table
from tokenmill.batches.one_set import Part
from tokenmill.batches.plans import SAMPLE_ROWS
from tokenmill.batches.source import Source
from tokenmill.rows.mixed import MixedStream
from tokenmill.rows.packing import LongDocuments
from tokenmill.rows.segments import Served, Span, Standing
from tokenmill.rows.stream import End, Place, RowStream


class Size(NamedTuple):
    """An epoch of a source: its windows, and the rows of the first ones; the others are taken to have as many."""

    windows: int
    counted: tuple[int, ...]

    def rows(self, window: int) -> int:
        """The rows of a window."""
        return self.counted[window % len(self.counted)]

    @property
    def epoch(self) -> int:
        """The rows of an epoch."""
        rounds, rest = divmod(self.windows, len(self.counted))
        return rounds * sum(self.counted) + sum(self.counted[:rest])


class ForecastLine(NamedTuple):
    """What a source gives in a segment, the tokens `begin` to `end` of the run, in which weights stay the same."""

    stage: int  # of the mixture, from 0
    begin: int
    end: int
    source: str
    weight: int  # in whole turns, beside the others' of the segment
    share: float
    tokens: int
    epochs: float  # at the end of the segment, since training began


@dataclass(frozen=True)
class Forecast:
    """A mixture's run of `tokens`: a line for each segment and source, and what is wrong with it, if anything."""

    mixture: Mixture
    seq_len: int
    tokens: int
    lines: list[ForecastLine]
    problems: list[str]

    @property
    def totals(self) -> dict[str, tuple[int, float]]:
        """(tokens, epochs) of each source by the end."""
        totals = dict.fromkeys(self.mixture.names, (0, 0.0))
        for line in self.lines:
            totals[line.source] = (totals[line.source][0] + line.tokens, line.epochs)
        return totals

    def _repr_html_(self) -> str:
        """For a notebook: the table of `tokenmill mix`."""
        rows = []
        for one in self.lines:
            place = (f"{one.stage}", f"{one.begin:,}", f"{one.end:,}")
            rows.append((*place, one.source, f"{one.share:.2%}", f"{one.tokens:,}", f"{one.epochs:.2f}"))
        title = "; ".join([f"{self.tokens:,} tokens in rows of {self.seq_len:,} + 1", *self.problems])
        return table(title, ("stage", "from token", "to", "source", "share", "tokens", "epochs by then"), rows)


def forecast(
    mixture: Mixture,
    *,
    seq_len: int,
    tokens: int | float | str | None = None,
    packing: Packing = "best_fit",
    long_documents: LongDocuments = "split",
) -> Forecast:
    """What a run of `tokens` (by default the mixture's own) of rows of `seq_len` + 1 will give of each source.

    Raises what RowLoader does where the sources do not go together; ValueError where no number of tokens is known.
    """
    asked = tokens if tokens is not None else mixture.tokens
    if asked is None:
        raise ValueError("expected the tokens of the whole run, found none in the mixture; give tokens='1T'")
    total = tokens_of("tokens", asked)
    mixture = mixture.lasting(total)
    config = LoaderConfig(tokens=mixture, batch_size=1, seq_len=seq_len, packing=packing, long_documents=long_documents)
    feed = Mixed.of(mixture, config, Part(0, 1))
    feed.require_rows()
    return forecast_of(mixture, {name: _size(source) for name, source in feed.sources.items()}, seq_len, total)


def forecast_of(mixture: Mixture, sizes: Mapping[str, Size], seq_len: int, total: int) -> Forecast:
    """The forecast of sources of these sizes."""
    enforced = mixture.on_cap != "error"
    spans, failed = _spans(mixture, sizes, seq_len, total, mixture.max_epochs if enforced else {})
    found = Forecast(mixture, seq_len, total, _lines(mixture, sizes, spans), [failed] if failed else [])
    if not enforced:
        found.problems.extend(_over(found, sizes))
    return found


def _size(source: Source) -> Size:
    plans = source.plans()
    counted: list[int] = []
    while len(counted) < plans.count_windows(0) and sum(counted) < SAMPLE_ROWS:
        counted.append(plans.count_rows(0, len(counted)))
    return Size(plans.count_windows(0), tuple(counted))


def _spans(
    mixture: Mixture, sizes: Mapping[str, Size], seq_len: int, tokens: int, caps: Mapping[str, Fraction]
) -> tuple[list[Span], str]:
    """The run, segment by segment, and why it ends early, if it does."""

    def stream(name: str, size: Size) -> RowStream:
        end = _end(caps[name], size) if name in caps else None
        return RowStream(lambda _: size.windows, lambda _, window: size.rows(window), until=end)

    def room(name: str, place: Place) -> Fraction:
        size = sizes[name]
        done = place.epoch + Fraction(sum(map(size.rows, range(place.window))) + place.row, size.epoch)
        return max(Fraction(0), caps[name] - done) * size.epoch * seq_len

    rows = MixedStream(
        {name: stream(name, size) for name, size in sizes.items()},
        mixture.stages,
        seq_len,
        Standing({name: Served() for name in sizes}),
        caps=caps,
        on_cap=mixture.on_cap,
        room=room,
        tokens=mixture.tokens,
    )
    turns = -(-tokens // seq_len)
    try:
        spans = rows.take(turns)
    except ValueError as error:
        return [], str(error)
    dealt = sum(map(len, spans)) * seq_len
    ends = f"all sources are used up after {dealt:,} tokens, before the run's {tokens:,}" if dealt < tokens else ""
    return spans, ends


def _end(cap: Fraction, size: Size) -> End:
    windows = cap % 1 * size.windows
    return End(int(cap), int(windows), windows % 1)


def _lines(mixture: Mixture, sizes: Mapping[str, Size], spans: list[Span]) -> list[ForecastLine]:
    lines = []
    for span in spans:
        before, after = span.segment.standing(span.first), span.segment.standing(span.last)
        weights, total = span.segment.line.weights, sum(span.segment.line.weights.values())
        stage = max(number for number, one in enumerate(mixture.stages) if one.begin <= before.tokens_seen)
        for name in mixture.names:
            if name in weights:
                served, size = after.sources[name], sizes[name]
                tokens = served.tokens - before.sources[name].tokens
                share, epochs = weights[name] / total, served.rows / size.epoch
                told = (stage, before.tokens_seen, after.tokens_seen, name, weights[name], share, tokens, epochs)
                lines.append(ForecastLine(*told))
    return lines


def _over(found: Forecast, sizes: Mapping[str, Size]) -> list[str]:
    """The caps that would be passed, and the cap, or the weights, that would fit."""
    problems = []
    for name, cap in found.mixture.max_epochs.items():
        _, epochs = found.totals[name]
        if epochs > cap:
            size = sizes[name]
            most = cap * size.epoch * found.seq_len
            part = _factor(found, name, most)
            stages = [(number, stage) for number, stage in enumerate(found.mixture.stages) if name in stage.weights]
            weights = " and ".join(
                f"{float(stage.weights[name]) * part:.4g} in stage {number}" for number, stage in stages
            )
            problems.append(
                f"source {name!r} gives {epochs:.2f} epochs, more than its max_epochs of {float(cap):g}: what fits is "
                f"max_epochs = {_up(epochs):g}, or a weight of {weights}, or on_cap = 'retire' or 'spread'"
            )
    return problems


def _up(epochs: float) -> float:
    return int(epochs * 100 + 1) / 100


def _factor(found: Forecast, name: str, most: Fraction) -> float:
    """What to multiply a source's weights with for at most so many tokens; a little less, for rounding."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _tokens(found, name, middle) <= most else (low, middle)
    return low * 0.999


def _tokens(found: Forecast, name: str, part: float) -> float:
    """The tokens of a source whose weights are multiplied."""
    tokens = 0.0
    stages = found.mixture.stages
    ends = [stage.begin for stage in stages[1:]] + [found.tokens]
    for stage, end in zip(stages, ends, strict=True):
        if name in stage.weights and stage.begin < found.tokens:
            own = float(stage.weights[name]) * part
            others = float(sum(stage.weights.values()) - stage.weights[name])
            tokens += (min(end, found.tokens) - stage.begin) * (own / (own + others) if own else 0.0)
    return tokens
