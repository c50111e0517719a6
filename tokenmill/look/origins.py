"""Where a document is from: its source file, and the row or line there; and what its publisher calls it.

SourceRows(token_set).find(entry, 17)         "shard_00003.parquet row 1,041"
                                              "shard_00003.parquet row 1,041, id <urn:uuid:7fe8>"   with --keep-ids
"""

from functools import lru_cache
from itertools import takewhile

import numpy as np

from tokenmill.store.files import read_bounded
from tokenmill.store.shards import ShardEntry, shard_path, sources_of
from tokenmill.store.token_sets import TokenSet
from tokenmill.text.formats import kind_of

LEFT_OUT = ("null_documents", "empty_documents", "broken_lines", "oversized_documents")


class SourceRows:
    """Where the documents of a token set are from; each shard's record is read once."""

    def __init__(self, token_set: TokenSet):
        self._token_set = token_set
        self._record, self._rows_before = lru_cache(None)(token_set.record), lru_cache(None)(self._count_rows_before)
        self._ids = lru_cache(4)(self._read_ids)

    def find(self, entry: ShardEntry, document: int) -> str:
        """The source file of a shard's document, the row in it, from 0 (the line of a jsonl file from 1), and its id.

        Where documents of the shard were left out (null, empty, too long), which of those that were kept it is.
        """
        record = self._record(entry)
        ids = self._ids(entry) if "ids" in record else []
        told = f", id {ids[document]}" if document < len(ids) else ""
        return self._place(record, entry, document) + told

    def _place(self, record: dict, entry: ShardEntry, document: int) -> str:
        if len(sources_of(record)) == 1:
            source, left_out = record["source"], {key: record.get(key, 0) for key in LEFT_OUT}
            return _place_in(source, left_out, record["documents"], document, self._rows_before(entry))
        for source in sources_of(record):
            if document < source["documents"]:
                left_out = {key: source.get(key, 0) for key in LEFT_OUT}
                return _place_in(source, left_out, source["documents"], document, 0)
            document -= source["documents"]
        raise ValueError(f"{entry.name}: its record has fewer documents than it; damaged")

    def _count_rows_before(self, entry: ShardEntry) -> int:
        """Rows of the source file in the shards before this one."""
        earlier = takewhile(lambda other: other.name != entry.name, self._token_set.entries)
        return sum(_rows_read(self._record(other)) for other in earlier if other.source == entry.source)

    def _read_ids(self, entry: ShardEntry) -> list[str]:
        path = shard_path(self._token_set.path, entry.name, "ids")
        try:
            path = self._token_set.file(f"shards/{path.name}")
            data = read_bounded(path, self._record(entry)["ids"]["bytes"], "the documents' ids")
            return data.decode("utf-8", "replace").split("\n")[:-1]  # and not at U+2028, which an id may hold
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{path}: expected the documents' ids, as the shard's record says") from error


def _rows_read(record: dict) -> int:
    """Rows of the source file that a shard was made of, with those that were left out."""
    return sum(record.get(count, 0) for count in ("documents", *LEFT_OUT))


def _place_in(source: dict, left_out: dict, documents: int, document: int, before: int) -> str:
    """Where a file's document is, of `documents` of it in the shard; `before` rows of the file are in other shards."""
    if not any(left_out.values()):
        kind = {"jsonl": "line", "json": "line", "parquet": "row"}.get(kind_of(source["file"]) or "", "document")
        return f"{source['file']} {kind} {before + document + (kind == 'line'):,}"
    return f"{source['file']} {_among_those_kept(source, document, before)}"


def _among_those_kept(source: dict, document: int, before: int) -> str:
    if "row_groups" not in source:
        return f"from row {before:,} on, document {document:,} of those that were kept"
    ends = np.cumsum(source["row_group_documents"])
    group = int(np.searchsorted(ends, document, side="right"))
    nth = document - (int(ends[group - 1]) if group else 0)
    return f"row group {source['row_groups'][group]}, document {nth:,} of those that were kept"
