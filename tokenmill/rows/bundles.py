"""Joins short pieces at random before packing, so that they meet other neighbors in every epoch.

Best-fit packing leaves the short pieces for the last rows: the same hundreds of them, in every
epoch. Here most short pieces (up to a quarter of a row) are shuffled and joined to bundles of an
eighth to half a row, which are then packed like single pieces. With row_len 32 and short pieces of
3, 8, 2, 5, 6 and 4 tokens:

    shuffled             5 2 8 4 6 3
    alone                5                   a few are left alone, to fill small gaps
    bundles of 12, 10    (2 8) (4 6)  (3)    drawn lengths; the piece that passes an end begins
                                             the next bundle

With 258,000 documents of FineWeb-Edu's lengths and rows of 8,193 tokens, 0.2% of the pairs that
share a row share one in the next epoch; without bundles, 11%.
"""

from typing import NamedTuple

import numpy as np

from tokenmill.rows.groups import within_groups
from tokenmill.rows.order import random_bits, random_digits, stable_order

SHORT = 4  # a piece of at most a 4th of a row is short
LEAST = 8  # a bundle is drawn to be an 8th to half of a row long
ALONE = 5  # a 5th of the short pieces stay alone,
ROWS = 8  # or one for 8 rows if that is more, at most one a row


class Bundles(NamedTuple):
    """Bundle b holds the pieces piece[first[b]] to piece[first[b + 1] - 1], `size[b]` tokens."""

    size: np.ndarray  # (num_bundles,)
    first: np.ndarray  # (num_bundles + 1,) int64
    piece: np.ndarray  # (num_pieces,) int64

    def pieces_of(self, bundles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The pieces of these bundles, in their order, and how many each bundle has."""
        begin = self.first[bundles]
        counts = self.first[bundles + 1] - begin
        places = np.repeat(begin, counts) + within_groups(counts)
        return self.piece[places], counts


def all_alone(size: np.ndarray) -> Bundles:
    """Each piece as a bundle of its own."""
    return Bundles(size, np.arange(len(size) + 1), np.arange(len(size)))


def bundle_short(size: np.ndarray, row_len: int, seed: tuple[int, ...]) -> Bundles:
    """Joins most of the short pieces of these sizes, (num_pieces,), to bundles.

    No bundle is longer than a row.
    """
    is_short = size <= row_len // SHORT
    short = np.flatnonzero(is_short)
    short = short[stable_order(random_digits(len(short), "short", *seed))]
    num_rows = int(size.sum(dtype=np.int64)) // row_len
    num_alone = max(len(short) // ALONE, num_rows // ROWS)
    num_alone = min(num_alone, num_rows, len(short))
    joined = short[num_alone:]
    if not len(joined):
        return all_alone(size)
    alone = np.concatenate([np.flatnonzero(~is_short), short[:num_alone]])
    ends = np.cumsum(size[joined], dtype=np.int64)
    least = max(1, row_len // LEAST)
    bits = random_bits(int(ends[-1]) // least + 1, "bundles", *seed)
    drawn = least + (bits % np.uint64(3 * least)).astype(np.int64)
    bundle = np.searchsorted(np.cumsum(drawn), ends)  # of each piece
    begins = np.flatnonzero(np.diff(bundle, prepend=-1))
    first = np.concatenate([np.arange(len(alone)), len(alone) + begins, [len(size)]])
    sizes = np.concatenate([size[alone], np.add.reduceat(size[joined], begins)])
    return Bundles(sizes.astype(size.dtype), first, np.concatenate([alone, joined]))
