"""The rows of one window, by any packing, also after a part of it was used as rows of another length.

For example, a run changes from rows of 2,049 to rows of 8,193 tokens in the middle of a window, after 512 rows. Then
the plan with 2,049 is made again, and what is in rows 512 and later is packed with 8,193. This can happen several
times, so the past of a window is a list of (seq_len, rows used). Every token of the window is in exactly one row that
was used, except for filler. Only best_fit can do that: consecutive rows of concat share a token, and rows of random are
no partition of anything.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tokenmill.rows.other_packings import (
    count_concat,
    lay_pieces,
    plan_concat,
    plan_random,
    shuffled,
)
from tokenmill.rows.packing import (
    LongDocuments,
    RowPlan,
    Seed,
    Spans,
    count_rows,
    plan_rows,
    whole_documents,
)
from tokenmill.rows.windows import Window

PACKINGS = ("best_fit", "nanochat", "concat", "random")
Past = Sequence[tuple[int, int]]  # (seq_len, rows used), oldest first


class Packing(NamedTuple):
    """How rows are made. `long_documents` is best_fit's; concat without `shuffle` deals rows in order.

    With `whole`, documents stay whole, and the end of a row is padding; chat sets are packed so.
    """

    name: str = "best_fit"
    long_documents: LongDocuments = "split"
    shuffle: bool = True
    whole: bool = False

    @property
    def packs_documents(self) -> bool:
        """Whether a plan's documents are those of the window; else they are its slices, whose tokens are one stream."""
        return self.name == "best_fit"


class Content(NamedTuple):
    """What a plan is made from: the lengths of the window's documents, or its slices and the tokens of all shards.

    `first_target` is the place of each document's first token that is in the loss, and past its end if none is; None
    for text. A document whose targets would all be cropped is left out, as a row of it would have none.
    """

    lengths: np.ndarray
    slices: Window
    shard_tokens: np.ndarray
    first_target: np.ndarray | None = None


def plan_window(
    packing: Packing, content: Content, seq_len: int, seed: Seed, past: Past = ()
) -> RowPlan:
    """The rows of a window that are left after its past. ValueError if the past names rows that do not exist."""
    if packing.name == "concat":
        drawn = seed if packing.shuffle else None
        return plan_concat(content.slices, content.shard_tokens, seq_len + 1, drawn)
    if packing.name == "random":
        return plan_random(content.slices, content.shard_tokens, seq_len + 1, seed)
    seed, left = _after(packing, content, seed, past)
    return _pack(packing, content, seq_len + 1, seed, left)


def count_window(
    packing: Packing, content: Content, seq_len: int, seed: Seed, past: Past = ()
) -> int:
    """The number of rows that `plan_window` plans, at a third of its cost."""
    if not packing.packs_documents:
        return int(count_concat(content.slices, content.shard_tokens, seq_len + 1).sum())
    seed, left = _after(packing, content, seed, past)
    laid, left = _lay_cut_documents(packing, content, seq_len + 1, seed, left)
    _, long_documents, _, whole = packing
    packed = count_rows(
        content.lengths,
        seq_len + 1,
        long_documents=long_documents,
        seed=seed,
        left=left,
        whole=whole,
    )
    return packed + (0 if laid is None else laid.num_rows)


def _after(packing: Packing, content: Content, seed: Seed, past: Past) -> tuple[Seed, Spans | None]:
    """The seed and what is left of the documents after a past; None for all of them."""
    left = None
    for seq_len, used in past:
        plan = _pack(packing, content, seq_len + 1, seed, left)
        if used > plan.num_rows:
            raise ValueError(
                f"no such row: a window of {plan.num_rows} rows of {seq_len} + 1, row {used - 1}"
            )
        left = _left_of(packing, plan, used, content.lengths, left)
        seed = (*seed, seq_len + 1, used)
    return seed, left


def _pack(
    packing: Packing, content: Content, row_len: int, seed: Seed, left: Spans | None
) -> RowPlan:
    laid, left = _lay_cut_documents(packing, content, row_len, seed, left)
    _, long_documents, _, whole = packing
    packed = plan_rows(
        content.lengths, row_len, long_documents=long_documents, seed=seed, left=left, whole=whole
    )
    return packed if laid is None else shuffled([laid, packed], seed)


def _lay_cut_documents(
    packing: Packing, content: Content, row_len: int, seed: Seed, left: Spans | None
) -> tuple[RowPlan | None, Spans | None]:
    """Full rows of the rests of cut documents, laid end to end, as packing them would waste room; and what is still to
    be packed.
    """
    if packing.whole:
        if content.first_target is None or not (late := content.first_target >= row_len).any():
            return None, left
        left = whole_documents(content.lengths) if left is None else left
        return None, Spans(*(column[~late[left.document]] for column in left))
    if left is None or packing.long_documents == "crop":
        return None, left
    uncut = (left.start == 0) & (left.length == content.lengths[left.document])
    if uncut.all():
        return None, left
    laid, rest = lay_pieces(Spans(*(column[~uncut] for column in left)), row_len, seed)
    columns = zip(left, rest, strict=True)
    return laid, Spans(
        *(np.concatenate([column[uncut], more]).astype(column.dtype) for column, more in columns)
    )


def _left_of(
    packing: Packing, plan: RowPlan, used: int, lengths: np.ndarray, before: Spans | None
) -> Spans:
    """What is only in the rows of a plan from `used` on; of whole documents, all that are in no used row. A cropped
    document of which nothing was used is whole again, as it may be longer in longer rows.
    """
    kept = plan.kept_from(used)
    if packing.whole:
        before = whole_documents(lengths) if before is None else before
        was_used = np.zeros(len(lengths), bool)
        was_used[plan.document[~kept & ~plan.filler]] = True
        return Spans(*(column[~was_used[before.document]] for column in before))
    found = _joined(Spans(plan.document[kept], plan.start[kept], plan.length[kept]))
    if packing.long_documents == "split":
        return found
    full = lengths[found.document]
    was_whole = np.full(len(lengths), before is None)
    if before is not None:  # not if its rest has been used
        was_whole[before.document] = (before.start == 0) & (
            before.length == lengths[before.document]
        )
    uncut = (
        was_whole[found.document]
        & (found.start == 0)
        & (found.length == np.minimum(full, plan.row_len))
    )
    return found._replace(length=np.where(uncut, full, found.length).astype(found.length.dtype))


def _joined(spans: Spans) -> Spans:
    """Spans in the order of the documents, with those that touch joined."""
    document, start, length = (
        column[np.lexsort((spans.start, spans.document))] for column in spans
    )
    begins = np.ones(len(start), dtype=bool)
    begins[1:] = (document[1:] != document[:-1]) | (start[1:] != start[:-1] + length[:-1])
    first = np.flatnonzero(begins)
    return Spans(
        document[first], start[first], np.add.reduceat(length, first) if len(first) else length
    )
