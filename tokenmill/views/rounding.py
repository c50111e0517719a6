"""Fractions of a document: which documents are rounded up, so that the sum is right.

A document that is to count 1.5 times counts 1 or 2 times. Each has a random number u from 0 to 1, from the name of its
shard and its place there, and is rounded up if u / fraction is among the smallest, as many as the fractions add up to:

    fractions    0.5   0.5   0.2        in all 1.2, so 1 is rounded up
    u            0.30  0.80  0.15
    u / f        0.60  1.60  0.75       the first

A document whose fraction stays the same is rounded as before when others change, unless it was close to the last one.
(Sequential Poisson sampling with permanent random numbers: E. Ohlsson, "Sequential Poisson sampling", 1998.)
"""

import numpy as np

from tokenmill.rows.order import random_bits

HELD = 1 << 23  # documents close to the last one, which are held


class Rounding:
    """Rounds numbers of times, shard after shard; `corrections` then makes the sum right."""

    def __init__(self) -> None:
        self._sum, self._rounded_up = 0.0, 0
        # u / fraction of the documents whose ratio is closest to 1, and their places, in parts
        self._parts = [(np.zeros(0), np.zeros(0, np.int64))]
        self._held = 0

    def round(self, shard: str, times: np.ndarray, first: int) -> np.ndarray:
        """How often each document of a shard counts, about: (documents,) uint8. `first` is the place of the first."""
        whole = np.floor(times)
        fraction = times - whole
        some = np.flatnonzero(fraction > 0)
        counts = whole.astype(np.uint8)
        if not len(some):
            return counts
        u = (random_bits(len(times), "view", shard)[some] >> np.uint64(11)) * 2.0**-53
        ratio = u / fraction[some]
        up = ratio < 1
        counts[some[up]] += 1
        self._sum += float(fraction[some].sum())
        self._rounded_up += int(np.count_nonzero(up))
        self._hold(ratio, some + first)
        return counts

    def _hold(self, ratio: np.ndarray, place: np.ndarray) -> None:
        self._parts.append((ratio, place))
        self._held += len(ratio)
        if self._held > 2 * HELD:
            ratio, place = self._joined()
            distance = np.abs(np.log(np.maximum(ratio, 1e-300)))
            closest = np.argpartition(distance, HELD)[:HELD]
            self._parts, self._held = [(ratio[closest], place[closest])], HELD

    def _joined(self) -> tuple[np.ndarray, np.ndarray]:
        ratios, places = zip(*self._parts, strict=True)
        return np.concatenate(ratios), np.concatenate(places)

    def corrections(self) -> tuple[np.ndarray, np.ndarray]:
        """The places of documents to be rounded up, and of those to be rounded down, so that the sum is right."""
        more = round(self._sum) - self._rounded_up
        ratio, place = self._joined()
        order = np.lexsort((place, ratio))
        ratio, place = ratio[order], place[order]
        first_down = int(np.searchsorted(ratio, 1.0))  # those before it were rounded up
        none = place[:0]
        if more >= 0:
            return place[first_down : first_down + more], none
        return none, place[first_down + more : first_down]
