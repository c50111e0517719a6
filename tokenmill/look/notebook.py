"""Reports and rows in a notebook, which draws them as HTML; elsewhere their text is printed.

tokenmill.report("data/tokens/NAME", seq_len=2048)
tokenmill.show("data/tokens/NAME", row=12, seq_len=2048)
"""

import html
import io
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenmill.extras import naming_the_extra

if TYPE_CHECKING:  # the names are there without the extra, whose packages load when they are needed
    from rich.console import Console

WIDTH = 110  # characters
PRE = '<pre style="line-height:1.2">{code}</pre>'
FRAME = '<iframe srcdoc="{page}" style="width:100%;height:50rem;border:0"></iframe>'


@dataclass(frozen=True, repr=False)
class Shown:
    """What a command prints: `text`, and `html`, which a notebook draws."""

    text: str
    html: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html


def report(tokens: str | os.PathLike[str], seq_len: int = 2048, view: str | None = None) -> Shown:
    """The report on a token set, or on a view of it, as of `tokenmill report`: its page in a
    notebook, or else its short form.

    `tokens` is a folder, a name or an address. Raises what `RowLoader` raises for one that is none.
    """
    with naming_the_extra("report"):
        from tokenmill.look.report import Report, find, print_short
        from tokenmill.look.report_page import render

    findings = find(Report(os.fspath(tokens), seq_len, view=view))
    console = _console()
    print_short(findings, seq_len, console)
    page = html.escape(render(findings, seq_len))
    return Shown(console.export_text(), FRAME.format(page=page))


def show(tokens: str | os.PathLike[str], **flags: Any) -> Shown:
    """What `tokenmill show` prints with these flags, as row=12, seq_len=2048: a row, a batch, a
    step or a document, decoded.

    ValueError or FileNotFoundError if there is no such row, or a flag is missing.
    """
    with naming_the_extra("report"):
        from tokenmill.look.show import Show
        from tokenmill.look.show import show as print_rows

    settings: dict[str, Any] = dict(flags)
    for name in ("row", "document"):
        if name in settings:
            settings[name] = str(settings[name])
    console = _console()
    print_rows(Show(os.fspath(tokens), **settings), console)
    code = console.export_html(inline_styles=True, code_format=PRE, clear=False)
    return Shown(console.export_text(), code)


def _console() -> "Console":
    """A console that prints nowhere, in a notebook neither."""
    from rich.console import Console

    return Console(
        file=io.StringIO(),
        record=True,
        width=WIDTH,
        soft_wrap=True,
        highlight=False,
        markup=False,
        emoji=False,
        force_jupyter=False,
    )
