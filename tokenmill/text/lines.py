r"""Documents with a separator between them: the lines of jsonl, and text files. Parts are ranges of bytes.

A part has the documents that begin in its range, so that every document is in one part, whatever its length:

    "one\ntwo\nthree\n", 14 bytes, 2 parts   ->   bytes 0 to 7: "one", "two"      bytes 7 to 14: "three" (begins at 8)

A part begins to read a little earlier, at the first byte before it that can be in no separator. From there on the
separators are those of the whole file, even if they can overlap, as "\n\n" in "\n\n\n".

A line of jsonl is a JSON object. Its text is under a key (`text`), a key of an object (`doc.text`), or several keys
(`title,text`). A line without text is an error that names it, or is left out and counted (--skip-broken). Lines with
conversations stay JSON.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.text.formats import BATCH_BYTES, ReadOptions, Rows
from tokenmill.text.source_file import SourceFile

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LOOK_BACK = 1 << 12
STEP = 1 << 16  # bytes that are read at a time beyond a part's end, to where its last document ends
END = 1 << 62


class Pieces(NamedTuple):
    """What lies between separators."""

    begin: int  # the byte of the text at which the first one begins
    texts: list[bytes]
    bytes: int  # of the file that were read for them
    oversized: int  # how many were left out because they are too long


def read_text(file: SourceFile, k: int, n: int, options: ReadOptions) -> Iterator[Rows]:
    """Texts between separators; without a separator, the file is one text."""
    separator = options.document_separator.encode() if options.document_separator else None
    for some in read_pieces(file, k, n, separator, options.max_document_bytes):
        kept = {name: pa.nulls(len(some.texts)) for name in options.kept}
        yield Rows([pa.array(some.texts, pa.large_binary())], kept, some.bytes, oversized=some.oversized)


def read_pieces(file: SourceFile, k: int, n: int, separator: bytes | None, most: int) -> Iterator[Pieces]:
    """The pieces that begin in the k-th of n ranges of a file, a few MB at a time, without those of over `most` bytes.

    A separator at the end of the file is followed by no piece.
    """
    stream, raw = file.open_text()
    begin, end = (file.bytes * k // n, file.bytes * (k + 1) // n) if n > 1 else (0, END)
    size = END if file.compression else file.bytes
    with raw:
        at = position = _first_byte(stream, begin, separator) if begin and separator else 0
        rest, gone, told, gap = b"", 0, begin, len(separator or b"")  # gone: bytes of a piece that is too long
        while at < end:
            wanted = min(BATCH_BYTES, max(STEP, min(end, size) - position))
            block = stream.read(max(wanted, len(rest)))  # as much as is held, or a long document is copied ever again
            position += len(block)
            pieces = (rest + block).split(separator) if separator else [rest + block]
            rest = pieces.pop() if block else b""
            if not block and separator and pieces == [b""] and not gone:
                pieces = []  # after the last separator
            first, chosen, oversized = at, list[bytes](), 0
            for piece in pieces:
                if begin <= at < end and gone + len(piece) > most:
                    oversized += 1
                    if chosen:  # which the next one does not follow
                        yield Pieces(first, chosen, 0, 0)
                        chosen = []
                elif begin <= at < end:
                    first = first if chosen else at
                    chosen.append(piece if at else piece.removeprefix(BYTE_ORDER_MARK))
                at += gone + len(piece) + gap
                gone = 0
            keep = max(0, gap - 1)  # a separator may begin in these
            if gone + len(rest) - keep > most:
                gone, rest = gone + len(rest) - keep, rest[len(rest) - keep :]
            before, told = told, raw.tell() if file.compression else position
            if pieces or told > before:
                yield Pieces(first, chosen, max(0, told - before), oversized)
            if not block:
                return


def _first_byte(stream: Any, begin: int, separator: bytes) -> int:
    """Where to begin to read, so that separators are found as from the file's beginning on; seeks there."""
    at = max(0, begin - len(separator))
    while at:
        back = max(0, at - LOOK_BACK)
        stream.seek(back)
        data = stream.read(at - back)
        at = back + len(data.rstrip(bytes(set(separator))))
        if at > back:
            break
    stream.seek(at)
    return at


MISSING = object()
SURROGATE = re.compile("[\ud800-\udfff]")  # one without its other half, which JSON can spell and UTF-8 cannot


class BrokenLine(ValueError):
    """A line of a jsonl file that is no object with text in it."""


def read_jsonl(file: SourceFile, k: int, n: int, options: ReadOptions) -> Iterator[Rows]:
    """The lines that begin in the k-th of n ranges of the file. ValueError for a broken one."""
    for lines in read_pieces(file, k, n, b"\n", options.max_document_bytes):
        yield _conversations(file, lines, options) if options.conversations else _rows(file, lines, options)


def _rows(file: SourceFile, lines: Pieces, options: ReadOptions) -> Rows:
    with suppress(ValueError, LookupError, TypeError, AttributeError):
        objects, key = list(map(orjson.loads, lines.texts)), options.text_column
        texts = [pa.array([None if one[key] is None else one[key].encode() for one in objects], pa.large_binary())]
        kept = _kept(file, objects, options, str)
        if not any(map(_may_be_integers, kept.values())):
            return Rows(texts, kept, lines.bytes, oversized=lines.oversized)
    return _one_by_one(file, lines, options)  # a line is blank, broken, not UTF-8, or has its text in another place


def _may_be_integers(column: pa.Array) -> bool:
    """Whether floats of a column may be integers over 64 bits, of which orjson makes floats."""
    is_large = pa.types.is_floating(column.type) and (pc.max(pc.abs(column)).as_py() or 0) >= 1 << 63
    return is_large or (pa.types.is_nested(column.type) and "double" in str(column.type))


def _conversations(file: SourceFile, lines: Pieces, options: ReadOptions) -> Rows:
    """Lines as they are: whoever reads the conversations judges them."""
    numbers = [number for number, line in enumerate(lines.texts) if line.strip()]
    texts = [lines.texts[number] for number in numbers]
    place = _placer(file, lines, numbers)
    kept = _kept(file, [_object_or_none(line) for line in texts] if options.kept else [], options, place)
    return Rows([pa.array(texts, pa.large_binary())], kept, lines.bytes, oversized=lines.oversized, place=place)


def _one_by_one(file: SourceFile, lines: Pieces, options: ReadOptions) -> Rows:
    objects, texts, numbers, broken = list[dict[str, Any]](), list[list[bytes | None]](), list[int](), 0
    for number, line in enumerate(lines.texts):
        if not line.strip():
            continue
        try:
            value = _object_of(line)
            texts.append(_texts_of(value, options))
            objects.append(value)
            numbers.append(number)
        except BrokenLine as error:
            if not options.skip_broken:
                raise ValueError(
                    f"{file.shown}: {_placer(file, lines, [number])(0)}: expected a JSON object with text under "
                    f"{options.text_column!r}, found {error}; fix it, name the key with the text by --text-column, "
                    "leave such lines out by --skip-broken, or prepare conversations by --chat"
                ) from error
            broken += 1
    columns = [pa.array(column, pa.large_binary()) for column in list(zip(*texts, strict=True)) or [()]]
    kept = _kept(file, objects, options, _placer(file, lines, numbers))
    return Rows(columns, kept, lines.bytes, broken=broken, oversized=lines.oversized)


def _object_of(line: bytes) -> dict[str, Any]:
    """The object of a line; a byte that is not UTF-8 becomes half of a surrogate pair."""
    try:
        value = json.loads(line.decode("utf-8", "surrogateescape"))
    except RecursionError as error:
        raise BrokenLine("JSON that is nested too deep to be read") from error
    except ValueError as error:
        raise BrokenLine(f"no JSON ({error})") from error
    if not isinstance(value, dict):
        array = ": one JSON array, where an object a line is read" if isinstance(value, list) else ""
        raise BrokenLine(f"a {type(value).__name__}{array}")
    return value


def _object_or_none(line: bytes) -> dict[str, Any] | None:
    try:
        return _object_of(line)
    except BrokenLine:  # as a conversation it is broken too, and whoever reads it says so
        return None


def _texts_of(value: dict[str, Any], options: ReadOptions) -> list[bytes | None]:
    """The texts of an object, as bytes that may not be UTF-8."""
    found = [_at(value, name) for name in options.text_columns(value)]
    if MISSING in found:
        raise BrokenLine(f"keys {', '.join(value)}" if value else "no keys")
    if wrong := [text for text in found if not isinstance(text, str | None)]:
        raise BrokenLine(f"a {type(wrong[0]).__name__} there")
    return [text if text is None else _as_bytes(text) for text in found]


def _as_bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a surrogate pair that JSON spells: one U+FFFD
        return SURROGATE.sub("\udcff", text).encode("utf-8", "surrogateescape")


def _at(value: Any, name: str) -> Any:
    if isinstance(value, dict) and name in value:
        return value[name]
    for key in name.split("."):
        if not isinstance(value, dict) or key not in value:
            return MISSING
        value = value[key]
    return value


def _kept(
    file: SourceFile, objects: Sequence[dict[str, Any] | None], options: ReadOptions, place: Callable[[int], str]
) -> dict[str, pa.Array]:
    """The columns to keep. ValueError if an object lacks one that it must have, or for several types in one."""
    found = {}
    for name in options.kept:
        cells = [None if one is None else _at(one, name) for one in objects]
        if MISSING in cells and name in options.required:
            where = f"{file.shown}: {place(cells.index(MISSING))}"
            raise ValueError(f"{where} lacks {name!r}; if lines may lack it, name {name}? in --keep-columns")
        cells = [None if cell is MISSING else cell for cell in cells]
        try:
            if len({isinstance(cell, bool) for cell in cells if cell is not None}) > 1:
                raise TypeError("truth values and others")
            found[name] = pa.array(cells)
        except (pa.ArrowException, UnicodeEncodeError, OverflowError, TypeError, ValueError) as error:
            if not all(isinstance(cell, str | None) for cell in cells):
                raise ValueError(
                    f"{file.shown}: column {name!r} to keep has values of several types ({error}); make it one type"
                ) from error
            found[name] = pa.array([cell and SURROGATE.sub("\ufffd", cell) for cell in cells], pa.string())
    return found


def _placer(file: SourceFile, lines: Pieces, numbers: list[int]) -> Callable[[int], str]:
    """Where a line is; the file is read again for it."""
    return lambda number: f"line {_lines_before(file, lines.begin) + numbers[number] + 1:,}"


def _lines_before(file: SourceFile, begin: int) -> int:
    stream, raw = file.open_text()
    count = 0
    with raw:
        while begin > 0 and (block := stream.read(min(begin, 1 << 20))):
            count, begin = count + block.count(b"\n"), begin - len(block)
    return count
