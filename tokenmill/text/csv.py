r"""csv: a header that names the columns, then a record a line, as RFC 4180 and pandas' `to_csv` write it.

    text,label
    "a text with a comma, and
    a second line",5                   one record: a line break between quotes does not end it
    "a ""quoted"" word",7

A line break (LF, CRLF or CR) ends a record if an even number of quotes comes before it in the file. So a file is cut
into shards where a record ends, and each shard is read without the others. A quote that does not begin or end a field
is an error, because it would shift all that follows. Columns that are kept are texts, as csv has no types.
"""

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv

from tokenmill.text import separated
from tokenmill.text.arrow_columns import joined
from tokenmill.text.decoding import bytes_of_texts, checked
from tokenmill.text.formats import KeptColumn, ReadOptions
from tokenmill.text.kept_columns import columns_of_rows
from tokenmill.text.separated import BYTE_ORDER_MARK
from tokenmill.text.units import (
    BATCH_BYTES,
    Cut,
    Documents,
    FilePart,
    SourceFile,
    as_documents,
    as_text,
    sharing,
    valid_utf8,
)
from tokenmill.text_arrays import mask_array

QUOTE, LINE_FEED, RETURN, COMMA = b'"\n\r,'
LONGEST_HEADER = 1 << 20  # bytes

identify = separated.identify


class Header(NamedTuple):
    """The first record of a file."""

    names: list[str]
    end: int  # where the next record begins


def plan(
    file: SourceFile, raw: pa.NativeFile, options: ReadOptions, shard_text_bytes: int, known_text_bytes: int | None
) -> list[Cut]:
    """Cuts the file after whole records, one stretch of bytes per shard. ValueError if it has no such columns."""
    if options.conversations:
        raise ValueError(f"{file.shown}: csv has no conversations; write them as jsonl, parquet or arrow")
    header = _header(file, raw)
    _require_columns(file, header.names, options)
    size, ends = raw.size(), [header.end]
    if size - header.end > shard_text_bytes:
        ends += _ends_of_records(raw, header.end, shard_text_bytes)
    spans = [(begin, end) for begin, end in zip(ends, [*ends[1:], size], strict=True) if begin < end]
    return [Cut(span, span[1] - span[0]) for span in spans or [(header.end, size)]]


def read(part: FilePart) -> Iterator[Documents]:
    """Streams the part's documents in order, a few MB at a time. ValueError for a broken record."""
    with part.file.open() as raw:
        header = _header(part.file, raw)
        _require_columns(part.file, header.names, part.options)
        begin, end = part.span or (header.end, raw.size())
        stretches = _stretches(part, raw, begin, end)
        yield from sharing(part, (_documents(part, header.names, records) for records in stretches))


# ---------------------------------------------------------------------------- where records end


def _header(file: SourceFile, raw: pa.NativeFile) -> Header:
    """The names of the columns. ValueError if there are none."""
    start = raw.read_at(min(LONGEST_HEADER, raw.size()), 0)
    ends = _ends(start)
    end = int(ends[0]) if len(ends) else (len(start) if len(start) == raw.size() else 0)
    line = start[:end].removeprefix(BYTE_ORDER_MARK)
    if not line.strip():
        raise ValueError(f"{file.shown}: expected a header with the names of columns in the first line, found none")
    try:
        names = pyarrow.csv.read_csv(pa.BufferReader(line + b"\n"), parse_options=_parsing()).column_names
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        why = str(error).splitlines()[0]
        raise ValueError(f"{file.shown}: expected a header in UTF-8 in the first line ({why}); fix it") from error
    return Header(names, end)


def _ends(data: bytes, is_quoted: bool = False) -> np.ndarray:
    """Where the records end that are whole in `data`, which begins within quotes if `is_quoted`: (num_ends,) int64.

    A CR at the end of `data` ends no record, as a LF may follow.
    """
    found = np.frombuffer(data, np.uint8)
    quotes, feeds = np.flatnonzero(found == QUOTE), np.flatnonzero(found == LINE_FEED)
    returns = np.flatnonzero(found[:-1] == RETURN)
    lines = np.union1d(feeds, returns[found[returns + 1] != LINE_FEED])
    return lines[(np.searchsorted(quotes, lines) + is_quoted) % 2 == 0] + 1


def _ends_of_records(raw: pa.NativeFile, begin: int, limit: int) -> list[int]:
    """Where records end, each the first end that is `limit` bytes or more after the one before."""
    ends, wanted, is_quoted, at = list[int](), begin + limit, False, begin
    raw.seek(begin)
    while block := raw.read(BATCH_BYTES):
        if wanted < at + len(block):
            here = at + _ends(block, is_quoted)
            while (number := int(np.searchsorted(here, wanted))) < len(here):
                ends.append(int(here[number]))
                wanted = ends[-1] + limit
        is_quoted ^= bool(block.count(b'"') % 2)
        at += len(block)
    return ends


def _stretches(part: FilePart, raw: pa.NativeFile, begin: int, end: int) -> Iterator[bytes]:
    """Whole records, a few MB at a time.

    ValueError if a record is much longer than a document may be.
    """
    most = BATCH_BYTES + 2 * part.options.max_document_bytes
    raw.seek(begin)
    at, rest = begin, b""
    while at + len(rest) < end:
        rest += raw.read(min(BATCH_BYTES, end - at - len(rest)))
        whole = len(rest) if at + len(rest) == end else int(_ends(rest)[-1:].sum())
        if whole:
            _require_quotes(part.file, raw, at, rest[:whole])
            yield rest[:whole]
            at, rest = at + whole, rest[whole:]
        elif len(rest) > most:
            raise ValueError(
                f"{part.file.shown}: line {_line(raw, at):,}: a record of more than {most:,} bytes, perhaps because a "
                "quote is missing; fix it, or take the file out of the source"
            )


def _require_quotes(file: SourceFile, raw: pa.NativeFile, at: int, records: bytes) -> None:
    """ValueError for a quote that neither begins nor ends a field, and for one without its other."""
    data = np.frombuffer(b"\n" + records + b"\n", np.uint8)
    quotes = np.flatnonzero(data == QUOTE)
    before, after = data[quotes[::2] - 1], data[quotes[1::2] + 1]
    wrong = [*quotes[::2][~np.isin(before, (QUOTE, COMMA, LINE_FEED, RETURN))]]
    wrong += [*quotes[1::2][~np.isin(after, (QUOTE, COMMA, LINE_FEED, RETURN))]]
    if len(quotes) % 2:
        wrong.append(quotes[-1])
    if wrong:
        line = _line(raw, at) + _line_breaks(records[: min(wrong) - 1])
        raise ValueError(
            f"{file.shown}: line {line:,}: expected quotes around whole fields, with quotes within them doubled, found "
            "another quote there, or before; fix it, or write the file again, as pandas' to_csv does"
        )


def _line(raw: pa.NativeFile, at: int) -> int:
    """The number of the line that begins at a byte, from 1."""
    raw.seek(0)
    count = 1
    while at > 0 and (block := raw.read(min(BATCH_BYTES, at))):
        count, at = count + _line_breaks(block), at - len(block)
    return count


def _line_breaks(data: bytes) -> int:
    return data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n")


# ---------------------------------------------------------------------------- records -> documents


def _documents(part: FilePart, names: list[str], records: bytes) -> Documents:
    options, broken = part.options, list[str]()

    def on_broken(row: pyarrow.csv.InvalidRow) -> str:
        broken.append(f"{row.actual_columns} fields in {row.text[:60]!r}")
        return "skip"

    table = _parsed(names, records, on_broken)
    if broken and not options.skip_broken:
        raise ValueError(
            f"{part.file.shown}: expected {len(names)} fields in a record, as the header has, found {broken[0]}; fix "
            "it, or leave such records out by --skip-broken"
        )
    columns = [as_text(table.column(names.index(name)).combine_chunks()) for name in _text_columns(names, options)]
    kept, found = _kept(table, names, options)
    column, repaired = joined(columns)
    texts, more_repaired = valid_utf8(as_text(column))
    fits = bytes_of_texts(texts) <= options.max_document_bytes
    oversized = len(fits) - int(fits.sum())
    if oversized:
        texts = texts.filter(mask_array(fits))
        kept = None if kept is None else kept.filter(mask_array(fits))
    repaired += more_repaired
    more = {"repaired_documents": repaired, "oversized_documents": oversized, "broken_lines": len(broken)}
    return as_documents(texts, len(records), kept, kept_found=found, **more)


def _parsing(on_broken=None) -> pyarrow.csv.ParseOptions:
    return pyarrow.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=on_broken)


def _parsed(names: list[str], records: bytes, on_broken) -> pa.Table:
    """Records as a table of bytes, a column for each name."""
    numbered = [str(number) for number in range(len(names))]
    records = b"\n" + records  # an empty line is no record; at the beginning, Arrow would drop U+FEFF
    return pyarrow.csv.read_csv(
        pa.BufferReader(records),
        read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=max(1, len(records)), column_names=numbered),
        parse_options=_parsing(on_broken),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(numbered, pa.large_binary()), strings_can_be_null=False
        ),
    )


def _kept(table: pa.Table, names: list[str], options: ReadOptions) -> tuple[pa.Table | None, frozenset[str]]:
    """The columns to keep, and the names of those that the file has; None if none were asked for."""
    if not options.kept:
        return None, frozenset()
    wanted = list(map(KeptColumn.parse, options.kept))
    there = [column.name for column in wanted if column.name in names]
    cells = {}
    for name in there:
        text, _ = valid_utf8(as_text(table.column(names.index(name)).combine_chunks()))
        cells[name] = [cell or None for cell in text.to_pylist()]
    rows = [dict(zip(there, row, strict=True)) for row in zip(*cells.values(), strict=True)] or [{}] * len(table)
    kept, _ = columns_of_rows(rows, wanted)
    return checked(kept), frozenset(there)


# ---------------------------------------------------------------------------- columns


def _text_columns(names: list[str], options: ReadOptions) -> list[str]:
    return [options.text_column] if options.text_column in names else options.text_column.split(",")


def _require_columns(file: SourceFile, names: list[str], options: ReadOptions) -> None:
    """ValueError if the file lacks a column that is read, or has two of its name."""
    kept = [column.name for column in map(KeptColumn.parse, options.keep_columns) if not column.optional]
    wanted = dict.fromkeys(_text_columns(names, options), "--text-column")
    wanted |= dict.fromkeys(kept, "--keep-columns") | ({options.id_column: "--keep-ids"} if options.id_column else {})
    for name, flag in wanted.items():
        if names.count(name) != 1:
            found = f"found columns {', '.join(names)}" if name not in names else f"found {names.count(name)} of them"
            found += " (commas separate columns)" if len(names) == 1 and re.search(r"[;\t|]", names[0]) else ""
            raise ValueError(f"{file.shown}: expected a column {name!r}, {found}; name another by {flag}")
    for name, other in itertools.permutations([name for name in wanted if wanted[name] != "--text-column"], 2):
        if other.startswith(f"{name}."):  # a struct with a field would have the same name
            raise ValueError(f"{file.shown}: columns {name!r} and {other!r} cannot both be kept; name one of them")
