"""Prints what a mixture takes from each source, before a run, or what it has taken so far.

    tokenmill mix mixture.toml --tokens 1T      a forecast
    tokenmill mix --checkpoint ckpt.pt          a run as it really was, leg by leg

For each stage and source, a forecast prints weight, share, tokens, and epochs by then. A stage has
several parts if a source retires within it; if all of its sources do, the command says so and exits
with status 1.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Column, Table

from tokenmill.feed.forecast import Forecast, forecast
from tokenmill.feed.mixture import Mixture, epoch_tokens
from tokenmill.look.checkpoint_files import position_of
from tokenmill.look.report_text import short
from tokenmill.rows.position import read_position

SHORTEST = 10_000  # a part is shown if it is at least this fraction of a run
MANY_EPOCHS = 4  # after which repeated text loses its value (Muennighoff et al., 2023)
NAMELESS = "the set"  # what the source of a run without a mixture is called
HEADS = ("stage", "of the run", "source", "weight", "share", "tokens", "epochs", "at most")
RUN_HEADS = ("of the run", "ranks", "rows of each", "seq_len", "source", "share", "tokens")


@dataclass(frozen=True)
class Mix:
    """Forecast what a mixture takes from each source, before the run; or print what a run has taken
    so far.
    """

    # the mixture's TOML file; not with --checkpoint
    mixture: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="MIXTURE")]] = None
    checkpoint: Path | None = None  # a checkpoint of a run: its file, or DCP's folder
    # tokens of the whole run, as 1e12 or 1T; by default until a source of the last stage ends an
    # epoch
    tokens: str | None = None

    def __post_init__(self) -> None:
        if (self.mixture is None) == (self.checkpoint is None):
            raise ValueError("expected either a mixture's file or --checkpoint")
        if self.mixture is None and self.tokens is not None:
            raise ValueError("--tokens goes with a mixture's file; a checkpoint says them")


def cells(forecasted: Forecast) -> list[tuple[Any, ...]]:
    """The table of a forecast: a row for each part and source.

    Parts of a few rows are left out: a source that is almost used up at the end of a stage causes
    them.
    """
    rows = []
    for line in forecasted.lines:
        is_short = (line.end - line.begin) * SHORTEST < forecasted.tokens
        if is_short:
            continue
        rows.append(
            (
                line.stage,
                f"{short(line.begin)} to {short(line.end)}",
                line.source,
                line.weight,
                f"{line.share:.3%}",
                short(line.tokens),
                f"{line.epochs:.3f}",
                forecasted.mixture.max_epochs.get(line.source, ""),
            )
        )
    return rows


def run_cells(position: Mapping[str, Any]) -> tuple[list[tuple[Any, ...]], Counter[str]]:
    """The table of a run so far, a row for each leg and source; and the tokens of each source.

    ValueError if a position is none.
    """
    run, _ = read_position(position)
    rows = []
    totals: Counter[str] = Counter()
    ends = [*(leg.begin for leg in run.legs[1:]), run.now]
    for leg, end in zip(run.legs, ends, strict=True):
        begin = leg.begin
        setting = leg.setting
        leg_tokens = end.tokens - begin.tokens
        if not leg_tokens:
            continue
        for source in setting.sets:
            name = source or NAMELESS
            tokens = (end.rows[source] - begin.rows[source]) * setting.seq_len
            totals[name] += tokens
            rows.append(
                (
                    f"{short(begin.tokens)} to {short(end.tokens)}",
                    setting.world_size,
                    setting.batch_size,
                    setting.seq_len,
                    name,
                    f"{tokens / leg_tokens:.3%}",
                    short(tokens),
                )
            )
    return rows, totals


def main(arguments: list[str], prog: str) -> int:
    """Prints the table for these arguments. Returns 1 if the run would end early, else 0."""
    config = tyro.cli(Mix, prog=prog, args=arguments, description=__doc__)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if config.checkpoint is not None:
        _print_run(config.checkpoint, console)
        return 0
    return _print_forecast(config.mixture or Path(), config.tokens, console)


def _print_run(checkpoint: Path, console: Console) -> None:
    expected = "a checkpoint with a position in it"
    rows, totals = run_cells(position_of("--checkpoint", checkpoint, "train", expected))
    _print_table(RUN_HEADS, rows, console)
    total = max(1, totals.total())
    for name, tokens in totals.items():
        console.print(f"{name}: {tokens:,} tokens, {tokens / total:.3%} of the run")


def first_end(mixture: Mixture) -> tuple[int, str]:
    """Where the first source of the last stage ends an epoch: the tokens of the run, and its name.

    Raises as `forecast`.
    """
    sizes = {name: epoch_tokens(opened, "train") for name, opened in mixture.open().items()}
    stage = mixture.stages[-1]
    before = forecast(mixture, tokens=stage.begin, sizes=sizes).totals
    weight_sum = sum(stage.weights.values())
    ends = {}
    for name, weight in stage.weights.items():
        tokens_left = sizes[name] - before[name][0] % sizes[name]
        ends[name] = stage.begin + tokens_left * weight_sum // weight
    first = min(ends, key=lambda name: ends[name])
    return ends[first], first


def _print_forecast(path: Path, tokens: str | int | None, console: Console) -> int:
    mixture = Mixture.load(path)
    if tokens is None:
        tokens, source = first_end(mixture)
        console.print(
            f"without --tokens, a run of {tokens:,}: until {source}, the first source of the last "
            "stage to do so, ends an epoch"
        )
    forecasted = forecast(mixture, tokens=tokens)
    if not forecasted.tokens:
        raise ValueError(f"--tokens must be more than 0, found {tokens}")
    if forecasted.lines:
        _print_table(HEADS, cells(forecasted), console)
        for name, (source_tokens, epochs) in forecasted.totals.items():
            console.print(f"{name}: {source_tokens:,} tokens, {epochs:.3f} epochs in all")
            if epochs > MANY_EPOCHS:
                console.print(
                    f"warning: {name} is read {epochs:.1f} times, and beyond {MANY_EPOCHS} epochs "
                    "its text teaches less and less; lower its weight, or give max_epochs"
                )
    for problem in forecasted.problems:
        console.print(f"error: {problem}")
    return 1 if forecasted.problems else 0


def _print_table(heads: Sequence[str], rows: Sequence[Sequence[Any]], console: Console) -> None:
    table = Table(*(Column(head, justify="right", no_wrap=True) for head in heads))
    for row in rows:
        table.add_row(*map(str, row))
    console.width = max(console.width, 110)  # figures are not cut
    console.print(table)
