"""Finds where a document comes from: its source file, the row or line there, and the publisher's id.

SourceLocator(token_set).find(entry, 17)      "shard_00003.parquet row 1,041"
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenmill.store.columns import META
from tokenmill.store.shards import ShardEntry, sources_of
from tokenmill.store.token_sets import TokenSet
from tokenmill.text.formats import format_of

if TYPE_CHECKING:
    import pyarrow as pa


class SourceLocator:
    """Locates the documents of a token set in their source files. Each shard's record is read once."""

    def __init__(self, token_set: TokenSet):
        self._token_set = token_set
        self._record, self._metadata = lru_cache(None)(token_set.record), lru_cache(4)(self._read_metadata)

    def find(self, entry: ShardEntry, document: int) -> str:
        """The source file of a shard's document, and its row there, from 0 (in a jsonl file its line, from 1).

        If rows of the file are not in the split, or were left out, it is the number among those that were kept.
        """
        for source in sources_of(self._record(entry)):
            if document < source.get("documents", entry.documents):
                return self._place(source, entry, document)
            document -= source["documents"]
        raise ValueError(f"{entry.name}: the shard is damaged: its record has fewer documents than the shard")

    def _place(self, source: dict[str, Any], entry: ShardEntry, document: int) -> str:
        file, before, is_whole = source["file"], 0, source.get("validates", 0.0) in (0.0, 1.0)
        ours = [other for other in self._token_set.entries if file in other.sources]
        for other in ours if len(ours) > 1 else [entry]:
            own = next(one for one in sources_of(self._record(other)) if one["file"] == file)
            is_whole = is_whole and not own.get("left_out")
            if other.split == entry.split and self._token_set.entries.index(other) < self._token_set.entries.index(
                entry
            ):
                before += own.get("documents", other.documents)
        known = format_of(file)
        if is_whole and known is not None:
            return f"{file} {known.document} {before + document + known.first:,}"
        if "row_groups" not in source:
            return f"{file}, document {before + document:,} of those that are kept in {entry.split}"
        ends = np.cumsum(source["row_group_documents"])
        group = int(np.searchsorted(ends, document, side="right"))
        nth = document - (int(ends[group - 1]) if group else 0)
        return (
            f"{file} row group {source['row_groups'][group]}, document {nth:,} of those that are kept in {entry.split}"
        )

    def metadata(self, entry: ShardEntry, document: int) -> dict[str, Any]:
        """What the publisher says of a shard's document, as far as it was kept: by column."""
        table = self._metadata(entry)
        if table is None:
            return {}
        return {name: table.column(name)[document].as_py() for name in table.column_names}

    def _read_metadata(self, entry: ShardEntry) -> "pa.Table | None":
        """The metadata of a shard's documents, a row each; None if none was kept."""
        if META.suffix not in self._record(entry):
            return None
        from tokenmill.store.tables import metadata_of  # and pyarrow

        return metadata_of(self._token_set, entry)
