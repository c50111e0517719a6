"""Forecasts what a mixture will take from each source of a run: tokens and epochs, by stage.

    for line in forecast(Mixture.load("mixture.toml"), tokens="1T").lines:
        print(line.stage, line.source, line.tokens, line.epochs)

A source's tokens are its share of each stage's, and its epochs these divided by the tokens of its
set or view; filler and inserted BOS are not counted. A source that retires begins another part of
its stage.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tokenmill.feed.mixture import Mixture, epoch_tokens
from tokenmill.feed.weights import tokens_of

NEVER = 1 << 62  # tokens
Numbers = Mapping[str, int]  # of each source


class ForecastLine(NamedTuple):
    """What one source gives in tokens `begin` to `end` of the run, of unchanged weights."""

    stage: int  # the number of the mixture's stage, from 0
    begin: int
    end: int
    source: str
    weight: int  # whole number of turns, relative to the other sources of this part
    share: float
    tokens: int
    epochs: float  # since training began, at the end of this part


@dataclass(frozen=True)
class Forecast:
    """The forecast of a run of `tokens`: a line for each part and source, and its problems."""

    mixture: Mixture
    tokens: int
    lines: list[ForecastLine]
    problems: list[str]

    @property
    def totals(self) -> dict[str, tuple[int, float]]:
        """(tokens, epochs) of each source by the end of the run."""
        totals = dict.fromkeys(self.mixture.names, (0, 0.0))
        for line in self.lines:
            tokens, _ = totals[line.source]
            totals[line.source] = tokens + line.tokens, line.epochs
        return totals


def forecast(
    mixture: Mixture, *, tokens: int | float | str, sizes: Mapping[str, int] | None = None
) -> Forecast:
    """Forecasts what a run of `tokens`, as 1e12 or "1T", takes from each source.

    `sizes` are the tokens of an epoch of each source, by default those of its token set. Raises
    what opening the sources raises, and ValueError if one has no training tokens.
    """
    if sizes is None:
        sizes = {name: epoch_tokens(opened, "train") for name, opened in mixture.open().items()}
    _require_tokens_of_all(mixture, sizes)
    total = tokens_of("tokens", tokens)
    sources = _Sources(sizes, mixture.max_epochs)
    lines: list[ForecastLine] = []
    ends = [*(stage.begin for stage in mixture.stages[1:]), total]
    for number, (stage, stage_end) in enumerate(zip(mixture.stages, ends, strict=True)):
        begin = stage.begin
        end = min(stage_end, total)
        while begin < end:
            live = sources.live(stage.weights)
            if not live:
                problem = (
                    f"all sources of stage {number} are used up after {begin:,} tokens, "
                    f"before {end:,}"
                )
                return Forecast(mixture, total, lines, [problem])
            part_end = min(end, begin + sources.tokens_until_one_retires(live))
            lines += sources.take(live, number, begin, part_end)
            begin = part_end
    return Forecast(mixture, total, lines, [])


def _require_tokens_of_all(mixture: Mixture, sizes: Numbers) -> None:
    if sizes.keys() != set(mixture.names):
        raise ValueError(
            f"sizes must be {{source: tokens}} of all sources, {', '.join(mixture.names)}, found "
            f"{', '.join(sizes) or 'none'}"
        )
    for name, size in sizes.items():
        if not size:
            raise ValueError(
                f"source {name!r} has no training tokens; leave it out of this mixture"
            )


class _Sources:
    """What has been taken from each source, and what a capped one may still give."""

    def __init__(self, sizes: Numbers, max_epochs: Numbers):
        self._sizes = sizes
        self._taken = dict.fromkeys(sizes, 0.0)
        capped = sizes.keys() & max_epochs.keys()
        self._limits = {name: max_epochs[name] * sizes[name] for name in capped}

    def live(self, weights: Numbers) -> dict[str, int]:
        """The weights of the sources that have not retired."""
        live = {}
        for name, tokens in self._taken.items():
            if name in weights and tokens < self._limits.get(name, NEVER):
                live[name] = weights[name]
        return live

    def tokens_until_one_retires(self, live: Numbers) -> int:
        """The tokens of all sources together, at least 1, after which the first capped one
        retires.
        """
        counts = [self._until_retired(name, live) for name in live]
        return max(1, min(counts))

    def _until_retired(self, name: str, live: Numbers) -> int:
        if name not in self._limits:
            return NEVER
        left = self._limits[name] - self._taken[name]
        return round(left * sum(live.values()) / live[name])

    def take(self, live: Numbers, stage: int, begin: int, end: int) -> list[ForecastLine]:
        """Takes the tokens of a part, in which weights are unchanged; a line for each source."""
        weight_sum = sum(live.values())
        retiring = {name for name in live if end - begin >= self._until_retired(name, live)}
        lines = []
        for name, weight in live.items():
            before = self._taken[name]
            after = before + (end - begin) * weight / weight_sum
            if name in retiring:
                after = self._limits[name]
            self._taken[name] = after
            line = ForecastLine(
                stage=stage,
                begin=begin,
                end=end,
                source=name,
                weight=weight,
                share=weight / weight_sum,
                tokens=round(after) - round(before),
                epochs=after / self._sizes[name],
            )
            lines.append(line)
        return lines
