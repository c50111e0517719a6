"""jsonl and txt, plain or compressed: units are ranges of bytes, and hold the documents that begin in them.

    corpus.jsonl, 600 MiB, shards of 256 MiB -> corpus.000 (bytes 0 to 256 Mi), corpus.001 (256 to 512 Mi), corpus.002

Bytes are those of the text, so a compressed file is decompressed once to be planned, and from its beginning for
each of its units: cheap beside tokenizing up to some GB a file. A txt file is one document, and so one unit,
or many, with a separator between them.
"""

import json
import re
from collections.abc import Iterator

import orjson
import pyarrow as pa

from tokenmill.text.formats import Reading
from tokenmill.text.units import BATCH_BYTES, Documents, SourceFile, Unit, as_documents, reading, sha256

END_BYTES = 1 << 16  # of the file's beginning and end, that tell it from another
SURROGATE = re.compile("[\ud800-\udfff]")  # one without its other half, which JSON can spell and UTF-8 cannot
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BrokenLine(ValueError):
    """A line of a jsonl file that is no object with text in it."""


def plan_lines(file: SourceFile, how: Reading, shard_text_bytes: int) -> list[Unit]:
    """Cuts the file into units of work. ValueError where it is damaged."""
    with reading(file):
        size = _text_size(file)
        facts = {"file": file.name} | _facts_of_bytes(file)
    if file.format == "jsonl":
        facts["text_column"] = how.text_column
    elif how.document_separator:
        facts["document_separator"] = how.document_separator.decode()
    limit = size if _separator(file, how) is None else shard_text_bytes
    begins = range(0, max(1, size), max(1, limit))
    spans = [(begin, min(begin + limit, size)) for begin in begins]
    return [
        Unit(file, number, len(spans), how, span, span[1] - span[0], facts | {"span": list(span)})
        for number, span in enumerate(spans)
    ]


def read_lines(unit: Unit) -> Iterator[Documents]:
    """Streams the unit's documents in order, a few MB at a time. ValueError where damaged, or a line is broken."""
    separator = _separator(unit.file, unit.reading)
    with reading(unit.file), _open_text(unit.file) as stream:
        for begin, pieces in _pieces(stream, unit.span, separator, _must_begin_at_zero(unit.file, separator)):
            share = sum(map(len, pieces)) + len(pieces) * len(separator or b"")
            if begin == 0:
                pieces[0] = pieces[0].removeprefix(BYTE_ORDER_MARK)
            yield _from_json(unit, begin, pieces, share) if unit.file.format == "jsonl" else _from_text(pieces, share)


# ---------------------------------------------------------------------------- bytes


def _separator(file: SourceFile, how: Reading) -> bytes | None:
    return b"\n" if file.format == "jsonl" else how.document_separator


def _open_text(file: SourceFile) -> pa.NativeFile:
    raw = file.open()
    return pa.CompressedInputStream(raw, file.compression) if file.compression else raw


def _text_size(file: SourceFile) -> int:
    with _open_text(file) as stream:
        if not file.compression:
            return stream.size()
        size, block = 0, bytearray(BATCH_BYTES)
        while count := stream.readinto(block):
            size += count
        return size


def _facts_of_bytes(file: SourceFile) -> dict:
    with file.open() as raw:
        size = raw.size()
        return {
            "bytes": size,
            "ends_sha256": sha256(raw.read_at(END_BYTES, 0), raw.read_at(END_BYTES, max(0, size - END_BYTES))),
        }


def _must_begin_at_zero(file: SourceFile, separator: bytes | None) -> bool:
    r"""Whether a unit's documents are told only from the file's beginning: what is before them is decompressed
    too; and where separators can overlap, as "\n\n" in "\n\n\n", the first ones say which the next ones are."""
    return bool(file.compression) or _overlaps_itself(separator or b"")


def _overlaps_itself(separator: bytes) -> bool:
    return any(separator[:n] == separator[-n:] for n in range(1, len(separator)))


def _pieces(
    stream: pa.NativeFile, span: tuple[int, ...], separator: bytes | None, from_zero: bool
) -> Iterator[tuple[int, list[bytes]]]:
    """The pieces between separators that begin in the span, some at a time: (first byte of the first, pieces).

    None is after a separator at the end.
    """
    begin, end = span[0], span[1]
    if separator is None:
        yield 0, [stream.read()]
        return
    at = 0 if from_zero else max(0, begin - len(separator))  # where `rest` begins
    if at:
        stream.seek(at)
    partial = at > 0  # what is before the first separator is the end of a piece of the unit before
    rest = bytearray()
    while at < end:
        block = stream.read(BATCH_BYTES)
        searched = max(0, len(rest) - len(separator) + 1)
        rest += block
        if block and rest.find(separator, searched) < 0:
            continue
        pieces = bytes(rest).split(separator)
        rest = bytearray(pieces.pop() if block or not pieces[-1] else b"")
        if partial and pieces:
            at += len(pieces.pop(0)) + len(separator)
            partial = False
        first, chosen = at, []
        for piece in pieces:
            if begin <= at < end:
                chosen.append(piece)
            elif at < begin:
                first = at + len(piece) + len(separator)
            at += len(piece) + len(separator)
        if chosen:
            yield first, chosen
        if not block:
            return


# ---------------------------------------------------------------------------- documents


def _from_text(pieces: list[bytes], share: int) -> Documents:
    return as_documents(_unchecked(pieces), share)


def _unchecked(texts: list[bytes]) -> pa.LargeStringArray:
    """Texts that may not be UTF-8, which `as_documents` mends."""
    raw = pa.array(texts, pa.large_binary())
    return pa.LargeStringArray.from_buffers(len(raw), raw.buffers()[1], raw.buffers()[2])


def _from_json(unit: Unit, begin: int, lines: list[bytes], share: int) -> Documents:
    key = unit.reading.text_column
    try:
        return as_documents(pa.array([orjson.loads(line)[key] for line in lines], pa.large_string()), share)
    except (ValueError, LookupError, TypeError, pa.ArrowException):
        return _one_by_one(unit, begin, lines, share)  # one of them is blank, broken, or not UTF-8


def _one_by_one(unit: Unit, begin: int, lines: list[bytes], share: int) -> Documents:
    texts, broken, repaired = [], 0, 0
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            text, mended = _text_of(line, unit.reading.text_column)
        except BrokenLine as error:
            if not unit.reading.skip_broken_lines:
                raise ValueError(
                    f"{unit.file.path}: line {_lines_before(unit, begin) + number + 1:,}: expected a JSON object with "
                    f"text under {unit.reading.text_column!r}, found {error}; mend it, name the key with the text by "
                    "--text-column, or leave such lines out by --skip-broken-lines"
                ) from error
            broken += 1
            continue
        texts.append(text)
        repaired += mended
    column = pa.array(texts, pa.large_string())
    return as_documents(column, share, broken_lines=broken, repaired_documents=repaired)


def _text_of(line: bytes, key: str) -> tuple[str | None, bool]:
    """The text of a line, and whether it was mended: bytes that are not UTF-8, surrogates without their other half."""
    whole = line.decode("utf-8", "replace")
    try:
        value = json.loads(whole)
    except ValueError as error:
        raise BrokenLine(f"no JSON ({error})") from error
    if not isinstance(value, dict):
        raise BrokenLine(f"a {type(value).__name__}")
    if key not in value:
        raise BrokenLine(f"keys {', '.join(value)}" if value else "no keys")
    if not isinstance(value[key], str | None):
        raise BrokenLine(f"a {type(value[key]).__name__} there")
    if value[key] is None:
        return None, False
    text = SURROGATE.sub("\ufffd", value[key])
    return text, text != value[key] or (whole.encode() != line and "\ufffd" in text)


def _lines_before(unit: Unit, begin: int) -> int:
    with _open_text(unit.file) as stream:
        count = 0
        while begin > 0 and (block := stream.read(min(begin, BATCH_BYTES))):
            count, begin = count + block.count(b"\n"), begin - len(block)
        return count
