"""Cuts the tokens of a set's shards into blocks of a MiB, numbered through all shards in the order of the manifest.

shards of 2.5, 1 and 0 MiB      blocks 0 1 2 | 3 |           the third of them half a MiB

The numbers follow from the manifest alone, so that a map of them means the same to every process. Each block has a
CRC-32 in its shard's record.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tokenmill.store.files import BLOCK_BYTES
from tokenmill.store.shards import ShardEntry


class BlockSpan(NamedTuple):
    """Where a block is: the number of its shard in the set, its own number there, its bytes `start` to `stop`."""

    shard: int
    number: int
    start: int
    stop: int


class Blocks:
    """The blocks of these shards, with `itemsize` bytes a token."""

    def __init__(self, entries: Sequence[ShardEntry], itemsize: int):
        self.bytes = np.array([entry.tokens * itemsize for entry in entries], np.int64)  # of each shard
        counts = -(-self.bytes // BLOCK_BYTES)
        self.first = np.concatenate([[0], np.cumsum(counts)])  # of each shard, its first block
        self.count = int(self.first[-1])
        last = self.first[1:][counts > 0] - 1
        self._short = last, (counts * BLOCK_BYTES - self.bytes)[counts > 0]  # last blocks, and what they lack

    def span(self, block: int) -> BlockSpan:
        shard = int(np.searchsorted(self.first, block, side="right")) - 1
        start = (block - int(self.first[shard])) * BLOCK_BYTES
        return BlockSpan(shard, start // BLOCK_BYTES, start, min(start + BLOCK_BYTES, int(self.bytes[shard])))

    def size_of(self, some: np.ndarray) -> int:
        """The bytes of the blocks in a mask (count,)."""
        last, lacking = self._short
        return int(np.count_nonzero(some)) * BLOCK_BYTES - int(lacking[some[last]].sum())


def in_order(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The numbers from each `first` to its `last`, in this order, without duplicates."""
    many = last - first + 1
    numbers = np.repeat(first, many) + np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
    _, at = np.unique(numbers, return_index=True)
    found: np.ndarray = numbers[np.sort(at)]
    return found
