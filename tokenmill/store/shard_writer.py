"""Writes a shard: its tokens, offsets and optional columns, and then the record that makes it
count.

    with ShardWriter(folder, "shard_00000.000", "uint16", columns=["mask", "targets"]) as writer:
        writer.write([0, 7, 8, 0, 9], [3, 2])           tokens of two documents, and their lengths
        writer.write_column("mask", [0, 0, 1, 0, 1])    one a token, or a document: columns.py
        writer.write_column("targets", [1, 1])
        record = writer.finish({"source": ...})

Documents come a few at a time, and only their lengths are held. A shard that is left before
`finish` leaves no file.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from tokenmill.store.columns import BIT, COLUMNS, OFFSETS, PARQUET, TOKENS, Column
from tokenmill.store.files import AtomicFile, sync_folder
from tokenmill.store.json_files import as_json, header
from tokenmill.store.shards import DTYPES, OFFSET, shard_path

RECORD = "json"  # the suffix of a shard's record


class ShardWriter:
    """Writes one shard, a few documents at a time. Nothing counts before `finish`."""

    def __init__(self, folder: Path, name: str, dtype: str, columns: Sequence[str] = ()):
        self.folder = folder
        self.name = name
        self.dtype = dtype
        self.num_documents = 0
        self.num_tokens = 0
        self._lengths = [np.zeros(1, np.uint32)]  # a 0 first: their sums are the offsets
        (folder / "shards").mkdir(exist_ok=True)
        self._files: dict[str, AtomicFile] = {}  # by suffix, in the order of their names' turns
        self._bin = self._begin_file(TOKENS.suffix)
        self._columns: dict[str, TableFile | _ColumnFile] = {}
        for suffix in columns:
            column = COLUMNS[suffix]
            kind = TableFile if column.dtype == PARQUET else _ColumnFile
            self._columns[suffix] = kind(folder, name, column)
        self._files |= self._columns

    def write(
        self, tokens: Sequence[int] | np.ndarray, lengths: Sequence[int] | np.ndarray
    ) -> None:
        """Appends documents: their tokens (num_tokens,) one after the other, their lengths."""
        self._bin.write(np.ascontiguousarray(tokens, dtype=DTYPES[self.dtype]).data)
        # OverflowError for a document of over 4 billion tokens
        self._lengths.append(np.asarray(lengths, np.uint32))
        self.num_documents += len(lengths)
        self.num_tokens += len(tokens)

    def write_column(self, suffix: str, values: Any) -> None:
        """Appends values to an optional column: a sequence of numbers, or to a table a
        pyarrow.Table.
        """
        self._columns[suffix].write_values(values)

    def finish(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Makes the shard count; returns its record: the counts, the checksums, and `facts`.

        ValueError where a column has too few or too many values.
        """
        offsets = np.concatenate(self._lengths, dtype=OFFSET)
        np.cumsum(offsets, out=offsets)  # in place, as there may be millions
        assert offsets[-1] == self.num_tokens, "the lengths do not add up to the tokens"
        for column in self._columns.values():
            column.end(self.num_documents, self.num_tokens)
        record = header("shard") | {
            "name": self.name,
            "dtype": self.dtype,
            "documents": self.num_documents,
            "tokens": self.num_tokens,
            **facts,
        }
        self._begin_file(OFFSETS.suffix).write(offsets.data)
        for suffix in (TOKENS.suffix, OFFSETS.suffix, *self._columns):
            record[suffix] = self._files[suffix].flush()
        data = as_json(record)
        record_file = self._begin_file(RECORD)
        record_file.write(data)
        record_file.flush()
        if record_file.path.exists() and record_file.path.read_bytes() != data:
            record_file.path.unlink()  # a kill leaves no record beside files that are not of it
        for file in self._files.values():
            file.rename()
        sync_folder(self.folder / "shards")
        return record

    def _begin_file(self, suffix: str) -> AtomicFile:
        file = AtomicFile(shard_path(self.folder, self.name, suffix))
        self._files[suffix] = file
        return file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.discard()

    def discard(self) -> None:
        """Removes what there is of a shard that is not finished."""
        for file in self._files.values():
            file.discard()


class _ColumnFile(AtomicFile):
    """A column of numbers that is being written."""

    def __init__(self, folder: Path, name: str, column: Column):
        super().__init__(shard_path(folder, name, column.suffix))
        self.column = column
        self._count = 0
        self._bits = np.zeros(0, np.uint8)  # values of the last byte, which is not full yet

    def write_values(self, values: Sequence[int] | np.ndarray) -> None:
        numbers = np.ascontiguousarray(values, self.column.numpy_dtype)
        self._count += len(numbers)
        if self.column.dtype == BIT:
            bits = np.concatenate([self._bits, numbers])
            full = len(bits) // 8 * 8
            self._bits = bits[full:]
            numbers = np.packbits(bits[:full], bitorder="little")
        self.write(numbers.data)

    def end(self, documents: int, tokens: int) -> None:
        """Writes the last bits. ValueError where the column has too few or too many values."""
        self.write(np.packbits(self._bits, bitorder="little").data)
        expected = self.column.count(documents, tokens)
        if self._count != expected:
            raise ValueError(
                f"{self.path}: expected {expected:,} values, one a {self.column.per}, "
                f"found {self._count:,}"
            )


class TableFile(AtomicFile):
    """A column that is a table.

    It is held until it is complete, as its types may change on the way.
    """

    def __init__(self, folder: Path, name: str, column: Column):
        super().__init__(shard_path(folder, name, column.suffix))
        self.column = column
        self._tables: list[Any] = []

    def write_values(self, values: Any) -> None:
        self._tables.append(values)

    def end(self, documents: int, tokens: int) -> None:
        """Writes the table. ValueError where it has too few or too many rows."""
        # imports pyarrow, which only preparing needs
        from tokenmill.store.tables import merged, parquet_of

        table = merged(self._tables)
        if table.num_rows != documents:
            raise ValueError(
                f"{self.path}: expected {documents:,} rows, one a document, "
                f"found {table.num_rows:,}"
            )
        self.write(parquet_of(table))
        self._tables = []
