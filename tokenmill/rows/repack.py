"""The rows of a window, also where it was begun with rows of another length: what is left of it is packed anew.

A run goes from rows of 2,049 to rows of 8,193 tokens in the middle of a window, with its rows 0 to 511 dealt:

    the plan at 2,049 is made again; the pieces of rows 512 ... are what is left, those that touch joined
    what is left is packed at 8,193, and these are the window's rows from here on

Again and again, if need be: a window's past is a list of (row length, rows that are gone, or were left out). Every
token of the window is in one row that is dealt, filler apart. With `random`, whose rows are drawn, the share that is
left of the rows is had at the new length.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import numpy as np

from tokenmill.rows import cuts
from tokenmill.rows.packing import LongDocuments, RowPlan, Stretches, count_rows, plan_rows
from tokenmill.rows.windows import Window

Seed = tuple[int, ...]


class Past(NamedTuple):
    """Rows that are gone of a window that was planned at a length: `dealt` from its first on, and others left out."""

    row_len: int
    dealt: int
    skipped: Sequence[range] = ()


class Packer(Protocol):
    """How the rows of a window are made; `left` is what of it is left to be packed, None for all."""

    def plan(self, row_len: int, seed: Seed, left: Any) -> RowPlan: ...

    def count(self, row_len: int, seed: Seed, left: Any) -> int: ...

    def left(self, plan: RowPlan, rows: np.ndarray, before: Any) -> Any:
        """What only these rows of a plan hold."""


def plan_window(packer: Packer, row_len: int, seed: Seed, past: Sequence[Past] = ()) -> RowPlan:
    """The rows of a window after its past. ValueError where that has rows that there are not."""
    return packer.plan(row_len, *_after(packer, seed, past))


def count_window(packer: Packer, row_len: int, seed: Seed, past: Sequence[Past] = ()) -> int:
    """How many rows `plan_window` plans."""
    return packer.count(row_len, *_after(packer, seed, past))


def _after(packer: Packer, seed: Seed, past: Sequence[Past]) -> tuple[Seed, Any]:
    """The seed for what comes after a past, and what is left."""
    left = None
    for row_len, dealt, skipped in past:
        plan = packer.plan(row_len, seed, left)
        stays = np.ones(plan.num_rows, dtype=bool)
        for gone in (range(dealt), *skipped):
            if gone.stop > plan.num_rows:
                raise ValueError(f"no such row: a window of {plan.num_rows} rows of {row_len - 1} + 1, row {gone[-1]}")
            stays[gone.start : gone.stop] = False
        left = packer.left(plan, np.flatnonzero(stays), left)
        seed = (*seed, row_len, dealt)
    return seed, left


class BestFit:
    """Documents of `lengths` tokens, packed best-fit (packing.py).

    What is left of documents that rows of another length have cut is laid end to end and cut where a row is full: two
    pieces of 512 tokens and a BOS would not fit a row of 1,025. Whole documents are packed as ever.
    """

    def __init__(self, lengths: np.ndarray, long_documents: LongDocuments):
        self.lengths, self.long_documents = lengths, long_documents

    def plan(self, row_len: int, seed: Seed, left: Stretches | None) -> RowPlan:
        laid, left = self._laid(row_len, seed, left)
        packed = plan_rows(self.lengths, row_len, long_documents=self.long_documents, seed=seed, left=left)
        return packed if laid is None else cuts.shuffled([laid, packed], seed)

    def count(self, row_len: int, seed: Seed, left: Stretches | None) -> int:
        laid, left = self._laid(row_len, seed, left)
        packed = count_rows(self.lengths, row_len, long_documents=self.long_documents, seed=seed, left=left)
        return packed + (0 if laid is None else laid.num_rows)

    def left(self, plan: RowPlan, rows: np.ndarray, before: Stretches | None) -> Stretches:
        kept = plan.kept_in(rows)
        document = plan.document[kept]
        if self.long_documents == "crop":  # of each document one piece, which may be longer in longer rows
            document = np.sort(document)
            return Stretches(document, np.zeros_like(document), self.lengths[document])
        return joined(Stretches(document, plan.start[kept], plan.length[kept]))

    def _laid(self, row_len: int, seed: Seed, left: Stretches | None) -> tuple[RowPlan | None, Stretches | None]:
        """Full rows of what is left of cut documents, and what is to be packed: whole documents, and a rest."""
        if left is None or self.long_documents == "crop":
            return None, left
        whole = (left.start == 0) & (left.length == self.lengths[left.document])
        if whole.all():
            return None, left
        laid, rest = cuts.lay_pieces(Stretches(*(column[~whole] for column in left)), row_len, seed)
        columns = zip(left, rest, strict=True)
        return laid, Stretches(
            *(np.concatenate([column[whole], more]).astype(column.dtype) for column, more in columns)
        )


class Concat:
    """Consecutive rows of the slices of a window (cuts.py), shuffled or in order."""

    def __init__(self, window: Window, shard_tokens: np.ndarray, shuffle: bool):
        self.window, self.shard_tokens, self.shuffle = window, shard_tokens, shuffle

    def plan(self, row_len: int, seed: Seed, left: Stretches | None) -> RowPlan:
        drawn = seed if self.shuffle else None
        if left is None:
            return cuts.plan_concat(self.window, self.shard_tokens, row_len, drawn)
        return cuts.lay_rows(left, row_len, drawn)

    def count(self, row_len: int, seed: Seed, left: Stretches | None) -> int:
        if left is None:
            return int(cuts.count_concat(self.window, self.shard_tokens, row_len).sum())
        return -(-int(left.length.sum()) // (row_len - 1))

    def left(self, plan: RowPlan, rows: np.ndarray, before: Stretches | None) -> Stretches:
        return joined(cuts.inputs_of(plan, rows))


class Random:
    """Rows at random places of the slices of a window (cuts.py)."""

    def __init__(self, window: Window, shard_tokens: np.ndarray):
        self.window, self.shard_tokens = window, shard_tokens

    def plan(self, row_len: int, seed: Seed, left: Fraction | None) -> RowPlan:
        plan = cuts.plan_random(self.window, self.shard_tokens, row_len, seed)
        rows = self.count(row_len, seed, left)
        columns = (column[:rows] for column in (plan.document, plan.start, plan.length, plan.bos, plan.filler))
        return RowPlan(row_len, plan.row_offsets[: rows + 1], *columns)

    def count(self, row_len: int, seed: Seed, left: Fraction | None) -> int:
        rows = int(cuts.count_concat(self.window, self.shard_tokens, row_len).sum())
        return rows if left is None else int(rows * left)

    def left(self, plan: RowPlan, rows: np.ndarray, before: Fraction | None) -> Fraction:
        return Fraction(len(rows), max(1, plan.num_rows)) * (1 if before is None else before)


def joined(stretches: Stretches) -> Stretches:
    """Stretches in the order of the documents, those that touch as one."""
    order = np.lexsort((stretches.start, stretches.document))
    document, start, length = (column[order] for column in stretches)
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (document[1:] != document[:-1]) | (start[1:] != start[:-1] + length[:-1])
    first = np.flatnonzero(begins)
    return Stretches(document[first], start[first], np.add.reduceat(length, first) if len(first) else length)
