"""The rows of one window, by any packing, also after a part of it was used at another row length.

For example, a run changes from rows of 2,049 to rows of 8,193 tokens in the middle of a window,
after 512 rows. Then the plan with 2,049 is made again, and what is in rows 512 and later is packed
with 8,193. This can happen several times, so the past of a window is a list of (seq_len, rows
used). Every token of the window is in exactly one row that was used, except for filler. Only
best_fit can do that: consecutive rows of concat share a token, and rows of random are no partition
of anything.

`spans` is what is left of a window's documents to be packed; None is all of them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tokenmill.rows.laid_pieces import lay_pieces, shuffled
from tokenmill.rows.packing import LongDocuments, RowPlan, Seed, count_rows, plan_rows
from tokenmill.rows.spans import Spans, joined, whole_documents
from tokenmill.rows.stream_packings import count_concat, plan_concat, plan_random
from tokenmill.rows.windows import Window

PACKINGS = ("best_fit", "nanochat", "concat", "random")
Past = Sequence[tuple[int, int]]  # (seq_len, rows used), oldest first


class Packing(NamedTuple):
    """How rows are made. `long_documents` is best_fit's; concat without `shuffle` has an order.

    With `keep_whole`, no document is cut, and the end of a row is padding: so are chat sets packed.
    """

    name: str = "best_fit"
    long_documents: LongDocuments = "split"
    shuffle: bool = True
    keep_whole: bool = False

    @property
    def packs_documents(self) -> bool:
        """Whether a plan is of the window's documents, or of its slices, each a token stream."""
        return self.name == "best_fit"


class Content(NamedTuple):
    """What a plan is made from: the lengths of the window's documents, or slices of its shards.

    `first_target` is the place of each document's first token that is in the loss, and past its end
    if none is; None for text. A document whose targets would all be cropped is left out, as a row
    of it would have none.
    """

    lengths: np.ndarray
    slices: Window
    shard_tokens: np.ndarray  # of all shards
    first_target: np.ndarray | None = None


def plan_window(
    packing: Packing, content: Content, seq_len: int, seed: Seed, past: Past = ()
) -> RowPlan:
    """The rows of a window that are left after its past.

    ValueError if the past names rows that do not exist.
    """
    row_len = seq_len + 1
    _require_plan(packing, past)
    if packing.name == "concat":
        concat_seed = seed if packing.shuffle else None
        return plan_concat(content.slices, content.shard_tokens, row_len, concat_seed)
    if packing.name == "random":
        return plan_random(content.slices, content.shard_tokens, row_len, seed)
    seed, spans = _after(packing, content, seed, past)
    return _plan(packing, content, row_len, seed, spans)


def count_window(
    packing: Packing, content: Content, seq_len: int, seed: Seed, past: Past = ()
) -> int:
    """The number of rows that `plan_window` plans, at a third of its cost."""
    row_len = seq_len + 1
    _require_plan(packing, past)
    if not packing.packs_documents:
        return int(count_concat(content.slices, content.shard_tokens, row_len).sum())
    seed, spans = _after(packing, content, seed, past)
    laid, spans = _lay_cut_documents(packing, content, row_len, seed, spans)
    num_packed = count_rows(
        content.lengths,
        row_len,
        long_documents=packing.long_documents,
        seed=seed,
        spans=spans,
        keep_whole=packing.keep_whole,
    )
    return num_packed if laid is None else num_packed + laid.num_rows


def _require_plan(packing: Packing, past: Past) -> None:
    """ValueError for rows that are not planned here, or a past of which no rest can be planned."""
    if packing.name == "nanochat":
        raise ValueError("rows of 'nanochat' have no plan: they follow from all before them")
    if past and not packing.packs_documents:
        raise ValueError(f"the row length of {packing.name!r} cannot change in a window")


def _after(packing: Packing, content: Content, seed: Seed, past: Past) -> tuple[Seed, Spans | None]:
    """The seed and the spans that are left after a past."""
    spans = None
    for seq_len, used in past:
        plan = _plan(packing, content, seq_len + 1, seed, spans)
        if used > plan.num_rows:
            last = used - 1
            raise ValueError(
                f"no such row: a window of {plan.num_rows} rows of {seq_len} + 1, row {last}"
            )
        if spans is None:
            spans = whole_documents(content.lengths)
        spans = _spans_left(packing, plan, used, content.lengths, spans)
        seed = (*seed, seq_len + 1, used)
    return seed, spans


def _plan(
    packing: Packing, content: Content, row_len: int, seed: Seed, spans: Spans | None
) -> RowPlan:
    laid, spans = _lay_cut_documents(packing, content, row_len, seed, spans)
    packed = plan_rows(
        content.lengths,
        row_len,
        long_documents=packing.long_documents,
        seed=seed,
        spans=spans,
        keep_whole=packing.keep_whole,
    )
    return packed if laid is None else shuffled([laid, packed], seed)


def _lay_cut_documents(
    packing: Packing, content: Content, row_len: int, seed: Seed, spans: Spans | None
) -> tuple[RowPlan | None, Spans | None]:
    """Full rows of what is left of cut documents, and the spans that are still to be packed.

    They are laid end to end, as packing them would waste room.
    """
    if packing.keep_whole:
        return None, _with_targets(content, row_len, spans)
    if spans is None or packing.long_documents == "crop":
        return None, spans
    is_whole = spans.are_whole(content.lengths)
    if is_whole.all():
        return None, spans
    laid, too_short = lay_pieces(spans.take(~is_whole), row_len, seed)
    columns = zip(spans.take(is_whole), too_short, strict=True)
    dtype = spans.length.dtype
    return laid, Spans._make(np.concatenate(column).astype(dtype) for column in columns)


def _with_targets(content: Content, row_len: int, spans: Spans | None) -> Spans | None:
    """The spans of documents that have a target in their first row."""
    if content.first_target is None:
        return spans
    is_late = content.first_target >= row_len
    if not is_late.any():
        return spans
    if spans is None:
        spans = whole_documents(content.lengths)
    return spans.take(~is_late[spans.document])


def _spans_left(
    packing: Packing, plan: RowPlan, num_used: int, lengths: np.ndarray, spans: Spans
) -> Spans:
    """What of `spans`, which a plan packs, is in no used row.

    A cropped document of which nothing was used is whole again, as it may be longer in longer rows.
    """
    is_used = plan.is_before(num_used)
    if packing.keep_whole:
        was_used = np.zeros(len(lengths), bool)
        was_used[plan.document[is_used & ~plan.filler]] = True
        return spans.take(~was_used[spans.document])
    left = joined(plan.spans.take(~is_used & ~plan.filler))
    if packing.long_documents == "split":
        return left
    was_whole = np.zeros(len(lengths), bool)
    was_whole[spans.document] = spans.are_whole(lengths)
    full = lengths[left.document]
    is_unused = was_whole[left.document] & (left.start == 0)
    is_unused &= left.length == np.minimum(full, plan.row_len)
    length = np.where(is_unused, full, left.length)
    return left._replace(length=length.astype(left.length.dtype))
