"""Random orders that mean the same years later: a stable argsort of a bit generator's raw output.

    permutation(5, "rows", 1337, 0)      the same five numbers in the same order, in every NumPy

The bits are those of Philox (Salmon et al., 2011) with a key hashed from whole numbers and names.
NumPy guarantees that stream, but not that of `Generator.permutation`.

NumPy's stable sort of uint16 is a radix sort, six times faster than its sorts of wider numbers. So
wider numbers are sorted 16 bits at a time, the least significant first.
"""

import hashlib
import operator

# An import inside the first `next` may lose a Ctrl-C, so what NumPy imports late is imported here.
import numpy as np
import numpy.ma  # noqa: F401 (np.unique imports it)
from numpy.random import Philox

DIGIT = 16  # bits


def random_bits(count: int, *key: int | str) -> np.ndarray:
    """`count` random uint64, the same for the same key in every NumPy.

    TypeError for numbers that are not whole.
    """
    # np.int64(3) is 3
    plain = tuple(part if isinstance(part, str) else operator.index(part) for part in key)
    digest = hashlib.sha256(repr(plain).encode()).digest()
    philox_key = int.from_bytes(digest[:16], "little")
    return Philox(key=philox_key).random_raw(count)


def number_of(name: str) -> int:
    """A name as a number for a key."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "little")


def random_digits(count: int, *key: int | str) -> np.ndarray:
    """The upper bits of `random_bits`, uint16: enough to shuffle within small groups."""
    bits = random_bits(count, *key)
    return (bits >> np.uint64(64 - DIGIT)).astype(np.uint16)


def permutation(count: int, *key: int | str) -> np.ndarray:
    """The numbers below `count` in a random order, a stable argsort of `random_bits`: int64."""
    bits = random_bits(count, *key)
    upper = bits >> np.uint64(DIGIT)
    order = stable_order(upper)
    drawn = upper[order]
    has_equals = (drawn[1:] == drawn[:-1]).any()
    return np.argsort(bits, kind="stable") if has_equals else order


def stable_order(numbers: np.ndarray, among: np.ndarray | None = None) -> np.ndarray:
    """A stable argsort of whole numbers from 0: (count,) int64. `among` is an order for ties."""
    num_bits = int(numbers.max(initial=0)).bit_length()
    order = among
    for shift in range(0, max(num_bits, 1), DIGIT):
        # the cast drops the bits above
        digit = (numbers >> numbers.dtype.type(shift)).astype(np.uint16)
        in_order = digit if order is None else digit[order]
        by_digit = np.argsort(in_order, kind="stable")
        order = by_digit if order is None else order[by_digit]
    assert order is not None, "at least one digit was sorted by"
    return order
