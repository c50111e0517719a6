"""The columns of a shard: which arrays it has, and what each file holds. One fixed table, which all else loops over.

    suffix         values            one for each   which shards have it             where its checksums are
    bin            uint16 or uint32  token          all: token ids                   the record, and the manifest
    idx            uint64            boundary       all: offsets of the documents    the same
    mask           bit               token          of chat sets: is it in the loss  the same
    targets        uint32            document       of chat sets: tokens in the loss the same
    meta.parquet   a table           document       prepared with --keep-columns     the record alone

A shard of 3 documents and 9 tokens has 9 values for its tokens, 3 for its documents, and 4 for their boundaries. Its
record says of each column how many bytes it has, its SHA-256, and a CRC-32 of each MiB:

    {"dtype": "uint16", "bin": {"bytes": 18, "sha256": "...", "crc32": [...]}, "idx": {"bytes": 32, ...}, ...}

The digest of a token set follows from what its manifest lists, so it changes with the mask, and not with metadata.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

PARQUET = "parquet"  # the type of a column that is a table, with a row for each document
BIT = "bit"  # the type of a column of 0 and 1: value k is bit k of np.unpackbits(file, bitorder="little")


@dataclass(frozen=True)
class Column:
    """One array of a shard."""

    suffix: str  # of its file
    dtype: str  # of NumPy, stored little-endian; or BIT, or PARQUET
    per: Literal[
        "token", "document", "boundary"
    ]  # what it has one value for; boundaries are documents + 1
    optional: bool = True

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """As it is stored, unless it is a table: uint8 for bits."""
        return np.dtype("u1" if self.dtype == BIT else f"<{np.dtype(self.dtype).str[1:]}")

    def count(self, documents: int, tokens: int) -> int:
        """How many values it has in a shard."""
        return {"token": tokens, "document": documents, "boundary": documents + 1}[self.per]

    def stored(self, documents: int, tokens: int) -> int:
        """How many numbers of `numpy_dtype` its file has in a shard: of bits, one for eight values."""
        count = self.count(documents, tokens)
        return -(-count // 8) if self.dtype == BIT else count

    def size(self, documents: int, tokens: int) -> int | None:
        """How many bytes it has in a shard; None for a table, whose size only its record knows."""
        return (
            None
            if self.dtype == PARQUET
            else self.stored(documents, tokens) * self.numpy_dtype.itemsize
        )


TOKENS = Column("bin", "uint32", "token", optional=False)  # or uint16: the record says which
OFFSETS = Column("idx", "uint64", "boundary", optional=False)
META = Column("meta.parquet", PARQUET, "document")
MASK = Column("mask", BIT, "token")
TARGETS = Column("targets", "uint32", "document")
COLUMNS = {column.suffix: column for column in (TOKENS, OFFSETS, META, MASK, TARGETS)}
LISTED = (TOKENS.suffix, OFFSETS.suffix, MASK.suffix, TARGETS.suffix)


def columns_of(record: dict[str, Any]) -> dict[str, Column]:
    """The columns of the shard with this record, tokens and offsets first."""
    there = {suffix: column for suffix, column in COLUMNS.items() if suffix in record}
    return there | {TOKENS.suffix: replace(TOKENS, dtype=record["dtype"])}


def listed_sha256(record: dict[str, Any]) -> dict[str, str]:
    """The SHA-256 of the columns that a manifest lists: all but metadata, on which no row depends."""
    return {suffix: record[suffix]["sha256"] for suffix in LISTED if suffix in record}
