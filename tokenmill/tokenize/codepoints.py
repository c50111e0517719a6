"""The code points that an engine classes differently from tiktoken.

A split pattern asks whether each character is a letter, a number, a space or none of them, and engines have
Unicode tables of different years. `differing` finds every code point on which two engines disagree. It uses a
vocabulary in which every join is visible: besides the 256 bytes it has every pair of bytes that crosses from
one character into the next, so two characters share a token if and only if they are in one piece:

    "aé" in one piece   61+c3 a9        "a" "é" in two   61 c3 a9

A document with one of these code points is encoded by tiktoken. `CodePoints.locate` looks for them in the
UTF-8 bytes of many documents at once: the first bytes of such characters are rare, and only what follows them
is decoded.

Left out: differences that only three characters show, except for the letters of English contractions
('s, 'll), which patterns match in any case. A sample of every shard is proven too.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tokenmill.text_arrays import text_array

TABLES = Path(__file__).parent / "tables"
CONTEXTS = ("a{}", "1{}", "!{}", " {}", "{}a")
CONTRACTIONS = ("'{}", "'{}l", "'l{}", "'{}e", "'r{}", "'v{}")
CONTRACTED = set("sdmtlver")

# how many bytes a character has, by its first
LENGTHS = np.ones(256, np.int64)
LENGTHS[0xC0:0xE0], LENGTHS[0xE0:0xF0], LENGTHS[0xF0:] = 2, 3, 4


class Located(NamedTuple):
    """Where documents have certain code points."""

    offsets: np.ndarray  # of the documents' UTF-8: (num_documents + 1,)
    data: np.ndarray  # their UTF-8: (num_bytes,) uint8
    places: np.ndarray  # the bytes that the code points begin at: (num_found,), ascending
    codes: np.ndarray  # which code point each is: (num_found,)

    def documents(self, places: np.ndarray) -> np.ndarray:
        """Which documents have one of these places: (num_documents,) bool."""
        found = np.zeros(len(self.offsets) - 1, bool)
        found[np.searchsorted(self.offsets, places, "right") - 1] = True
        return found


class CodePoints:
    """A set of code points beyond ASCII, and a search for them in documents."""

    def __init__(self, code_points: Iterable[int]):
        self._wanted = np.zeros(0x110000, bool)
        self._wanted[list(code_points)] = True
        assert not self._wanted[:0x80].any(), "code points of ASCII are not looked for"
        codes = np.flatnonzero(self._wanted)
        long = np.where(codes < 0x10000, 0xE0 | codes >> 12, 0xF0 | codes >> 18)
        self._first = np.zeros(256, bool)  # bytes that such a character begins with
        self._first[np.where(codes < 0x800, 0xC0 | codes >> 6, long)] = True
        self._lowest = self._first.argmax() if self._first.any() else 0xFF

    @classmethod
    def load(cls, name: str) -> "CodePoints":
        """A table that comes with the package, by engine, version and pattern: "gigatoken-0.10.0-gpt2"."""
        ranges = json.loads((TABLES / f"{name}.json").read_text())["code_points"]
        return cls([code for first, last in ranges for code in range(first, last + 1)])

    def __or__(self, other: "CodePoints") -> "CodePoints":
        return CodePoints(np.flatnonzero(self._wanted | other._wanted).tolist())

    def has(self, codes: np.ndarray) -> np.ndarray:
        """Which of these code points are in the set: bool, of the same shape."""
        return self._wanted[codes]

    def locate(self, documents: pa.LargeStringArray) -> Located:
        """Where the documents have one of the code points."""
        offsets, data = text_buffers(documents)
        places = np.flatnonzero(data >= self._lowest)  # 6 GB/s where there are none, as in English
        places = places[self._first[data[places]]]
        codes = _decode(data, places)
        wanted = self._wanted[codes]
        return Located(offsets, data, places[wanted], codes[wanted])


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


# ---------------------------------------------------------------------------- making the tables


def join_showing_ranks() -> dict[bytes, int]:
    """A vocabulary of bytes, and of pairs that cross from one character into the next."""
    pairs = (bytes([x, y]) for x in range(256) for y in range(256) if not 0x80 <= y < 0xC0)
    return {token: rank for rank, token in enumerate([*(bytes([b]) for b in range(256)), *pairs])}


def differing(one: Callable, other: Callable, among) -> list[int]:
    """The code points in `among` on which two encoders disagree, ascending.

    Each turns documents, a LargeStringArray, into (ids, offsets), with the vocabulary of `join_showing_ranks`.
    """
    characters = [chr(code) for code in among if not 0xD800 <= code < 0xE000]
    folding = [c for c in characters if CONTRACTED & {c.lower(), c.upper().lower(), c.casefold()}]
    found = set()
    for contexts, some in ((CONTEXTS, characters), (CONTRACTIONS, folding)):
        for context in contexts:
            documents = text_array([context.format(c) for c in some])
            found |= {ord(some[i]) for i in differing_documents(one(documents), other(documents))}
    return sorted(found)


def differing_documents(one: tuple, other: tuple) -> list[int]:
    """The documents whose ids differ between two results (ids, offsets)."""
    (ids, offsets), (other_ids, other_offsets) = one, other
    lengths = np.diff(offsets)
    differ = lengths != np.diff(other_offsets)
    for length in np.unique(lengths[~differ]):
        same = np.flatnonzero(~differ & (lengths == length))
        within = np.arange(length)
        mine, theirs = ids[offsets[same][:, None] + within], other_ids[other_offsets[same][:, None] + within]
        differ[same[(mine != theirs).any(axis=1)]] = True
    return np.flatnonzero(differ).tolist()


def as_ranges(code_points: list[int]) -> list[list[int]]:
    """[3, 4, 5, 9] -> [[3, 5], [9, 9]]."""
    ranges: list[list[int]] = []
    for code in code_points:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return ranges
