"""Finds where a document comes from: its source file, the row or line there, and the publisher's id.

SourceLocator(token_set).find(entry, 17)      "shard_00003.parquet row 1,041"
                                              "shard_00003.parquet row 1,041, id <urn:uuid:7fe8>"   with --keep-ids
"""

import json
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenmill.store.columns import META
from tokenmill.store.shards import ShardEntry, sources_of
from tokenmill.store.token_sets import TokenSet
from tokenmill.text.formats import format_of

if TYPE_CHECKING:
    import pyarrow as pa

LEFT_OUT = ("null_documents", "empty_documents", "broken_lines", "oversized_documents")


class SourceLocator:
    """Locates the documents of a token set in their source files. Each shard's record is read once."""

    def __init__(self, token_set: TokenSet):
        self._token_set = token_set
        self._record, self._rows_before = lru_cache(None)(token_set.record), lru_cache(None)(self._count_rows_before)
        self._ids = lru_cache(4)(self._read_ids)
        self._metadata = lru_cache(4)(self._read_metadata)

    def find(self, entry: ShardEntry, document: int) -> str:
        """The source file of a shard's document, its row there, from 0 (in a jsonl file its line, from 1), and its id.

        If documents of the shard were left out (null, empty, too long), its number among those that were kept.
        """
        record, ids = self._record(entry), self._ids(entry)
        return self._place(record, entry, document) + (f", id {ids[document]}" if document < len(ids) else "")

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

    def _read_ids(self, entry: ShardEntry) -> list[str]:
        """The id of each document of a shard, to be shown; none if ids were not kept."""
        record = self._record(entry)
        names = [source["id_column"] for source in sources_of(record) if source.get("id_column")]
        table = self._metadata(entry) if names else None
        if table is None:
            return []
        head, *fields = [names[0]] if names[0] in table.column_names else names[0].split(".")
        values = table.column(head).to_pylist()
        for field in fields:
            values = [None if value is None else value.get(field) for value in values]
        return [json.dumps(value, ensure_ascii=False, default=str) for value in values]

    def _place(self, record: dict, entry: ShardEntry, document: int) -> str:
        if len(sources_of(record)) == 1:
            source = record["source"]
            left_out = {key: record.get(key, 0) for key in LEFT_OUT} | _other_split(source)
            return _place_in(source, left_out, record["documents"], document, self._rows_before(entry))
        for source in sources_of(record):
            if document < source["documents"]:
                left_out = {key: source.get(key, 0) for key in LEFT_OUT} | _other_split(source)
                return _place_in(source, left_out, source["documents"], document, 0)
            document -= source["documents"]
        raise ValueError(f"{entry.name}: the shard is damaged: its record has fewer documents than the shard")

    def _count_rows_before(self, entry: ShardEntry) -> int:
        """Rows of the source file in the shards before this one."""
        earlier = takewhile(lambda other: other.name != entry.name, self._token_set.entries)
        return sum(_rows_read(self._record(other)) for other in earlier if other.sources[:1] == entry.sources[:1])


def _rows_read(record: dict) -> int:
    """Rows of the source file that a shard was made from, including those that were left out."""
    counted = sum(record.get(count, 0) for count in ("documents", *LEFT_OUT))
    return counted + sum(_other_split(record["source"]).values())


def _other_split(source: dict) -> dict[str, int]:
    """How many documents of the file are in the other split, as --val-fraction puts them there."""
    return {"other_split": source.get("other_split", 0)}


def _place_in(source: dict, left_out: dict, documents: int, document: int, before: int) -> str:
    """The place of a document in its source file.

    It is one of the file's `documents` documents in the shard; `before` rows of the file are in earlier shards.
    """
    if not any(left_out.values()):
        entry = format_of(source["file"])
        kind, first = (entry.document, entry.first) if entry else ("document", 0)
        return f"{source['file']} {kind} {before + document + first:,}"
    return f"{source['file']} {_among_those_kept(source, document, before)}"


def _among_those_kept(source: dict, document: int, before: int) -> str:
    if "row_groups" not in source:
        return f"from row {before:,} on, document {document:,} of those that were kept"
    ends = np.cumsum(source["row_group_documents"])
    group = int(np.searchsorted(ends, document, side="right"))
    nth = document - (int(ends[group - 1]) if group else 0)
    return f"row group {source['row_groups'][group]}, document {nth:,} of those that were kept"
