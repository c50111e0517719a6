"""Prints what a mixture takes from each source, before a run, or what it has taken so far.

    tokenmill mix mixture.toml --tokens 1T      a forecast
    tokenmill mix --checkpoint ckpt.pt          a run as it really was, leg by leg

For each stage and source, a forecast prints weight, share, tokens, and epochs by then. A stage has several parts if a
source retires within it; if all of its sources do, the command says so and exits with status 1.
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
from tokenmill.feed.mixture import Mixture
from tokenmill.look.checkpoint_files import position_of
from tokenmill.look.report_text import short
from tokenmill.rows.position import read_position

NAMELESS = "the set"  # what the source of a run without a mixture is called
HEADS = ("stage", "of the run", "source", "weight", "share", "tokens", "epochs", "at most")
RUN_HEADS = ("of the run", "ranks", "rows of each", "seq_len", "source", "share", "tokens")


@dataclass(frozen=True)
class Mix:
    """Forecast what a mixture takes from each source, before the run; or print what a run has taken so far."""

    # the mixture's TOML file; not with --checkpoint
    mixture: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="MIXTURE")]] = None
    checkpoint: Path | None = None  # a checkpoint of a run: its file, or DCP's folder
    tokens: str | None = None  # tokens of the whole run, as 1e12 or 1T

    def __post_init__(self) -> None:
        if (self.mixture is None) == (self.checkpoint is None):
            raise ValueError("expected either a mixture's file or --checkpoint")
        if (self.mixture is None) != (self.tokens is None):
            raise ValueError(
                "a mixture's file needs --tokens, those of the whole run; a checkpoint says them"
            )


def cells(found: Forecast) -> list[tuple[Any, ...]]:
    """The table of a forecast: a row for each part and source. Parts of a few rows are left out: a source that is
    almost used up at the end of a stage causes them.
    """
    rows = []
    for line in [line for line in found.lines if (line.end - line.begin) * 10_000 >= found.tokens]:
        span, cap = (
            f"{short(line.begin)} to {short(line.end)}",
            found.mixture.max_epochs.get(line.source, ""),
        )
        row = (line.stage, span, line.source, line.weight, f"{line.share:.3%}", short(line.tokens))
        rows.append((*row, f"{line.epochs:.3f}", cap))
    return rows


def run_cells(position: Mapping[str, Any]) -> tuple[list[tuple[Any, ...]], Counter[str]]:
    """The table of a run so far, a row for each leg and source; and the tokens of each source. ValueError if a position
    is none.
    """
    run, _ = read_position(position)
    rows, totals = [], Counter[str]()
    for (begin, setting, _), after in zip(
        run.legs, [*(leg.begin for leg in run.legs[1:]), run.now], strict=True
    ):
        for name in setting.sets if after.tokens > begin.tokens else ():
            own = (after.rows[name] - begin.rows[name]) * setting.seq_len
            how = (setting.world_size, setting.batch_size, setting.seq_len)
            share = f"{own / (after.tokens - begin.tokens):.3%}"
            rows.append(
                (
                    f"{short(begin.tokens)} to {short(after.tokens)}",
                    *how,
                    name or NAMELESS,
                    share,
                    short(own),
                )
            )
            totals[name or NAMELESS] += own
    return rows, totals


def main(arguments: list[str], prog: str) -> int:
    """Prints the table for these command-line arguments. Returns 1 if the run would end early, else 0."""
    config = tyro.cli(Mix, prog=prog, args=arguments, description=__doc__)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if config.checkpoint is not None:
        place = config.checkpoint
        rows, totals = run_cells(
            position_of("--checkpoint", place, "train", "a checkpoint with a position in it")
        )
        _print(RUN_HEADS, rows, console)
        for name, tokens in totals.items():
            console.print(
                f"{name}: {tokens:,} tokens, {tokens / max(1, totals.total()):.3%} of the run"
            )
        return 0
    found = forecast(Mixture.load(config.mixture or Path()), tokens=config.tokens or 0)
    if not found.tokens:
        raise ValueError(f"--tokens must be more than 0, found {config.tokens}")
    if found.lines:
        _print(HEADS, cells(found), console)
    for name, (tokens, epochs) in found.totals.items() if found.lines else ():
        console.print(f"{name}: {tokens:,} tokens, {epochs:.3f} epochs in all")
    for problem in found.problems:
        console.print(f"error: {problem}")
    return bool(found.problems)


def _print(heads: Sequence[str], rows: Sequence[Sequence[Any]], console: Console) -> None:
    table = Table(*(Column(head, justify="right", no_wrap=True) for head in heads))
    for row in rows:
        table.add_row(*map(str, row))
    console.width = max(console.width, 110)  # figures are not cut
    console.print(table)
