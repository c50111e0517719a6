"""jsonl and txt, plain or compressed: parts are ranges of bytes, and hold the documents that begin in them.

    corpus.jsonl, 600 MiB, shards of 256 MiB -> corpus.000 (bytes 0 to 256 Mi), corpus.001 (256 to 512 Mi), corpus.002

Bytes are those of the text, so a compressed file is decompressed once to be planned, and from its beginning for
each of its parts: cheap beside tokenizing up to some GB a file. What that told is handed to the next run as `known`.
A txt file is one document, and so one part, or many, with a separator between them.

The text of a line lies under a key (`text`), a key of an object (`doc.text`), or under several, joined by a blank line
(`title,text`).
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import orjson
import pyarrow as pa

from tokenmill.text.decoding import MOST_ID
from tokenmill.text.formats import Reading
from tokenmill.text.parquet import JOINED_BY
from tokenmill.text.units import BATCH_BYTES, Documents, Part, SourceFile, as_documents, reading, sha256

END_BYTES = 1 << 16  # of the file's beginning and end, that tell it from another
EVERYTHING = 1 << 62
SURROGATE = re.compile("[\ud800-\udfff]")  # one without its other half, which JSON can spell and UTF-8 cannot
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BrokenLine(ValueError):
    """A line of a jsonl file that is no object with text in it."""


def plan_lines(file: SourceFile, how: Reading, shard_text_bytes: int, known: int | None = None) -> list[Part]:
    """Cuts the file into parts; `known` is how many bytes of text it has, where that was found out before.

    ValueError where it is damaged.
    """
    with reading(file):
        facts = facts_of_ends(file) | how.facts(file.format)
        size = known if known is not None else _text_size(file)
    limit = size if _separator(file, how) is None else shard_text_bytes
    begins = range(0, max(1, size), max(1, limit))
    spans = [(begin, min(begin + limit, size)) for begin in begins]
    return [Part(file, how, span, span[1] - span[0], facts | {"span": list(span)}) for span in spans]


def read_lines(part: Part) -> Iterator[Documents]:
    """Streams the part's documents in order, a few MB at a time. ValueError where damaged, or a line is broken."""
    separator, read = _separator(part.file, part.reading), 0
    span = part.span or (0, EVERYTHING)
    with reading(part.file), _open_text(part.file) as stream:
        # a small file does not need a large buffer
        block_bytes = BATCH_BYTES if part.span else min(BATCH_BYTES, 4096 + part.text_bytes)
        from_zero = _must_begin_at_zero(part.file, separator)
        most = part.reading.max_document_bytes
        if separator is None:
            found: Iterable[_Pieces] = [_whole(stream, most)]
        else:
            found = _pieces(stream, span, separator, from_zero, block_bytes, most)
        for begin, pieces, share, oversized in found:
            if part.span is None:  # planned by its size on disk
                share, read = min(share, max(0, part.text_bytes - read)), read + share
            if begin == 0 and pieces:
                pieces[0] = pieces[0].removeprefix(BYTE_ORDER_MARK)
            is_jsonl = part.file.format == "jsonl"
            documents = _from_json(part, begin, pieces, share) if is_jsonl else _from_text(pieces, share)
            yield replace(documents, oversized_documents=oversized)


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


def facts_of_ends(file: SourceFile) -> dict:
    """What tells a file from another: its size, and the SHA-256 of its beginning and end."""
    with file.open() as raw:
        size = raw.size()
        if file.compression and not size:
            raise EOFError(f"0 bytes, and {file.compression} of nothing has some")
        ends = sha256(raw.read_at(END_BYTES, 0), raw.read_at(END_BYTES, max(0, size - END_BYTES)))
    return {"file": file.name, "bytes": size, "ends_sha256": ends}


def _must_begin_at_zero(file: SourceFile, separator: bytes | None) -> bool:
    r"""Whether a part's documents are told only from the file's beginning: what is before them is decompressed
    too; and where separators can overlap, as "\n\n" in "\n\n\n", the first ones say which the next ones are."""
    return bool(file.compression) or _overlaps_itself(separator or b"")


def _overlaps_itself(separator: bytes) -> bool:
    return any(separator[:n] == separator[-n:] for n in range(1, len(separator)))


class _Pieces(NamedTuple):
    """What lies between separators."""

    begin: int  # byte of the text that the first one begins at
    texts: list[bytes]
    bytes: int  # of all of them, separators and what is left out counted
    oversized: int = 0  # how many were left out


def _whole(stream: pa.NativeFile, most: int) -> _Pieces:
    """All of a file as one piece; of a longer one only so much is read as tells that."""
    blocks: list[bytes] = []
    while (size := sum(map(len, blocks))) <= most and (block := stream.read(min(BATCH_BYTES, most + 1 - size))):
        blocks.append(block)
    return _Pieces(0, [b"".join(blocks)], size) if size <= most else _Pieces(0, [], size, 1)


def _pieces(
    stream: pa.NativeFile, span: tuple[int, ...], separator: bytes, from_zero: bool, block_bytes: int, most: int
) -> Iterator[_Pieces]:
    """The pieces between separators that begin in the span, some at a time, without those of more than `most` bytes.

    None is after a separator at the end.
    """
    begin, end = span[0], span[1]
    at = 0 if from_zero else max(0, begin - len(separator))  # where `rest` begins, but for what of it is forgotten
    if at:
        stream.seek(at)
    partial = at > 0  # what is before the first separator is the end of a piece of the part before
    rest, forgotten = bytearray(), 0  # of a piece that is too long no more than its length is kept
    while at < end:
        block = stream.read(block_bytes)
        searched = max(0, len(rest) - len(separator) + 1)
        rest += block
        if block and rest.find(separator, searched) < 0:
            gone = len(rest) - len(separator) + 1
            if forgotten + gone > most:
                del rest[:gone]
                forgotten += gone
            continue
        pieces = bytes(rest).split(separator)
        rest = bytearray(pieces.pop() if block or not pieces[-1] and not forgotten else b"")
        if partial and pieces:
            at += forgotten + len(pieces.pop(0)) + len(separator)
            partial, forgotten = False, 0
        first = at
        chosen: list[bytes] = []
        for piece in pieces:
            size = forgotten + len(piece)
            forgotten = 0
            if begin <= at < end and size > most:
                yield _Pieces(first, chosen, at + size + len(separator) - first, 1)
                first, chosen = at + size + len(separator), []
            elif begin <= at < end:
                chosen.append(piece)
            elif at < begin:
                first = at + size + len(separator)
            at += size + len(separator)
        if chosen:
            yield _Pieces(first, chosen, sum(map(len, chosen)) + len(chosen) * len(separator))
        if not block:
            return


# ---------------------------------------------------------------------------- documents


def _from_text(pieces: list[bytes], share: int) -> Documents:
    return as_documents(_unchecked(pieces), share)


def _unchecked(texts: list[bytes]) -> pa.LargeStringArray:
    """Texts that may not be UTF-8, which `as_documents` mends."""
    raw = pa.array(texts, pa.large_binary())
    return pa.LargeStringArray.from_buffers(len(raw), raw.buffers()[1], raw.buffers()[2])


def _from_json(part: Part, begin: int, lines: list[bytes], share: int) -> Documents:
    how = part.reading
    if how.id_column is None:
        try:
            key = how.text_column
            return as_documents(pa.array([orjson.loads(line)[key] for line in lines], pa.large_string()), share)
        except (ValueError, LookupError, TypeError, pa.ArrowException):
            pass  # one of them is blank, broken, not UTF-8, or has its text in another way
    return _one_by_one(part, begin, lines, share)


def _one_by_one(part: Part, begin: int, lines: list[bytes], share: int) -> Documents:
    texts: list[str | None] = []
    ids: list = []
    broken, repaired, text_of, id_of = 0, 0, _text_at(part.reading.text_column), _id_at(part.reading.id_column)
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            value, mended = _object_of(line)
            text, id = text_of(value), id_of(value)
        except BrokenLine as error:
            if not part.reading.skip_broken_lines:
                raise ValueError(
                    f"{part.file.path}: line {_lines_before(part, begin) + number + 1:,}: expected a JSON object with "
                    f"text under {part.reading.text_column!r}, found {error}; mend it, name the key with the text by "
                    "--text-column, or leave such lines out by --skip-broken-lines"
                ) from error
            broken += 1
            continue
        whole = text and SURROGATE.sub("\ufffd", text)
        texts.append(whole)
        ids.append(id)
        repaired += whole != text or (mended and "\ufffd" in (text or ""))
    column = pa.array(texts, pa.large_string())
    kept = ids if part.reading.id_column is not None else None
    return as_documents(column, share, kept, broken_lines=broken, repaired_documents=repaired)


def _object_of(line: bytes) -> tuple[dict, bool]:
    """The object of a line, and whether bytes that are not UTF-8 were mended for it."""
    whole = line.decode("utf-8", "replace")
    try:
        value = json.loads(whole)
    except ValueError as error:
        raise BrokenLine(f"no JSON ({error})") from error
    except RecursionError as error:
        raise BrokenLine("JSON that is nested too deep to be read") from error
    if not isinstance(value, dict):
        array = ": one JSON array, where an object a line is read" if isinstance(value, list) else ""
        raise BrokenLine(f"a {type(value).__name__}{array}")
    return value, whole.encode() != line


def _text_at(named: str) -> Callable[[dict], str | None]:
    """How to find the text of an object: under a key, a key of a key (`doc.text`), or several (`title,text`)."""

    def text_of(value: dict) -> str | None:
        names = [named] if named in value else named.split(",")
        found = [_at(value, name) for name in names]
        if _MISSING in found:
            raise BrokenLine(f"keys {', '.join(value)}" if value else "no keys")
        some = [text for text in found if text is not None]
        texts = [text for text in some if isinstance(text, str)]
        if len(texts) < len(some):
            raise BrokenLine(f"a {next(type(text).__name__ for text in some if not isinstance(text, str))} there")
        return (texts[0] if len(names) == 1 else JOINED_BY.join(filter(None, texts))) if texts else None

    return text_of


def _id_at(named: str | None) -> Callable[[dict], object]:
    """How to find an object's id; `named` is None where ids are not asked for."""

    def id_of(value: dict) -> object:
        found = _at(value, named) if named is not None else None
        if isinstance(found, dict | list) or (isinstance(found, str) and len(found) > MOST_ID):
            raise BrokenLine(f"an id under {named} that is a {type(found).__name__} of {len(found):,}")
        if found is _MISSING:
            raise BrokenLine(f"keys {', '.join(value)}, and none that --keep-ids {named} names")
        return found

    return id_of


_MISSING = object()


def _at(value: dict, name: str) -> object:
    if name in value:
        return value[name]
    found: object = value
    for key in name.split("."):
        if not isinstance(found, dict) or key not in found:
            return _MISSING
        found = found[key]
    return found


def _lines_before(part: Part, begin: int) -> int:
    with _open_text(part.file) as stream:
        count = 0
        while begin > 0 and (block := stream.read(min(begin, BATCH_BYTES))):
            count, begin = count + block.count(b"\n"), begin - len(block)
        return count
