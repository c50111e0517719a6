"""Slices of shards, taken in windows from all over a split: the order of an epoch, from the shards' sizes alone.

Slice k of a shard is what begins in its tokens k S to (k + 1) S, with S = 2^20. An epoch permutes all slices of the
split and takes them in windows of about 2^28 tokens, whose documents are packed together. With S = 4 and windows of 8:

    shards of 10, 4 and 2 tokens    slices  a0 a1 a2  b0  c0      of 4, 4, 2, 4 and 2 tokens: 16, so two windows
    in a random order                       a2 b0 c0 | a1 a0      cut where it is nearest to 8 tokens each

So a batch is a sample of all places of a window, and a window is a sample of all places of the split. The sample is
systematic: with 37 windows, each gets one of the first 37 slices of the split, one of the next 37, and so on. A domain
that takes 1% of the split in one place then has 0.8 to 1.2% of every window; if slices were drawn without regard to
their place, 0 to 2.5%. A split smaller than a window is shuffled as a whole. A disk still reads stretches of 2 MB.
(Levanter measured what taking neighboring slices costs instead: marin issue 2917.)

The slices of a view are in view_windows.py, and an epoch whose documents change on the way in joined_epoch.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from tokenmill.rows.order import ORDER_VERSION, permutation, stable_order

Key = tuple[int | str, ...]


class WindowSize(NamedTuple):
    """How finely a split is shuffled, in tokens. A position is only valid for one window size."""

    slice: int = 1 << 20
    window: int = 1 << 28


DEFAULT_WINDOW_SIZE = WindowSize()


class Copies(NamedTuple):
    """Which documents the slices of a view have: `first[i]` to before `last[i]` of the shard, those that count more
    than copy[i]. Each (num_slices,) int64.
    """

    first: np.ndarray
    last: np.ndarray
    copy: np.ndarray


@dataclass(frozen=True)
class Window:
    """Slices, in the order of their shards: slice i is what begins in tokens begin[i] to end[i] of shard[i]."""

    shard: np.ndarray  # (num_slices,) int64: the shard's number in the split
    begin: np.ndarray  # (num_slices,) int64
    end: np.ndarray  # (num_slices,) int64
    copies: Copies | None = None  # of a view: which documents these slices have; None: all that begin in them

    def of_shards_from(self, first: int) -> "Window":
        """The same window where the shards of the split are numbered from `first` on."""
        return Window(self.shard + first, self.begin, self.end, self.copies)


class EpochWindows(Protocol):
    """The windows of one epoch."""

    tokens: np.ndarray  # (num_windows,) int64: of each window, about

    def __len__(self) -> int: ...

    def window(self, number: int) -> Window: ...

    def slices(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All slices: the shard, and the tokens of it that they are in: each (num_slices,) int64."""

    def windows_of_slices(self) -> np.ndarray:
        """The window of each of `slices()`: (num_slices,) int64; -1 for one that is in no window of this epoch."""


class Arrangement:
    """Slices of `stretch` tokens each, (num_slices,), permuted by `key` and cut into windows."""

    def __init__(self, stretch: np.ndarray, key: Key | None, window_tokens: int, order_version: int = ORDER_VERSION):
        count, total = len(stretch), int(stretch.sum())
        windows = max(1, round(total / window_tokens))
        order = np.arange(count) if key is None else permutation(count, "slices", *key)
        if key is not None and order_version > 1:
            order = _systematic(order, windows)
        self._order = order.astype(np.int32 if count < 1 << 31 else np.int64)
        done = np.cumsum(stretch[order])
        cuts = [total * number // windows for number in range(windows + 1)]  # Python's numbers do not overflow
        self._cuts = np.searchsorted(done, cuts, side="right")  # the number of slices before each cut
        self._cuts[0], self._cuts[-1] = 0, count
        self.tokens = np.diff(np.concatenate([[0], done])[self._cuts])  # of each window

    def __len__(self) -> int:
        return len(self._cuts) - 1

    def of_window(self, number: int) -> np.ndarray:
        """The slices of a window, ascending: int64."""
        found: np.ndarray = np.sort(self._order[self._cuts[number] : self._cuts[number + 1]].astype(np.int64))
        return found

    def windows_of_slices(self) -> np.ndarray:
        """The window of each slice, in their order in the split: (num_slices,) int64."""
        found = np.empty(len(self._order), np.int64)
        found[self._order] = np.repeat(np.arange(len(self)), np.diff(self._cuts))
        return found

    def window_of_slice(self, number: int) -> int:
        """The window of one slice."""
        place = int(np.flatnonzero(self._order == number)[0])
        return int(np.searchsorted(self._cuts, place, side="right")) - 1


class Epoch(Arrangement):
    """The windows of one epoch of shards of `shard_tokens`, permuted by `key`, or in order if there is no key.

    Order version 1 is that of tokenmill 0.3.0: a permutation of all slices.
    """

    def __init__(
        self,
        shard_tokens: Sequence[int] | np.ndarray,
        key: Key | None,
        window_size: WindowSize,
        order_version: int = ORDER_VERSION,
    ):
        self._tokens, self._slice = np.asarray(shard_tokens, dtype=np.int64), window_size.slice
        slices = -(-self._tokens // self._slice)
        self._first = np.concatenate([[0], np.cumsum(slices)])  # the first slice of each shard
        stretch = np.full(int(self._first[-1]), self._slice)  # tokens of each slice
        not_empty = slices > 0
        stretch[self._first[1:][not_empty] - 1] = (self._tokens - (slices - 1) * self._slice)[not_empty]
        super().__init__(stretch, key, window_size.window, order_version)

    def window(self, number: int) -> Window:
        """The slices of a window."""
        slices = self.of_window(number)
        shard = np.searchsorted(self._first, slices, side="right") - 1
        begin = (slices - self._first[shard]) * self._slice
        return Window(shard, begin, np.minimum(begin + self._slice, self._tokens[shard]))

    def slices(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All slices, shard after shard: (shard, begin, end), each (num_slices,) int64."""
        shard = np.repeat(np.arange(len(self._tokens)), np.diff(self._first))
        begin = (np.arange(len(shard)) - self._first[shard]) * self._slice
        return shard, begin, np.minimum(begin + self._slice, self._tokens[shard])

    def slice_of(self, shard: int, token: Any) -> Any:
        """The numbers of the slices that contain tokens of a shard, in the order of `slices()`: an int64 for an int, or
        an array for an array.
        """
        return self._first[shard] + token // self._slice

    def window_of(self, shard: int, token: int) -> int:
        """The window of the slice that contains this token of a shard."""
        return self.window_of_slice(int(self.slice_of(shard, token)))


def _systematic(drawn: np.ndarray, windows: int) -> np.ndarray:
    """Slices in an order whose `windows` equal stretches each have one of every `windows` neighboring slices.

    `drawn` is a random order of the slices, (num_slices,), which decides which neighbor goes to which window.
    """
    count = len(drawn)
    by_group = stable_order(np.arange(count) // windows, among=drawn)
    found: np.ndarray = by_group[stable_order(np.arange(count) % windows)]
    return found
