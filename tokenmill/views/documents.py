"""What is known of each document of a token set, as tables of some shards at a time.

    for table in DocumentTables(token_set).batches(["score", "tokens"]):
        table.entries      the shards
        table.rows         a pyarrow.Table with a row for each of their documents

Every document has `tokens` (its length, BOS included), `shard`, `source_file` and `split`. All other columns are those
that `prepare --keep-columns` kept. One that has a name of these four is called kept_tokens, and so on.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tokenmill.store.columns import META
from tokenmill.store.shards import ShardEntry, sources_of
from tokenmill.store.tables import merged, metadata_of, read_schema
from tokenmill.store.token_sets import TokenSet

KNOWN = ("tokens", "shard", "source_file", "split")
BATCH_DOCUMENTS = 1 << 20


class DocumentTable(NamedTuple):
    """The documents of some consecutive shards."""

    entries: list[ShardEntry]
    rows: pa.Table


class DocumentTables:
    """The tables of a token set. `columns` are the kept columns, by the name that they have here, with their types."""

    def __init__(self, token_set: TokenSet):
        self._token_set = token_set
        self.columns: dict[str, pa.DataType] = {}
        self._kept: dict[str, str] = {}  # the name in the files, by the name here
        with_metadata = [entry for entry in token_set.entries if META.suffix in token_set.record(entry)][:1]
        for entry in with_metadata:
            for field in read_schema(token_set.column_path(entry, META.suffix)):
                name = field.name
                while name.lower() in KNOWN or name in self.columns:
                    name = f"kept_{name}"
                self.columns[name], self._kept[name] = field.type, field.name

    @property
    def names(self) -> list[str]:
        """The names of all columns."""
        return [*KNOWN, *self.columns]

    def batches(self, columns: Sequence[str], entries: Sequence[ShardEntry] | None = None) -> Iterator[DocumentTable]:
        """The documents of all shards, in the order of the manifest, or of these, with these columns."""
        held: list[ShardEntry] = []
        for entry in self._token_set.entries if entries is None else entries:
            if held and sum(one.documents for one in held) + entry.documents > BATCH_DOCUMENTS:
                yield self._table(held, columns)
                held = []
            held.append(entry)
        if held:
            yield self._table(held, columns)

    def _table(self, entries: list[ShardEntry], columns: Sequence[str]) -> DocumentTable:
        kept = [name for name in columns if name in self._kept]
        tables = [self._of_shard(entry, columns, kept) for entry in entries]
        return DocumentTable(entries, merged(tables))

    def _of_shard(self, entry: ShardEntry, columns: Sequence[str], kept: list[str]) -> pa.Table:
        found = {name: values for name, values in self._metadata(entry, kept).items() if name in columns}
        if "tokens" in columns:
            found["tokens"] = pa.array(self._token_set.open(entry).lengths)
        for name, value in (("shard", entry.name), ("split", entry.split)):
            if name in columns:
                found[name] = _repeated([value], [entry.documents])
        if "source_file" in columns:
            record = self._token_set.record(entry)
            sources = sources_of(record)
            counts = [one["documents"] for one in sources] if len(sources) > 1 else [entry.documents]
            found["source_file"] = _repeated([one["file"] for one in sources], counts)
        return pa.table(found) if found else pa.table({"": pa.nulls(entry.documents)})

    def _metadata(self, entry: ShardEntry, names: list[str]) -> dict[str, pa.ChunkedArray]:
        if not names:
            return {}
        if META.suffix not in self._token_set.record(entry):
            return {name: pa.nulls(entry.documents) for name in names}
        table = metadata_of(self._token_set, entry, [self._kept[name] for name in names])
        if missing := [name for name in names if self._kept[name] not in table.column_names]:
            raise ValueError(
                f"{self._token_set.display_name}: shard {entry.name} keeps no column {missing[0]!r}, as other shards "
                f"do, but {', '.join(table.column_names)}; prepare the set again under another --name"
            )
        return {name: table.column(self._kept[name]) for name in names}


def _repeated(values: list[str], counts: list[int]) -> pa.DictionaryArray:
    """Each value so many times, stored once."""
    return pa.DictionaryArray.from_arrays(np.repeat(np.arange(len(values), dtype=np.int32), counts), pa.array(values))
