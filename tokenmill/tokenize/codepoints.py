"""Characters that an engine may class differently from the reference, found in documents.

A split pattern asks whether each character is a letter, a number, a space or none of them, and
engines have Unicode tables of different years. A document with such a character is encoded by the
reference. `CodePoints.among` looks for them in the UTF-8 bytes of many documents at once: the first
bytes of such characters are rare, and only what follows them is decoded.
"""

import numpy as np
import pyarrow as pa

Ids = tuple[np.ndarray, np.ndarray]  # of documents: ids, and the offset of each document in them

# how many bytes a character has, by its first
LENGTHS = np.ones(256, np.int64)
LENGTHS[0xC0:0xE0] = 2
LENGTHS[0xE0:0xF0] = 3
LENGTHS[0xF0:] = 4


class CodePoints:
    """A set of code points beyond ASCII, and a search for them in documents."""

    def __init__(self, code_points: np.ndarray):
        self._wanted = np.zeros(0x110000, bool)
        self._wanted[code_points] = True
        assert not self._wanted[:0x80].any(), "code points of ASCII are not looked for"
        self._is_first = np.zeros(256, bool)  # whether such a character begins with a byte
        self._is_first[_first_bytes(np.flatnonzero(self._wanted))] = True
        self._lowest = self._is_first.argmax() if self._is_first.any() else 0xFF

    def among(self, documents: pa.LargeStringArray) -> np.ndarray:
        """Which of the documents have one of the code points: (num_documents,) bool."""
        offsets, data = text_buffers(documents)
        places = np.flatnonzero(data >= self._lowest)  # 6 GB/s where there are none, as in English
        places = places[self._is_first[data[places]]]
        places = places[self._wanted[_decode(data, places)]]
        has_one = np.zeros(len(documents), bool)
        has_one[np.searchsorted(offsets, places, "right") - 1] = True
        return has_one


def _first_bytes(codes: np.ndarray) -> np.ndarray:
    """The first byte of each code point in UTF-8."""
    of_three = 0xE0 | codes >> 12
    of_four = 0xF0 | codes >> 18
    of_two = 0xC0 | codes >> 6
    return np.select([codes < 0x800, codes < 0x10000], [of_two, of_three], of_four)


def text_buffers(documents: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
    """The UTF-8 of documents without a copy.

    Offsets (num_documents + 1,) int64 from 0, data (num_bytes,) uint8.
    """
    _, offset_buffer, data_buffer = documents.buffers()
    end = documents.offset + len(documents) + 1
    offsets = np.frombuffer(offset_buffer, np.int64)[documents.offset : end]
    data = np.empty(0, np.uint8)
    if data_buffer is not None:
        data = np.frombuffer(data_buffer, np.uint8)
    return offsets - offsets[0], data[offsets[0] : offsets[-1]]


def joined(parts: list[np.ndarray]) -> Ids:
    """The ids of documents, one after the other."""
    return np.concatenate([np.empty(0, np.uint32), *parts]), np.cumsum([0, *map(len, parts)])


def _decode(data: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The code points of the characters that begin at these places of valid UTF-8."""
    first = data[places].astype(np.int64)
    length = LENGTHS[first]
    code = first & np.where(length == 1, 0x7F, 0x7F >> length)
    for i in (1, 2, 3):
        following = data[np.minimum(places + i, len(data) - 1)] & 0x3F
        code = np.where(i < length, code << 6 | following, code)
    return code


def differing_documents(left: Ids, right: Ids) -> list[int]:
    """The documents whose ids differ between two results."""
    left_ids = np.split(left[0], left[1][1:-1])
    right_ids = np.split(right[0], right[1][1:-1])
    differing = []
    for number, (ids, expected) in enumerate(zip(left_ids, right_ids, strict=True)):
        if not np.array_equal(ids, expected):
            differing.append(number)
    return differing
