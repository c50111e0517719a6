"""Joins short pieces at random before packing, so that a piece meets other neighbors in every epoch.

Best-fit packing leaves the short pieces for the last rows: the same hundreds of them, in every epoch. Here most short
pieces (up to a quarter of a row) are shuffled and joined to bundles of an eighth to half a row, which are then packed
like single pieces. With row_len 32 and short pieces of 3, 8, 2, 5, 6 and 4 tokens:

    shuffled             5 2 8 4 6 3
    alone                5                   some are left alone, to fill small gaps
    bundles of 12, 10    (2 8) (4 6)  (3)    drawn lengths; a piece that passes the end begins the next bundle

With 258,000 documents of FineWeb-Edu's lengths and rows of 8,193 tokens, 0.2% of the pairs that share a row share one
in the next epoch; without bundles, 11%.
"""

from typing import NamedTuple

import numpy as np

from tokenmill.rows.order import random_bits, random_digits, stable_order

SHORT = 4  # a piece of at most a 4th of a row is short
LEAST = 8  # a bundle is drawn to be an 8th to half of a row long
ALONE, ROWS = (
    5,
    8,
)  # a 5th of the short pieces stay alone, or one for 8 rows if that is more, at most one a row


class Bundles(NamedTuple):
    """Pieces in bundles: bundle b holds the pieces piece[first[b]] to piece[first[b + 1] - 1], `size[b]` tokens."""

    size: np.ndarray  # (num_bundles,)
    first: np.ndarray  # (num_bundles + 1,) int64
    piece: np.ndarray  # (num_pieces,) int64

    def pieces_of(self, bundles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The pieces of some bundles, in their order, and how many each bundle has."""
        counts = self.first[bundles + 1] - self.first[bundles]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return self.piece[np.repeat(self.first[bundles], counts) + within], counts


def all_alone(size: np.ndarray) -> Bundles:
    """Each piece as a bundle of its own."""
    return Bundles(size, np.arange(len(size) + 1), np.arange(len(size)))


def bundle_short(size: np.ndarray, row_len: int, seed: tuple[int, ...]) -> Bundles:
    """Joins most of the short pieces of these sizes, (num_pieces,), to bundles. No bundle is longer than a row."""
    is_short = size <= row_len // SHORT
    short = np.flatnonzero(is_short)
    short = short[stable_order(random_digits(len(short), "short", *seed))]
    rows = int(size.sum(dtype=np.int64)) // row_len
    left_alone = min(len(short), rows, max(len(short) // ALONE, rows // ROWS))
    alone, joined = (
        np.concatenate([np.flatnonzero(~is_short), short[:left_alone]]),
        short[left_alone:],
    )
    if not len(joined):
        return all_alone(size)
    ends = np.cumsum(size[joined], dtype=np.int64)
    least = max(1, row_len // LEAST)
    drawn = random_bits(int(ends[-1]) // least + 1, "bundles", *seed) % np.uint64(3 * least)
    number = np.searchsorted(
        np.cumsum(least + drawn.astype(np.int64)), ends
    )  # the bundle of each piece
    begins = np.flatnonzero(np.diff(number, prepend=-1))
    first = np.concatenate([np.arange(len(alone)), len(alone) + begins, [len(size)]])
    sizes = np.concatenate([size[alone], np.add.reduceat(size[joined], begins)])
    return Bundles(sizes.astype(size.dtype), first, np.concatenate([alone, joined]))
