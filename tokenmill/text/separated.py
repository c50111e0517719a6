"""Documents with a separator between them: what jsonl and txt files share, plain or compressed.

    corpus.jsonl, 600 MiB, shards of 256 MiB -> corpus.000 (bytes 0 to 256 Mi), corpus.001 (256 to 512 Mi), corpus.002

A shard takes a range of bytes, and has the documents that begin in it. Bytes are counted in the text, so a compressed
file is decompressed once to be planned; the next run knows the size of its text. A process that reads several shards of
it, one after the other, continues decompressing where it was.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from tokenmill.text.units import BATCH_BYTES, Cut, Documents, FilePart, SourceFile, as_documents, sha256
from tokenmill.text_arrays import unchecked_array

END_BYTES = 1 << 16  # of the file's beginning and end, which identify it,
INSIDE, INSIDE_BYTES = 64, 1 << 12  # and so many blocks of such a size from all over the rest
EVERYTHING = 1 << 62
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Pieces(NamedTuple):
    """What was found between separators."""

    begin: int  # byte of the text that the first one begins at
    texts: list[bytes]
    bytes: int  # of all of them, with separators and what is left out
    oversized: int = 0  # how many were left out because they are too long


def identify(file: SourceFile, raw: pa.NativeFile) -> dict:
    """What distinguishes a file from others: its size, the SHA-256 of its beginning and end, and of a file of this
    machine that is longer, of 64 blocks of 4 KiB at even distances.
    """
    size = raw.size()
    if file.compression and not size:
        raise EOFError(f"0 bytes, and {file.compression} of nothing has some")
    ends = sha256(raw.read_at(END_BYTES, 0), raw.read_at(END_BYTES, max(0, size - END_BYTES)))
    found = {"bytes": size, "ends_sha256": ends}
    if size <= 2 * END_BYTES or not file.is_local:  # at a URL every block is a request
        return found
    places = (END_BYTES + (size - 2 * END_BYTES) * number // INSIDE for number in range(INSIDE))
    return found | {"inside_sha256": sha256(*(raw.read_at(INSIDE_BYTES, place) for place in places))}


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
    if separator is None:
        with part.file.open_text() as stream:
            yield from _shared_out(part, iter([_whole(stream, part.options.max_document_bytes)]))
    elif part.span is not None and _must_begin_at_zero(part.file, separator):
        yield from _shared_out(part, _continued(part, separator).pieces(*part.span))
    else:
        with part.file.open_text() as stream:
            yield from _shared_out(part, _reader(part, stream, separator).pieces(*(part.span or (0, EVERYTHING))))


def _shared_out(part: FilePart, found: Iterator[Pieces]) -> Iterator[Pieces]:
    """The pieces, without a byte order mark. `bytes` is the share of the part's size if that is not counted in text."""
    read = 0
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
    return as_documents(unchecked_array(pieces.texts), pieces.bytes, oversized_documents=pieces.oversized)


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


class _Reader:
    """Finds the pieces between separators in spans of a text, one span after the other.

    `_later` are pieces that were found and belong to a later span, `_rest` is what follows them. `_at` is the byte of
    the text that they begin at: a piece's first, or, if `_partial`, one within a piece.
    """

    def __init__(self, stream: pa.NativeFile, separator: bytes, block_bytes: int, most: int, key: object = None):
        self._stream, self._separator, self._block_bytes, self._most = stream, separator, block_bytes, most
        self._at, self._later, self._rest, self._forgotten, self._partial = 0, list[bytes](), bytearray(), 0, False
        self.key = key
        self.ready_from = 0  # spans that begin here or later can be read

    def pieces(self, begin: int, end: int) -> Iterator[Pieces]:
        """The pieces that begin in the span, some at a time, without those of more than `most` bytes.

        A separator at the end of the text is followed by no piece.
        """
        self.ready_from = EVERYTHING  # until this is done
        self._skip_to(begin)
        later, self._later = self._later, []
        yield from self._chosen(later, begin, end)
        block = b"any"
        while block and self._at < end:
            block = self._stream.read(self._block_bytes)
            searched = max(0, len(self._rest) - len(self._separator) + 1)
            self._rest += block
            if block and self._rest.find(self._separator, searched) < 0:
                self._forget()
                continue
            pieces = bytes(self._rest).split(self._separator)
            self._rest = bytearray(pieces.pop() if block or not pieces[-1] and not self._forgotten else b"")
            if self._partial and pieces:
                self._at += self._forgotten + len(pieces.pop(0)) + len(self._separator)
                self._partial, self._forgotten = False, 0
            yield from self._chosen(pieces, begin, end)
        self.ready_from = end

    def _skip_to(self, begin: int) -> None:
        """Goes on to where a piece that begins at this byte, or later, is found."""
        near = begin - len(self._separator)  # the separator before it may begin here
        ahead = self._at + sum(map(len, self._later)) + len(self._later) * len(self._separator) + len(self._rest)
        if near <= ahead or _overlaps_itself(self._separator):
            return  # it is close, or the separators before it decide which ones follow
        if self._stream.seekable():
            self._stream.seek(near)
        else:
            while ahead < near and (block := self._stream.read(min(BATCH_BYTES, near - ahead))):
                ahead += len(block)
        self._at, self._later, self._rest, self._forgotten, self._partial = near, [], bytearray(), 0, True

    def _forget(self) -> None:
        """Keeps only the length of a piece that is too long."""
        gone = len(self._rest) - len(self._separator) + 1
        if self._forgotten + gone > self._most:
            del self._rest[:gone]
            self._forgotten += gone

    def _chosen(self, pieces: list[bytes], begin: int, end: int) -> Iterator[Pieces]:
        """Those of the pieces that begin in the span; keeps what begins after it."""
        first, gap = self._at, len(self._separator)
        chosen: list[bytes] = []
        for number, piece in enumerate(pieces):
            if self._at >= end:
                self._later = pieces[number:]
                break
            size = self._forgotten + len(piece)
            self._forgotten = 0
            begins = self._at
            self._at += size + gap
            if begins < begin:
                first = self._at
            elif size > self._most:
                yield Pieces(first, chosen, self._at - first, 1)
                first, chosen = self._at, []
            else:
                chosen.append(piece)
        if chosen:
            yield Pieces(first, chosen, sum(map(len, chosen)) + len(chosen) * gap)


_held: _Reader | None = None  # of this process: where it has come to in a compressed file


def _continued(part: FilePart, separator: bytes) -> _Reader:
    """A reader that continues where this process was in the same file, or begins again."""
    global _held
    file = part.file
    # a forked process would share the place in the file with the others
    key = (os.getpid(), file.path, file.stamp, *(part.identity[fact] for fact in ("bytes", "ends_sha256")), separator)
    key += (part.options.max_document_bytes,)
    assert part.span is not None, "a whole file is read at once"
    if _held is None or _held.key != key or _held.ready_from > part.span[0]:
        _held = _reader(part, file.open_text(), separator, key)
    return _held


def _reader(part: FilePart, stream: pa.NativeFile, separator: bytes, key: object = None) -> _Reader:
    # a small file does not need a large buffer
    block_bytes = BATCH_BYTES if part.span else min(BATCH_BYTES, 4096 + part.text_bytes)
    return _Reader(stream, separator, block_bytes, part.options.max_document_bytes, key)
