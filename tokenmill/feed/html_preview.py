"""Draws the next rows of a loader, and a mixture's forecast, as HTML for notebooks.

Each row is a bar, and each stretch of one color in it is a document. A document that continues in another row has the
same color there, as long as there are colors: the ninth document has that of the first. The preview needs no packages
beyond those of the loader, so it identifies documents by number and length instead of showing their text.
"""

import html
from collections.abc import Iterable, Sequence

from tokenmill.feed.pieces import Piece

COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759", "#76b7b2", "#9c755f", "#edc948")


def draw(title: str, rows: list[list[Piece]]) -> str:
    """A caption and a bar for each row. The tooltip of a piece says which document it is."""
    colours = _colours(piece for pieces in rows for piece in pieces)
    bars = "".join(_bar(pieces, colours) for pieces in rows)
    return f'<div><div style="margin-bottom:4px"><code>{html.escape(title)}</code></div>{bars}</div>'


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A caption and a table of text cells."""
    lines = _line("th", heads) + "".join(_line("td", row) for row in rows)
    return f"<div><code>{html.escape(title)}</code><table>{lines}</table></div>"


def _line(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _colours(pieces: Iterable[Piece]) -> dict[tuple[str, int], str]:
    """A color for each document, by shard and number, in the order in which they come."""
    documents = dict.fromkeys(_document(piece) for piece in pieces if not piece.is_padding)
    return {document: COLOURS[number % len(COLOURS)] for number, document in enumerate(documents)}


def _document(piece: Piece) -> tuple[str, int]:
    return piece.shard.entry.name, piece.document


def _bar(pieces: list[Piece], colours: dict[tuple[str, int], str]) -> str:
    total = sum(piece.length + piece.bos for piece in pieces)
    parts = "".join(_part(piece, colours, total) for piece in pieces)
    return f'<div style="display:flex;height:14px;margin:1px 0;max-width:900px">{parts}</div>'


def _part(piece: Piece, colours: dict[tuple[str, int], str], total: int) -> str:
    notes = ", after an inserted BOS" * piece.bos + ", filler" * piece.filler
    tooltip = (
        f"{piece.length:,} tokens of padding"
        if piece.is_padding
        else f"document {piece.document:,} of shard {piece.shard.entry.name}: "
        f"{piece.length:,} tokens from {piece.start:,} on{notes}"
    )
    colour = "transparent" if piece.is_padding else colours[_document(piece)]
    style = f"width:{100 * (piece.length + piece.bos) / total:.3f}%;background:{colour}"
    faded = ";opacity:0.4" if piece.filler else ""
    return f'<div title="{html.escape(tooltip)}" style="{style}{faded};border-right:1px solid #fff"></div>'
