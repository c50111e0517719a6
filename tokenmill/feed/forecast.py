"""Forecasts what a mixture will take from each source of a run: tokens and epochs, stage by stage.

    for line in forecast(Mixture.load("mixture.toml"), tokens="1T").lines:
        print(line.stage, line.source, line.tokens, line.epochs)

A source's tokens are its share of each stage's, and its epochs these divided by the tokens of its set or view; filler
and inserted BOS are not counted. A source that retires begins another part of its stage.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tokenmill.feed.mixture import Mixture, epoch_tokens, tokens_of


class ForecastLine(NamedTuple):
    """What one source gives in tokens `begin` to `end` of the run, in which the weights do not change."""

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
    """The forecast of a run of `tokens`: a line for each part and source, and its problems, if any."""

    mixture: Mixture
    tokens: int
    lines: list[ForecastLine]
    problems: list[str]

    @property
    def totals(self) -> dict[str, tuple[int, float]]:
        """(tokens, epochs) of each source by the end of the run."""
        totals = dict.fromkeys(self.mixture.names, (0, 0.0))
        for line in self.lines:
            totals[line.source] = totals[line.source][0] + line.tokens, line.epochs
        return totals


def forecast(
    mixture: Mixture, *, tokens: int | float | str, sizes: Mapping[str, int] | None = None
) -> Forecast:
    """Forecasts what a run of `tokens`, as 1e12 or "1T", takes from each source. `sizes` are the tokens of an epoch,
    by default those of the token set.

    Raises what opening the sources raises, and ValueError if one has no training tokens.
    """
    sizes = sizes or {name: epoch_tokens(one, "train") for name, one in mixture.open().items()}
    if empty := [name for name, size in sizes.items() if not size]:
        raise ValueError(
            f"source {empty[0]!r} has no training tokens; leave it out of this mixture"
        )
    total = tokens_of("tokens", tokens)
    given, lines, problems = dict.fromkeys(sizes, 0.0), list[ForecastLine](), list[str]()
    room = {name: mixture.max_epochs.get(name, float("inf")) * sizes[name] for name in sizes}
    ends = [*(stage.begin for stage in mixture.stages[1:]), total]
    for number, (stage, end) in enumerate(zip(mixture.stages, ends, strict=True)):
        at, end = stage.begin, min(end, total)
        while at < end and not problems:
            live = {n: stage.weights[n] for n in sizes if n in stage.weights and given[n] < room[n]}
            if not live:
                problems.append(
                    f"all sources of stage {number} are used up after {at:,} tokens, before {end:,}"
                )
                break
            whole = sum(live.values())
            capped = [name for name in live if name in mixture.max_epochs]
            lasts = {
                name: round((room[name] - given[name]) * whole / live[name]) for name in capped
            }  # tokens of all
            until = min([end, *(at + max(1, tokens) for tokens in lasts.values())])
            for name, weight in live.items():
                before, given[name] = given[name], given[name] + (until - at) * weight / whole
                if name in lasts and until - at >= lasts[name]:
                    given[name] = room[name]  # it retires here
                took, epochs = round(given[name]) - round(before), given[name] / sizes[name]
                lines.append(
                    ForecastLine(number, at, until, name, weight, weight / whole, took, epochs)
                )
            at = until
    return Forecast(mixture, total, lines, problems)
