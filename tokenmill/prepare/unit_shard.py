"""A shard of a unit that is being written, and what its record says of its documents."""

from collections import Counter, defaultdict
from typing import Any

import pyarrow as pa

from tokenmill.prepare.encode import Encoded
from tokenmill.prepare.made import Record
from tokenmill.store.columns import META
from tokenmill.store.shard_writer import ShardWriter
from tokenmill.store.shards import Split


class UnitShard:
    """A writer of a shard, which counts."""

    def __init__(self, writer: ShardWriter, split: Split):
        self.writer = writer
        self.split = split
        self.text_bytes = 0
        # how many documents are of each row group, by file
        self._documents: dict[int, Counter[int | None]] = defaultdict(Counter)
        self._counts = Counter[str]()
        self._refused: dict[str, dict[str, Any]] = {}  # by the reason

    @property
    def name(self) -> str:
        return self.writer.name

    def write(self, encoded: Encoded) -> None:
        """Appends some documents."""
        self.writer.write(encoded.tokens, encoded.lengths)
        for suffix, values in encoded.columns.items():
            self.writer.write_column(suffix, values)
        self.text_bytes += encoded.text_bytes
        for reason, batch, number in encoded.refused:
            if reason not in self._refused:  # to find a place, a file may be read again
                self._refused[reason] = {"count": 0, "first": (batch.file, batch.place(number))}
            self._refused[reason]["count"] += 1
        self._counts += Counter(
            broken_conversations=len(encoded.broken), refused_conversations=len(encoded.refused)
        )
        for batch in encoded.batches:
            self._documents[batch.file][batch.row_group] += len(batch.texts)
            if batch.kept is not None:
                self.writer.write_column(META.suffix, batch.kept)

    def finish(self, sources: list[Record], more: Record, columns: pa.Schema) -> Record:
        """Makes the shard count; returns its record.

        `sources` are the facts of its files, `columns` the types of the columns that are kept.
        """
        if columns.names:
            self.writer.write_column(META.suffix, columns.empty_table())
        files = []
        for number, facts in enumerate(sources):
            by_group = self._documents[number]
            source = facts | {"documents": by_group.total()}
            if by_group and None not in by_group:
                source["row_groups"] = list(by_group)
                source["row_group_documents"] = list(by_group.values())
            files.append(source)
        record: Record = {"source": files[0] if len(files) == 1 else {"files": files}}
        record["text_bytes"] = self.text_bytes
        record |= self._counts
        for refused in self._refused.values():
            file, place = refused["first"]
            refused["first"] = f"{sources[file]['file']}: {place}"
        if self._refused:
            record["refused"] = dict(sorted(self._refused.items()))
        return self.writer.finish(record | more)
