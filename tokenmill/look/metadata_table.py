"""What was in a batch, by the metadata of its documents: `tokenmill show --step 12345 --columns score,language`

    row   document                        tokens   score   language
    0     shard_00003.parquet row 1,041    1,210   3.2     en
    0     shard_00001.parquet row 17         838   1.1     de

A line for each piece of a row, without filler and padding.
"""

from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from tokenmill.feed.pieces import Piece
from tokenmill.look.source_places import SourceLocator
from tokenmill.look.steps import ShownRow
from tokenmill.sanitize import sanitize


def metadata_table(rows: Sequence[ShownRow], locate: Callable[[Piece], SourceLocator], columns: str) -> Table:
    """The table of these rows' documents. `columns` are names, separated by commas, or "all". `locate` returns what
    knows the metadata of a piece's document.

    Raises ValueError if no document has one of them.
    """
    lines: list[tuple[str, str, int, dict[str, Any]]] = []
    for row in rows:
        for piece in row.pieces:
            if piece.filler or piece.is_padding:
                continue
            locator, entry = locate(piece), piece.shard.entry
            facts = locator.metadata(entry, piece.document)
            lines.append((row.place, locator.find(entry, piece.document), piece.length, facts))
    known = list(dict.fromkeys(name for *_, facts in lines for name in facts))
    names = known if columns == "all" else [name.strip() for name in columns.split(",")]
    for name in names:
        if name.partition(".")[0] not in known and name not in known:
            raise ValueError(
                f"--columns {columns}: no document of these rows has {name!r}; there are {', '.join(known) or 'none'}: "
                "`tokenmill prepare --keep-columns` adds columns"
            )
    table = Table("row", "document", "tokens", *map(sanitize, names))
    for name, place, tokens, facts in lines:
        table.add_row(name, sanitize(place), f"{tokens:,}", *(sanitize(_cell(facts, column)) for column in names))
    return table


def _cell(facts: dict[str, Any], name: str) -> str:
    """A value, or a field of a struct; nothing for a null."""
    value: Any = facts
    for key in [name] if name in facts else name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return "" if value is None else str(value)
