"""What is known of each document of a token set, as tables of some shards at a time.

    for entries, rows in DocumentTables(token_set).batches(["score", "tokens"]):
        ...                                                    shards, and a pyarrow.Table

Every document has `tokens` (its length, BOS included), `shard`, `source_file` and `split`. All
other columns are those that `prepare --keep-columns` kept. One that has a name of these four is
called kept_tokens, and so on.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tokenmill.store.columns import KNOWN, META
from tokenmill.store.shards import ShardEntry, sources_of
from tokenmill.store.tables import kept_schema, merged, metadata_of
from tokenmill.store.token_sets import TokenSet

BATCH_DOCUMENTS = 1 << 20


class DocumentTables:
    """The tables of a token set.

    `columns` are the kept columns and their types, by the name here.
    """

    def __init__(self, token_set: TokenSet):
        self._token_set = token_set
        self.columns: dict[str, pa.DataType] = {}
        self._stored: dict[str, str] = {}  # the name in the files, by the name here
        for field in kept_schema(token_set):
            name = field.name
            if name.lower() in KNOWN:
                name = f"kept_{name}"
            for known in self.columns:
                if known.lower() == name.lower():
                    raise ValueError(
                        f"{token_set.display_name}: keeps columns {self._stored[known]!r} and "
                        f"{field.name!r}, which are both called {known} in rules; prepare it "
                        "again without one of them"
                    )
            self.columns[name] = field.type
            self._stored[name] = field.name

    def batches(
        self, columns: Sequence[str], entries: Sequence[ShardEntry] | None = None
    ) -> Iterator[tuple[list[ShardEntry], pa.Table]]:
        """The documents of all shards, in the order of the manifest, or of these, with these
        columns.

        ValueError if a shard lacks one.
        """
        if entries is None:
            entries = self._token_set.entries
        if any(name in self._stored for name in columns):
            self._require_metadata(entries)
        batch: list[ShardEntry] = []
        documents = 0
        for entry in entries:
            if batch and documents + entry.documents > BATCH_DOCUMENTS:
                yield batch, self._table(batch, columns)
                batch = []
                documents = 0
            batch.append(entry)
            documents += entry.documents
        if batch:
            yield batch, self._table(batch, columns)

    def _require_metadata(self, entries: Sequence[ShardEntry]) -> None:
        lacking = [
            entry.name for entry in entries if META.suffix not in self._token_set.record(entry)
        ]
        if lacking:
            first = ", ".join(lacking[:3])
            raise ValueError(
                f"{self._token_set.display_name}: expected metadata of all shards, found none of "
                f"{len(lacking):,}, as {first}; prepare them again with --keep-columns"
            )

    def _table(self, entries: Sequence[ShardEntry], columns: Sequence[str]) -> pa.Table:
        return merged([self._of_shard(entry, columns) for entry in entries])

    def _of_shard(self, entry: ShardEntry, names: Sequence[str]) -> pa.Table:
        columns: dict[str, Any] = self._kept_columns(entry, names)
        if "tokens" in names:
            columns["tokens"] = pa.array(self._token_set.open(entry).lengths)
        if "source_file" in names:
            columns["source_file"] = self._source_files(entry)
        if "shard" in names:
            columns["shard"] = _repeated([entry.name], [entry.documents])
        if "split" in names:
            columns["split"] = _repeated([entry.split], [entry.documents])
        if not columns:
            columns[""] = pa.nulls(entry.documents)
        return pa.table(columns)

    def _kept_columns(self, entry: ShardEntry, names: Sequence[str]) -> dict[str, Any]:
        stored = {name: self._stored[name] for name in names if name in self._stored}
        if not stored:
            return {}
        table = metadata_of(self._token_set, entry, list(stored.values()))
        for name in stored.values():
            if name not in table.column_names:
                there = ", ".join(table.column_names)
                raise ValueError(
                    f"{self._token_set.display_name}: shard {entry.name} keeps no column {name!r}, "
                    f"as others do, but {there}; prepare the set again under another --name"
                )
        columns = {}
        for name, in_file in stored.items():
            kind = self.columns[name]
            try:
                columns[name] = table.column(in_file).cast(kind)
            except pa.ArrowException as error:
                raise ValueError(
                    f"{self._token_set.display_name}: shard {entry.name} has {in_file!r} that is "
                    f"not {kind}, as the manifest says ({error}); prepare again"
                ) from error
        return columns

    def _source_files(self, entry: ShardEntry) -> pa.DictionaryArray:
        sources = sources_of(self._token_set.record(entry))
        counts = [entry.documents]
        if len(sources) > 1:
            counts = [source["documents"] for source in sources]
        return _repeated([source["file"] for source in sources], counts)


def _repeated(values: list[str], counts: list[int]) -> pa.DictionaryArray:
    """Each value so many times, stored once."""
    indices = np.repeat(np.arange(len(values), dtype=np.int32), counts)
    return pa.DictionaryArray.from_arrays(indices, pa.array(values))
