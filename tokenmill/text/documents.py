r"""A unit -> its documents. What all formats share is written here, once.

    Rows of a reader     texts [["Title", None, ""], ["a text", None, "x" * 10**8]]      of two text columns
    Documents            texts ["Title\n\na text"], validates [False], one null, one oversized

Texts are joined; null, empty and over-long ones are left out and counted; invalid UTF-8 is replaced and counted. Where
a share of the documents validates, a hash of the text decides, so the same text is always in the same split, whatever
file it is in, and whatever the tokenizer.
"""

import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tokenmill.text.formats import ReadOptions, Rows
from tokenmill.text.plan import Unit
from tokenmill.text.source_file import SourceFile, naming_file

JOINED_BY = b"\n\n"  # between the texts of several columns
HASHES = 1 << 32
MOST_SPACES = (
    500_000  # characters of white space in a row: tiktoken's regex engine gives up on a million
)
SPACES = re.compile(rf"\s{{{MOST_SPACES}}}")
LEFT_OUT = ("null_documents", "empty_documents", "oversized_documents", "broken_lines")


class Documents(NamedTuple):
    """Some documents of one file, in order."""

    texts: pa.LargeStringArray  # valid UTF-8, none of them null or empty
    validates: np.ndarray  # (documents,) bool
    kept: pa.Table | None  # the columns to keep, a row for each document
    file: int  # of the unit's files
    row_group: int | None
    types: dict[str, str]  # of these columns: null, number, text or what else Arrow calls it
    counts: Counter[str]  # what was left out or repaired
    bytes: int  # of the file that were read for them, for progress
    place: Callable[[int], str]  # where in the file a document is, for errors

    def chosen(self, mask: np.ndarray) -> "Documents":
        """Those of the documents for which the mask (documents,) is true."""
        if mask.all():
            return self
        numbers, place, filter = np.flatnonzero(mask), self.place, pa.array(mask)
        kept = None if self.kept is None else self.kept.filter(filter)
        texts, validates = self.texts.filter(filter), self.validates[mask]
        return self._replace(
            texts=texts, validates=validates, kept=kept, place=lambda n: place(int(numbers[n]))
        )


def read_unit(unit: Unit, options: ReadOptions) -> Iterator[Documents]:
    """The documents of a unit, a few MB at a time. ValueError that names the file if it is damaged or has no text."""
    for number, file in enumerate(unit.files):
        with naming_file(file):
            for rows in file.format.read(file, unit.k, unit.n, options):
                yield _documents(rows, number, file, options)


def _documents(rows: Rows, number: int, file: SourceFile, options: ReadOptions) -> Documents:
    counts = Counter(broken_lines=rows.broken, oversized_documents=rows.oversized)
    texts, kept = _joined(list(map(as_text, rows.texts))), _table(rows.kept) if rows.kept else None
    place = rows.place or (lambda number: f"document {number:,} of those read together")
    types = {name: _type_of(column.type) for name, column in rows.kept.items()}
    found = Documents(
        texts,
        np.zeros(len(texts), bool),
        kept,
        number,
        rows.row_group,
        types,
        counts,
        rows.bytes,
        place,
    )
    lengths = text_lengths(texts)
    is_long = lengths > options.max_document_bytes
    for number in np.flatnonzero((lengths > MOST_SPACES) & ~is_long).tolist():
        text = (
            texts[number : number + 1].cast(pa.large_binary())[0].as_py().decode("utf-8", "replace")
        )
        is_long[number] = SPACES.search(text) is not None
    fits = (lengths > 0) & ~is_long
    if not fits.all():
        counts["null_documents"] += texts.null_count
        counts["oversized_documents"] += int(is_long.sum())
        counts["empty_documents"] += int((lengths == 0).sum()) - texts.null_count
        found = found.chosen(fits)
    texts, repaired = valid_utf8(found.texts)
    counts["repaired_documents"] += repaired
    return found._replace(texts=texts, validates=_validates(texts, file.validates, options))


# ---------------------------------------------------------------------------- the split


def _validates(texts: pa.LargeStringArray, share: float, options: ReadOptions) -> np.ndarray:
    if share in (0.0, 1.0):
        return np.full(len(texts), bool(share))
    if options.conversations:
        texts = as_text(
            pa.array([_conversation(row, options) for row in texts.to_pylist()], pa.large_binary())
        )
    return text_hashes(texts) < round(share * HASHES)


def _conversation(row: str, options: ReadOptions) -> bytes:
    """What a row of JSON is hashed by: its conversation alone, written in one way, whatever else is beside it."""
    try:
        found = json.loads(row)
        some = _without_nulls({name: found.get(name) for name in options.conversation_columns})
        return json.dumps(some, sort_keys=True).encode() if some else row.encode()
    except (
        ValueError,
        AttributeError,
        RecursionError,
    ):  # broken: reported, or left out, in whichever split it is
        return row.encode()


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def text_hashes(texts: pa.LargeStringArray) -> np.ndarray:
    """A hash of each text, the same on every machine: (num_texts,) uint32.

    CRC-32 is fast and not uniform enough for texts that differ in a few digits, so MurmurHash3's finalizer mixes it.
    """
    offsets, data = text_offsets(texts).tolist(), memoryview(texts.buffers()[2] or b"")
    hashes = np.array(
        [zlib.crc32(data[a:b]) for a, b in zip(offsets, offsets[1:], strict=False)], np.uint32
    )
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        hashes = (hashes ^ (hashes >> np.uint32(shift))) * np.uint32(factor)
    return hashes


# ---------------------------------------------------------------------------- columns


def as_text(column: pa.Array | pa.ChunkedArray) -> pa.LargeStringArray:
    """A column of text or bytes as text, whose UTF-8 is not checked."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_large_string(column.type):
        return column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not pa.types.is_large_binary(column.type):
        column = column.cast(
            pa.large_binary()
        )  # bytes, as a cast to text would refuse those that are not UTF-8
    return pa.Array.from_buffers(
        pa.large_string(), len(column), column.buffers(), -1, column.offset
    )


def text_offsets(texts: pa.LargeStringArray) -> np.ndarray:
    """(num_texts + 1,) int64."""
    if not len(texts):
        return np.zeros(1, np.int64)
    return np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]


def text_lengths(texts: pa.LargeStringArray) -> np.ndarray:
    """Bytes of each text, 0 for a null: (num_texts,) int64."""
    lengths = np.diff(text_offsets(texts))
    return lengths * np.asarray(texts.is_valid()) if texts.null_count else lengths


def valid_utf8(column: pa.LargeStringArray) -> tuple[pa.LargeStringArray, int]:
    """The texts, with bad bytes replaced with U+FFFD, and how many had any."""
    try:
        column.validate(full=True)
        return column, 0
    except pa.ArrowInvalid:
        column.cast(pa.large_binary()).validate(
            full=True
        )  # ArrowInvalid if it is not the UTF-8 that is wrong
        raw = column.cast(pa.large_binary()).to_pylist()
        texts = [None if data is None else data.decode("utf-8", "replace") for data in raw]
        repaired = sum(
            text is not None and text.encode() != data
            for text, data in zip(texts, raw, strict=True)
        )
        return pa.array(texts, pa.large_string()), repaired


def _joined(columns: list[pa.LargeStringArray]) -> pa.LargeStringArray:
    """The texts of a row joined by blank lines, without null and empty ones; null if all are null."""
    if len(columns) == 1:
        return columns[0]
    rows = zip(*(column.cast(pa.large_binary()).to_pylist() for column in columns), strict=True)
    joined = [
        None if all(t is None for t in row) else JOINED_BY.join(filter(None, row)) for row in rows
    ]
    return as_text(pa.array(joined, pa.large_binary()))


def _table(columns: dict[str, Any]) -> pa.Table:
    """The columns to keep; of "meta.lang" and "meta.date" a struct, as SQL knows it."""
    heads: dict[str, dict[str, Any]] = {}
    for name, column in columns.items():
        head, _, rest = name.partition(".")
        heads.setdefault(head, {})[rest] = column
    structs = {
        head: _table(below).to_struct_array() for head, below in heads.items() if "" not in below
    }
    return pa.table(
        {head: structs[head] if head in structs else _valid(heads[head][""]) for head in heads}
    )


def _type_of(kind: pa.DataType) -> str:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    return "text" if str(kind) in ("string", "large_string", "string_view") else str(kind)


def _valid(column: pa.Array) -> pa.Array:
    """A column to keep, with bad UTF-8 replaced."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    texts, repaired = valid_utf8(as_text(column))
    return texts.cast(column.type) if repaired else column
