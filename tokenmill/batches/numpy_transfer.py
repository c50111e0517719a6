"""Makes NumPy arrays of rows of token ids: (inputs, targets), each (B, T) of one integer type.

NumPy widens each row twice, so that inputs and targets are contiguous and share no memory. torch_transfer.py does the
same for the CPU, and jax_transfer.py sends these arrays to devices.
"""

from typing import NamedTuple

import numpy as np


class NumpyBatch(NamedTuple):
    """`arrays` (inputs, targets[, document_ids][, sources]), which nothing else refers to."""

    arrays: tuple[np.ndarray, ...]

    def receive(self) -> tuple[np.ndarray, ...]:
        return self.arrays


class NumpyTransfer:
    """Makes arrays of `dtype`. With a bos_id, adds document_ids. Targets that bear no loss become `ignore_index`."""

    def __init__(self, dtype: np.dtype, bos_id: int | None, ignore_index: int):
        self.dtype, self.bos_id, self.ignore_index = dtype, bos_id, ignore_index

    def send(self, rows: np.ndarray, sources: np.ndarray | None = None, mask: np.ndarray | None = None) -> NumpyBatch:
        inputs, targets = rows[:, :-1].astype(self.dtype), rows[:, 1:].astype(self.dtype)  # (B, T)
        if mask is not None:
            np.copyto(targets, self.ignore_index, where=~mask[:, 1:])  # half the time of putmask
        arrays = (inputs, targets) if self.bos_id is None else (inputs, targets, document_ids(rows, self.bos_id))
        return NumpyBatch(arrays if sources is None else (*arrays, sources.copy()))


def document_ids(rows: np.ndarray, bos_id: int) -> np.ndarray:
    """Numbers the documents of each row from 0: rows (B, T + 1) -> (B, T) int32, as documents.py does for torch."""
    begins = rows[:, :-1] == bos_id
    return begins.cumsum(1, dtype=np.int32) - begins[:, :1]


def integer_type(dtype: str | type | np.dtype, vocab_size: int, ignore_index: int | None) -> np.dtype:
    """The type of the arrays' tokens. `ignore_index` is None if every target bears loss.

    Raises ValueError if it is no integer type, or cannot hold every token id and the ignore_index.
    """
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise ValueError(f"dtype must be an integer type, as 'int32' or np.uint16, found {dtype!r}") from error
    if found.kind not in "iu":
        raise ValueError(f"dtype must be an integer type, as 'int32' or np.uint16, found {str(found)!r}")
    limits = np.iinfo(found)
    if vocab_size - 1 > limits.max:
        raise ValueError(
            f"dtype {found} holds numbers up to {limits.max:,}, but this token set's ids go up to {vocab_size - 1:,}; "
            "pass a wider dtype"
        )
    if ignore_index is not None and not limits.min <= ignore_index <= limits.max:
        raise ValueError(
            f"dtype {found} cannot hold ignore_index={ignore_index}, the target of tokens that bear no loss; pass a "
            "signed dtype, or an ignore_index above all token ids"
        )
    return found
