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

INFINITE = float("inf")
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
    if not sizes:
        sizes = {name: epoch_tokens(opened, "train") for name, opened in mixture.open().items()}
    if sizes.keys() != set(mixture.names):
        raise ValueError(
            f"sizes must be {{source: tokens}} of all sources, {', '.join(mixture.names)}, found "
            f"{', '.join(sizes)}"
        )
    for name, size in sizes.items():
        if not size:
            raise ValueError(
                f"source {name!r} has no training tokens; leave it out of this mixture"
            )
    total = tokens_of("tokens", tokens)
    taken = dict.fromkeys(sizes, 0.0)
    caps = mixture.max_epochs
    limits = {name: caps[name] * size for name, size in sizes.items() if name in caps}
    lines: list[ForecastLine] = []
    ends = [*(stage.begin for stage in mixture.stages[1:]), total]
    for number, (stage, stage_end) in enumerate(zip(mixture.stages, ends, strict=True)):
        begin = stage.begin
        end = min(stage_end, total)
        while begin < end:
            live = _live(stage.weights, taken, limits)
            if not live:
                problem = (
                    f"all sources of stage {number} are used up after {begin:,} tokens, "
                    f"before {end:,}"
                )
                return Forecast(mixture, total, lines, [problem])
            last_tokens = _tokens_until_retired(live, taken, limits)
            part_end = min([end, *(begin + max(1, count) for count in last_tokens.values())])
            weight_sum = sum(live.values())
            for name, weight in live.items():
                before = taken[name]
                taken[name] += (part_end - begin) * weight / weight_sum
                if name in limits and part_end - begin >= last_tokens[name]:
                    taken[name] = limits[name]  # it retires here
                line = ForecastLine(
                    stage=number,
                    begin=begin,
                    end=part_end,
                    source=name,
                    weight=weight,
                    share=weight / weight_sum,
                    tokens=round(taken[name]) - round(before),
                    epochs=taken[name] / sizes[name],
                )
                lines.append(line)
            begin = part_end
    return Forecast(mixture, total, lines, [])


def _live(weights: Numbers, taken: Mapping[str, float], limits: Numbers) -> dict[str, int]:
    """The weights of the sources that have not retired."""
    live = {}
    for name, tokens in taken.items():
        if name in weights and tokens < limits.get(name, INFINITE):
            live[name] = weights[name]
    return live


def _tokens_until_retired(
    live: Numbers, taken: Mapping[str, float], limits: Numbers
) -> dict[str, int]:
    """The tokens of all sources together after which each capped one retires."""
    weight_sum = sum(live.values())
    last_tokens = {}
    for name, weight in live.items():
        if name in limits:
            last_tokens[name] = round((limits[name] - taken[name]) * weight_sum / weight)
    return last_tokens
