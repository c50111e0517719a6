"""Groups whose members follow one another: with groups of 2, 0 and 3 members,

offsets_of      0 2 2 5         group g has the members offsets[g] to before offsets[g + 1]
within_groups   0 1 0 1 2       the number of each member in its group
"""

import numpy as np


def offsets_of(counts: np.ndarray) -> np.ndarray:
    """Where each group begins, and where the last one ends: (num_groups + 1,) int64."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def within_groups(counts: np.ndarray) -> np.ndarray:
    """The number of each member in its group, from 0: (num_members,) int64."""
    offsets = offsets_of(counts)
    begin = np.repeat(offsets[:-1], counts)
    return np.asarray(np.arange(offsets[-1]) - begin)
