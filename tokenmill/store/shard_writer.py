"""Writes a shard: its tokens, offsets and optional columns, and then the record that makes it count.

    with ShardWriter(folder, "shard_00000.000", "uint16", columns=["label"]) as writer:
        writer.write(tokens, lengths)
        writer.write_column("label", labels)        one value for each token, or each document, as its entry says
        record = writer.finish({"source": ...})

Documents come a few at a time, and only their lengths are held. A shard that is left before `finish` leaves no file.
The bytes are described in shards.py, the columns in columns.py.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from tokenmill.store.columns import BIT, OFFSETS, PARQUET, TOKENS, Column, add_to_record, optional_column
from tokenmill.store.files import AtomicFile, header, write_file, write_json
from tokenmill.store.shards import DTYPES, OFFSET, shard_path

MOST_DOCUMENTS = 1 << 25  # of a shard, as their lengths are held: 256 MiB of offsets
HELD = np.uint32  # what lengths are held in
MANY_FILES = 100  # in a shard; the record of more is written on one line


class ShardWriter:
    """Writes one shard, a few documents at a time. Nothing counts before `finish`. ValueError for a column that is not
    registered.
    """

    def __init__(self, folder: Path, name: str, dtype: str, columns: Sequence[str] = ()):
        optional = [optional_column(suffix) for suffix in columns]
        self.folder, self.name, self.dtype = folder, name, dtype
        self.num_documents = self.num_tokens = 0
        self._lengths: list[np.ndarray] = []
        (folder / "shards").mkdir(exist_ok=True)
        self._bin = AtomicFile(shard_path(folder, name, TOKENS.suffix))
        kinds = {column.suffix: TableFile if column.dtype == PARQUET else _ColumnFile for column in optional}
        self._columns = {column.suffix: kinds[column.suffix](folder, name, column) for column in optional}

    def write(self, tokens: Sequence[int] | np.ndarray, lengths: Sequence[int] | np.ndarray) -> None:
        """Appends documents: their tokens (num_tokens,) one after the other, their lengths."""
        self._bin.write(np.ascontiguousarray(tokens, dtype=DTYPES[self.dtype]).data)
        self._lengths.append(np.asarray(lengths, HELD))  # OverflowError for a document of over 4 billion tokens
        self.num_documents += len(lengths)
        self.num_tokens += len(tokens)
        if self.num_documents > MOST_DOCUMENTS:
            raise ValueError(
                f"shard {self.name}: expected at most {MOST_DOCUMENTS:,} documents in a shard, found more; name a "
                "smaller --shard-text-bytes, or, if a small compressed file has all of them, write it as several files"
            )

    def write_column(self, suffix: str, values: Iterable[Any]) -> None:
        """Appends values to an optional column, to a table a pyarrow.Table. ValueError if its type cannot hold one."""
        self._columns[suffix].write_values(values)

    def finish(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Makes the shard count; returns its record: the counts, the checksums, and `facts`.

        ValueError where a column has too few or too many values.
        """
        offsets = self._offsets()
        assert offsets[-1] == self.num_tokens, "the lengths do not add up to the tokens"
        for column in self._columns.values():
            column.require_count(self.num_documents, self.num_tokens)
        record = header("shard") | {
            "name": self.name,
            "dtype": self.dtype,
            "documents": self.num_documents,
            "tokens": self.num_tokens,
            **facts,
        }
        add_to_record(record, TOKENS, self._bin.commit())
        add_to_record(record, OFFSETS, write_file(shard_path(self.folder, self.name, OFFSETS.suffix), offsets.data))
        for file in self._columns.values():
            add_to_record(record, file.column, file.commit())
        many = len(record.get("source", {}).get("files", ())) > MANY_FILES
        write_json(shard_path(self.folder, self.name, "json"), record, on_one_line=many)
        return record

    def _offsets(self) -> np.ndarray:
        """(documents + 1,), made some lengths at a time, as there may be millions."""
        offsets, first = np.zeros(self.num_documents + 1, OFFSET), 1
        for lengths in self._lengths:
            some = offsets[first : first + len(lengths)]
            np.cumsum(lengths, dtype=OFFSET, out=some)
            some += offsets[first - 1]
            first += len(lengths)
        return offsets

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.discard()

    def discard(self) -> None:
        """Removes what there is of a shard that is not finished."""
        self._bin.discard()
        for column in self._columns.values():
            column.discard()


class _ColumnFile(AtomicFile):
    """An optional column that is being written."""

    def __init__(self, folder: Path, name: str, column: Column):
        super().__init__(shard_path(folder, name, column.suffix))
        self.column, self._count = column, 0
        self._bits = np.zeros(0, np.uint8)  # values of the last byte, which is not full yet

    def write_values(self, values: Iterable[Any]) -> None:
        count, data = self.column.encode(values)
        if self.column.dtype == BIT:
            bits = np.concatenate([self._bits, np.frombuffer(data, np.uint8)])
            whole = len(bits) // 8 * 8
            self._bits, data = bits[whole:], np.packbits(bits[:whole], bitorder="little").data
        self.write(data)
        self._count += count

    def require_count(self, documents: int, tokens: int) -> None:
        """Ends the column. ValueError where it has too few or too many values."""
        self.write(np.packbits(self._bits, bitorder="little").data)
        self._bits = self._bits[:0]
        expected = self.column.count(documents, tokens)
        if self._count != expected:
            raise ValueError(
                f"{self.path}: expected {expected:,} values, one a {self.column.per}, found {self._count:,}"
            )


class TableFile(AtomicFile):
    """A column that is a table, with a row for each document. It is held until it is complete, as its types may change
    on the way.
    """

    def __init__(self, folder: Path, name: str, column: Column):
        super().__init__(shard_path(folder, name, column.suffix))
        self.column, self._tables = column, list[Any]()

    def write_values(self, values: Any) -> None:
        self._tables.append(values)

    def require_count(self, documents: int, tokens: int) -> None:
        """Ends the table. ValueError where it has too few or too many rows."""
        from tokenmill.store.tables import merged, parquet_of  # and pyarrow, which only preparing needs

        table = merged(self._tables)
        if table.num_rows != documents:
            raise ValueError(f"{self.path}: expected {documents:,} rows, one a document, found {table.num_rows:,}")
        self.write(parquet_of(table))
        self._tables = []
