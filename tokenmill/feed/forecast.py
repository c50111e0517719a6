"""Forecasts what a mixture will take from each source: tokens, epochs, and caps that the run would exceed.

    for line in forecast(Mixture.load("mixture.toml"), seq_len=4096, tokens="1T").lines:
        print(line.stage, line.source, line.tokens, line.epochs)

The forecast walks through the order of the run itself (rows/mixed_stream.py). It counts the rows of the first windows
of each source from document lengths, which takes a tenth of a second a window. It assumes that the other windows have
as many rows, because windows are fair samples of their source.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from typing import NamedTuple

from tokenmill.feed.html_preview import table
from tokenmill.feed.loader_config import LoaderConfig, Packing
from tokenmill.feed.mixture import Mixture, tokens_of
from tokenmill.feed.protocol import RankShare
from tokenmill.feed.split_cursor import SplitCursor
from tokenmill.feed.weighted_feed import WeightedFeed
from tokenmill.feed.window_plans import SAMPLE_ROWS
from tokenmill.humanize import counted
from tokenmill.rows.mixed_stream import MixedStream, Schedule
from tokenmill.rows.packing import LongDocuments
from tokenmill.rows.row_stream import Cursor, End, RowStream
from tokenmill.rows.segments import MixtureState, SourceState, Span
from tokenmill.store.token_sets import TokenSet


class EpochSize(NamedTuple):
    """The windows of one epoch of a source, and the rows of the first ones; the others repeat these counts."""

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
    """What one source gives in one segment, tokens `begin` to `end` of the run, in which the weights do not change."""

    stage: int  # the number of the mixture's stage, from 0
    begin: int
    end: int
    source: str
    weight: int  # whole number of turns, relative to the other sources of the segment
    share: float
    tokens: int
    epochs: float  # since training began, at the end of the segment


@dataclass(frozen=True)
class Forecast:
    """The forecast of a run of `tokens`: a line for each segment and source, and its problems, if any."""

    mixture: Mixture
    seq_len: int
    tokens: int
    lines: list[ForecastLine]
    problems: list[str]
    notes: Sequence[str] = ()  # what is no problem, and worth knowing

    @property
    def totals(self) -> dict[str, tuple[int, float]]:
        """(tokens, epochs) of each source by the end of the run."""
        totals = dict.fromkeys(self.mixture.names, (0, 0.0))
        for line in self.lines:
            totals[line.source] = (totals[line.source][0] + line.tokens, line.epochs)
        return totals

    def _repr_html_(self) -> str:
        """The table of `tokenmill mix`, for notebooks."""
        rows = []
        for one in self.lines:
            place = (f"{one.stage}", f"{one.begin:,}", f"{one.end:,}")
            rows.append((*place, one.source, f"{one.share:.2%}", f"{one.tokens:,}", f"{one.epochs:.2f}"))
        title = "; ".join([f"{self.tokens:,} tokens in rows of {self.seq_len:,} + 1", *self.problems, *self.notes])
        return table(title, ("stage", "from token", "to", "source", "share", "tokens", "epochs by then"), rows)


def forecast(
    mixture: Mixture,
    *,
    seq_len: int,
    tokens: int | float | str | None = None,
    packing: Packing = "best_fit",
    long_documents: LongDocuments = "split",
) -> Forecast:
    """Forecasts what a run of `tokens` (by default the mixture's own) takes from each source, in rows of `seq_len` + 1.

    Raises the errors of RowLoader if the sources do not fit together. Raises ValueError if the number of tokens is
    unknown.
    """
    run_tokens = tokens if tokens is not None else mixture.tokens
    if run_tokens is None:
        raise ValueError("expected the tokens of the whole run, found none in the mixture; pass tokens='1T'")
    total = tokens_of("tokens", run_tokens)
    mixture = mixture.lasting(total)
    config = LoaderConfig(tokens=mixture, batch_size=1, seq_len=seq_len, packing=packing, long_documents=long_documents)
    feed = WeightedFeed.of(config, RankShare(0, 1))
    feed.require_rows()
    found = forecast_of(mixture, {name: _size(source) for name, source in feed.sources.items()}, seq_len, total)
    sets = {name: source.token_set for name, source in feed.sources.items()}
    return replace(found, notes=[*_repeats(sets, found), *overlaps(sets), *_lengths(mixture)])


def overlaps(sets: Mapping[str, TokenSet], split: str = "train") -> list[str]:
    """Sentences about documents that are in two views of one set, and so come from two sources."""
    lines = []
    for (one, first), (other, second) in combinations(sets.items(), 2):
        if first.digest != second.digest:
            continue
        documents = tokens = 0
        for entry in first.split(split):
            both = (first.times_of(entry) > 0) & (second.times_of(entry) > 0)
            documents += int(both.sum())
            tokens += int(first.open(entry).lengths[both].sum()) if both.any() else 0
        if documents:
            lines.append(
                f"{counted(documents, 'document')} of {tokens:,} tokens are in both {one} and {other}, and come from "
                "each of them"
            )
    return lines


def _repeats(sets: Mapping[str, TokenSet], found: "Forecast") -> list[str]:
    """Sentences about views whose documents come several times in an epoch: caps and epochs are of the view."""
    lines = []
    for name, token_set in sets.items():
        most = 1 if token_set.view is None else max(map(int, token_set.view.facts["times"]))
        if most > 1:
            epochs = found.totals[name][1]
            lines.append(
                f"{name}: a document counts up to {most} times in an epoch of its view, so {epochs:.2f} epochs show it "
                f"up to {most * epochs:.1f} times"
            )
    return lines


def _lengths(mixture: Mixture) -> list[str]:
    return [
        f"from {begin:,} tokens on, rows have {seq_len:,} + 1 tokens; this table counts all in rows of one length"
        for begin, seq_len in mixture.seq_lens.items()
    ]


def forecast_of(mixture: Mixture, sizes: Mapping[str, EpochSize], seq_len: int, total: int) -> Forecast:
    """The forecast for sources of these sizes, in a run of `total` tokens."""
    enforced = mixture.on_cap != "error"
    spans, failed = _spans(mixture, sizes, seq_len, total, mixture.max_epochs if enforced else {})
    found = Forecast(mixture, seq_len, total, _lines(mixture, sizes, spans), [failed] if failed else [])
    if not enforced:
        found.problems.extend(_over(found, sizes))
    return found


def _size(source: SplitCursor) -> EpochSize:
    plans = source.plans()
    counted: list[int] = []
    while len(counted) < plans.count_windows(0) and sum(counted) < SAMPLE_ROWS:
        counted.append(plans.count_rows(0, len(counted)))
    return EpochSize(plans.count_windows(0), tuple(counted))


def _spans(
    mixture: Mixture, sizes: Mapping[str, EpochSize], seq_len: int, tokens: int, caps: Mapping[str, Fraction]
) -> tuple[list[Span], str]:
    """The run, segment by segment, and the reason if it ends early, or ""."""

    def stream(name: str, size: EpochSize) -> RowStream:
        end = _end(caps[name], size) if name in caps else None
        return RowStream(lambda _: size.windows, lambda _, window: size.rows(window), until=end)

    def room(name: str, place: Cursor) -> Fraction:
        size = sizes[name]
        done = place.epoch + Fraction(sum(map(size.rows, range(place.window))) + place.row, size.epoch)
        return max(Fraction(0), caps[name] - done) * size.epoch * seq_len

    rows = MixedStream(
        {name: stream(name, size) for name, size in sizes.items()},
        Schedule(mixture.stages, caps, mixture.on_cap, mixture.tokens),
        seq_len,
        MixtureState({name: SourceState() for name in sizes}),
        room,
    )
    turns = -(-tokens // seq_len)
    try:
        spans = rows.take(turns)
    except ValueError as error:
        return [], str(error)
    given = sum(map(len, spans)) * seq_len
    ends = f"all sources are used up after {given:,} tokens, before the run's {tokens:,}" if given < tokens else ""
    return spans, ends


def _end(cap: Fraction, size: EpochSize) -> End:
    windows = cap % 1 * size.windows
    return End(int(cap), int(windows), windows % 1)


def _lines(mixture: Mixture, sizes: Mapping[str, EpochSize], spans: list[Span]) -> list[ForecastLine]:
    lines = []
    for span in spans:
        before, after = span.segment.mixture_state(span.first), span.segment.mixture_state(span.last)
        weights, total = span.segment.start.weights, sum(span.segment.start.weights.values())
        stage = max(number for number, one in enumerate(mixture.stages) if one.begin <= before.tokens_seen)
        for name in mixture.names:
            if name in weights:
                served, size = after.sources[name], sizes[name]
                tokens = served.tokens - before.sources[name].tokens
                share, epochs = weights[name] / total, served.rows / size.epoch
                begin, end = before.tokens_seen, after.tokens_seen
                lines.append(ForecastLine(stage, begin, end, name, weights[name], share, tokens, epochs))
    return lines


def _over(found: Forecast, sizes: Mapping[str, EpochSize]) -> list[str]:
    """The caps that the run would exceed, each with a cap or a weight that would fit."""
    problems = []
    for name, cap in found.mixture.max_epochs.items():
        _, epochs = found.totals[name]
        if epochs > cap:
            size = sizes[name]
            most = cap * size.epoch * found.seq_len
            factor = _factor(found, name, most)
            stages = [(number, stage) for number, stage in enumerate(found.mixture.stages) if name in stage.weights]
            weights = " and ".join(
                f"{float(stage.weights[name]) * factor:.4g} in stage {number}" for number, stage in stages
            )
            problems.append(
                f"source {name!r} would give {epochs:.2f} epochs, more than its max_epochs of {float(cap):g}; use "
                f"max_epochs = {_round_up(epochs):g}, or a weight of {weights}, or on_cap = 'retire' or 'spread'"
            )
    return problems


def _round_up(epochs: float) -> float:
    """The next larger number of hundredths of an epoch."""
    return int(epochs * 100 + 1) / 100


def _factor(found: Forecast, name: str, most: Fraction) -> float:
    """The factor for a source's weights so that it gives at most `most` tokens; slightly smaller, for rounding."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _tokens(found, name, middle) <= most else (low, middle)
    return low * 0.999


def _tokens(found: Forecast, name: str, factor: float) -> float:
    """The tokens that a source gives if its weights are multiplied by `factor`."""
    tokens = 0.0
    stages = found.mixture.stages
    ends = [stage.begin for stage in stages[1:]] + [found.tokens]
    for stage, end in zip(stages, ends, strict=True):
        if name in stage.weights and stage.begin < found.tokens:
            own = float(stage.weights[name]) * factor
            others = float(sum(stage.weights.values()) - stage.weights[name])
            tokens += (min(end, found.tokens) - stage.begin) * (own / (own + others) if own else 0.0)
    return tokens
