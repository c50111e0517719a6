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
    knows the metadata of a piece's document. ValueError if no document has one of them.
    """
    shown = [(row, one) for row in rows for one in row.pieces if not (one.filler or one.is_padding)]
    facts = [locate(piece).metadata(piece.shard.entry, piece.document) for _, piece in shown]
    known = list(dict.fromkeys(name for own in facts for name in own))
    names = known if columns == "all" else [name.strip() for name in columns.split(",")]
    if unknown := [name for name in names if name.partition(".")[0] not in known and name not in known]:
        found = f"there are {', '.join(known) or 'none'}; prepare with --keep-columns to have more"
        raise ValueError(f"--columns {columns}: no document of these rows has {unknown[0]!r}; {found}")
    table = Table("row", "document", "tokens", *map(sanitize, names))
    for (row, piece), own in zip(shown, facts, strict=True):
        place = sanitize(locate(piece).find(piece.shard.entry, piece.document))
        table.add_row(row.place, place, f"{piece.length:,}", *(sanitize(_cell(own, name)) for name in names))
    return table


def _cell(facts: dict[str, Any], name: str) -> str:
    """A value, or a field of a struct; nothing for a null."""
    value: Any = facts
    for key in [name] if name in facts else name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return "" if value is None else str(value)
