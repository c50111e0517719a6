"""nanochat's rows of a token set, token for token, for one rank: reads the rank's documents and copies their tokens.

Rank r of W reads the row groups r, r + W, r + 2W ..., file by file in name order and epoch after epoch. It reads them
in refills of up to 128 documents that never cross a row group (nanochat, `dataloader.py`). rows/other_packings.py picks
from these. The place of a document is a whole number that grows: visit of a shard << 32 | document in the shard.

The cursor of such a run counts the rows of each rank. Resuming picks these rows again from document lengths, without
copying. A position is valid for one number of ranks. Token sets have no empty texts, of which nanochat makes BOS alone.
"""

import time
from collections.abc import Iterator
from functools import lru_cache
from itertools import count, groupby

import numpy as np

from tokenmill.feed.pieces import Piece, pieces_of
from tokenmill.feed.table import Batch, ChangeCheck, Part, not_bos
from tokenmill.rows.other_packings import REFILL_DOCUMENTS, BestFitBuffer
from tokenmill.rows.run import Run
from tokenmill.store.shards import Shard, ShardEntry, sources_of
from tokenmill.store.token_sets import TokenSet
from tokenmill.threads import raise_if_cancelled

SHARDS_HELD = 8  # open at once; the longest documents stay in the buffer while many shards are read
DOCUMENT = 32  # bits of a place below the visit


def nanochat_rows(
    token_set: TokenSet, split: str, run: Run, rank: int
) -> Iterator[tuple[Batch, int, Run]]:
    """This rank's rows from a run on, without end, as mixed_rows.py yields them. ValueError as `RankDocuments`."""
    (name,), setting = run.setting.sets, run.setting
    documents = RankDocuments(token_set, split, rank, setting.world_size)
    buffer = BestFitBuffer(documents.refills(), setting.seq_len + 1)
    for _ in range(run.now.cursors[name].row):
        raise_if_cancelled()
        buffer.next_row()
    while True:
        rows = [buffer.next_row() for _ in range(setting.batch_size)]
        now, total = run.now, setting.global_batch
        cursors = {name: now.cursors[name]._replace(row=now.cursors[name].row + setting.batch_size)}
        now = now._replace(step=now.step + 1, cursors=cursors, rows={name: now.rows[name] + total})
        run = run._replace(now=now._replace(tokens=now.tokens + total * setting.seq_len))
        yield (
            Batch([Part(0, PickedRows(documents, rows), 0, len(rows))], slice(None)),
            total * setting.seq_len,
            run,
        )


class RankDocuments:
    """The documents of one rank, epoch after epoch without end: refills for the buffer, and where their tokens are.

    Raises ValueError if the rank has no row group with a document in any file. nanochat would search forever.
    """

    def __init__(self, token_set: TokenSet, split: str, rank: int, world_size: int):
        self.token_set, self.rank, self.world_size = token_set, rank, world_size
        self._files = [
            list(shards)
            for _, shards in groupby(token_set.split(split), key=lambda entry: entry.sources[0])
        ]
        self._visits: list[ShardEntry] = []  # the shard of each visit
        self._shard = lru_cache(SHARDS_HELD)(token_set.open)
        self._change_checks: dict[str, ChangeCheck] = {}  # by the shard's name
        if not any(True for file in self._files for _ in self._row_groups(file)):
            raise ValueError(
                f"{token_set.display_name}: packing 'nanochat' gives whole row groups to ranks, and rank {rank} of "
                f"{world_size} gets none of split {split!r}; use fewer ranks, or packing='best_fit'"
            )

    def refills(self) -> Iterator[list[tuple[int, int]]]:
        """(length, place) of up to 128 documents of one row group, without end."""
        for _ in count():
            for file in self._files:
                for entry, groups in self._row_groups(file):
                    yield from self._refills_of(entry, groups)

    def find(self, place: int) -> tuple[Shard, int]:
        """The shard of a document, and its first token there. ValueError if the shard changed on disk."""
        visit, document = place >> DOCUMENT, place & (1 << DOCUMENT) - 1
        entry = self._visits[visit]
        shard, check = self._shard(entry), self._change_checks.setdefault(entry.name, ChangeCheck())
        if time.monotonic() >= check.due:
            check.require([shard])
        return shard, shard.offsets.data[document]

    def _refills_of(
        self, entry: ShardEntry, groups: list[tuple[int, int]]
    ) -> Iterator[list[tuple[int, int]]]:
        lengths, base = self._shard(entry).lengths, len(self._visits) << DOCUMENT
        self._visits.append(entry)
        for first, last in groups:
            for start in range(first, last, REFILL_DOCUMENTS):
                stop = min(start + REFILL_DOCUMENTS, last)
                yield list(
                    zip(lengths[start:stop].tolist(), range(base + start, base + stop), strict=True)
                )

    def _row_groups(
        self, file: list[ShardEntry]
    ) -> Iterator[tuple[ShardEntry, list[tuple[int, int]]]]:
        """This rank's row groups in the shards of a source file: the (first, last + 1) document of each."""
        for entry in file:
            sources, before = sources_of(self.token_set.record(entry)), 0
            for source in sources:
                if "row_groups" not in source:
                    raise ValueError(
                        f"{self.token_set.display_name}: shard {entry.name} has no row groups, which 'nanochat' gives "
                        "to ranks; use packing='best_fit'"
                    )
                ends = np.cumsum([before, *source["row_group_documents"]]).tolist()
                spans = zip(source["row_groups"], ends[:-1], ends[1:], strict=True)
                mine = [
                    (first, last)
                    for group, first, last in spans
                    if group % self.world_size == self.rank
                ]
                before = ends[-1]
                if any(first < last for first, last in mine):
                    yield entry, mine


class PickedRows:
    """Rows that were picked, in the form of a table (table.py): (place, tokens taken) of each document in each row."""

    bos_id, is_masked = None, False  # views compares BOS

    def __init__(self, documents: RankDocuments, rows: list[list[tuple[int, int]]]):
        self._documents, self._rows = documents, rows
        self.offsets, self.span = range(len(rows) + 1), range(len(rows))
        self.bos, self.shards, self.check = self.span, list[Shard](), ChangeCheck()

    def views(self, first: int, last: int) -> Iterator[memoryview]:
        """The tokens of each document of some rows. ValueError if one does not begin with BOS."""
        bos_id = self._documents.token_set.bos_id
        for pieces in self._rows[first:last]:
            for place, taken in pieces:
                shard, begin = self._documents.find(place)
                tokens = shard.read(begin, begin + taken).data
                if tokens[0] != bos_id:
                    raise not_bos(tokens[0], bos_id, shard)
                yield tokens

    def pieces(self, row: int) -> list[Piece]:
        """The pieces of a row, for display."""
        return [
            p
            for place, taken in self._rows[row]
            for p in pieces_of(*self._documents.find(place), taken)
        ]
