"""Rows for what is left of a window whose first rows had another length: pieces laid end to end.

    plan, rest = lay_pieces(spans, row_len, seed)      full rows, and what is less than one
    shuffled([plan, other_plan], seed)                 the rows of both, in random order

A piece that begins inside a document gets a BOS. With row_len 6 and what is left of documents a and
b, 4 tokens from token 3 on and all 5:

    _ a a a a b | b b b b              _ is the inserted BOS; the second row is not full
"""

from typing import NamedTuple

import numpy as np

from tokenmill.rows.groups import offsets_of, within_groups
from tokenmill.rows.order import permutation
from tokenmill.rows.packing import RowPlan
from tokenmill.rows.spans import Spans


class _Piece(NamedTuple):
    """Tokens of a document in a row. Those that only fill its end are in another row too."""

    document: int
    start: int
    length: int
    is_filler: bool = False


def lay_pieces(spans: Spans, row_len: int, seed: tuple[int, ...]) -> tuple[RowPlan, Spans]:
    """Lays spans one after the other, in random order, and cuts where a row is full.

    Returns the full rows, and the spans of the last one, which is not full. If the end of a row has
    no room for a BOS and a token, the first token of the next document fills it.
    """
    order = permutation(len(spans.document), "laid", *seed)
    columns = (column.tolist() for column in spans.take(order))
    pieces: list[_Piece] = []
    row_offsets = [0]
    room = row_len
    for document, start, length in zip(*columns, strict=True):
        while length:
            num_bos = 1 if start > 0 else 0
            if room > num_bos:
                taken = min(length, room - num_bos)
                pieces.append(_Piece(document, start, taken))
                start += taken
                length -= taken
                room -= num_bos + taken
            else:
                pieces.append(_Piece(document, 0, 1, is_filler=True))
                room -= 1
            if not room:
                row_offsets.append(len(pieces))
                room = row_len
    num_full = row_offsets[-1]
    table = np.array(pieces, np.int64).reshape(-1, len(_Piece._fields))
    laid = Spans(*table.T[:3])
    full = laid.take(slice(num_full))
    is_filler = table[:num_full, 3] > 0
    plan = RowPlan(row_len, np.array(row_offsets), *full, full.start > 0, is_filler)
    return plan, laid.take(slice(num_full, None))


def shuffled(plans: list[RowPlan], seed: tuple[int, ...]) -> RowPlan:
    """The rows of several plans, shuffled together with a seed."""
    counts = np.concatenate([np.diff(plan.row_offsets) for plan in plans])
    begin = offsets_of(counts)[:-1]
    order = permutation(len(counts), "together", *seed)
    counts = counts[order]
    pieces = np.repeat(begin[order], counts) + within_groups(counts)
    columns = zip(*(plan[2:] for plan in plans), strict=True)
    joined = (np.concatenate(column)[pieces] for column in columns)
    return RowPlan(plans[0].row_len, offsets_of(counts), *joined)
