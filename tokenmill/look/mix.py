"""Prints what a mixture takes from each source, before a run, or what it has taken so far.

    tokenmill mix mixture.toml --tokens 1T      a forecast
    tokenmill mix --checkpoint ckpt.pt          a run as it really was

For each stage and source, a forecast prints weight, share, tokens, and epochs by then. A stage has several parts if a
source retires within it; if all of its sources do, the command says so and exits with status 1. A run so far is printed
by legs, in which the settings stayed the same.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from tokenmill.feed.forecast import Forecast, forecast
from tokenmill.feed.mixture import Mixture
from tokenmill.look.checkpoint_files import position_of
from tokenmill.look.mixture_chart import Chart, chart_of, chart_of_run, draw
from tokenmill.look.report_text import short
from tokenmill.look.run_history import History, history
from tokenmill.store.files import write_file

RUN_HEADS = ("of the run", "source", "share", "tokens")
HEADS = ("stage", "of the run", "source", "weight", "share", "tokens", "epochs by then", "at most")
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
:root {{ color-scheme: light dark; }}
body {{ margin: 2rem auto; max-width: 60rem; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif; }}
svg {{ max-width: 100%; min-width: 40rem; height: auto; }}
div {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }}
th, td {{ padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #8886; white-space: nowrap; }}
.dark {{ display: none; }}
@media (prefers-color-scheme: dark) {{ .light {{ display: none; }} .dark {{ display: block; }} }}
</style></head><body>
<h1>{title}</h1><p>{about}</p>
<div class="light">{light}</div><div class="dark">{dark}</div>
{problems}<div><table><thead><tr>{heads}</tr></thead><tbody>
{rows}
</tbody></table></div></body></html>
"""


@dataclass(frozen=True)
class Mix:
    """Forecast what a mixture takes from each source, before the run; or show what a run has taken so far."""

    # the mixture's TOML file; not with --checkpoint
    mixture: tyro.conf.Positional[Annotated[Path | None, tyro.conf.arg(metavar="MIXTURE")]] = None
    checkpoint: Path | None = None  # a checkpoint of a run: its file, or DCP's folder
    tokens: str | None = None  # tokens of the whole run, as 1e12 or 1T
    html: Path | None = None  # also write a page with the table and a picture

    def __post_init__(self) -> None:
        if (self.mixture is None) == (self.checkpoint is None):
            raise ValueError("expected a mixture's file or --checkpoint")
        if (self.mixture is None) != (self.tokens is None):
            raise ValueError("a mixture's file needs --tokens, those of the whole run; a checkpoint says them")


def cells(found: Forecast, number: Callable[[int], str] = "{:,}".format) -> list[list[str]]:
    """The table: a row for each segment and source. `number` formats numbers of tokens.

    Segments of a few rows are left out. A source that is almost used up at the end of a stage causes them.
    """
    rows = []
    for line in [line for line in found.lines if (line.end - line.begin) * 10_000 >= found.tokens]:
        cap = found.mixture.max_epochs.get(line.source)
        span = f"{number(line.begin)} to {number(line.end)}"
        row = [str(line.stage), span, line.source, str(line.weight), f"{line.share:.3%}", number(line.tokens)]
        rows.append([*row, f"{line.epochs:.3f}", "" if cap is None else str(cap)])
    return rows


def page(found: Forecast, title: str) -> str:
    """The table and the picture of a forecast as one HTML page, which needs no network."""
    about = f"{found.tokens:,} tokens. Weights change at each vertical line."
    return _page(title, about, chart_of(found), HEADS, cells(found), found.problems)


def _page(
    title: str,
    about: str,
    chart: Chart,
    heads: Sequence[str],
    rows: list[list[str]],
    problems: Sequence[str],
) -> str:
    escape = html.escape
    return PAGE.format(
        title=escape(title),
        about=escape(about),
        light=draw(chart, "light"),
        dark=draw(chart, "dark"),
        problems="".join(f"<p><strong>{escape(problem)}</strong></p>\n" for problem in problems),
        heads="".join(f"<th>{escape(head)}</th>" for head in heads),
        rows="\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows),
    )


def run_cells(found: History, number: Callable[[int], str] = "{:,}".format) -> list[list[str]]:
    """The table of a run so far: a row for each leg and source."""
    return [
        [f"{number(p.begin)} to {number(p.end)}", p.source, f"{p.share:.3%}", number(p.tokens)] for p in found.parts
    ]


def show_run(checkpoint: Path, page: Path | None, console: Console) -> int:
    """Prints what a run has taken so far. ValueError if the checkpoint has no such position."""
    found = history(position_of("--checkpoint", checkpoint, "train", "a checkpoint with a position in it"))
    _print_table(RUN_HEADS, run_cells(found, short), console)
    for name, tokens in found.totals.items():
        console.print(f"{name}: {tokens:,} tokens, {tokens / max(1, found.tokens):.3%} of the run")
    for calls in found.calls:
        ranks = f"world_size {calls.world_size}, batch_size {calls.batch_size}, seq_len {calls.seq_len}"
        console.print(f"tokens {calls.begin:,} to {calls.end:,}: {ranks}")
    if page is not None:
        about = f"{found.tokens:,} tokens so far. The vertical lines are where something changed."
        whole = _page(str(checkpoint), about, chart_of_run(found), RUN_HEADS, run_cells(found), [])
        write_file(page, whole.encode())
        console.print(str(page))
    return 0


def mix(config: Mix, console: Console) -> int:
    """Prints the table. Returns 1 if the run would exceed a cap or end early, else 0."""
    if config.checkpoint is not None:
        return show_run(config.checkpoint, config.html, console)
    assert config.mixture is not None, "one of both is given"
    assert config.tokens is not None, "as the configuration checks"
    found = forecast(Mixture.load(config.mixture), tokens=config.tokens)
    if found.lines:
        _print(found, console)
    if config.html is not None:
        write_file(config.html, page(found, config.mixture.name).encode())
        console.print(str(config.html))
    for problem in found.problems:
        console.print(f"error: {problem}")
    return bool(found.problems)


def _print(found: Forecast, console: Console) -> None:
    _print_table(HEADS, cells(found, short), console)
    for name, (tokens, epochs) in found.totals.items():
        console.print(f"{name}: {tokens:,} tokens, {epochs:.3f} epochs in all")


def _print_table(heads: Sequence[str], rows: list[list[str]], console: Console) -> None:
    table = Table(*heads)
    for column in table.columns:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    console.print(table)


def main(arguments: list[str], prog: str) -> int:
    """Prints the table for these command-line arguments."""
    return mix(
        tyro.cli(Mix, prog=prog, args=arguments, description=__doc__),
        Console(soft_wrap=True, highlight=False, markup=False),
    )
