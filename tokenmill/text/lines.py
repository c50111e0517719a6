r"""Documents with a separator between them: the lines of jsonl, and text files. Parts are ranges of bytes.

A part has the documents that begin in its range, so that every document is in one part, whatever its length:

    "one\ntwo\nthree\n", 14 bytes, 2 parts   ->   bytes 0 to 7: "one", "two"      bytes 7 to 14: "three" (begins at 8)

A part begins to read a little earlier, at the first byte before it that can be in no separator. From there on the
separators are those of the whole file, even if they can overlap, as "\n\n" in "\n\n\n".
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

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
                elif begin <= at < end:
                    first = first if chosen else at
                    chosen.append(piece)
                at += gone + len(piece) + gap
                gone = 0
            keep = max(0, gap - 1)  # a separator may begin in these
            if gone + len(rest) - keep > most:
                gone, rest = gone + len(rest) - keep, rest[len(rest) - keep :]
            if first == 0 and chosen:
                chosen[0] = chosen[0].removeprefix(BYTE_ORDER_MARK)
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
