"""Slices of shards, taken in windows from all over a split: the order of an epoch, from sizes.

Slice k of a shard is what begins in its tokens k S to (k + 1) S, with S = 2^20. An epoch permutes
all slices of the split and takes them in windows of about 2^28 tokens, whose documents are packed
together. With S = 4 and windows of 8:

    shards of 10, 4 and 2 tokens    slices a0 a1 a2, b0, c0    of 4, 4, 2, 4 and 2 tokens: 16 in all
    in a random order               a2 b0 c0 | a1 a0           cut where it is near to 8 tokens each

So a batch is a sample of all places of a window, and a window is a sample of all places of the
split. The sample is systematic: with 37 windows, each gets one of the first 37 slices of the split,
one of the next 37, and so on. A domain that takes 1% of the split in one place then has 0.6 to 1.4%
of most windows; if slices were drawn without regard to their place, 0 to 2.5%. (Levanter measured
what taking neighboring slices costs: marin issue 2917.)

A view says how often each document counts (store/views.py). Copy c of a shard is the stream of its
documents that count more than c, one after the other, and slice k of a copy is what begins in its
tokens k S to (k + 1) S. With S = 8:

    documents of 4, 4, 2, 6, 2 tokens that count 1, 0, 3, 1, 2
    copy 0     4 2 6 2      slices (4 2 6)  (2)
    copy 1     2 2          slice (2 2)
    copy 2     2            slice (2)

If every document counts once, the slices are those of the whole set. They are sorted by their first
document, so most copies of a document are neighbors, which the systematic sample puts into
different windows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tokenmill.rows.groups import offsets_of, within_groups
from tokenmill.rows.order import permutation, stable_order

Key = tuple[int | str, ...]
SLICE = np.dtype(  # of a view, as it is stored
    [
        ("begin", "<u8"),  # the tokens of the shard that its documents are in
        ("end", "<u8"),
        ("shard", "<u4"),  # the shard's number
        ("first", "<u4"),  # its documents are among these of the shard: first to before last
        ("last", "<u4"),
        ("tokens", "<u4"),  # of its copy's stream: S, or fewer at the end
        ("copy", "<u4"),
    ]
)


class WindowSize(NamedTuple):
    """How finely a split is shuffled, in tokens. A position is only valid for one window size."""

    slice: int = 1 << 20
    window: int = 1 << 28


DEFAULT_WINDOW_SIZE = WindowSize()


class Window(NamedTuple):
    """Slices, in the order of their shards. Slice i begins in begin[i] to before end[i] of a shard.

    Those of a view have `copies` (first, last, copy): documents first[i] to before last[i] that
    count over copy[i]. All are (num_slices,) int64.
    """

    shard: np.ndarray  # the shard's number in the split
    begin: np.ndarray
    end: np.ndarray
    copies: tuple[np.ndarray, ...] | None = None


class Epoch:
    """The windows of one epoch: all slices, permuted by `key`, or in order if there is none.

    `sizes` are the tokens of each slice, (num_slices,).
    """

    def __init__(self, slices: Window, sizes: np.ndarray, key: Key | None, window_tokens: int):
        self.slices = slices
        num_slices = len(sizes)
        total = int(sizes.sum())
        num_windows = max(1, round(total / window_tokens))
        order = np.arange(num_slices)
        if key is not None:
            order = _systematic(permutation(num_slices, "slices", *key), num_windows)
        self._order = order.astype(np.int32 if num_slices < 1 << 31 else np.int64)
        tokens_before = offsets_of(sizes[order])
        # Python's numbers do not overflow
        cuts = [total * number // num_windows for number in range(num_windows + 1)]
        self._offsets = np.searchsorted(tokens_before[1:], cuts, side="right")  # in slices
        self._offsets[0] = 0
        self._offsets[-1] = num_slices
        self.tokens = np.diff(tokens_before[self._offsets])  # of each window

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def window(self, number: int) -> Window:
        """The slices of a window. ValueError if the epoch has no such window."""
        if number >= len(self):
            raise ValueError(f"no such window: {number}, of an epoch that has {len(self)}")
        members = self._order[self._offsets[number] : self._offsets[number + 1]]
        members = np.sort(members.astype(np.int64))
        shard, begin, end, copies = self.slices
        if copies is not None:
            copies = tuple(column[members] for column in copies)
        return Window(shard[members], begin[members], end[members], copies)

    def windows_of_slices(self) -> np.ndarray:
        """The window of each slice, in their order in the split: (num_slices,) int64."""
        windows = np.empty(len(self._order), np.int64)
        windows[self._order] = np.repeat(np.arange(len(self)), np.diff(self._offsets))
        return windows


def epoch_of_shards(
    shard_tokens: Sequence[int] | np.ndarray, key: Key | None, size: WindowSize
) -> Epoch:
    """The windows of one epoch of shards of `shard_tokens`."""
    tokens = np.asarray(shard_tokens, np.int64)
    num_slices = -(-tokens // size.slice)  # of each shard
    shard = np.repeat(np.arange(len(tokens)), num_slices)
    begin = within_groups(num_slices) * size.slice
    end = np.minimum(begin + size.slice, tokens[shard])
    return Epoch(Window(shard, begin, end), end - begin, key, size.window)


def epoch_of_view(slices: np.ndarray, key: Key | None, size: WindowSize) -> Epoch:
    """The windows of one epoch of a view, whose slices are as `cut_slices` sorts them."""
    columns = {name: slices[name].astype(np.int64) for name in SLICE.names or ()}
    copies = (columns["first"], columns["last"], columns["copy"])
    window = Window(columns["shard"], columns["begin"], columns["end"], copies)
    return Epoch(window, columns["tokens"], key, size.window)


def cut_slices(
    shard: int, offsets: np.ndarray, counts: np.ndarray, slice_tokens: int
) -> np.ndarray:
    """The slices of a shard whose documents count `counts`, (documents,): (num_slices,) of SLICE.

    `offsets`, (documents + 1,), are those of the documents.
    """
    lengths = np.diff(offsets.astype(np.int64))
    copies = [np.zeros(0, SLICE)]
    for copy in range(int(counts.max(initial=0))):
        documents = np.flatnonzero(counts > copy)
        copy_offsets = offsets_of(lengths[documents])
        total = int(copy_offsets[-1])
        begin = np.arange(0, total, slice_tokens)
        # the numbers, in the copy, of the documents that begin in each slice
        first = np.searchsorted(copy_offsets[:-1], begin)
        last = np.append(first[1:], len(documents))
        slices = np.zeros(len(begin), SLICE)
        slices["shard"] = shard
        slices["copy"] = copy
        slices["tokens"] = np.minimum(slice_tokens, total - begin)
        slices["first"] = documents[np.minimum(first, len(documents) - 1)]
        slices["last"] = np.where(last > first, documents[last - 1] + 1, slices["first"])
        slices["begin"] = offsets[slices["first"]]
        slices["end"] = offsets[slices["last"]]
        copies.append(slices)
    slices = np.concatenate(copies)
    return slices[np.lexsort((slices["copy"], slices["first"]))]


def _systematic(drawn: np.ndarray, num_windows: int) -> np.ndarray:
    """Slices in an order whose equal parts each have one of every `num_windows` neighboring slices.

    The random order `drawn`, (num_slices,), decides which.
    """
    numbers = np.arange(len(drawn))
    by_group = stable_order(numbers // num_windows, among=drawn)
    return np.asarray(by_group[stable_order(numbers % num_windows)])
