"""Characters that an engine may class differently from the reference: found in documents, and made up for its proof.

A split pattern asks whether each character is a letter, a number, a space or none of them, and engines have Unicode
tables of different years. A document with such a character is encoded by the reference. `CodePoints.among` looks for
them in the UTF-8 bytes of many documents at once: the first bytes of such characters are rare, and only what follows
them is decoded.

An engine is compared with the reference on `hard_texts` (long pieces, runs, spelled tokens) and `random_texts`, which
are sequences of what normalizers and split patterns treat specially: combining marks, Hangul, emoji, digits.
"""

import functools
import random
import unicodedata
from collections.abc import Iterable

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
    offsets = np.frombuffer(offsets, np.int64)[
        documents.offset : documents.offset + len(documents) + 1
    ]
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
    return [
        number
        for number, pair in enumerate(zip(mine, theirs, strict=True))
        if not np.array_equal(*pair)
    ]


LATIN = "aAeEiIoOuUnNcCsSyYzZıİſßÅåÀéñçǅΩωαΑςσֿאבﻻاأ"
COMPATIBLE = "ﬁﬃ①½²㎏ｱﾞＡｶﾟ㈱…™ªⅣﷺ豈ｶ゙が゚"
PLAIN = " \t\n\r\u00a0\u2003\u3000\u200b\ufeff0123456789٣४aAzZ'`.,!?-_/\\(\"«—水車éΩя"
PIECES = [
    "'s",
    "'LL",
    "'ſ",
    "\r\n",
    "  ",
    "e\u0301",
    "\u0f73",
    "\u2126",
    "\u212b",
    "\U0001d15f",
    "<0x41>",
    "\u2581",
]
EMOJI = "😀👩👨🏽🏿❤⚕☠♀0#🏴🇩🇪\U000e0067\U000e007f\u200d\ufe0f\ufe0e\u20e3"


def hard_texts(tokens: Iterable[str]) -> list[str]:
    """Long pieces, runs and numbers of every kind, combined characters, and texts that spell these tokens."""
    units = [*" \n\t\u00a0aA1!é水😀\u0301", "\r\n", " \n", "ab", "12a", "...", "'s", "'S"]
    units += ["1²", "٣4", "½", "1 ", "e\u0301", "\u1100\u1161"]
    runs = [unit * count for unit in units for count in (*range(1, 12), 100, 1000)]
    long = [unit * 5000 for unit in units]
    spelled = [
        form.format(token)
        for token in tokens
        for form in ("x {0} y{0}", "{0}", "a{0}b", "{0}\u0301", "1{0}2")
    ]
    return [
        *runs,
        *long,
        *(f"a{run}b" for run in runs),
        *(f"a {run}1" for run in runs),
        *spelled,
        "\x011\x01",
    ]


def random_texts(count: int, seed: int) -> list[str]:
    """Random texts of up to 24 characters, the same for the same seed and Unicode version of Python."""
    rng = random.Random(seed)
    pools = _pools()
    texts = []
    for _ in range(count):
        some = rng.choices(pools, k=2)
        texts.append("".join(rng.choice(rng.choice(some)) for _ in range(rng.randint(1, 24))))
    return texts


@functools.cache
def _pools() -> list[list[str]]:
    marks: dict[int, list[str]] = {}
    indic: dict[int, list[str]] = {}
    for code in range(0x300, 0x20000):
        character = chr(code)
        kind = unicodedata.category(character)
        if combining := unicodedata.combining(character):
            marks.setdefault(combining, []).append(character)
        if kind[0] in "LM" and (
            0x900 <= code < 0x1100 or 0x1700 <= code < 0x1D00 or 0x11000 <= code < 0x12000
        ):
            indic.setdefault(code >> 7, []).append(character)
    all_marks = [mark for some in marks.values() for mark in some]
    jamo = [
        chr(code)
        for code in (*range(0x1100, 0x1113), *range(0x1161, 0x1176), *range(0x11A8, 0x11C3), 0x115F)
    ]
    hangul = (
        jamo
        + [chr(0xAC00 + number * 28) for number in range(0, 399, 19)]
        + ["각", "힣", "ㅏ", "\ua960", "\ud7b0"]
    )
    scripts = [some for some in indic.values() if len(some) > 20]
    latin = [*LATIN, *(mark for some in marks.values() for mark in some[:3])]
    others = [[*EMOJI], [*COMPATIBLE, *LATIN], [*PLAIN, *PIECES], [*PLAIN]]
    return [[*LATIN, *all_marks], latin, all_marks, hangul, *others, *scripts]
