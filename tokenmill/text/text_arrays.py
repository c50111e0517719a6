"""Arrow arrays of text: from any column of text or bytes, their bounds, their UTF-8."""

import numpy as np
import pyarrow as pa


def as_text(column: pa.Array | pa.ChunkedArray) -> pa.LargeStringArray:
    """A column of text or bytes as text, whose UTF-8 is not checked."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_large_string(column.type):
        return column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not pa.types.is_large_binary(column.type):
        # bytes, as a cast to text would refuse those that are not UTF-8
        column = column.cast(pa.large_binary())
    length = len(column)
    buffers = column.buffers()
    return pa.Array.from_buffers(pa.large_string(), length, buffers, -1, column.offset)


def text_offsets(texts: pa.LargeStringArray) -> np.ndarray:
    """(num_texts + 1,) int64."""
    if not len(texts):
        return np.zeros(1, np.int64)
    offsets = np.frombuffer(texts.buffers()[1], np.int64)
    return offsets[texts.offset : texts.offset + len(texts) + 1]


def text_lengths(texts: pa.LargeStringArray) -> np.ndarray:
    """Bytes of each text, 0 for a null: (num_texts,) int64."""
    lengths = np.diff(text_offsets(texts))
    if texts.null_count:
        lengths *= np.asarray(texts.is_valid())
    return lengths


def valid_utf8(column: pa.LargeStringArray) -> tuple[pa.LargeStringArray, int]:
    """The texts, with bad bytes replaced with U+FFFD, and how many had any."""
    try:
        column.validate(full=True)
        return column, 0
    except pa.ArrowInvalid:
        data = column.cast(pa.large_binary())
    data.validate(full=True)  # ArrowInvalid if it is not the UTF-8 that is wrong
    texts: list[str | None] = []
    repaired = 0
    for raw in data.to_pylist():
        text = None if raw is None else raw.decode("utf-8", "replace")
        texts.append(text)
        if text is not None and text.encode() != raw:
            repaired += 1
    return pa.array(texts, pa.large_string()), repaired
