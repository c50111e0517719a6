"""A few documents in the rows of every packing, to be looked at side by side.

The first documents of a split, as many as best_fit packs into 64 rows, are packed as if they were a shard of
their own (of one that is longer than all these rows its beginning), so that every packing shows the same
documents. nanochat's loader has them all in its buffer, and deals them by its rule as long as they make whole rows.
"""

from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from tokenmill.batches.pieces import cut_at_documents
from tokenmill.look.figures import PACKINGS
from tokenmill.rows.cuts import starts
from tokenmill.rows.nanochat import BUFFER_DOCUMENTS, BestFitBuffer
from tokenmill.rows.packing import LongDocuments, count_rows, plan_rows
from tokenmill.store.shards import Shard
from tokenmill.store.token_sets import TokenSet

ROWS = 64


@dataclass(frozen=True)
class Part:
    """What of a document lies in a row: `length` tokens from its token `start` on."""

    document: int  # of the specimen
    start: int
    length: int
    bos: bool = False  # behind an inserted BOS
    filler: bool = False  # a copy that closes the row
    cropped: bool = False  # the rest of the document is dropped


@dataclass(frozen=True)
class Specimen:
    """The documents, and their rows under each packing."""

    documents: list[tuple[Shard, int]]
    lengths: np.ndarray  # of what is taken of each
    rows: dict[str, list[list[Part]]]

    @property
    def shortened(self) -> bool:
        """Whether of some document only the beginning is taken."""
        whole = [shard.lengths[document] for shard, document in self.documents]
        return bool((self.lengths < whole).any())

    def dropped(self, packing: str) -> float:
        """Share of the documents' tokens that are in no row; with nanochat, of the documents in these rows."""
        parts = [part for row in self.rows[packing] for part in row]
        if packing == "nanochat":
            return 1 - sum(part.length for part in parts) / sum(int(self.lengths[part.document]) for part in parts)
        begins = np.cumsum(self.lengths) - self.lengths
        kept = np.zeros(self.lengths.sum(), dtype=bool)
        for part in parts:
            begin = begins[part.document] + part.start
            kept[begin : begin + part.length] = True
        return 1 - kept.mean()


def make_specimen(token_set: TokenSet, split: str, row_len: int) -> Specimen:
    """The first documents of a split under every packing. At least one document, whatever its length."""
    documents, lengths = _first_documents(token_set, split, ROWS * row_len)
    count = len(lengths)
    while count > 1 and count_rows(lengths[:count], row_len, seed=(0, 0, 0)) > ROWS:
        count -= 1
    lengths = lengths[:count]
    rows = {packing: _rows(packing, lengths, row_len)[:ROWS] for packing in PACKINGS}
    return Specimen(documents[:count], lengths, {packing: found for packing, found in rows.items() if found})


def _first_documents(token_set: TokenSet, split: str, tokens: int) -> tuple[list[tuple[Shard, int]], np.ndarray]:
    """As many as have at most `tokens` tokens, of one shard after the other."""
    documents: list[tuple[Shard, int]] = []
    lengths: list[int] = []
    for entry in token_set.split(split):
        if entry.tokens and sum(lengths) < tokens:
            shard = token_set.open(entry)
            taken = np.minimum(shard.lengths, tokens)
            room = tokens - sum(lengths)
            fitting = max(1, int((np.cumsum(taken) <= room).sum()))
            documents += [(shard, document) for document in range(fitting)]
            lengths += taken[:fitting].tolist()
    return documents, np.array(lengths)


def _rows(packing: str, lengths: np.ndarray, row_len: int) -> list[list[Part]]:
    if packing == "nanochat":
        return _nanochat(lengths, row_len)
    if packing in ("concat", "random"):
        begins = starts(int(lengths.sum()), row_len, (0, 0, 0) if packing == "random" else None)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return [[Part(*part) for part in cut_at_documents(offsets, start, row_len)] for start in begins.tolist()]
    return _packed(lengths, row_len, "crop" if packing == "best_fit, crop" else "split")


def _packed(lengths: np.ndarray, row_len: int, long_documents: LongDocuments) -> list[list[Part]]:
    plan = plan_rows(lengths, row_len, long_documents=long_documents, seed=(0, 0, 0))
    columns = (plan.document, plan.start, plan.length, plan.bos, plan.filler)
    pieces = zip(*(column.tolist() for column in columns), strict=True)
    crop = long_documents == "crop"
    parts = [
        Part(document, start, length, bos, filler, cropped=crop and not filler and length < lengths[document])
        for document, start, length, bos, filler in pieces
    ]
    return [parts[a:b] for a, b in zip(plan.row_offsets[:-1], plan.row_offsets[1:], strict=True)]


def _nanochat(lengths: np.ndarray, row_len: int) -> list[list[Part]]:
    # behind the documents come endless ones that fit nowhere, which are taken once the others are not enough for a row
    endless = [(int(lengths.max()) + row_len, len(lengths) + i) for i in range(BUFFER_DOCUMENTS + 1)]
    buffer = BestFitBuffer(iter([list(zip(lengths.tolist(), range(len(lengths)), strict=True)) + endless]), row_len)
    picked = iter(buffer.next_row, None)
    whole = takewhile(lambda row: all(document < len(lengths) for document, _ in row), picked)
    return [
        [Part(document, 0, taken, cropped=taken < int(lengths[document])) for document, taken in row] for row in whole
    ]
