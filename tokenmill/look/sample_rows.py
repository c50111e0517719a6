"""Packs a few documents with every packing, to compare the rows side by side.

The sample is the first documents of a split, as many as best_fit packs into 64 rows; of a chat set, as many
conversations as long_documents="crop" packs into these. A document that is longer than all these rows is shortened to
its beginning. The sample is packed as if it were a shard, so that every packing shows the same documents. nanochat's
loader has them all in its buffer, and makes rows by its rule while whole rows are left.
"""

from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from tokenmill.feed.pieces import cut_at_documents
from tokenmill.look.packing_stats import plan_of, variants
from tokenmill.rows.other_packings import BUFFER_DOCUMENTS, BestFitBuffer
from tokenmill.rows.packing import RowPlan
from tokenmill.rows.plan import Packing
from tokenmill.store.shards import Shard
from tokenmill.store.token_sets import TokenSet

ROWS = 64


@dataclass(frozen=True)
class SamplePiece:
    """The part of a document in a row: `length` tokens from its token `start` on."""

    document: int  # its number in the specimen; of padding, the number of documents
    start: int
    length: int
    bos: bool = False  # whether a BOS is inserted before it
    filler: bool = False  # whether it is a copy that fills the end of the row, or padding
    cropped: bool = False  # whether the rest of the document is dropped


@dataclass(frozen=True)
class Specimen:
    """The sample's documents, and their rows with each packing."""

    documents: list[tuple[Shard, int]]
    lengths: np.ndarray  # how many tokens of each document are used
    rows: dict[str, list[list[SamplePiece]]]

    @property
    def shortened(self) -> bool:
        """Whether a document was shortened to its beginning."""
        whole = [shard.lengths[document] for shard, document in self.documents]
        return bool((self.lengths < whole).any())

    @property
    def is_chat(self) -> bool:
        """Whether the documents are conversations, which have a loss mask."""
        return self.documents[0][0].mask_bytes is not None

    def is_padding(self, part: SamplePiece) -> bool:
        """Whether a part closes a row of whole conversations."""
        return part.document == len(self.lengths)


def make_specimen(token_set: TokenSet, split: str, row_len: int) -> Specimen:
    """The first documents of a split with every packing; at least one document, whatever its length."""
    documents, lengths = _first_documents(token_set, split, ROWS * row_len)
    compared = variants(token_set.is_chat)
    keeping_all = next(iter(compared.values()))
    count = len(lengths)
    while count > 1 and plan_of(keeping_all, lengths[:count], row_len).num_rows > ROWS:
        count -= 1
    lengths = lengths[:count]
    rows = {label: _rows(packing, lengths, row_len)[:ROWS] for label, packing in compared.items()}
    return Specimen(
        documents[:count], lengths, {label: found for label, found in rows.items() if found}
    )


def _first_documents(
    token_set: TokenSet, split: str, tokens: int
) -> tuple[list[tuple[Shard, int]], np.ndarray]:
    """The first documents that have at most `tokens` tokens together, and how many tokens of each are used."""
    documents: list[tuple[Shard, int]] = []
    lengths: list[int] = []
    for entry in token_set.split(split):
        if entry.tokens and sum(lengths) < tokens:
            shard, chosen = token_set.open(entry), np.flatnonzero(token_set.repeats_of(entry) > 0)
            if not len(chosen):
                continue
            taken = np.minimum(shard.lengths[chosen], tokens)
            room = tokens - sum(lengths)
            fitting = max(1, int((np.cumsum(taken) <= room).sum()))
            documents += [(shard, document) for document in chosen[:fitting].tolist()]
            lengths += taken[:fitting].tolist()
    return documents, np.array(lengths)


def _rows(packing: Packing, lengths: np.ndarray, row_len: int) -> list[list[SamplePiece]]:
    if packing.name == "nanochat":
        return _nanochat(lengths, row_len)
    plan = plan_of(packing, lengths, row_len)
    if packing.packs_documents:
        return _of_documents(plan, lengths, packing.long_documents == "crop")
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    starts = np.sort(plan.start).tolist()
    return [
        [SamplePiece(*part) for part in cut_at_documents(offsets, start, row_len)]
        for start in starts
    ]


def _of_documents(plan: RowPlan, lengths: np.ndarray, crop: bool) -> list[list[SamplePiece]]:
    columns = (plan.document, plan.start, plan.length, plan.bos, plan.filler)
    pieces = zip(*(column.tolist() for column in columns), strict=True)
    parts = [
        SamplePiece(
            document, start, length, bos, filler, crop and not filler and length < lengths[document]
        )
        for document, start, length, bos, filler in pieces
    ]
    return [parts[a:b] for a, b in zip(plan.row_offsets[:-1], plan.row_offsets[1:], strict=True)]


def _nanochat(lengths: np.ndarray, row_len: int) -> list[list[SamplePiece]]:
    # padding documents fit into no row; one is cropped only when the others are not enough for a row, which ends it
    padding = [
        (int(lengths.max()) + row_len, len(lengths) + i) for i in range(BUFFER_DOCUMENTS + 1)
    ]
    buffer = BestFitBuffer(
        iter([list(zip(lengths.tolist(), range(len(lengths)), strict=True)) + padding]), row_len
    )
    picked = iter(buffer.next_row, None)
    whole = takewhile(lambda row: all(document < len(lengths) for document, _ in row), picked)
    return [
        [
            SamplePiece(document, 0, taken, cropped=taken < int(lengths[document]))
            for document, taken in row
        ]
        for row in whole
    ]
