"""Packs a few documents with every packing, to compare the rows side by side.

The sample is the first documents of a split, as many as best_fit packs into 64 rows; of a chat set,
as many conversations as long_documents="crop" packs into these. A document that is longer than all
these rows is shortened to its beginning. The sample is packed as if it were a shard, so that every
packing shows the same documents. nanochat's loader has them all in its buffer, and makes rows by
its rule while whole rows are left.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from tokenmill.feed.pieces import cut_at_documents
from tokenmill.look.packing_stats import plan_of, variants
from tokenmill.rows.nanochat_buffer import BUFFER_DOCUMENTS, BestFitBuffer
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
        full = [shard.lengths[document] for shard, document in self.documents]
        return bool((self.lengths < full).any())

    @property
    def is_chat(self) -> bool:
        """Whether the documents are conversations, which have a loss mask."""
        return self.documents[0][0].mask_bytes is not None

    def is_padding(self, part: SamplePiece) -> bool:
        """Whether a part closes a row of whole conversations."""
        return part.document == len(self.lengths)


def make_specimen(token_set: TokenSet, split: str, row_len: int) -> Specimen:
    """The first documents of a split with every packing; at least one, whatever its length."""
    documents, lengths = _first_documents(token_set, split, ROWS * row_len)
    compared = variants(token_set.is_chat)
    keeping_all = next(iter(compared.values()))
    count = len(lengths)
    while count > 1 and plan_of(keeping_all, lengths[:count], row_len).num_rows > ROWS:
        count -= 1
    lengths = lengths[:count]
    rows_by_label = {}
    for label, packing in compared.items():
        rows = _rows(packing, lengths, row_len)[:ROWS]
        if rows:
            rows_by_label[label] = rows
    return Specimen(documents[:count], lengths, rows_by_label)


def _first_documents(
    token_set: TokenSet, split: str, tokens: int
) -> tuple[list[tuple[Shard, int]], np.ndarray]:
    """The first documents that have at most `tokens` tokens together.

    Returns how many tokens of each are used, too.
    """
    documents: list[tuple[Shard, int]] = []
    lengths: list[int] = []
    for entry in token_set.split(split):
        room = tokens - sum(lengths)
        if room <= 0:
            break
        kept = np.flatnonzero(token_set.repeats_of(entry) > 0)
        if not len(kept):
            continue
        shard = token_set.open(entry)
        used = np.minimum(shard.lengths[kept], tokens)
        fitting = max(1, int((np.cumsum(used) <= room).sum()))
        documents += [(shard, document) for document in kept[:fitting].tolist()]
        lengths += used[:fitting].tolist()
    return documents, np.array(lengths)


def _rows(packing: Packing, lengths: np.ndarray, row_len: int) -> list[list[SamplePiece]]:
    if packing.name == "nanochat":
        return _nanochat(lengths, row_len)
    plan = plan_of(packing, lengths, row_len)
    if packing.packs_documents:
        return _of_documents(plan, lengths, packing.long_documents == "crop")
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rows = []
    for start in np.sort(plan.start).tolist():
        spans = cut_at_documents(offsets, start, row_len)
        rows.append([SamplePiece(*span) for span in spans])
    return rows


def _of_documents(plan: RowPlan, lengths: np.ndarray, crop: bool) -> list[list[SamplePiece]]:
    """The rows of a plan. With `crop`, a piece that is shorter than its document is cropped."""
    columns = (plan.document, plan.start, plan.length, plan.bos, plan.filler)
    pieces = [
        SamplePiece(*values)
        for values in zip(*(column.tolist() for column in columns), strict=True)
    ]
    if crop:
        pieces = [_cropped(piece, lengths) for piece in pieces]
    edges = plan.row_offsets.tolist()
    return [pieces[begin:end] for begin, end in pairwise(edges)]


def _cropped(piece: SamplePiece, lengths: np.ndarray) -> SamplePiece:
    is_cropped = not piece.filler and piece.length < lengths[piece.document]
    return replace(piece, cropped=bool(is_cropped))


def _nanochat(lengths: np.ndarray, row_len: int) -> list[list[SamplePiece]]:
    """Rows by nanochat's rule, while whole ones are left.

    Padding documents fit into no row. One is cropped only when the others are not enough for a row,
    which ends the rows.
    """
    num_documents = len(lengths)
    too_long = int(lengths.max()) + row_len
    padded = lengths.tolist() + [too_long] * (BUFFER_DOCUMENTS + 1)
    documents = [(length, number) for number, length in enumerate(padded)]
    buffer = BestFitBuffer(iter([documents]), row_len)
    rows: list[list[SamplePiece]] = []
    while True:
        picked = buffer.next_row()
        if any(document >= num_documents for document, _ in picked):
            return rows
        rows.append(
            [
                SamplePiece(document, 0, taken, cropped=taken < int(lengths[document]))
                for document, taken in picked
            ]
        )
