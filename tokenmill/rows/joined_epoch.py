"""JoinedEpoch: an epoch whose documents change on the way, as a run continues with another view.

    epochs A of 5 windows, B of 4; B follows after 2 windows of A:      A0 A1 B0 B1 B2 B3

B's windows have only what A's first two did not deal (feed/dealt.py), so they are smaller than B's own.
"""

from collections.abc import Sequence

import numpy as np

from tokenmill.rows.windows import EpochWindows, Window


class JoinedEpoch:
    """The windows of `epochs`, one after the other: of all but the last, the first ones up to where the next begins.

    `begins` has the number of the first window of each. The shards of the epochs are numbered one after the other, and
    `shards` has how many each has.
    """

    def __init__(self, epochs: Sequence[EpochWindows], begins: Sequence[int], shards: Sequence[int]):
        self._epochs, self._begins = list(epochs), list(begins)
        self._first_shards = np.concatenate([[0], np.cumsum(shards)]).tolist()
        dealt, tokens = 0.0, []
        for epoch, count in zip(self._epochs, self._counts(), strict=True):
            share = epoch.tokens * max(0.0, 1 - dealt)
            tokens.append(share.astype(np.int64)[:count])
            dealt += float(epoch.tokens[:count].sum()) / max(1, int(epoch.tokens.sum()))
        self.tokens = np.concatenate(tokens)

    def _counts(self) -> list[int]:
        """How many windows each epoch gives."""
        ends = [*self._begins[1:], self._begins[-1] + len(self._epochs[-1])]
        return [end - begin for begin, end in zip(self._begins, ends, strict=True)]

    def __len__(self) -> int:
        return len(self.tokens)

    def part_of(self, number: int) -> int:
        """Which of the epochs a window is of."""
        return int(np.searchsorted(self._begins, number, side="right")) - 1

    def window(self, number: int) -> Window:
        """The slices of a window."""
        part = self.part_of(number)
        return self._epochs[part].window(number - self._begins[part]).of_shards_from(self._first_shards[part])

    def slices(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All slices of all epochs: (shard, begin, end), each (num_slices,) int64."""
        found = []
        for epoch, first in zip(self._epochs, self._first_shards, strict=False):
            shard, begin, end = epoch.slices()
            found.append((shard + first, begin, end))
        shards, begins, ends = (np.concatenate(columns) for columns in zip(*found, strict=True))
        return shards, begins, ends

    def windows_of_slices(self) -> np.ndarray:
        """The window of each slice: (num_slices,) int64; -1 if another epoch follows before its window."""
        found = []
        for epoch, begin, count in zip(self._epochs, self._begins, self._counts(), strict=True):
            own = epoch.windows_of_slices()
            found.append(np.where(own < count, own + begin, -1))
        return np.concatenate(found)
