"""What is known of each document of a token set, as tables of some shards at a time.

    for entries, rows in DocumentTables(token_set).batches(["score", "tokens"]):     shards, and a pyarrow.Table

Every document has `tokens` (its length, BOS included), `shard`, `source_file` and `split`. All other columns are those
that `prepare --keep-columns` kept. One that has a name of these four is called kept_tokens, and so on.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tokenmill.store.columns import META
from tokenmill.store.shards import ShardEntry, sources_of
from tokenmill.store.tables import merged, metadata_of, read_schema
from tokenmill.store.token_sets import TokenSet

KNOWN = ("tokens", "shard", "source_file", "split")
BATCH_DOCUMENTS = 1 << 20


class DocumentTables:
    """The tables of a token set. `columns` are the kept columns, by the name that they have here, with their types."""

    def __init__(self, token_set: TokenSet):
        self._token_set = token_set
        self.columns: dict[str, pa.DataType] = {}
        self._kept: dict[str, str] = {}  # the name in the files, by the name here
        some = next((entry for entry in token_set.entries if META.suffix in token_set.record(entry)), None)
        for field in read_schema(token_set.column_path(some, META.suffix)) if some else ():
            name = field.name
            while name.lower() in KNOWN or name in self.columns:
                name = f"kept_{name}"
            self.columns[name], self._kept[name] = field.type, field.name

    def batches(
        self, columns: Sequence[str], entries: Sequence[ShardEntry] | None = None
    ) -> Iterator[tuple[list[ShardEntry], pa.Table]]:
        """The documents of all shards, in the order of the manifest, or of these, with these columns. ValueError if a
        shard lacks one.
        """
        held, some = list[ShardEntry](), self._token_set.entries if entries is None else entries
        lacking = [entry.name for entry in some if META.suffix not in self._token_set.record(entry)]
        if lacking and any(name in self._kept for name in columns):
            raise ValueError(
                f"{self._token_set.display_name}: expected metadata of all shards, found none of {len(lacking):,}, as "
                f"{', '.join(lacking[:3])}; prepare them again with --keep-columns"
            )
        for entry in [*some, None]:
            if held and (entry is None or sum(one.documents for one in [*held, entry]) > BATCH_DOCUMENTS):
                yield held, merged([self._of_shard(one, columns) for one in held])
                held = []
            held += [entry] if entry else []

    def _of_shard(self, entry: ShardEntry, columns: Sequence[str]) -> pa.Table:
        found, names = dict[str, Any](), {name: self._kept[name] for name in columns if name in self._kept}
        if names:
            table = metadata_of(self._token_set, entry, list(names.values()))
            if missing := [name for name in names.values() if name not in table.column_names]:
                raise ValueError(
                    f"{self._token_set.display_name}: shard {entry.name} keeps no column {missing[0]!r}, as others do, "
                    f"but {', '.join(table.column_names)}; prepare the set again under another --name"
                )
            found = {name: table.column(own) for name, own in names.items()}
        if "tokens" in columns:
            found["tokens"] = pa.array(self._token_set.open(entry).lengths)
        if "source_file" in columns:
            sources = sources_of(self._token_set.record(entry))
            counts = [one["documents"] for one in sources] if len(sources) > 1 else [entry.documents]
            found["source_file"] = _repeated([one["file"] for one in sources], counts)
        for name, value in (("shard", entry.name), ("split", entry.split)):
            if name in columns:
                found[name] = _repeated([value], [entry.documents])
        return pa.table(found) if found else pa.table({"": pa.nulls(entry.documents)})


def _repeated(values: list[str], counts: list[int]) -> pa.DictionaryArray:
    """Each value so many times, stored once."""
    return pa.DictionaryArray.from_arrays(np.repeat(np.arange(len(values), dtype=np.int32), counts), pa.array(values))
