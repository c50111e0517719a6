"""Packers: how each packing makes the rows of a window, even if the window was begun with rows of another length.

For example, a run changes from rows of 2,049 to rows of 8,193 tokens in the middle of a window, after its rows 0 to
511:

    the plan with 2,049 is made again; what is left are the pieces of rows 512 ..., joined where they touch
    what is left is packed with 8,193, and the result is the window's rows from then on

This can happen several times, so a window's past is a list of (row length, rows that were used or left out). Every
token of the window is in exactly one row that was used, except for filler. `random` draws its rows, so for it only the
share of the rows that is left is kept at the new length.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import numpy as np

from tokenmill.rows import concat
from tokenmill.rows.order import ORDER_VERSION
from tokenmill.rows.packing import LongDocuments, RowPlan, Stretches, count_rows, plan_rows
from tokenmill.rows.windows import Window

Seed = tuple[int, ...]


class Past(NamedTuple):
    """The rows of a window that were used at this row length: the first `used`, and others that were skipped."""

    row_len: int
    used: int
    skipped: Sequence[range] = ()


class WindowContent(NamedTuple):
    """What a packer may know about a window."""

    lengths: np.ndarray  # (documents,) including BOS; empty if the packing does not pack documents
    slices: Window
    shard_tokens: np.ndarray  # (shards,) tokens of each shard of the split
    long_documents: LongDocuments
    shuffle: bool
    order_version: int = ORDER_VERSION


class Packer(Protocol):
    """Makes the rows of a window. `left` is what is left of it to be packed; None for all of it."""

    def plan(self, row_len: int, seed: Seed, left: Any) -> RowPlan: ...

    def count(self, row_len: int, seed: Seed, left: Any) -> int: ...

    def left(self, plan: RowPlan, rows: np.ndarray, before: Any) -> Any:
        """What is only in these rows of a plan."""


def plan_window(packer: Packer, row_len: int, seed: Seed, past: Sequence[Past] = ()) -> RowPlan:
    """The rows of a window after its past. Raises ValueError if the past names rows that do not exist."""
    return packer.plan(row_len, *_after(packer, seed, past))


def count_window(packer: Packer, row_len: int, seed: Seed, past: Sequence[Past] = ()) -> int:
    """The number of rows that `plan_window` plans."""
    return packer.count(row_len, *_after(packer, seed, past))


def _after(packer: Packer, seed: Seed, past: Sequence[Past]) -> tuple[Seed, Any]:
    """The seed and what is left after a past."""
    left = None
    for row_len, used_rows, skipped in past:
        plan = packer.plan(row_len, seed, left)
        remains = np.ones(plan.num_rows, dtype=bool)
        for used in (range(used_rows), *skipped):
            if used.stop > plan.num_rows:
                raise ValueError(f"no such row: a window of {plan.num_rows} rows of {row_len - 1} + 1, row {used[-1]}")
            remains[used.start : used.stop] = False
        left = packer.left(plan, np.flatnonzero(remains), left)
        seed = (*seed, row_len, used_rows)
    return seed, left


class BestFit:
    """Documents of `lengths` tokens, packed best-fit (packing.py).

    If rows of another length have cut documents, their rests are laid end to end and cut where a row is full. Packing
    them would waste room: two pieces of 512 tokens and a BOS do not fit into a row of 1,025. Whole documents are packed
    as usual.
    """

    def __init__(self, lengths: np.ndarray, long_documents: LongDocuments, order_version: int = ORDER_VERSION):
        self.lengths, self.long_documents, self.order_version = lengths, long_documents, order_version

    @classmethod
    def of_window(cls, content: WindowContent) -> "BestFit":
        return cls(content.lengths, content.long_documents, content.order_version)

    def plan(self, row_len: int, seed: Seed, left: Stretches | None) -> RowPlan:
        laid, left = self._laid(row_len, seed, left)
        packed = plan_rows(self.lengths, row_len, seed=seed, left=left, **self._how)
        return packed if laid is None else concat.shuffled([laid, packed], seed)

    def count(self, row_len: int, seed: Seed, left: Stretches | None) -> int:
        laid, left = self._laid(row_len, seed, left)
        packed = count_rows(self.lengths, row_len, seed=seed, left=left, **self._how)
        return packed + (0 if laid is None else laid.num_rows)

    @property
    def _how(self) -> dict[str, Any]:
        return {"long_documents": self.long_documents, "order_version": self.order_version}

    def left(self, plan: RowPlan, rows: np.ndarray, before: Stretches | None) -> Stretches:
        kept = plan.kept_in(rows)
        found = joined(Stretches(plan.document[kept], plan.start[kept], plan.length[kept]))
        if self.long_documents == "split":
            return found
        whole = self.lengths[found.document]  # a cropped document may be longer in longer rows
        was_whole = np.ones(len(self.lengths), bool)
        if before is not None:  # not if its rest has been used
            was_whole[:] = False
            was_whole[before.document] = (before.start == 0) & (before.length == self.lengths[before.document])
        uncut = was_whole[found.document] & (found.start == 0) & (found.length == np.minimum(whole, plan.row_len))
        return found._replace(length=np.where(uncut, whole, found.length).astype(found.length.dtype))

    def _laid(self, row_len: int, seed: Seed, left: Stretches | None) -> tuple[RowPlan | None, Stretches | None]:
        """Full rows of the rests of cut documents, and what is left to pack: whole documents and one incomplete row."""
        if left is None or self.long_documents == "crop":
            return None, left
        whole = (left.start == 0) & (left.length == self.lengths[left.document])
        if whole.all():
            return None, left
        laid, rest = concat.lay_pieces(Stretches(*(column[~whole] for column in left)), row_len, seed)
        columns = zip(left, rest, strict=True)
        return laid, Stretches(
            *(np.concatenate([column[whole], more]).astype(column.dtype) for column, more in columns)
        )


class Concat:
    """Consecutive rows of the slices of a window (concat.py), shuffled or in order."""

    def __init__(self, window: Window, shard_tokens: np.ndarray, shuffle: bool):
        self.window, self.shard_tokens, self.shuffle = window, shard_tokens, shuffle

    @classmethod
    def of_window(cls, content: WindowContent) -> "Concat":
        return cls(content.slices, content.shard_tokens, content.shuffle)

    def plan(self, row_len: int, seed: Seed, left: Stretches | None) -> RowPlan:
        drawn = seed if self.shuffle else None
        if left is None:
            return concat.plan_concat(self.window, self.shard_tokens, row_len, drawn)
        return concat.lay_rows(left, row_len, drawn)

    def count(self, row_len: int, seed: Seed, left: Stretches | None) -> int:
        if left is None:
            return int(concat.count_concat(self.window, self.shard_tokens, row_len).sum())
        return -(-int(left.length.sum()) // (row_len - 1))

    def left(self, plan: RowPlan, rows: np.ndarray, before: Stretches | None) -> Stretches:
        return joined(concat.inputs_of(plan, rows))


class Random:
    """Rows at random places in the slices of a window (concat.py)."""

    def __init__(self, window: Window, shard_tokens: np.ndarray):
        self.window, self.shard_tokens = window, shard_tokens

    @classmethod
    def of_window(cls, content: WindowContent) -> "Random":
        return cls(content.slices, content.shard_tokens)

    def plan(self, row_len: int, seed: Seed, left: Fraction | None) -> RowPlan:
        plan = concat.plan_random(self.window, self.shard_tokens, row_len, seed)
        rows = self.count(row_len, seed, left)
        columns = (column[:rows] for column in (plan.document, plan.start, plan.length, plan.bos, plan.filler))
        return RowPlan(row_len, plan.row_offsets[: rows + 1], *columns)

    def count(self, row_len: int, seed: Seed, left: Fraction | None) -> int:
        rows = int(concat.count_concat(self.window, self.shard_tokens, row_len).sum())
        return rows if left is None else int(rows * left)

    def left(self, plan: RowPlan, rows: np.ndarray, before: Fraction | None) -> Fraction:
        return Fraction(len(rows), max(1, plan.num_rows)) * (1 if before is None else before)


def joined(stretches: Stretches) -> Stretches:
    """Stretches in the order of the documents, with those that touch joined."""
    order = np.lexsort((stretches.start, stretches.document))
    document, start, length = (column[order] for column in stretches)
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (document[1:] != document[:-1]) | (start[1:] != start[:-1] + length[:-1])
    first = np.flatnonzero(begins)
    return Stretches(document[first], start[first], np.add.reduceat(length, first) if len(first) else length)
