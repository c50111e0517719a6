"""The columns of a shard: which arrays it has, and what each file holds.

One fixed table, over which all else loops.

    suffix        values            one a     which shards have it              its checksums
    bin           uint16 or uint32  token     all: token ids                    record and manifest
    idx           uint64            boundary  all: offsets of the documents     record and manifest
    mask          bit               token     of chat sets: is it in the loss   record and manifest
    targets       uint32            document  of chat sets: tokens in the loss  record and manifest
    meta.parquet  a table           document  prepared with --keep-columns      record

A shard of 3 documents and 9 tokens has 9 values for its tokens, 3 for its documents, and 4 for
their boundaries. Its record says of each column how many bytes it has, its SHA-256, and a CRC-32 of
each MiB:

    {"dtype": "uint16", "bin": {"bytes": 18, "sha256": "...", "crc32": [...]}, "idx": ...}

The digest of a token set follows from what its manifest lists, so it changes with the mask, and not
with metadata.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

# what rules of views know of every document; a kept column of that name is called kept_tokens
KNOWN = ("tokens", "shard", "source_file", "split")
PARQUET = "parquet"  # the type of a column that is a table, with a row for each document
# the type of a column of 0 and 1: value k is bit k of np.unpackbits(file, bitorder="little")
BIT = "bit"


@dataclass(frozen=True)
class Column:
    """One array of a shard."""

    suffix: str  # of its file
    dtype: str  # of NumPy, stored little-endian; or BIT, or PARQUET
    per: Literal["token", "document", "boundary"]  # what has a value; boundaries: documents + 1
    optional: bool = True
    listed: bool = True  # whether a manifest has its SHA-256: rows depend on it

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """As it is stored, unless it is a table: uint8 for bits."""
        if self.dtype == BIT:
            return np.dtype("u1")
        size = np.dtype(self.dtype).str[1:]  # as u2
        return np.dtype(f"<{size}")

    def count(self, documents: int, tokens: int) -> int:
        """How many values it has in a shard."""
        counts = {"token": tokens, "document": documents, "boundary": documents + 1}
        return counts[self.per]

    def stored(self, documents: int, tokens: int) -> int:
        """How many numbers of `numpy_dtype` its file has: of bits, one for eight values."""
        count = self.count(documents, tokens)
        return -(-count // 8) if self.dtype == BIT else count

    def size(self, documents: int, tokens: int) -> int | None:
        """How many bytes it has in a shard; None for a table, whose size only its record knows."""
        if self.dtype == PARQUET:
            return None
        return self.stored(documents, tokens) * self.numpy_dtype.itemsize


TOKENS = Column("bin", "uint32", "token", optional=False)  # or uint16: the record says which
OFFSETS = Column("idx", "uint64", "boundary", optional=False)
META = Column("meta.parquet", PARQUET, "document", listed=False)
MASK = Column("mask", BIT, "token")
TARGETS = Column("targets", "uint32", "document")
COLUMNS = {column.suffix: column for column in (TOKENS, OFFSETS, META, MASK, TARGETS)}
LISTED = tuple(column.suffix for column in COLUMNS.values() if column.listed)


def columns_of(record: dict[str, Any]) -> dict[str, Column]:
    """The columns of the shard with this record, tokens and offsets first."""
    columns = {suffix: column for suffix, column in COLUMNS.items() if suffix in record}
    columns[TOKENS.suffix] = replace(TOKENS, dtype=record["dtype"])
    return columns


def listed_sha256(record: dict[str, Any]) -> dict[str, str]:
    """The SHA-256 of the columns that a manifest lists."""
    return {suffix: record[suffix]["sha256"] for suffix in LISTED if suffix in record}
