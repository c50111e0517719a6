"""csv: a header that names the columns, then records, as RFC 4180 and pandas' `to_csv` write them.

    text,label
    "a text with a comma, and
    a second line",5

Whether a line break ends a record is only known from the file's beginning, so one worker reads a
whole file, with the standard library's parser. Cells are texts.
"""

import csv
import io
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from tokenmill.text.formats import BATCH_BYTES, ReadOptions, Rows
from tokenmill.text.source_file import SourceFile, require_utf8

LONGEST_CELL = 1 << 27  # bytes; a longer one lacks a quote
FIRST_BYTES = 1 << 12  # of a file, whose encoding is looked at

Record = list[str]


class Columns(NamedTuple):
    """The numbers of the columns that are read."""

    texts: list[int]
    kept: dict[str, int | None]  # by name; None for one that the file lacks


def read(file: SourceFile, k: int, n: int, options: ReadOptions) -> Iterator[Rows]:
    """All records of the file. ValueError for one that is broken, unless those are left out."""
    csv.field_size_limit(LONGEST_CELL)
    _require_utf8(file)
    stream, raw = file.open_text()
    with raw:
        text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
        reader = csv.reader(text, strict=True)
        position = 0  # in the file, of what is not yielded
        broken = 0
        first_broken = ""
        size = 0
        records: list[Record] = []
        try:
            header = next(reader, [])
            columns = _columns(file, header, options)
            for record in reader:
                if not record:  # a blank line
                    continue
                if len(record) != len(header):
                    if not options.skip_broken:
                        raise _wrong_number_of_cells(file, reader.line_num, header, record)
                    cells = f"{len(record)} cells, where the header has {len(header)}"
                    first_broken = first_broken or f"line {reader.line_num:,}: {cells}"
                    broken += 1
                    continue
                records.append(record)
                size += sum(map(len, record))
                if size > BATCH_BYTES:
                    reached = raw.tell()
                    yield _rows(records, columns, reached - position, broken, first_broken)
                    position = reached
                    broken = 0
                    size = 0
                    records = []
        except csv.Error as error:
            raise ValueError(
                f"{file.shown}: line {reader.line_num:,}: expected quotes around whole cells, and "
                f"quotes within them doubled ({error}); write the file again, as pandas' to_csv "
                "does"
            ) from error
        yield _rows(records, columns, file.bytes - position, broken, first_broken)


def _wrong_number_of_cells(
    file: SourceFile, line: int, header: Record, record: Record
) -> ValueError:
    cells = ",".join(record)[:60]
    return ValueError(
        f"{file.shown}: line {line:,}: expected {len(header)} cells, as the header has, found "
        f"{len(record)} in {cells!r}; fix it, or leave such records out by --skip-broken"
    )


def _require_utf8(file: SourceFile) -> None:
    stream, raw = file.open_text()
    with raw:
        require_utf8(file, stream.read(FIRST_BYTES), True)


def _columns(file: SourceFile, header: Record, options: ReadOptions) -> Columns:
    """What is read. ValueError if a column with text, or one to keep, is not there once."""
    texts = options.text_columns(header)
    for name in (*texts, *options.kept):
        count = header.count(name)
        may_lack = name not in (*texts, *options.required)
        if count == 1 or (may_lack and not count):
            continue
        columns = ", ".join(header)[:200] or "none"
        there = f"{count} of them" if count else f"columns {columns}"
        flag = "--text-column" if name in texts else "--keep-columns"
        raise ValueError(
            f"{file.shown}: expected one column {name!r}, found {there}; name another by {flag}"
        )
    kept = {name: header.index(name) if name in header else None for name in options.kept}
    return Columns([header.index(name) for name in texts], kept)


def _rows(
    records: list[Record], columns: Columns, bytes_read: int, broken: int, first_broken: str
) -> Rows:
    texts = [pa.array(_cells(records, column), pa.binary()) for column in columns.texts]
    kept = {}
    for name, column in columns.kept.items():
        if column is None:
            kept[name] = pa.nulls(len(records), pa.string())
            continue
        cells = [cell.decode("utf-8", "replace") or None for cell in _cells(records, column)]
        kept[name] = pa.array(cells, pa.string())
    return Rows(texts, kept, bytes_read, broken=broken, first_broken=first_broken)


def _cells(records: list[Record], column: int) -> list[bytes]:
    """The cells of a column, as bytes that may not be UTF-8."""
    return [record[column].encode("utf-8", "surrogateescape") for record in records]
