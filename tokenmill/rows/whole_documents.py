"""Rows of whole documents: no document is cut, and the end of a row is padding. Chat sets are packed this way.

With row_len 8 and documents of 5, 4, 3 and 2 tokens, including BOS:

    5 3 | 4 2 + 2 of padding

Documents are picked as in packing.py, best-fit decreasing, and shuffled in the same way.
The difference is what closes a row: padding is a piece of its own, of a document that does not exist (its number is the
number of documents), so that it takes no tokens from others and bears no loss. What happens to a document that is
longer than a row is up to `long_documents`:

    split     ValueError: this is the default, and a document that stays whole is not split
    drop      it is left out
    crop      its first row is kept
    window    it is cut into overlapping windows. Each after the first repeats up to half a row of what comes before it,
              as context: a document of 20 tokens in rows of 8 is

                  0..7 | B 5 6 7 8..11 | B 9 10 11 12..15 | B 13 14 15 16..19

              RowPlan.context says how many tokens of a piece are repeated. They bear no loss, so every token is a
              target exactly once.

After rows of another length, what is left are the documents in no row that was used; of documents in windows, the
tokens that no used row had as its own.
"""

import numpy as np

from tokenmill.rows.bundles import Bundles, all_alone, bundle_short
from tokenmill.rows.order import random_digits, stable_order
from tokenmill.rows.packers import Seed, WindowContent, joined
from tokenmill.rows.packing import RowPlan, Stretches, pick_sizes, shuffle_rows, whole_documents


class WholeDocuments:
    """A packer (packers.py) of documents of `lengths` tokens. ValueError from `plan` and `count` for a document that is
    longer than a row, if `long_documents` is "split".
    """

    def __init__(self, lengths: np.ndarray, long_documents: str):
        self.lengths, self.long_documents = np.asarray(lengths, np.int64), long_documents

    @classmethod
    def of_window(cls, content: WindowContent) -> "WholeDocuments":
        return cls(content.lengths, content.long_documents)

    def plan(self, row_len: int, seed: Seed, left: Stretches | None) -> RowPlan:
        pieces, context = self._pieces(row_len, left)
        size = _size(pieces, context)
        bundles, picks, row_offsets = _picked(size, row_len, seed)
        drawn = stable_order(bundles.size, among=stable_order(random_digits(len(bundles.size), "pieces", *seed)))
        chosen = np.empty(len(picks), np.int32)  # the k-th pick of a size: its k-th bundle
        chosen[stable_order(picks)] = drawn
        piece, count = bundles.pieces_of(chosen)
        row = np.repeat(np.repeat(np.arange(len(row_offsets) - 1, dtype=np.int32), np.diff(row_offsets)), count)
        kept = Stretches(*(column[piece] for column in pieces))

        free = row_len - np.bincount(row, weights=size[piece], minlength=len(row_offsets) - 1).astype(np.int64)
        padded = np.flatnonzero(free)
        padding = np.arange(len(row) + len(padded)) >= len(row)
        order, offsets = shuffle_rows(np.concatenate([row, padded.astype(np.int32)]), padding, len(free), seed)
        repeated = np.concatenate([context[piece], np.zeros_like(padded)])[order]
        start = np.concatenate([kept.start, np.zeros_like(padded)])[order] - repeated
        return RowPlan(
            row_len,
            offsets,
            np.concatenate([kept.document, np.full_like(padded, len(self.lengths))])[order],
            start,
            np.concatenate([kept.length, free[padded]])[order] + repeated,
            start > 0,
            padding[order],
            repeated,
        )

    def count(self, row_len: int, seed: Seed, left: Stretches | None) -> int:
        size = _size(*self._pieces(row_len, left))
        return len(_picked(size, row_len, seed)[2]) - 1

    def left(self, plan: RowPlan, rows: np.ndarray, before: Stretches | None) -> Stretches:
        assert plan.context is not None, "this packer planned these rows"
        kept = plan.kept_in(rows)
        if self.long_documents == "window":
            repeated = plan.context[kept]
            own = Stretches(plan.document[kept], plan.start[kept] + repeated, plan.length[kept] - repeated)
            return joined(own)
        before = whole_documents(self.lengths) if before is None else before
        used = np.zeros(len(self.lengths), bool)
        used[plan.document[~kept & ~plan.filler]] = True
        return Stretches(*(column[~used[before.document]] for column in before))  # documents left out are not used

    def _pieces(self, row_len: int, left: Stretches | None) -> tuple[Stretches, np.ndarray]:
        """The pieces to pack, and how many tokens before each are repeated as its context."""
        stretches = whole_documents(self.lengths) if left is None else left
        is_long = stretches.length > row_len
        none = np.zeros(len(stretches.document), np.int64)
        if self.long_documents == "window":
            return _windows(stretches, row_len)
        if not is_long.any():
            return stretches, none
        if self.long_documents == "split":
            raise too_long(int(is_long.sum()), int(stretches.length.max()), row_len)
        if self.long_documents == "crop":
            return stretches._replace(length=np.minimum(stretches.length, row_len)), none
        return Stretches(*(column[~is_long] for column in stretches)), none[~is_long]


def too_long(documents: int, longest: int, row_len: int) -> ValueError:
    """The error for documents that are longer than a row."""
    return ValueError(
        f"{documents:,} documents are longer than a row of {row_len - 1:,} + 1 tokens, the longest with {longest:,}; "
        "use a larger seq_len, or long_documents='window', 'crop' or 'drop'"
    )


def _size(pieces: Stretches, context: np.ndarray) -> np.ndarray:
    """The room that each piece takes in a row: its tokens, its context, and an inserted BOS."""
    size: np.ndarray = pieces.length + context + (pieces.start > context)
    return size


def _picked(size: np.ndarray, row_len: int, seed: Seed) -> tuple[Bundles, np.ndarray, np.ndarray]:
    """The pieces in bundles, and the picks of these with their row_offsets.

    Where few pieces are short, all of them are needed alone to fill gaps that nothing else fills, so what gives fewer
    rows is taken. With lengths like UltraChat's and rows of 2,049, bundles cost 0.6% more padding.
    """
    bundles = [bundle_short(size, row_len, seed), all_alone(size)]
    found = [(some, *pick_sizes(some.size, row_len, seed)) for some in bundles]
    return min(found, key=lambda one: len(one[2]))


def _windows(stretches: Stretches, row_len: int) -> tuple[Stretches, np.ndarray]:
    """Stretches cut into the tokens that each window has as its own, and the tokens of context before them."""
    document, start, length = stretches
    most = (row_len - 1) // 2  # tokens of context
    context = np.minimum(start, most)
    first = row_len - context - (start > context)  # most tokens of a stretch's first window
    body = row_len - 1 - most  # and of those that follow: BOS, context, and these
    more = -(-np.maximum(length - first, 0) // body)
    of = np.repeat(np.arange(len(more)), 1 + more)
    number = np.arange(len(of)) - (np.cumsum(1 + more) - 1 - more)[of]  # 0, 1, 2 ... within a stretch
    done = np.where(number == 0, 0, first[of] + (number - 1) * body)
    taken = np.minimum(length[of] - done, np.where(number == 0, first[of], body))
    return Stretches(document[of], start[of] + done, taken), np.where(number == 0, context[of], most)
