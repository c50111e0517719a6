"""csv: a header that names the columns, then records, as RFC 4180 and pandas' `to_csv` write them.

    text,label
    "a text with a comma, and
    a second line",5

Whether a line break ends a record is only known from the file's beginning, so one worker reads a whole file, with the
standard library's parser. Cells are texts.
"""

import csv
import io
from collections.abc import Iterator

import pyarrow as pa

from tokenmill.text.formats import BATCH_BYTES, ReadOptions, Rows
from tokenmill.text.source_file import SourceFile

LONGEST_CELL = 1 << 27  # bytes; a longer one lacks a quote


def read(file: SourceFile, k: int, n: int, options: ReadOptions) -> Iterator[Rows]:
    """All records of the file. ValueError for one that is broken, unless those are left out."""
    if options.conversations:
        raise ValueError(
            f"{file.shown}: csv has no conversations; write them as jsonl, parquet or arrow"
        )
    csv.field_size_limit(LONGEST_CELL)
    stream, raw = file.open_text()
    with raw:
        text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
        records, read, broken = csv.reader(text, strict=True), 0, 0
        held: list[list[str]] = []
        try:
            header = next(records, [])
            texts, kept = _columns(file, header, options)
            size = 0
            for record in records:
                if len(record) != len(header):
                    if record and not options.skip_broken:
                        raise ValueError(
                            f"{file.shown}: line {records.line_num:,}: expected {len(header)} cells, as the header "
                            f"has, found {len(record)} in {','.join(record)[:60]!r}; fix it, or leave such records out "
                            "by --skip-broken"
                        )
                    broken += bool(record)
                    continue
                held.append(record)
                size += sum(map(len, record))
                if size > BATCH_BYTES:
                    at = raw.tell()
                    yield _rows(held, texts, kept, at - read, broken)
                    held, size, read, broken = [], 0, at, 0
        except csv.Error as error:
            raise ValueError(
                f"{file.shown}: line {records.line_num:,}: expected quotes around whole cells, and quotes within them "
                f"doubled ({error}); write the file again, as pandas' to_csv does"
            ) from error
        yield _rows(held, texts, kept, file.bytes - read, broken)


def _columns(
    file: SourceFile, header: list[str], options: ReadOptions
) -> tuple[list[int], dict[str, int | None]]:
    """The numbers of the columns with text, and of those to keep. ValueError if one is not there once."""
    texts = options.text_columns(header)
    for name in (*texts, *options.required):
        if header.count(name) != 1:
            found = (
                f"{header.count(name)} of them"
                if name in header
                else f"columns {', '.join(header)[:200] or 'none'}"
            )
            flag = "--text-column" if name in texts else "--keep-columns"
            raise ValueError(
                f"{file.shown}: expected one column {name!r}, found {found}; name another by {flag}"
            )
    kept = {name: header.index(name) if name in header else None for name in options.kept}
    return [header.index(name) for name in texts], kept


def _rows(
    records: list[list[str]], texts: list[int], kept: dict[str, int | None], read: int, broken: int
) -> Rows:
    cells = [
        pa.array([record[i].encode("utf-8", "surrogateescape") for record in records], pa.binary())
        for i in texts
    ]
    columns = {}
    for name, i in kept.items():
        found = [
            b"" if i is None else record[i].encode("utf-8", "surrogateescape") for record in records
        ]
        columns[name] = pa.array(
            [cell.decode("utf-8", "replace") or None for cell in found], pa.string()
        )
    return Rows(cells, columns, read, broken=broken)
