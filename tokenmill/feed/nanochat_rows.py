"""nanochat's rows of a token set, token for token, for one rank: reads its documents in its order.

Rank r of W reads the row groups r, r + W, r + 2W ..., file by file in name order and epoch after
epoch. It reads them in refills of up to 128 documents that never cross a row group (nanochat,
`dataloader.py`). rows/nanochat_buffer.py picks from these. The place of a document is a number
that grows: visit of a shard << 32 | document in the shard.

The cursor of such a run counts the rows of each rank. Resuming picks these rows again from document
lengths, without copying. A position is valid for one number of ranks. Token sets have no empty
texts, of which nanochat makes BOS alone.
"""

import time
from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import count, groupby

from tokenmill.feed.batch import Batch, TableRows, not_bos
from tokenmill.feed.pieces import Piece, pieces_of
from tokenmill.feed.table import ChangeCheck
from tokenmill.rows.nanochat_buffer import REFILL_DOCUMENTS, BestFitBuffer
from tokenmill.rows.run import Run
from tokenmill.store.shards import Shard, ShardEntry, sources_of
from tokenmill.store.token_sets import TokenSet
from tokenmill.threads import raise_if_cancelled

SHARDS_HELD = 8  # open at once; the longest documents stay in the buffer while many are read
DOCUMENT = 32  # bits of a place below the visit


def nanochat_rows(
    token_set: TokenSet, split: str, run: Run, rank: int
) -> Iterator[tuple[Batch, int, Run]]:
    """This rank's rows from a run on, without end, as mixed_rows.py yields them.

    ValueError as `RankDocuments`.
    """
    (name,) = run.setting.sets
    setting = run.setting
    documents = RankDocuments(token_set, split, rank, setting.world_size)
    buffer = BestFitBuffer(documents.refills(), setting.seq_len + 1)
    for _ in range(run.now.cursors[name].row):
        raise_if_cancelled()
        buffer.next_row()
    targets = setting.global_batch * setting.seq_len
    while True:
        rows = [buffer.next_row() for _ in range(setting.batch_size)]
        run = _after_batch(run, name)
        part = TableRows(0, PickedRows(documents, rows), 0, len(rows))
        yield Batch([part], slice(None)), targets, run


def _after_batch(run: Run, name: str) -> Run:
    setting = run.setting
    point = run.now
    cursor = point.cursors[name]
    after = point._replace(
        step=point.step + 1,
        tokens=point.tokens + setting.global_batch * setting.seq_len,
        cursors={name: cursor._replace(row=cursor.row + setting.batch_size)},
        rows={name: point.rows[name] + setting.global_batch},
    )
    return run._replace(now=after)


class RankDocuments:
    """The documents of one rank, epoch after epoch without end: refills for the buffer.

    Raises ValueError if the rank has no row group with a document in any file. nanochat would
    search forever.
    """

    def __init__(self, token_set: TokenSet, split: str, rank: int, world_size: int):
        self.token_set = token_set
        by_file = groupby(token_set.split(split), key=lambda entry: entry.sources[0])
        self._files = [tuple(shards) for _, shards in by_file]
        self._row_groups = lru_cache(None)(partial(_row_groups_of, token_set, rank, world_size))
        self._visits: list[ShardEntry] = []  # the shard of each visit
        self._shard = lru_cache(SHARDS_HELD)(token_set.open)
        self._change_checks: dict[str, ChangeCheck] = {}  # by the shard's name
        if not any(map(self._row_groups, self._files)):
            raise ValueError(
                f"{token_set.display_name}: packing 'nanochat' gives whole row groups to ranks, "
                f"and rank {rank} of {world_size} gets none of split {split!r}; use fewer ranks, "
                "or packing='best_fit'"
            )

    def refills(self) -> Iterator[list[tuple[int, int]]]:
        """(length, place) of up to 128 documents of one row group, without end."""
        for _ in count():
            for file in self._files:
                for entry, groups in self._row_groups(file):
                    yield from self._refills_of(entry, groups)

    def find(self, place: int) -> tuple[Shard, int]:
        """The shard of a document, and its first token there.

        ValueError if the shard changed on disk.
        """
        visit = place >> DOCUMENT
        document = place & (1 << DOCUMENT) - 1
        entry = self._visits[visit]
        shard = self._shard(entry)
        check = self._change_checks.setdefault(entry.name, ChangeCheck())
        if time.monotonic() >= check.due:
            check.require([shard])
        return shard, shard.offsets.data[document]

    def _refills_of(
        self, entry: ShardEntry, groups: list[tuple[int, int]]
    ) -> Iterator[list[tuple[int, int]]]:
        lengths = self._shard(entry).lengths
        base = len(self._visits) << DOCUMENT
        self._visits.append(entry)
        for first, last in groups:
            for start in range(first, last, REFILL_DOCUMENTS):
                stop = min(start + REFILL_DOCUMENTS, last)
                places = range(base + start, base + stop)
                yield list(zip(lengths[start:stop].tolist(), places, strict=True))


def _row_groups_of(
    token_set: TokenSet, rank: int, world_size: int, file: tuple[ShardEntry, ...]
) -> list[tuple[ShardEntry, list[tuple[int, int]]]]:
    """A rank's row groups in the shards of a source file: their (first, last + 1) document.

    Shards in which it has none are left out. A shard of several files comes for each of them.
    """
    with_groups = []
    for entry in file:
        first = 0
        for source in sources_of(token_set.record(entry)):
            if "row_groups" not in source:
                raise ValueError(
                    f"{token_set.display_name}: shard {entry.name} has no row groups, which "
                    "'nanochat' gives to ranks; use packing='best_fit'"
                )
            groups = []
            numbers = source["row_groups"]
            for number, size in zip(numbers, source["row_group_documents"], strict=True):
                if number % world_size == rank:
                    groups.append((first, first + size))
                first += size
            if any(begin < end for begin, end in groups):
                with_groups.append((entry, groups))
    return with_groups


class PickedRows:
    """Rows that were picked, in the form of a table (table.py).

    Each is (place, tokens taken) of its documents.
    """

    bos_id = None  # `views` compares BOS
    is_masked = False

    def __init__(self, documents: RankDocuments, rows: list[list[tuple[int, int]]]):
        self._documents = documents
        self._rows = rows
        self.shards: list[Shard] = []
        self.check = ChangeCheck()

    def views(self, first: int, last: int) -> Iterator[memoryview]:
        """The tokens of each document of these rows. ValueError if one does not begin with BOS."""
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
        pieces = []
        for place, taken in self._rows[row]:
            shard, begin = self._documents.find(place)
            pieces += pieces_of(shard, begin, taken)
        return pieces
