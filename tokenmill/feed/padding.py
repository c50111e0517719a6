"""Padding: what closes a row of whole documents, in the form of a shard, so that rows are read from it as from others.

    Padding(2049, bos_id=0, dtype)      tokens 0 1 1 1 ...      no token of it bears loss

It begins with BOS, so it is a document of its own for whoever looks for documents in a row, and attention does not
reach from it into a conversation. The other tokens are any id that is neither BOS nor 0, which
remote/holes.py would look at twice.
"""

from typing import Any, NamedTuple

import numpy as np


class PaddingEntry(NamedTuple):
    """What stands in place of a shard's entry in the manifest."""

    name: str = "padding"


class Padding:
    """`row_len` tokens of padding. It has what `Shard` has, as far as rows are read from it."""

    entry = PaddingEntry()

    def __init__(self, row_len: int, bos_id: int, dtype: np.dtype[Any]):
        self.tokens = np.full(row_len, 1 if bos_id != 1 else 2, dtype)
        self.tokens[0] = bos_id
        self.offsets = np.array([0, row_len], np.uint64)
        self.mask_bytes = memoryview(bytes(-(-row_len // 8)))
        self.path = None

    @property
    def token_bytes(self) -> memoryview:
        return self.tokens.data.cast("B")

    def read(self, begin: int, end: int, known_first: bool = False) -> np.ndarray:
        found: np.ndarray = self.tokens[begin:end]
        return found

    def require_unchanged(self) -> None:
        """Does nothing: padding is no file."""

    def expect_random_reads(self) -> None:
        """Does nothing: padding is no file."""
