"""The documents of a window: which documents of which shards its slices have, and how often each comes.

    chosen = whole_documents(slices, shards)                    of a set: all that begin in the slices
    chosen = viewed_documents(slices, shards, counts, dealt)    of a view: those that count more than the slice's copy

Two binary searches in a shard's offsets find the documents of a slice, and a view's slices name them. No token is read.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from tokenmill.rows.windows import Window
from tokenmill.store.shards import Shard

GAP = 1 << 16  # tokens between two documents of a view that are still read in one stretch
Places = Callable[[], tuple[np.ndarray, np.ndarray]]


class WindowDocuments(NamedTuple):
    """`lengths` (documents,) int64 of the documents, including BOS. `stretches` are the (shard, begin, end) that their tokens are in, of shards by their number in the epoch:
    (num_stretches, 3) int64.
    `places()` are the shard of each document and its first token there, each (documents,) int64.
    """

    lengths: np.ndarray
    stretches: np.ndarray
    places: Places


def whole_documents(slices: Window, shards: Mapping[int, Shard]) -> WindowDocuments:
    """The documents that begin in the slices."""
    stretches, found = np.stack([slices.shard, slices.begin, slices.end], axis=1), []
    for shard, begin, end in stretches.tolist():
        first, last = shards[shard].documents_between(begin, end)
        found.append((shard, first, shards[shard].lengths_of(first, last)))

    def places() -> tuple[np.ndarray, np.ndarray]:
        numbers = np.array([shard for shard, *_ in found], np.int64)
        begins = [shards[shard].offsets[first : first + len(lengths)] for shard, first, lengths in found]
        return np.repeat(numbers, [len(lengths) for *_, lengths in found]), _joined(begins).astype(np.int64)

    return WindowDocuments(_joined([lengths for *_, lengths in found]), stretches, places)


def viewed_documents(
    slices: Window,
    shards: Mapping[int, Shard],
    counts_of: Callable[[int], np.ndarray],
    dealt_of: Callable[[int, int, int], np.ndarray | int],
) -> WindowDocuments:
    """The documents of a view's slices, as often as it counts them, in the order of their shards.

    `counts_of(shard)` are the counts of a shard's documents, and `dealt_of(shard, first, last)` how many copies of
    documents `first` to before `last` the epoch has dealt before, under another view.
    """
    assert slices.copies is not None, "slices of a view"
    by_shard: dict[int, list[np.ndarray]] = {}
    for shard, first, last, copy in zip(
        slices.shard.tolist(), *(column.tolist() for column in slices.copies), strict=True
    ):
        is_due = counts_of(shard)[first:last] > copy
        dealt = dealt_of(shard, first, last)
        if not isinstance(dealt, int):
            is_due = is_due & (dealt <= copy)
        by_shard.setdefault(shard, []).append(first + np.flatnonzero(is_due))
    shard_of, begins, lengths = [], [], []
    for shard in sorted(by_shard):
        numbers = np.sort(np.concatenate(by_shard[shard]))  # copies side by side
        begin, length = shards[shard].places_of(numbers)
        shard_of.append(np.full(len(numbers), shard))
        begins.append(begin)
        lengths.append(length)
    shard_numbers, begin, length = map(_joined, (shard_of, begins, lengths))
    return WindowDocuments(
        length, _stretches(shard_numbers, begin, begin + length), lambda: (shard_numbers, begin)
    )


def _stretches(shard: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Documents that lie close together, as one stretch to read: (num_stretches, 3) int64."""
    if not len(shard):
        return np.zeros((0, 3), np.int64)
    breaks = np.flatnonzero((shard[1:] != shard[:-1]) | (begin[1:] - end[:-1] > GAP)) + 1
    first, last = np.concatenate([[0], breaks]), np.concatenate([breaks, [len(shard)]]) - 1
    return np.stack([shard[first], begin[first], end[last]], axis=1)


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *arrays])
