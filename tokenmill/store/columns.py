"""The columns of a shard: which arrays it has, and what each file holds. One table, which everything else loops over.

    suffix   values            one for each        where its checksums are
    bin      uint16 or uint32  token               the record; the SHA-256 also in the manifest and its digest
    idx      uint64            document, and one   the same
    ids      JSON, one a line  document            the record alone; of sets from before 0.4.0
    meta.parquet   a table     document, a row     the record alone (optional): what the publisher says of each document
    mask     bit               token               the same as bin; of chat sets: whether the token bears loss
    targets  uint32            document            the same; of chat sets: how many tokens bear loss
    label    uint8             token               the same, if somebody registers it (optional)

To add an optional column, register it, and name it where a shard is written:

    register_column(Column("label", "uint8", per="token"))
    with ShardWriter(folder, "shard_00000.000", "uint16", columns=["label"]) as writer:
        writer.write(tokens, lengths)
        writer.write_column("label", labels)

A column with `of_tokens`, a function of a module, is written by `prepare` too, beside the tokens of every shard; shards
that were prepared before it was registered are made again.

    register_column(Column("label", "uint8", per="token", of_tokens=my_module.label))   label(tokens, lengths) -> values

Only the process that writes a column needs it registered, and `prepare` registers it in its workers. The record of a
shard says the type of each optional column and what it has one value for, so that verify, push, pull, the cache and
`Shard.column` carry and check columns that they have never heard of.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

Per = Literal["token", "document", "boundary"]
PARQUET = "parquet"  # the type of a column that is a table, with a row for each document
BIT = "bit"  # the type of a column of 0 and 1: value k is bit k of np.unpackbits(file, bitorder="little")
NUMBERS = {f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)} | {"float16", "float32", "float64"}
SUFFIX = re.compile(r"[a-z][a-z0-9_]{0,31}(\.parquet)?")
RESERVED = {"json", "tmp"}  # the record, and files that are being written


@dataclass(frozen=True)
class Column:
    """One array of a shard. Raises ValueError for a suffix or a type that cannot be stored."""

    suffix: str  # of the file: lower-case letters, digits and _
    # of NumPy, stored little-endian: "uint8"; None for text, each value as JSON on a line of its own; or PARQUET
    dtype: str | None
    per: Per  # one value for each token, for each document, or for each boundary: documents + 1 of them
    optional: bool = True
    described: bool = True  # the record says dtype and per, and the manifest the SHA-256; False for the oldest three
    # computes the values of some documents, while they are prepared, from their tokens and (documents,) lengths
    of_tokens: Callable[[np.ndarray, np.ndarray], Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.suffix, str) or not SUFFIX.fullmatch(self.suffix) or self.suffix in RESERVED:
            raise ValueError(
                f"the suffix of a column must be 1 to 32 lower-case letters, digits or _, beginning with a letter, and "
                f"not {' or '.join(sorted(RESERVED))}, found {ascii(self.suffix)[:80]}"
            )
        if (self.dtype == PARQUET) != self.suffix.endswith(".parquet"):
            raise ValueError(f"column {self.suffix}: the suffix of a table, and only of a table, ends with .parquet")
        if self.dtype not in (None, BIT, PARQUET) and self.dtype not in NUMBERS:
            raise ValueError(
                f"column {self.suffix}: dtype must be one of {', '.join(sorted(NUMBERS))}, {BIT!r}, or None"
            )
        if self.per not in ("token", "document", "boundary"):
            raise ValueError(f"column {self.suffix}: per must be 'token' or 'document', not {ascii(self.per)[:80]}")
        if self.of_tokens is not None and not _is_importable(self.of_tokens):
            raise ValueError(
                f"column {self.suffix}: of_tokens must be a function of a module that worker processes can import, not "
                "one of the main script, a lambda or one inside a function"
            )

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """As it is stored: uint8 for bits. ValueError for text and tables."""
        if self.dtype is None or self.dtype == PARQUET:
            raise ValueError(f"column {self.suffix} is no array of numbers; read it by lines, or as a table")
        if self.dtype == BIT:
            return np.dtype("u1")
        return np.dtype(f"<{np.dtype(self.dtype).str[1:]}")

    def count(self, documents: int, tokens: int) -> int:
        """How many values it has in a shard."""
        return {"token": tokens, "document": documents, "boundary": documents + 1}[self.per]

    def stored(self, documents: int, tokens: int) -> int:
        """How many numbers of `numpy_dtype` its file has in a shard: of bits, one for eight values."""
        count = self.count(documents, tokens)
        return -(-count // 8) if self.dtype == BIT else count

    def size(self, documents: int, tokens: int) -> int | None:
        """How many bytes it has in a shard; None for text and tables, which only its record knows."""
        return None if self.dtype in (None, PARQUET) else self.stored(documents, tokens) * self.numpy_dtype.itemsize

    def encode(self, values: Iterable[Any]) -> tuple[int, Any]:
        """How many values these are, and their bytes; of bits, a byte for each. ValueError where the type cannot hold
        one.
        """
        if self.dtype is None:
            lines = [json.dumps(value, ensure_ascii=False, default=str) + "\n" for value in values]
            return len(lines), "".join(lines).encode("utf-8", "replace")
        given = np.asarray(values)
        with np.errstate(invalid="ignore"):
            stored = np.ascontiguousarray(given, self.numpy_dtype)
        is_whole = stored.dtype.kind not in "iu" or np.array_equal(stored, given)
        if given.ndim != 1 or not is_whole or (self.dtype == BIT and stored.max(initial=0) > 1):
            raise ValueError(f"column {self.suffix}: expected a sequence of {self.dtype}, found values it cannot hold")
        return len(stored), stored.data


def _is_importable(function: Any) -> bool:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "<")
    return module not in (None, "__main__") and "<" not in name


TOKENS = Column("bin", "uint32", "token", optional=False, described=False)  # or uint16: the record says which
OFFSETS = Column("idx", "uint64", "boundary", optional=False, described=False)
IDS = Column("ids", None, "document", described=False)
META = Column("meta.parquet", PARQUET, "document", described=False)  # no row depends on it
MASK = Column("mask", BIT, "token")  # of chat sets
TARGETS = Column("targets", "uint32", "document")
COLUMNS = {column.suffix: column for column in (TOKENS, OFFSETS, IDS, META, MASK, TARGETS)}


def register_column(column: Column) -> None:
    """Adds an optional column to the table. ValueError where another one has its suffix."""
    if not (column.optional and column.described and column.per != "boundary"):
        raise ValueError(f"column {column.suffix}: only an optional one, per token or document, can be registered")
    if COLUMNS.setdefault(column.suffix, column) != column:
        raise ValueError(f"column {column.suffix}: is registered already, as {COLUMNS[column.suffix]}")


def optional_column(suffix: str) -> Column:
    """The entry of an optional column. ValueError if it is not registered."""
    known = {name: column for name, column in COLUMNS.items() if column.optional}
    if suffix not in known:
        raise ValueError(
            f"no optional column {suffix!r} is registered in this process, only {', '.join(known)}; call "
            "tokenmill.store.columns.register_column first, in a module that spawned workers import too"
        )
    return known[suffix]


def prepared_columns() -> tuple[Column, ...]:
    """The registered columns that `prepare` computes."""
    return tuple(column for column in COLUMNS.values() if column.of_tokens is not None)


# ---------------------------------------------------------------------------- what a record says


def columns_of(record: dict[str, Any]) -> dict[str, Column]:
    """The columns of the shard with this record, tokens and offsets first. ValueError if one cannot be a column."""
    found = {TOKENS.suffix: replace(TOKENS, dtype=record["dtype"]), OFFSETS.suffix: OFFSETS}
    found |= {column.suffix: column for column in (IDS, META) if column.suffix in record}
    for suffix, facts in record.get("columns", {}).items():
        found[suffix] = Column(suffix, facts["dtype"], facts["per"])
    return found


def checksums_of(record: dict[str, Any], suffix: str) -> dict[str, Any]:
    """A column's {"bytes", "sha256", "crc32"}."""
    described: dict[str, Any] = record.get("columns", {}).get(suffix)
    return described or record[suffix]


def add_to_record(record: dict[str, Any], column: Column, checksums: dict[str, Any]) -> None:
    """Puts down a column that was written, and its {"bytes", "sha256", "crc32"}."""
    if column.described:
        described = record.setdefault("columns", {})
        described[column.suffix] = {"dtype": column.dtype, "per": column.per} | checksums
    else:
        record[column.suffix] = checksums


def described_sha256(record: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """(suffix, SHA-256) of the optional columns that a manifest lists, by name."""
    return tuple((suffix, facts["sha256"]) for suffix, facts in sorted(record.get("columns", {}).items()))


def listed_sha256(record: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """(suffix, SHA-256) of all columns that a manifest lists: tokens, offsets, and the optional ones by name."""
    core = tuple((column.suffix, record[column.suffix]["sha256"]) for column in (TOKENS, OFFSETS))
    return core + described_sha256(record)
