"""Forecasts what a mixture takes from each source: `tokenmill mix mixture.toml --tokens 1T --seq-len 4096`

For each stage and source, it prints weight, share, tokens, and epochs by then. If a source would exceed its max_epochs,
it prints a cap or a weight that would fit, and exits with status 1. A stage has several parts if a source is used up
within it.
"""

import html
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from tokenmill.feed.forecast import Forecast, forecast
from tokenmill.feed.loader_config import LoaderConfig, Packing
from tokenmill.feed.mixture import Mixture
from tokenmill.look.mixture_chart import draw
from tokenmill.look.report_text import short
from tokenmill.rows.packing import LongDocuments
from tokenmill.store.files import write_file

HEADS = ("stage", "of the run", "source", "weight", "share", "tokens", "epochs by then", "at most")
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
:root {{ color-scheme: light dark; }}
body {{ margin: 2rem auto; max-width: 60rem; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif; }}
svg {{ max-width: 100%; height: auto; }}
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
    """Forecast what a mixture takes from each source, before the run."""

    mixture: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="MIXTURE")]]  # the mixture's TOML file
    seq_len: int  # tokens of an input
    tokens: str | None = None  # tokens of the whole run, as 1e12 or 1T; by default those in the file
    packing: Packing = LoaderConfig.packing  # as in training
    long_documents: LongDocuments = LoaderConfig.long_documents  # as in training
    html: Path | None = None  # also write a page with the table and a picture of the stages


def cells(found: Forecast, number: Callable[[int], str] = "{:,}".format) -> list[list[str]]:
    """The table: a row for each segment and source. `number` formats numbers of tokens.

    Segments of a few rows are left out. A source that is almost used up at the end of a stage causes them.
    """
    rows = []
    for line in [line for line in found.lines if (line.end - line.begin) * 10_000 >= found.tokens]:
        cap = found.mixture.max_epochs.get(line.source)
        span = f"{number(line.begin)} to {number(line.end)}"
        row = [str(line.stage), span, line.source, str(line.weight), f"{line.share:.3%}", number(line.tokens)]
        rows.append([*row, f"{line.epochs:.3f}", "" if cap is None else f"{float(cap):g}"])
    return rows


def page(found: Forecast, title: str) -> str:
    """The table and the picture as one HTML page, which needs no network."""
    escape = html.escape
    about = f"{found.tokens:,} tokens in rows of {found.seq_len:,} + 1. Weights change at each vertical line."
    return PAGE.format(
        title=escape(title),
        about=escape(about),
        light=draw(found, "light"),
        dark=draw(found, "dark"),
        problems="".join(f"<p><strong>{escape(problem)}</strong></p>\n" for problem in found.problems)
        + "".join(f"<p>{escape(note)}</p>\n" for note in found.notes),
        heads="".join(f"<th>{escape(head)}</th>" for head in HEADS),
        rows="\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in cells(found)),
    )


def mix(config: Mix, console: Console) -> int:
    """Prints the table. Returns 1 if the run would exceed a cap or end early, else 0."""
    found = forecast(
        Mixture.load(config.mixture, tokens=config.tokens),
        seq_len=config.seq_len,
        packing=config.packing,
        long_documents=config.long_documents,
    )
    if found.lines:
        _print(found, console)
    if config.html is not None:
        write_file(config.html, page(found, config.mixture.name).encode())
        console.print(str(config.html))
    for note in found.notes:
        console.print(note)
    for problem in found.problems:
        console.print(f"error: {problem}")
    return bool(found.problems)


def _print(found: Forecast, console: Console) -> None:
    table = Table(*HEADS)
    for column in table.columns:
        column.justify = "right"
    for row in cells(found, short):
        table.add_row(*row)
    console.print(table)
    for name, (tokens, epochs) in found.totals.items():
        console.print(f"{name}: {tokens:,} tokens, {epochs:.3f} epochs in all")


def main(arguments: list[str], prog: str) -> int:
    """Prints the table for these command-line arguments."""
    return mix(
        tyro.cli(Mix, prog=prog, args=arguments, description=__doc__),
        Console(soft_wrap=True, highlight=False, markup=False),
    )
