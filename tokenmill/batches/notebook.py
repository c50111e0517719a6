"""The next rows of a loader, and a mixture's forecast, as HTML for a notebook.

Of rows a bar is a row, a stretch of one colour a document.

It needs no package beside the loader's, so the documents are told by number and length, not by text.
"""

import html
from collections.abc import Iterable, Sequence

from tokenmill.batches.pieces import Piece

COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759", "#76b7b2", "#9c755f", "#edc948")


def draw(title: str, rows: list[list[Piece]]) -> str:
    """A caption and a bar for each row; hovering over a piece tells which document it is."""
    bars = "".join(_bar(pieces) for pieces in rows)
    return f'<div><div style="margin-bottom:4px"><code>{html.escape(title)}</code></div>{bars}</div>'


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A caption and a table of words."""
    lines = _line("th", heads) + "".join(_line("td", row) for row in rows)
    return f"<div><code>{html.escape(title)}</code><table>{lines}</table></div>"


def _line(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _bar(pieces: list[Piece]) -> str:
    total = sum(piece.length + piece.bos for piece in pieces)
    parts = "".join(_part(piece, index, total) for index, piece in enumerate(pieces))
    return f'<div style="display:flex;height:14px;margin:1px 0;max-width:900px">{parts}</div>'


def _part(piece: Piece, index: int, total: int) -> str:
    notes = ", after an inserted BOS" * piece.bos + ", filler" * piece.filler
    told = (
        f"document {piece.document:,} of shard {piece.shard.entry.name}: "
        f"{piece.length:,} tokens from {piece.start:,} on{notes}"
    )
    style = f"width:{100 * (piece.length + piece.bos) / total:.3f}%;background:{COLOURS[index % len(COLOURS)]}"
    faded = ";opacity:0.4" if piece.filler else ""
    return f'<div title="{html.escape(told)}" style="{style}{faded};border-right:1px solid #fff"></div>'
