"""The types of the columns that are kept: each column has one in the whole set.

    types = ColumnTypes(former)           of a set that grows, those of its views' rules: they stay
    types.add(schema, "b.jsonl")          ValueError: `score` is int64 in a.jsonl, string in b.jsonl

Whole numbers and fractions go together, as double, if a double holds the whole numbers exactly.
That is known once all shards are made: `settle_types`.
"""

import io
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.prepare.destination import Destination
from tokenmill.prepare.made import Record
from tokenmill.store.columns import META
from tokenmill.store.shards import sources_of
from tokenmill.store.tables import schema_of_text, text_of_schema, unified
from tokenmill.text.documents import read_unit
from tokenmill.text.formats import ReadOptions
from tokenmill.text.plan import Unit

MOST_FILES = 16  # that are looked at before anything is made
REMEDY = (
    "make it one type, leave it out of --keep-columns, or name a field of it there, as column.field"
)


class ColumnTypes:
    """The type of each column so far, and a file that has it."""

    def __init__(self, former: pa.Schema | None = None):
        self.former = pa.schema([]) if former is None else former
        self._types: dict[str, tuple[pa.DataType, str]] = {}
        self.add(self.former, "the set as it is")

    @classmethod
    def of(cls, prepared: Record) -> "ColumnTypes":
        """Those of a set that grows, of what its manifest says of how it was made."""
        text = prepared.get("metadata")
        return cls(schema_of_text(text) if text else None)

    @property
    def schema(self) -> pa.Schema:
        """The columns with their types."""
        return pa.schema([(name, kind) for name, (kind, _) in self._types.items()])

    def facts(self) -> dict[str, str]:
        """What a manifest says of them."""
        return {"metadata": text_of_schema(self.schema)} if self._types else {}

    def add(self, schema: pa.Schema, file: str) -> None:
        """Adds the types of a file's columns. ValueError for two that do not go together."""
        for field in schema:
            known, where = self._types.get(field.name, (pa.null(), file))
            named = (
                f"column {field.name!r} to keep is {known} in {where} and {field.type} in {file}"
            )
            try:
                kind = unified(known, field.type)
            except pa.ArrowException as error:
                raise ValueError(f"{named}; {REMEDY}") from error
            if kind not in (known, self._former_type(field.name) or kind):
                raise ValueError(
                    f"{named}, and a set that grows keeps its types, which the rules of views "
                    f"depend on; make it {known}, or prepare under another --name"
                )
            self._types[field.name] = (kind, where if kind == known else file)

    def add_record(self, record: Record) -> None:
        """Adds the types of a shard."""
        if "metadata" in record:
            self.add(schema_of_text(record["metadata"]), sources_of(record)[0]["file"])

    def _former_type(self, name: str) -> pa.DataType | None:
        """The type in the set that grows; None if it, or a part of it, has no value there."""
        if name not in self.former.names:
            return None
        kind = self.former.field(name).type
        return None if "null" in str(kind) else kind

    def without_values(self, names: Iterable[str]) -> list[str]:
        """Those of the columns, or fields, that are null everywhere."""
        empty = []
        for name in names:
            head, *fields = name.split(".")
            kind: Any = self._types[head][0] if head in self._types else None
            for field in fields:
                kind = kind.field(field).type if isinstance(kind, pa.StructType) else kind
            if kind == pa.null():
                empty.append(name)
        return empty


def look_ahead(units: Sequence[Unit], options: ReadOptions, types: ColumnTypes) -> None:
    """Adds the types at the beginning of a local file of each folder and format.

    So most of what does not go together is found before anything is made.
    """
    beginnings: dict[tuple[str, str], Unit] = {}
    for unit in units if options.kept else ():
        for file in unit.files:
            folder, _, _ = file.name.rpartition("/")
            if file.is_local and file.is_there:
                beginnings.setdefault((folder, file.format.name), Unit((file,), 0, unit.n))
    for beginning in list(beginnings.values())[:MOST_FILES]:
        batch = None
        with suppress(ValueError, OSError):  # which whoever makes the unit says
            batch = next(read_unit(beginning, options), None)
        if batch is not None and batch.kept is not None:
            types.add(batch.kept.schema, beginning.files[0].name)


def settle_types(
    types: ColumnTypes, records: Sequence[Record], destination: Destination
) -> ColumnTypes:
    """The types of the set of these shards.

    ValueError if they do not go together, or a shard has a value that its column's type in the set
    does not hold.
    """
    settled = ColumnTypes(types.former)  # in the order of the records, not of the workers
    for record in records:
        settled.add_record(record)
    _require_exact(records, settled.schema, destination)
    return settled


def _require_exact(records: Sequence[Record], schema: pa.Schema, destination: Destination) -> None:
    for record in records:
        if META.suffix not in record or schema_of_text(record["metadata"]) == schema:
            continue
        data = destination.read(f"shards/{record['name']}.{META.suffix}")
        table = pq.read_table(io.BytesIO(data))
        for name in table.column_names:
            kind = schema.field(name).type
            try:
                table.column(name).cast(kind)
            except pa.ArrowException as error:
                file = sources_of(record)[0]["file"]
                raise ValueError(
                    f"{file}: column {name!r} to keep is {table.column(name).type} there and "
                    f"{kind} in the whole set, which does not hold all its values ({error}); "
                    f"{REMEDY}"
                ) from error
