"""The columns of a shard: which arrays it has, and what each file holds. One fixed table, which all else loops over.

    suffix         values            one for each   which shards have it             where its checksums are
    bin            uint16 or uint32  token          all: token ids                   the record, and the manifest
    idx            uint64            boundary       all: offsets of the documents    the same
    mask           bit               token          of chat sets: is it in the loss  the same, under "columns"
    targets        uint32            document       of chat sets: tokens in the loss the same, under "columns"
    meta.parquet   a table           document       prepared with --keep-columns     the record alone

A shard of 3 documents and 9 tokens has 9 values for its tokens, 3 for its documents, and 4 for their boundaries. Its
record says of each column how many bytes it has, its SHA-256, and a CRC-32 of each MiB:

    {"dtype": "uint16", "bin": {"bytes": 18, "sha256": "...", "crc32": [...]}, "idx": {"bytes": 32, ...},
     "columns": {"mask": {"dtype": "bit", "per": "token", "bytes": 2, ...}}}

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
    per: Literal["token", "document", "boundary"]  # what it has one value for; boundaries are documents + 1
    optional: bool = True

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """As it is stored: uint8 for bits. ValueError for a table."""
        if self.dtype == PARQUET:
            raise ValueError(f"column {self.suffix}: expected an array of numbers, found a table; use store/tables.py")
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
        return None if self.dtype == PARQUET else self.stored(documents, tokens) * self.numpy_dtype.itemsize


TOKENS = Column("bin", "uint32", "token", optional=False)  # or uint16: the record says which
OFFSETS = Column("idx", "uint64", "boundary", optional=False)
META = Column("meta.parquet", PARQUET, "document")
MASK = Column("mask", BIT, "token")
TARGETS = Column("targets", "uint32", "document")
COLUMNS = {column.suffix: column for column in (TOKENS, OFFSETS, META, MASK, TARGETS)}
LISTED = (TOKENS.suffix, OFFSETS.suffix, MASK.suffix, TARGETS.suffix)
CHAT_COLUMNS = (MASK.suffix, TARGETS.suffix)  # under "columns" in the record and the manifest


def columns_of(record: dict[str, Any]) -> dict[str, Column]:
    """The columns of the shard with this record, tokens and offsets first."""
    there = [META.suffix] if META.suffix in record else []
    there += [suffix for suffix in CHAT_COLUMNS if suffix in record.get("columns", ())]
    core = {TOKENS.suffix: replace(TOKENS, dtype=record["dtype"]), OFFSETS.suffix: OFFSETS}
    return core | {suffix: COLUMNS[suffix] for suffix in there}


def checksums_of(record: dict[str, Any], suffix: str) -> dict[str, Any]:
    """A column's {"bytes", "sha256", "crc32"}."""
    found: dict[str, Any] = record["columns"][suffix] if suffix in CHAT_COLUMNS else record[suffix]
    return found


def add_to_record(record: dict[str, Any], column: Column, checksums: dict[str, Any]) -> None:
    """Puts down a column that was written, and its {"bytes", "sha256", "crc32"}."""
    if column.suffix in CHAT_COLUMNS:
        columns = record.setdefault("columns", {})
        columns[column.suffix] = {"dtype": column.dtype, "per": column.per} | checksums
    else:
        record[column.suffix] = checksums


def listed_sha256(record: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """(suffix, SHA-256) of the columns that a manifest lists: all but metadata, on which no row depends."""
    there = columns_of(record)
    return tuple((suffix, checksums_of(record, suffix)["sha256"]) for suffix in LISTED if suffix in there)
