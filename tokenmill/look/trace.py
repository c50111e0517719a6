"""From a training step back to its rows, their documents, and the source files' rows that these were.

    trace(token_set, settings, first=24_690, count=2)     rows 24,690 and 24,691 of the global order
    trace_nanochat(token_set, ..., rank=0, first, count)  of nanochat's rows of one rank
    SourceRows(token_set).find(entry, 17)                 "shard_00003.parquet row 1,041"

The rows before the first are counted, not planned: about 8 ms for a shard of 50,000 documents. A place
(epoch, shard of the epoch, row) is gone to at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile

import numpy as np

from tokenmill.batches.nanochat_rows import NanochatRows
from tokenmill.batches.pieces import Piece
from tokenmill.batches.planned import ShardPlans
from tokenmill.rows.skipped import Skipped, format_rows
from tokenmill.rows.stream import Position, RowStream
from tokenmill.store.shards import ShardEntry
from tokenmill.store.token_sets import TokenSet
from tokenmill.text.formats import SUFFIX


@dataclass(frozen=True)
class TracedRow:
    """A row of training, and what it is made of."""

    number: int | None  # in the global order, with nanochat of its rank; None where rows before it were not counted
    place: str | None  # epoch:shard:row, as skip_rows names it; with nanochat None
    pieces: list[Piece]


class Tracer:
    """The global order of the planned rows of a split, without their tokens.

    `order` is LoaderConfig.order, `skipped` what skip_rows left out from the beginning on.
    """

    def __init__(self, token_set: TokenSet, split: str, row_len: int, *, packing: str, order: dict, skipped: Skipped):
        self.plans = ShardPlans(token_set, split, row_len, packing=packing, **order)
        if not any(entry.tokens for entry in self.plans.shards):
            raise ValueError(f"{token_set.path}: split {split!r} has no documents, so no rows")
        self._shuffling = {"shuffle": order["shuffle"], "seed": order["seed"]}
        self._skipped = skipped

    def rows(self, first: int, count: int, start: Position | None = None) -> Iterator[TracedRow]:
        """`count` rows of the global order from its row `first` on, or from the `first` after a place."""
        stream = self._stream(lambda epoch, shard: self.plans.count_shard(shard), self._skipped)
        if start is not None:
            stream.seek(start)
        stream.skip(first)
        yield from self._take(stream, first if start is None else None, count)

    def row_at(self, epoch: int, shard: int, row: int) -> TracedRow:
        """The row at a place. ValueError where there is none."""
        stream = self._stream(self.plans.count_rows, {})
        stream.seek(Position(epoch, shard, row))
        (traced,) = self._take(stream, None, 1)
        return traced

    def _stream(self, count_rows, skipped: Skipped) -> RowStream:
        return RowStream(len(self.plans.shards), count_rows, skipped=skipped, **self._shuffling)

    def _take(self, stream: RowStream, number: int | None, count: int) -> Iterator[TracedRow]:
        for some in stream.take(count):
            shard = int(np.flatnonzero(stream.order(some.epoch) == some.shard)[0])
            for row in some.numbers:
                pieces = self.plans.rows(some.epoch, some.shard).pieces(row)
                yield TracedRow(number, format_rows(some.epoch, shard, range(row, row + 1)), pieces)
                number = None if number is None else number + 1


def trace_nanochat(
    token_set: TokenSet, split: str, row_len: int, *, rank: int, world_size: int, first: int, count: int
) -> Iterator[TracedRow]:
    """`count` of nanochat's rows of a rank, from its row `first` on; those before are picked again, 1G tokens/s."""
    rows = NanochatRows(token_set, split, row_len, rank=rank, world_size=world_size)
    rows.skip(first)
    for number in range(first, first + count):
        (pieces,) = rows.pieces(1)
        yield TracedRow(number, None, pieces)


class SourceRows:
    """Where the documents of a token set are from; each shard's record is read once."""

    def __init__(self, token_set: TokenSet):
        self._token_set = token_set
        self._record, self._rows_before = lru_cache(None)(token_set.record), lru_cache(None)(self._count_rows_before)

    def find(self, entry: ShardEntry, document: int) -> str:
        """The source file of a shard's document, and the row in it, from 0 (the line of a jsonl file from 1).

        Where documents of the shard were left out (null, empty), which of those with text it is.
        """
        record, before = self._record(entry), self._rows_before(entry)
        if _rows_read(record) == record["documents"]:
            suffix = SUFFIX.search(entry.source)
            kind = {"jsonl": "line", "parquet": "row"}.get(suffix[1] if suffix else "", "document")
            return f"{entry.source} {kind} {before + document + (kind == 'line'):,}"
        return f"{entry.source} {_among_those_with_text(record, document, before)}"

    def _count_rows_before(self, entry: ShardEntry) -> int:
        """Rows of the source file in the shards before this one."""
        earlier = takewhile(lambda other: other.name != entry.name, self._token_set.entries)
        return sum(_rows_read(self._record(other)) for other in earlier if other.source == entry.source)


def _rows_read(record: dict) -> int:
    """Rows of the source file that a shard was made of, with those that were left out."""
    return sum(record.get(count, 0) for count in ("documents", "null_documents", "empty_documents", "broken_lines"))


def _among_those_with_text(record: dict, document: int, before: int) -> str:
    source = record["source"]
    if "row_groups" not in source:
        return f"from row {before:,} on, document {document:,} of those with text"
    ends = np.cumsum(source["row_group_documents"])
    group = int(np.searchsorted(ends, document, side="right"))
    nth = document - (int(ends[group - 1]) if group else 0)
    return f"row group {source['row_groups'][group]}, document {nth:,} of those with text"
