r"""nanochat's split pattern with an engine that knows Llama 3's: they differ in how many digits make a piece.

    \p{N}{1,3}   1234567  ->  123 456 7        \p{N}{1,2}   1234567  ->  12 34 56 7

A mark, a byte that the text does not have, is inserted after every second digit of a run. It becomes a piece of its own
because no pattern joins it with digits, and its id is removed again:

    in 1999!  ->  in 19|99!  ->  in, 19, |, 99, !  ->  in, 19, 99, !

The reference encodes documents that have this byte, or numbers beyond ASCII next to other numbers (`undecidable`).
"""

import functools
import unicodedata

import numpy as np
import pyarrow as pa

from tokenmill.extras import naming_the_extra
from tokenmill.tokenize.codepoints import LENGTHS, CodePoints, text_buffers

MARK = 0x01
DIGITS = 2  # in a piece


@functools.cache
def _numbers() -> CodePoints:
    """Code points beyond ASCII that are numbers, in Python's Unicode version or that of the newer `regex` package."""
    with naming_the_extra():
        import regex
    codes = np.r_[0x80:0xD800, 0xE000:0x110000]
    characters = codes.astype("<u4").tobytes().decode("utf-32-le")
    python_s = (c for c in filter(str.isnumeric, characters) if unicodedata.category(c)[0] == "N")
    return CodePoints(map(ord, {*regex.findall(r"\p{N}", characters), *python_s}))


def undecidable(documents: pa.LargeStringArray) -> np.ndarray:
    """Documents that the marks would split wrongly: (num_documents,) bool."""
    offsets, data = text_buffers(documents)
    places = _numbers().places(data)
    if len(places):
        number = np.zeros(len(data) + 4, bool)  # where a number begins
        number[places] = True
        number[:-4] |= _is_digit(data)
        beside = number[places + LENGTHS[data[places]]] | _is_digit(data[places - 1])
        places = places[beside]
    found = np.zeros(len(documents), bool)
    for some in (places, np.flatnonzero(data == MARK)):
        found[np.searchsorted(offsets, some, "right") - 1] = True
    return found


def mark(documents: pa.LargeStringArray) -> pa.LargeStringArray:
    """The documents with a mark after every second ASCII digit, if another digit follows."""
    offsets, data = text_buffers(documents)
    cuts = _cuts(offsets, data)
    if not len(cuts):
        return documents
    marked = np.full(len(data) + len(cuts), MARK, np.uint8)
    kept = np.ones(len(marked), bool)
    kept[cuts + np.arange(len(cuts))] = False
    marked[kept] = data
    new = offsets + np.searchsorted(cuts, offsets)
    return pa.LargeStringArray.from_buffers(len(documents), pa.py_buffer(new), pa.py_buffer(marked))


def _cuts(offsets: np.ndarray, data: np.ndarray) -> np.ndarray:
    """The bytes that come after a mark: the third, fifth ... digit of each run."""
    places = np.flatnonzero(_is_digit(data))
    if not len(places):
        return places
    begins = np.zeros(len(data) + 1, bool)
    begins[offsets] = True
    first = np.ones(len(places), bool)  # of a run
    first[1:] = (np.diff(places) != 1) | begins[places[1:]]
    number = np.arange(len(places))
    within = number - np.maximum.accumulate(np.where(first, number, 0))
    return places[(within > 0) & (within % DIGITS == 0)]


def unmark(ids: np.ndarray, offsets: np.ndarray, mark_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and offsets without the marks."""
    marks = ids == mark_id
    return ids[~marks], offsets - np.searchsorted(np.flatnonzero(marks), offsets)


def _is_digit(data: np.ndarray) -> np.ndarray:
    return data - np.uint8(ord("0")) < 10  # below "0" it wraps around
