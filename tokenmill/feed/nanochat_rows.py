"""nanochat's rows of a token set, token for token, for one rank: reads the rank's documents and copies their tokens.

Rank r of W reads the row groups r, r + W, r + 2W ..., file by file in name order and epoch after epoch. It reads them
in refills of up to 128 documents that never cross a row group (nanochat, `dataloader.py`). rows/nanochat.py picks from
these. The place of a document is a whole number that grows: visit of a shard << 32 | document in the shard.

The position is the number of rows so far. Resuming picks these rows again from document lengths, without copying. The
picks depend on the number of ranks, so a position is valid for that number only.

Left out: nanochat makes a document of BOS alone from an empty text. Token sets have no empty texts.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import count, groupby
from typing import NamedTuple

import numpy as np

from tokenmill.feed.pieces import Piece, pieces_of
from tokenmill.feed.row_table import not_bos
from tokenmill.feed.window_rows import ChangeCheck
from tokenmill.rows.nanochat import REFILL_DOCUMENTS, BestFitBuffer
from tokenmill.store.shards import Shard, ShardEntry, sources_of
from tokenmill.store.token_sets import TokenSet

SHARDS_HELD = 8  # open at once; the longest documents stay in the buffer while many shards are read
DOCUMENT = 32  # bits of a place below the visit


class RankDocuments:
    """The documents of one rank, epoch after epoch without end: refills for the buffer, and where their tokens are.

    Raises ValueError if the rank has no row group with a document in any file. nanochat would search forever.
    """

    def __init__(self, token_set: TokenSet, split: str, rank: int, world_size: int):
        self.token_set, self.rank, self.world_size = token_set, rank, world_size
        self.epoch = 0  # the epoch of the last refill
        self._files = [list(shards) for _, shards in groupby(token_set.split(split), key=lambda entry: entry.source)]
        self._visits: list[ShardEntry] = []  # the shard of each visit
        self._shard = lru_cache(SHARDS_HELD)(token_set.open)
        self._change_checks: dict[str, ChangeCheck] = {}  # by the shard's name
        if not any(True for file in self._files for _ in self._row_groups(file)):
            raise ValueError(
                f"{token_set.display_name}: packing 'nanochat' gives whole row groups to ranks, and rank {rank} of "
                f"{world_size} gets none of split {split!r}; use fewer ranks, packing='best_fit', "
                "or source files with more row groups"
            )

    def refills(self) -> Iterator[list[tuple[int, int]]]:
        """(length, place) of up to 128 documents of one row group, without end."""
        for epoch in count():
            self.epoch = epoch
            for file in self._files:
                for entry, groups in self._row_groups(file):
                    yield from self._refills_of(entry, groups)

    def find(self, place: int) -> tuple[Shard, int]:
        """The shard of a document, and its first token there. ValueError if the shard changed on disk."""
        visit, document = place >> DOCUMENT, place & (1 << DOCUMENT) - 1
        entry = self._visits[visit]
        shard = self._shard(entry)
        self._change_checks.setdefault(entry.name, ChangeCheck()).require([shard])
        return shard, shard.offsets.data[document]

    def _refills_of(self, entry: ShardEntry, groups: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
        lengths, base = self._shard(entry).lengths, len(self._visits) << DOCUMENT
        self._visits.append(entry)
        for first, last in groups:
            for start in range(first, last, REFILL_DOCUMENTS):
                stop = min(start + REFILL_DOCUMENTS, last)
                yield list(zip(lengths[start:stop].tolist(), range(base + start, base + stop), strict=True))

    def _row_groups(self, file: list[ShardEntry]) -> Iterator[tuple[ShardEntry, list[tuple[int, int]]]]:
        """This rank's row groups in the shards of a source file: the (first, last + 1) document of each."""
        for entry in file:
            sources, before = sources_of(self.token_set.record(entry)), 0
            for source in sources:
                if "row_groups" not in source:
                    raise ValueError(
                        f"{self.token_set.display_name}: the record of shard {entry.name} does not say which row "
                        "groups it holds, and packing 'nanochat' gives row groups to ranks; use packing='best_fit'"
                    )
                ends = np.cumsum([before, *source["row_group_documents"]]).tolist()
                spans = zip(source["row_groups"], ends[:-1], ends[1:], strict=True)
                mine = [(first, last) for group, first, last in spans if group % self.world_size == self.rank]
                before = ends[-1]
                if any(first < last for first, last in mine):
                    yield entry, mine


class Picked(NamedTuple):
    """This rank's part of `total` rows, with `targets` targets: (place, tokens taken) of each document in each row."""

    rows: list[list[tuple[int, int]]]
    total: int
    targets: int


class NanochatPlace(NamedTuple):
    """A place in a rank's rows: the number of rows before it, and the epoch of the documents that the rank reads."""

    rows: int
    epoch: int = 0


class NanochatRows:
    """The rows of one split for one rank, in nanochat's order.

    An epoch is one pass of this rank through its row groups. Rows continue from one epoch into the next.
    """

    def __init__(self, token_set: TokenSet, split: str, row_len: int, *, rank: int, world_size: int):
        self.world_size, self._bos_id, self._dtype = world_size, token_set.bos_id, token_set.numpy_dtype
        self._open: Callable[[], RankDocuments] = lambda: RankDocuments(token_set, split, rank, world_size)
        self._row_len = row_len
        self._taken = self._sought = 0
        self._start()

    @property
    def position(self) -> NanochatPlace:
        """The place of the next row, counted in rows of each rank."""
        return NanochatPlace(self._taken, self._documents.epoch)

    def interrupt(self) -> None:
        """Does nothing: no thread runs ahead of these rows."""

    def seek(self, position: NanochatPlace) -> None:
        """Moves to a place by picking the rows before it, from here on, or from the first row if it is behind."""
        if position.rows < self._taken:
            self._start()
        self.skip(position.rows - self._taken)
        self._sought = self._taken

    @property
    def passed(self) -> int:
        """Rows of all ranks that were taken or skipped since the last seek."""
        return (self._taken - self._sought) * self.world_size

    def skip(self, count: int) -> None:
        """Moves past the next `count` rows of every rank."""
        for _ in range(count):
            self._buffer.next_row()
        self._taken += count

    def take(self, count: int) -> "Picked":
        """This rank's next `count` rows. Moves past as many rows of every rank. nanochat's rows never end."""
        self._taken += count
        rows, total = [self._buffer.next_row() for _ in range(count)], count * self.world_size
        return Picked(rows, total, total * (self._row_len - 1))

    def read(self, picked: "Picked") -> np.ndarray:
        """The rows that were taken: (number of rows, row_len)."""
        joined: list[memoryview] = []
        for pieces in picked.rows:
            for place, taken in pieces:
                shard, begin = self._documents.find(place)
                tokens = shard.read(begin, begin + taken, known_first=not self._bos_id).data
                if tokens[0] != self._bos_id:
                    raise not_bos(tokens[0], self._bos_id, shard)
                joined.append(tokens)
        return np.frombuffer(b"".join(joined), self._dtype).reshape(-1, self._row_len)

    def loss_mask(self, picked: "Picked", rows: np.ndarray) -> None:
        """None: every token bears loss."""

    def sources(self, picked: "Picked") -> np.ndarray:
        """The number of each row's source, always 0 because there is only one: (number of rows,) int64."""
        return np.zeros(len(picked.rows), np.int64)

    def counts(self, picked: "Picked") -> np.ndarray:
        """What the rows that were taken hold: (1, 4) int64 of rows, filler (none), pieces, tokens."""
        rows = len(picked.rows)
        return np.array([[rows, 0, sum(map(len, picked.rows)), rows * (self._row_len - 1)]])

    def pieces(self, count: int) -> list[list[Piece]]:
        """The pieces of this rank's next `count` rows, for display; moves past them."""
        return [
            [piece for place, taken in row for piece in pieces_of(*self._documents.find(place), taken)]
            for row in self.take(count).rows
        ]

    def _start(self) -> None:
        self._taken = self._sought = 0
        self._documents = self._open()
        self._buffer = BestFitBuffer(self._documents.refills(), self._row_len)
