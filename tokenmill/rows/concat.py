"""Rows cut from a token stream without regard to documents, as in other loaders.

`concat`, with rows of 4 + 1 of a shard of 14 tokens: tokens 0-4, 4-8 and 8-12. The remaining tokens are fewer than a
row. A row belongs to the slice in which it begins (windows.py), and may end in the next one. `random` has as many rows
of each slice, which begin anywhere in it.
"""

from bisect import bisect_right

import numpy as np

from tokenmill.rows.order import permutation, random_bits
from tokenmill.rows.packing import RowPlan, Stretches
from tokenmill.rows.windows import Window

COLUMNS = ("document", "start", "length", "bos", "filler")  # of a RowPlan, one value for each piece


def count_concat(window: Window, shard_tokens: np.ndarray, row_len: int) -> np.ndarray:
    """The number of rows that begin in each slice of a window, with shards of `shard_tokens`: (num_slices,) int64."""
    first, last = _ends(window, shard_tokens, row_len)
    return np.asarray(np.maximum(0, last - first + 1))


def plan_concat(window: Window, shard_tokens: np.ndarray, row_len: int, seed: tuple[int, ...] | None) -> RowPlan:
    """Consecutive rows of each shard, each starting on the last token of the one before; shuffled if there is a seed.

    The documents of this plan are slices.
    """
    counts, (first, _) = count_concat(window, shard_tokens, row_len), _ends(window, shard_tokens, row_len)
    slice_of = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(slice_of)) - np.repeat(np.cumsum(counts) - counts, counts)
    start = (first[slice_of] + number) * (row_len - 1) - window.begin[slice_of]
    order = np.arange(len(slice_of)) if seed is None else permutation(len(slice_of), "rows", *seed)
    return _rows_of_one_piece(slice_of[order], start[order], row_len)


def plan_random(window: Window, shard_tokens: np.ndarray, row_len: int, seed: tuple[int, ...]) -> RowPlan:
    """As many rows of each slice as in `plan_concat`, at random places in it, in random order."""
    counts = count_concat(window, shard_tokens, row_len)
    room = np.minimum(window.end, shard_tokens[window.shard] - row_len + 1) - window.begin
    slice_of = np.repeat(np.arange(len(counts)), counts)[permutation(int(counts.sum()), "rows", *seed)]
    start = random_bits(len(slice_of), "places", *seed) % np.maximum(room, 1).astype(np.uint64)[slice_of]
    return _rows_of_one_piece(slice_of, start.astype(np.int64), row_len)


def inputs_of(plan: RowPlan, rows: np.ndarray) -> Stretches:
    """The input tokens of these rows of `plan_concat` or `lay_rows`, without the last token of each row and filler."""
    length = plan.length.copy()
    length[plan.row_offsets[1:] - 1] -= 1
    kept = plan.kept_in(rows) & (length > 0)
    return Stretches(plan.document[kept], plan.start[kept], length[kept])


def lay_rows(left: Stretches, row_len: int, seed: tuple[int, ...] | None) -> RowPlan:
    """Lays stretches end to end and cuts them into rows, each starting on the last token of the one before.

    The last row is filled up with the first tokens, as filler, so that every token is an input of exactly one row.
    """
    total, body = int(left.length.sum()), row_len - 1
    rows = -(-total // body)
    documents, starts, lengths = (column.tolist() for column in left)
    ends = np.cumsum(left.length).tolist()
    pieces, row_offsets = [], [0]
    for row in range(rows):
        at, end = row * body, row * body + row_len
        while at < end:
            token = at % total
            i = bisect_right(ends, token)  # the stretch that holds this token
            taken = min(end - at, ends[i] - token)
            pieces.append((documents[i], starts[i] + lengths[i] - (ends[i] - token), taken, at >= total))
            at += taken
        row_offsets.append(len(pieces))
    columns = np.array(pieces, dtype=np.int64).reshape(-1, 4)
    document, start, length, filler = columns.T
    plan = RowPlan(
        row_len, np.array(row_offsets), document, start, length, np.zeros(len(columns), dtype=bool), filler > 0
    )
    return plan if seed is None else _in_order(plan, permutation(rows, "rows", *seed))


def lay_pieces(left: Stretches, row_len: int, seed: tuple[int, ...]) -> tuple[RowPlan, Stretches]:
    """Lays stretches one after the other and cuts where a row is full.

    A piece that begins inside a document gets a BOS. Returns the full rows, and the stretches of the last row, which is
    not full. If the rest of a row has no room for a BOS and a token, it is filled with the first token of the next
    document, as filler.
    """
    order = permutation(len(left.document), "laid", *seed)
    columns = (column[order].tolist() for column in left)
    pieces: list[tuple[int, int, int, bool]] = []
    row_offsets, room = [0], row_len
    for document, start, length in zip(*columns, strict=True):
        while length:
            bos = start > 0
            if room <= bos:
                pieces.append((document, 0, 1, True))
                room -= 1
            else:
                taken = min(length, room - bos)
                pieces.append((document, start, taken, False))
                start, length, room = start + taken, length - taken, room - taken - bos
            if not room:
                row_offsets.append(len(pieces))
                room = row_len
    full = row_offsets[-1]
    found = np.array(pieces, dtype=np.int64).reshape(-1, 4)
    document, start, length, filler = found[:full].T
    plan = RowPlan(row_len, np.array(row_offsets), document, start, length, (start > 0) & (filler == 0), filler > 0)
    return plan, Stretches(*found[full:, :3].T)


def shuffled(plans: list[RowPlan], seed: tuple[int, ...]) -> RowPlan:
    """The rows of several plans, shuffled together with a seed."""
    before = np.cumsum([0, *(plan.row_offsets[-1] for plan in plans[:-1])])
    ends = [plan.row_offsets[1:] + first for plan, first in zip(plans, before.tolist(), strict=True)]
    columns = COLUMNS if plans[0].context is None else (*COLUMNS, "context")
    joined = (np.concatenate([getattr(plan, column) for plan in plans]) for column in columns)
    together = RowPlan(plans[0].row_len, np.concatenate([[0], *ends]), *joined)
    return _in_order(together, permutation(together.num_rows, "together", *seed))


def _in_order(plan: RowPlan, order: np.ndarray) -> RowPlan:
    """The same rows in another order."""
    counts = np.diff(plan.row_offsets)[order]
    row_offsets = np.concatenate([[0], np.cumsum(counts)])
    pieces = np.arange(row_offsets[-1]) + np.repeat(plan.row_offsets[order] - row_offsets[:-1], counts)
    columns = COLUMNS if plan.context is None else (*COLUMNS, "context")
    return RowPlan(plan.row_len, row_offsets, *(getattr(plan, column)[pieces] for column in columns))


def _rows_of_one_piece(document: np.ndarray, start: np.ndarray, row_len: int) -> RowPlan:
    rows = len(document)
    no = np.zeros(rows, dtype=bool)
    return RowPlan(row_len, np.arange(rows + 1), document, start, np.full(rows, row_len), no, no)


def _ends(window: Window, shard_tokens: np.ndarray, row_len: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers, within its shard, of the first and the last row that begin in each slice."""
    body = row_len - 1
    last = np.minimum(window.end - 1, shard_tokens[window.shard] - row_len) // body
    return -(-window.begin // body), last
