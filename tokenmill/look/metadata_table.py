"""The table of what is known of rows' documents: `tokenmill show --columns`."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from tokenmill.feed.pieces import Piece
from tokenmill.look.documents import SourceLocator
from tokenmill.look.steps import ShownRow
from tokenmill.messages import sanitize


def metadata_table(
    rows: Sequence[ShownRow], locate: Callable[[Piece], SourceLocator], columns: str
) -> Table:
    """The table of these rows' documents.

    `columns` are names, separated by commas, or "all". `locate` returns what knows the metadata of
    a piece's document. ValueError if no document has one of them.
    """
    shown = []  # the place of each row, its piece, and what is known of the document
    known: dict[str, None] = {}
    for row in rows:
        for piece in row.pieces:
            if piece.filler or piece.is_padding:
                continue
            facts = locate(piece).metadata(piece.shard.entry, piece.document)
            shown.append((row.place, piece, facts))
            known |= dict.fromkeys(facts)
    names = list(known)
    if columns != "all":
        names = [name.strip() for name in columns.split(",")]
    for name in names:
        _require_known(name, known, columns)
    table = Table("row", "document", "tokens", *map(sanitize, names))
    for place, piece, facts in shown:
        document = sanitize(locate(piece).find(piece.shard.entry, piece.document))
        cells = [sanitize(_cell(facts, name)) for name in names]
        table.add_row(place, document, f"{piece.length:,}", *cells)
    return table


def _require_known(name: str, known: dict[str, None], columns: str) -> None:
    head, _, _ = name.partition(".")
    if name in known or head in known:
        return
    there = ", ".join(known) or "none"
    raise ValueError(
        f"--columns {columns}: no document of these rows has {name!r}; there are {there}; prepare "
        "with --keep-columns to have more"
    )


def _cell(facts: dict[str, Any], name: str) -> str:
    """A value, or a field of a struct; nothing for a null."""
    path = [name] if name in facts else name.split(".")
    value: Any = facts
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return "" if value is None else str(value)
