"""The metadata of a shard: the columns of its source that are kept beside the tokens.

`make_shard` writes them with the tokens.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tokenmill.store.shards import sources_of
from tokenmill.text.formats import KeptColumn, format_of
from tokenmill.text.kept_columns import nulls
from tokenmill.text.units import Documents, Unit


def kept_columns_of(unit: Unit) -> list[KeptColumn]:
    """The columns to keep of a unit's files; none if their formats have no columns."""
    if not any(file.format.has_columns for file in unit.files):
        return []
    return list(map(KeptColumn.parse, unit.parts[0].options.kept))


def kept_table(documents: Documents, kept: list[KeptColumn]) -> pa.Table:
    """The kept columns of some documents, null for those of a file whose format has no columns."""
    if documents.kept is not None:
        return documents.kept
    return nulls(list(dict.fromkeys(column.name.split(".")[0] for column in kept)), len(documents.texts))


def no_rows(kept: list[KeptColumn]) -> pa.Table:
    """The kept columns of no document, so that a shard without documents has them too."""
    return nulls(list(dict.fromkeys(column.name.split(".")[0] for column in kept)), 0)


def require_found(unit: Unit, missing: set[str], documents: int) -> None:
    """ValueError if no document of a shard has a column that is to be kept."""
    if missing and documents:
        names = ", ".join(sorted(missing))
        raise ValueError(
            f"{unit.parts[0].file.shown}: none of the {documents:,} documents of shard {unit.name} has {names}, which "
            f"--keep-columns names; check the name, or write {sorted(missing)[0]}? if documents may lack it"
        )


def lacking_columns(record: dict[str, Any], kept: Sequence[str]) -> list[str]:
    """The columns to keep that a shard was made without; none if its files have no columns."""
    have = {KeptColumn.parse(name).name for name in record.get("metadata", ())}
    has_columns = any(map(_has_columns, sources_of(record)))
    return [name for name in kept if has_columns and KeptColumn.parse(name).name not in have]


def _has_columns(source: dict[str, Any]) -> bool:
    entry = format_of(source["file"])
    return entry is None or entry.has_columns
