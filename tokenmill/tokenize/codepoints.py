"""Finds characters in documents: those that an engine classes differently from the reference.

A split pattern asks whether each character is a letter, a number, a space or none of them, and engines have Unicode
tables of different years. A document with such a character is encoded by the reference. `CodePoints.among` looks for
them in the UTF-8 bytes of many documents at once: the first bytes of such characters are rare, and only what follows
them is decoded.
"""

import numpy as np
import pyarrow as pa

# how many bytes a character has, by its first
LENGTHS = np.ones(256, np.int64)
LENGTHS[0xC0:0xE0], LENGTHS[0xE0:0xF0], LENGTHS[0xF0:] = 2, 3, 4


class CodePoints:
    """A set of code points beyond ASCII, and a search for them in documents."""

    def __init__(self, code_points: np.ndarray):
        self._wanted = np.zeros(0x110000, bool)
        self._wanted[code_points] = True
        assert not self._wanted[:0x80].any(), "code points of ASCII are not looked for"
        codes = np.flatnonzero(self._wanted)
        long = np.where(codes < 0x10000, 0xE0 | codes >> 12, 0xF0 | codes >> 18)
        self._first = np.zeros(256, bool)  # bytes that such a character begins with
        self._first[np.where(codes < 0x800, 0xC0 | codes >> 6, long)] = True
        self._lowest = self._first.argmax() if self._first.any() else 0xFF

    def among(self, documents: pa.LargeStringArray) -> np.ndarray:
        """Which of the documents have one of the code points: (num_documents,) bool."""
        offsets, data = text_buffers(documents)
        places = np.flatnonzero(data >= self._lowest)  # 6 GB/s where there are none, as in English
        places = places[self._first[data[places]]]
        places = places[self._wanted[_decode(data, places)]]
        found = np.zeros(len(documents), bool)
        found[np.searchsorted(offsets, places, "right") - 1] = True
        return found


def text_buffers(documents: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
    """The UTF-8 of documents without a copy: offsets (num_documents + 1,) int64 from 0, data (num_bytes,) uint8."""
    _, offsets, data = documents.buffers()
    offsets = np.frombuffer(offsets, np.int64)[documents.offset : documents.offset + len(documents) + 1]
    data = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return offsets - offsets[0], data[offsets[0] : offsets[-1]]


def _decode(data: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The code points of the characters that begin at these places of valid UTF-8."""
    first = data[places].astype(np.int64)
    length = LENGTHS[first]
    code = first & np.where(length == 1, 0x7F, 0x7F >> length)
    for i in (1, 2, 3):
        longer = i < length
        following = data[np.minimum(places + i, len(data) - 1)] & 0x3F
        code = np.where(longer, code << 6 | following, code)
    return code


def differing_documents(one: tuple, other: tuple) -> list[int]:
    """The documents whose ids differ between two results (ids, offsets)."""
    mine, theirs = (np.split(ids, offsets[1:-1]) for ids, offsets in (one, other))
    return [number for number, pair in enumerate(zip(mine, theirs, strict=True)) if not np.array_equal(*pair)]
