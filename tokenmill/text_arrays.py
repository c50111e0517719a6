"""Python's strings and NumPy's masks as Arrow arrays.

pa.array does the same, but imports pandas if it is installed: half a second for each process.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa


def text_array(texts: Sequence[str | None]) -> pa.LargeStringArray:
    """Texts, or None for a null. UnicodeEncodeError if one has half of a surrogate pair."""
    return unchecked_array([None if text is None else text.encode() for text in texts])


def unchecked_array(values: Sequence[bytes | None]) -> pa.LargeStringArray:
    """Texts as bytes, which may not be valid UTF-8."""
    there = [value for value in values if value is not None]
    nulls = len(values) - len(there)
    valid = pa.py_buffer(np.packbits([value is not None for value in values], bitorder="little")) if nulls else None
    lengths = map(len, there) if not nulls else (len(value or b"") for value in values)
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(lengths, np.int64, len(values)), out=offsets[1:])
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(b"".join(there))]
    return pa.Array.from_buffers(pa.large_string(), len(values), buffers, nulls)


def mask_array(mask: np.ndarray) -> pa.BooleanArray:
    """A mask (n,) bool, for `filter`."""
    bits = pa.py_buffer(np.packbits(mask, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, bits])
