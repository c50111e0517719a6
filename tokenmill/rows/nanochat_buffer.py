"""nanochat's BOS best-fit rule, followed pick for pick, from document lengths alone.

Before each pick, a buffer is refilled while it has fewer than 1,000 documents. A row of `row_len`
takes the longest buffered document that fits, the first of equals, again and again. When none fits,
the beginning of the shortest document fills the row, and the rest of that document is dropped
(nanochat, `dataloader.py`).

nanochat scans its buffer for each pick. Here it is a sorted list of keys length << 64 | (2**64 - 1
- place), where `place` grows from document to document: of documents of one length, the first to
arrive is the last in the list.
"""

from bisect import bisect_left
from collections.abc import Iterator

BUFFER_DOCUMENTS = 1000
REFILL_DOCUMENTS = 128
LENGTH = 64  # bits of a key below the length
PLACE = (1 << LENGTH) - 1


class BestFitBuffer:
    """Picks documents for rows. `refills` are lists of (length, place), with increasing places."""

    def __init__(self, refills: Iterator[list[tuple[int, int]]], row_len: int):
        self.refills = refills
        self.row_len = row_len
        self._keys: list[int] = []  # ascending

    def next_row(self) -> list[tuple[int, int]]:
        """The next row: (place, tokens taken from its beginning) of each document."""
        keys = self._keys
        row = []
        room = self.row_len
        while room:
            if len(keys) < BUFFER_DOCUMENTS:
                self._refill()
            num_fitting = bisect_left(keys, (room + 1) << LENGTH)
            if not num_fitting:
                shortest = keys[0] >> LENGTH
                num_fitting = bisect_left(keys, (shortest + 1) << LENGTH)
            key = keys.pop(num_fitting - 1)
            taken = key >> LENGTH
            if taken > room:
                taken = room
            place = PLACE - (key & PLACE)
            row.append((place, taken))
            room -= taken
        return row

    def _refill(self) -> None:
        keys = self._keys
        while len(keys) < BUFFER_DOCUMENTS:
            keys += [(length << LENGTH) | (PLACE - place) for length, place in next(self.refills)]
        keys.sort()  # two ascending runs and a short one: close to a merge
