"""Documents with a separator between them: what jsonl and txt files share, plain or compressed.

    corpus.jsonl, 600 MiB, shards of 256 MiB -> corpus.000 (bytes 0 to 256 Mi), corpus.001 (256 to 512 Mi), corpus.002

A shard takes a range of bytes, and has the documents that begin in it. Bytes are counted in the text, so a compressed
file is decompressed once to be planned, and from its beginning for each of its shards. That is cheap compared to
tokenizing up to a few GB per file. The next run knows the size of its text and skips the first.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from tokenmill.text.units import BATCH_BYTES, Cut, Documents, FilePart, SourceFile, as_documents, sha256

END_BYTES = 1 << 16  # of the file's beginning and end, which identify it
EVERYTHING = 1 << 62
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Pieces(NamedTuple):
    """What was found between separators."""

    begin: int  # byte of the text that the first one begins at
    texts: list[bytes]
    bytes: int  # of all of them, with separators and what is left out
    oversized: int = 0  # how many were left out because they are too long


def identify(file: SourceFile, raw: pa.NativeFile) -> dict:
    """What distinguishes a file from others: its size, and the SHA-256 of its beginning and end."""
    size = raw.size()
    if file.compression and not size:
        raise EOFError(f"0 bytes, and {file.compression} of nothing has some")
    ends = sha256(raw.read_at(END_BYTES, 0), raw.read_at(END_BYTES, max(0, size - END_BYTES)))
    return {"bytes": size, "ends_sha256": ends}


def plan_separated(
    file: SourceFile, raw: pa.NativeFile, separator: bytes | None, shard_text_bytes: int, known_text_bytes: int | None
) -> list[Cut]:
    """Cuts the file into ranges of bytes. Without a separator it is one document, and one shard.

    `known_text_bytes` is how much text a compressed file has, if an earlier plan found out.
    """
    size = _text_size(file, raw) if known_text_bytes is None else known_text_bytes
    limit = size if separator is None else shard_text_bytes
    begins = range(0, max(1, size), max(1, limit))
    spans = [(begin, min(begin + limit, size)) for begin in begins]
    return [Cut(span, span[1] - span[0]) for span in spans]


def read_separated(part: FilePart, separator: bytes | None) -> Iterator[Pieces]:
    """Streams what lies between the separators in a part, a few MB at a time; without one, the whole file.

    Of a part that was planned by its size on disk, `bytes` is the share of that size.
    """
    span, read, most = part.span or (0, EVERYTHING), 0, part.options.max_document_bytes
    with part.file.open_text() as stream:
        # a small file does not need a large buffer
        block_bytes = BATCH_BYTES if part.span else min(BATCH_BYTES, 4096 + part.text_bytes)
        from_zero = _must_begin_at_zero(part.file, separator)
        if separator is None:
            found: Iterator[Pieces] = iter([_whole(stream, most)])
        else:
            found = _pieces(stream, span, separator, from_zero, block_bytes, most)
        for pieces in found:
            if pieces.begin == 0 and pieces.texts:
                pieces.texts[0] = pieces.texts[0].removeprefix(BYTE_ORDER_MARK)
            if part.span is None:
                share = min(pieces.bytes, max(0, part.text_bytes - read))
                read += pieces.bytes
                pieces = pieces._replace(bytes=share)
            yield pieces


def text_documents(pieces: Pieces) -> Documents:
    """The pieces as they are, as documents."""
    raw = pa.array(pieces.texts, pa.large_binary())
    unchecked = pa.LargeStringArray.from_buffers(len(raw), raw.buffers()[1], raw.buffers()[2])
    return as_documents(unchecked, pieces.bytes, oversized_documents=pieces.oversized)


def _text_size(file: SourceFile, raw: pa.NativeFile) -> int:
    if not file.compression:
        size: int = raw.size()
        return size
    size, block = 0, bytearray(BATCH_BYTES)
    with file.open_text() as stream:
        while count := stream.readinto(block):
            size += count
    return size


def _must_begin_at_zero(file: SourceFile, separator: bytes | None) -> bool:
    r"""Whether a shard's documents can only be found by reading from the file's beginning.

    This is so for compressed files, and for separators that can overlap: in "\n\n\n", the first "\n\n" decides which
    ones follow.
    """
    return bool(file.compression) or _overlaps_itself(separator or b"")


def _overlaps_itself(separator: bytes) -> bool:
    return any(separator[:n] == separator[-n:] for n in range(1, len(separator)))


def _whole(stream: pa.NativeFile, most: int) -> Pieces:
    """The whole file as one piece. If it is too long, reading stops as soon as that is known."""
    blocks: list[bytes] = []
    while (size := sum(map(len, blocks))) <= most and (block := stream.read(min(BATCH_BYTES, most + 1 - size))):
        blocks.append(block)
    return Pieces(0, [b"".join(blocks)], size) if size <= most else Pieces(0, [], size, 1)


def _pieces(
    stream: pa.NativeFile, span: tuple[int, ...], separator: bytes, from_zero: bool, block_bytes: int, most: int
) -> Iterator[Pieces]:
    """The pieces between separators that begin in the span, some at a time, without those of more than `most` bytes.

    A separator at the end of the file is followed by no piece.
    """
    begin, end = span[0], span[1]
    at = 0 if from_zero else max(0, begin - len(separator))  # where `rest` begins, less what is forgotten of it
    if at:
        stream.seek(at)
    partial = at > 0  # what comes before the first separator belongs to the part before
    rest, forgotten = bytearray(), 0  # of a piece that is too long, only the length is kept
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
                yield Pieces(first, chosen, at + size + len(separator) - first, 1)
                first, chosen = at + size + len(separator), []
            elif begin <= at < end:
                chosen.append(piece)
            elif at < begin:
                first = at + size + len(separator)
            at += size + len(separator)
        if chosen:
            yield Pieces(first, chosen, sum(map(len, chosen)) + len(chosen) * len(separator))
        if not block:
            return
