"""nanochat's rows of a token set, token for token, for one rank: where its documents come from, and their copying.

Rank r of W reads, file by file in name order and epoch after epoch, the row groups r, r + W, r + 2W ... in refills
of up to 128 documents that never cross a row group (nanochat, `dataloader.py`). rows/nanochat.py picks of them.
A document's place is whole numbers that grow: visit of a shard << 32 | document in it.

The position is the rows dealt so far: going there picks them again without copying, from lengths. The
picks depend on how many ranks there are, so it holds for that number alone.

Left out: an empty text is a document of BOS alone in nanochat; token sets have none.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import count, groupby
from typing import NamedTuple

import numpy as np

from tokenmill.batches.pieces import Piece, pieces_of
from tokenmill.batches.table import not_bos
from tokenmill.batches.window_rows import Unchanged
from tokenmill.rows.nanochat import REFILL_DOCUMENTS, BestFitBuffer
from tokenmill.store.shards import Shard, ShardEntry, sources_of
from tokenmill.store.token_sets import TokenSet

SHARDS_HELD = 8  # open at once; the longest documents stay in the buffer while many shards go by
DOCUMENT = 32  # bits below a place's visit


class RankDocuments:
    """The documents of one rank, epoch after epoch, without end: refills for the buffer, and where their tokens are.

    ValueError where the rank has no row group with a document in any file: nanochat would look for ever.
    """

    def __init__(self, token_set: TokenSet, split: str, rank: int, world_size: int):
        self.token_set, self.rank, self.world_size = token_set, rank, world_size
        self.epoch = 0  # of the last refill
        self._files = [list(shards) for _, shards in groupby(token_set.split(split), key=lambda entry: entry.source)]
        self._visits: list[ShardEntry] = []  # the shard of each visit
        self._shard = lru_cache(SHARDS_HELD)(token_set.open)
        self._unchanged: dict[str, Unchanged] = {}  # by the shard's name
        if not any(True for file in self._files for _ in self._row_groups(file)):
            raise ValueError(
                f"{token_set.told}: packing 'nanochat' deals whole row groups to ranks, and rank {rank} of "
                f"{world_size} gets none of split {split!r}; use fewer ranks, packing='best_fit', "
                "or source files of more row groups"
            )

    def refills(self) -> Iterator[list[tuple[int, int]]]:
        """(length, place) of up to 128 documents of one row group, again and again."""
        for epoch in count():
            self.epoch = epoch
            for file in self._files:
                for entry, groups in self._row_groups(file):
                    yield from self._refills_of(entry, groups)

    def find(self, place: int) -> tuple[Shard, int]:
        """The shard of a document, and its first token there. ValueError where the shard changed on disk."""
        visit, document = place >> DOCUMENT, place & (1 << DOCUMENT) - 1
        entry = self._visits[visit]
        shard = self._shard(entry)
        self._unchanged.setdefault(entry.name, Unchanged()).require([shard])
        return shard, shard.offsets.data[document]

    def _refills_of(self, entry: ShardEntry, groups: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
        lengths, base = self._shard(entry).lengths, len(self._visits) << DOCUMENT
        self._visits.append(entry)
        for first, last in groups:
            for start in range(first, last, REFILL_DOCUMENTS):
                stop = min(start + REFILL_DOCUMENTS, last)
                yield list(zip(lengths[start:stop].tolist(), range(base + start, base + stop), strict=True))

    def _row_groups(self, file: list[ShardEntry]) -> Iterator[tuple[ShardEntry, list[tuple[int, int]]]]:
        """This rank's row groups in the shards of a source file: (first, last) document of each."""
        for entry in file:
            sources, before = sources_of(self.token_set.record(entry)), 0
            for source in sources:
                if "row_groups" not in source:
                    raise ValueError(
                        f"{self.token_set.told}: the record of shard {entry.name} does not say which row groups it "
                        "holds, and packing 'nanochat' deals row groups to ranks; use packing='best_fit'"
                    )
                ends = np.cumsum([before, *source["row_group_documents"]]).tolist()
                spans = zip(source["row_groups"], ends[:-1], ends[1:], strict=True)
                mine = [(first, last) for group, first, last in spans if group % self.world_size == self.rank]
                before = ends[-1]
                if any(first < last for first, last in mine):
                    yield entry, mine


class Picked(NamedTuple):
    """This rank's part of `total` rows: (place, tokens taken) of each document of each row."""

    rows: list[list[tuple[int, int]]]
    total: int


class NanochatRows:
    """The rows of one split for one rank, as nanochat deals them; the same verbs as `PlannedRows`.

    One epoch is a pass of this rank through its row groups; rows do not end with one.
    """

    def __init__(self, token_set: TokenSet, split: str, row_len: int, *, rank: int, world_size: int):
        self.world_size, self._bos_id, self._dtype = world_size, token_set.bos_id, token_set.numpy_dtype
        self._begin = lambda: RankDocuments(token_set, split, rank, world_size)
        self._row_len = row_len
        self._dealt = self._sought = 0
        self._start()

    @property
    def position(self) -> dict[str, int]:
        """The rows that each rank was dealt."""
        return {"rows": self._dealt}

    @property
    def epoch(self) -> int:
        """The epoch that this rank reads documents of, from 0."""
        return self._documents.epoch

    def interrupt(self) -> None:
        """Nothing runs ahead of these rows."""

    def seek(self, position: dict[str, int]) -> None:
        """Goes to a position by picking the rows before it: from here on, or again where it lies behind."""
        if position["rows"] < 0:
            raise ValueError(f"no such row: {position['rows']}")
        if position["rows"] < self._dealt:
            self._start()
        self.skip(position["rows"] - self._dealt)
        self._sought = self._dealt

    @property
    def passed(self) -> int:
        """Rows of all ranks that were dealt or skipped since the last seek."""
        return (self._dealt - self._sought) * self.world_size

    def skip(self, count: int) -> None:
        """Moves past the next `count` rows of every rank."""
        for _ in range(count):
            self._buffer.next_row()
        self._dealt += count

    def take(self, count: int) -> "Picked":
        """This rank's next `count` rows; nanochat's do not end. Moves past as many of every rank."""
        self._dealt += count
        return Picked([self._buffer.next_row() for _ in range(count)], count * self.world_size)

    def read(self, picked: "Picked") -> np.ndarray:
        """The rows that were taken: (their number, row_len)."""
        joined: list[memoryview] = []
        for pieces in picked.rows:
            for place, taken in pieces:
                shard, begin = self._documents.find(place)
                tokens = shard.read(begin, begin + taken).data
                if tokens[0] != self._bos_id:
                    raise not_bos(tokens[0], self._bos_id, shard)
                joined.append(tokens)
        return np.frombuffer(b"".join(joined), self._dtype).reshape(-1, self._row_len)

    def pieces(self, count: int) -> list[list[Piece]]:
        """What this rank's next `count` rows are made of, for people to look at; moves past them."""
        return [
            [piece for place, taken in row for piece in pieces_of(*self._documents.find(place), taken)]
            for row in self.take(count).rows
        ]

    def _start(self) -> None:
        self._dealt = self._sought = 0
        self._documents = self._begin()
        self._buffer = BestFitBuffer(self._documents.refills(), self._row_len)
