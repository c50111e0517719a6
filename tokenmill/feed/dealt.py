"""How often an epoch has dealt each document, if the run went on with another view on the way.

    documents      a  b  c  d
    first view     1  2  1  0      its first two windows dealt a, and one of b's two copies
    second view    2  1  0  1      so a comes once more, b not again, c not, and d once

Copy k of a document is due in the second view if it counts more than k there, and fewer than k + 1 copies were dealt.
So no document that was dealt comes beyond its new count, and none is left out. Only the documents of the window that is
planned are looked up: which windows their slices were in follows from the order, and nothing is stored.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tokenmill.rows.view_windows import ViewEpoch
from tokenmill.rows.windows import Epoch
from tokenmill.store.shards import Shard, ShardEntry
from tokenmill.store.token_sets import TokenSet


class DealtPart(NamedTuple):
    """The first `windows` windows of an epoch of a token set, with its view."""

    token_set: TokenSet
    entries: list[ShardEntry]  # of the split
    epoch: Epoch | ViewEpoch
    windows: int


class Dealt:
    """The copies that the `parts` of one epoch have dealt, one after the other."""

    def __init__(self, parts: Sequence[DealtPart]):
        self._parts = list(parts)
        self._shards = [{entry.name: n for n, entry in enumerate(part.entries)} for part in parts]
        self._windows: list[np.ndarray | None] = [None] * len(self._parts)  # of each part's slices

    def of(self, shard: Shard, first: int, last: int) -> np.ndarray | int:
        """How many copies of documents `first` to before `last` of a shard: (last - first,) int64, or 0 for all."""
        dealt: np.ndarray | int = 0
        for number, part in enumerate(self._parts):
            if (place := self._shards[number].get(shard.entry.name)) is not None:
                dealt = dealt + self._of_part(number, part, place, shard, first, last, dealt)
        return dealt

    def _of_part(
        self, number: int, part: DealtPart, place: int, shard: Shard, first: int, last: int, before: np.ndarray | int
    ) -> np.ndarray:
        windows = self._windows_of(number)
        if isinstance(part.epoch, Epoch):
            slices = part.epoch.slice_of(place, shard.offsets[first:last].astype(np.int64))
            was_dealt: np.ndarray = (windows[slices] < part.windows) & (np.asarray(before) == 0)
            return was_dealt.astype(np.int64)
        assert part.token_set.view is not None, "slices of a view"
        found = np.zeros(last - first, np.int64)
        slices = part.epoch.slices_of(place)
        slices = slices[windows[slices] < part.windows]
        copies, counts = part.epoch.copies_of(slices), part.token_set.view.counts_of(part.entries[place])
        before = np.broadcast_to(before, found.shape)
        near = np.flatnonzero((copies.first < last) & (copies.last > first))
        for begin, end, copy in zip(*(column[near].tolist() for column in copies), strict=True):
            some = slice(max(begin, first) - first, min(end, last) - first)
            found[some] += (counts[some.start + first : some.stop + first] > copy) & (before[some] <= copy)
        return found

    def _windows_of(self, number: int) -> np.ndarray:
        found = self._windows[number]
        if found is None:
            found = self._windows[number] = self._parts[number].epoch.windows_of_slices()
        return found
