"""Which documents the tokens of a batch are of, and what is known of them.

    pieces, entries = pieces_with_shards(batch)
    KeptColumn(token_set, "score").of(entries[0])       a value for each document of a shard

A row of 8 + 1 tokens, of a whole document of 4 tokens and the first 5 of another, is two pieces:

    row 0, begin 0, end 4, document 17, start 0
    row 0, begin 4, end 9, document 3, start 0
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokenmill.feed.batch import Batch
from tokenmill.feed.pieces import Piece
from tokenmill.store.columns import META
from tokenmill.store.shards import ShardEntry
from tokenmill.store.token_sets import TokenSet
from tokenmill.threads import cached_property

if TYPE_CHECKING:
    import pyarrow as pa

SHARDS_HELD = 256  # whose columns are held: a window's rows are of some hundred shards


class BatchPieces(NamedTuple):
    """The pieces of a batch, row by row: arrays with a value for each piece, (pieces,).

    A piece is a part of one document. Tokens `begin` to before `end` of a row of T + 1 tokens are
    of it, an inserted BOS included, so `loss[row, begin : end - 1]` has the losses of its tokens
    after the first.
    """

    row: np.ndarray  # int64
    begin: np.ndarray  # int64
    end: np.ndarray  # int64
    source: np.ndarray  # int64: the number in `loader.sources`
    shard: np.ndarray  # str
    document: np.ndarray  # int64: its number in the shard
    start: np.ndarray  # int64: the first token of the document that is there
    filler: np.ndarray  # bool: whether it is a copy that fills the end of the row


def pieces_with_shards(batch: Batch) -> tuple[BatchPieces, list[ShardEntry]]:
    """The pieces of a batch, without padding, and the shard of each."""
    in_parts: list[tuple[int, list[Piece]]] = []
    for part in batch.parts:
        for row in range(part.first, part.last):
            in_parts.append((part.source, part.table.pieces(row)))
    values: list[tuple[Any, ...]] = []
    entries = []
    for row, (source, pieces) in enumerate(batch.in_order(in_parts)):
        end = 0
        for piece in pieces:
            begin = end
            end += piece.length + piece.bos
            if piece.is_padding:
                continue
            entry = piece.shard.entry
            entries.append(entry)
            values.append(
                (row, begin, end, source, entry.name, piece.document, piece.start, piece.filler)
            )
    if not values:
        values.append((0, 0, 0, 0, "", 0, 0, False))  # for the types; it is cut off
    columns = zip(*values, strict=True)
    return BatchPieces(*(np.array(column)[: len(entries)] for column in columns)), entries


class KeptColumn:
    """A column that `tokenmill prepare --keep-columns` kept, of some shards at a time."""

    def __init__(self, token_set: TokenSet, name: str):
        self._token_set = token_set
        self._name = name
        self.of = lru_cache(SHARDS_HELD)(self._read)

    @cached_property
    def schema(self) -> "pa.Schema":
        """All columns that the set has."""
        from tokenmill.store.tables import kept_schema  # and pyarrow

        return kept_schema(self._token_set)

    def _read(self, entry: ShardEntry) -> "pa.ChunkedArray | None":
        """A value for each document of a shard; None if the column was not kept."""
        if META.suffix not in self._token_set.record(entry) or self._name not in self.schema.names:
            return None
        from tokenmill.store.tables import metadata_of

        table = metadata_of(self._token_set, entry, [self._name])
        if not table.column_names:
            return None
        return table.column(self._name).cast(self.schema.field(self._name).type)


def kept_columns(token_sets: Iterable[TokenSet], name: str) -> list[KeptColumn]:
    """The column of each set. ValueError if none of them has it."""
    columns = [KeptColumn(token_set, name) for token_set in token_sets]
    known = dict.fromkeys(chain.from_iterable(column.schema.names for column in columns))
    if name not in known:
        listed = ", ".join(known) or "none"
        raise ValueError(
            f"no token set has a column {name!r}; the columns that --keep-columns kept: {listed}"
        )
    return columns
