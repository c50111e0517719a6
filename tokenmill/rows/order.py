"""Random orders that mean the same years later: a stable argsort of a bit generator's raw output.

    permutation(5, "rows", 1337, 0)      the same five numbers in the same order, in every NumPy

The bits are those of Philox (Salmon et al., 2011) with a key hashed from whole numbers and names. NumPy guarantees that
stream, but not that of `Generator.permutation`.

NumPy's stable sort of uint16 is a radix sort, six times faster than its sorts of wider numbers. So wider numbers are
sorted 16 bits at a time, the least significant first.
"""

import hashlib
import operator

import numpy as np

DIGIT = 16  # bits


def random_bits(count: int, *key: int | str) -> np.ndarray:
    """`count` random uint64, the same for the same key in every NumPy. TypeError for numbers that are not whole."""
    plain = tuple(
        part if isinstance(part, str) else operator.index(part) for part in key
    )  # np.int64(3) is 3
    digest = hashlib.sha256(repr(plain).encode()).digest()
    return np.random.Philox(key=int.from_bytes(digest[:16], "little")).random_raw(count)


def number_of(name: str) -> int:
    """A name as a number for a key."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def random_digits(count: int, *key: int | str) -> np.ndarray:
    """`count` random uint16, the upper bits of `random_bits`; enough to shuffle within small groups."""
    return (random_bits(count, *key) >> np.uint64(64 - DIGIT)).astype(np.uint16)


def permutation(count: int, *key: int | str) -> np.ndarray:
    """The numbers below `count` in a random order, a stable argsort of `random_bits`: (count,) int64."""
    bits = random_bits(count, *key)
    upper = bits >> np.uint64(DIGIT)
    order = stable_order(upper)
    drawn = upper[order]
    return np.argsort(bits, kind="stable") if (drawn[1:] == drawn[:-1]).any() else order


def stable_order(numbers: np.ndarray, among: np.ndarray | None = None) -> np.ndarray:
    """A stable argsort of whole numbers from 0: (count,) int64. `among` is an order that breaks ties."""
    order, left = among, int(numbers.max(initial=0))
    for shift in range(0, max(left.bit_length(), 1), DIGIT):
        digit = (numbers >> numbers.dtype.type(shift)).astype(
            np.uint16
        )  # the cast drops the bits above
        order = (
            np.argsort(digit, kind="stable")
            if order is None
            else order[np.argsort(digit[order], kind="stable")]
        )
    assert order is not None, "at least one digit was sorted by"
    return order
