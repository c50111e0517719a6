"""Makes NumPy arrays of rows of token ids: (inputs, targets), each (B, T) of one integer type.

Inputs and targets are contiguous and share no memory. What makes arrays, here and for torch and
JAX, has two methods:

    send(rows, mask, places)     in the loader's thread     fills arrays, and begins to copy them
    receive(sent)                where `next` is called     (inputs, targets)
"""

from typing import Any

import numpy as np

Places = np.ndarray | slice


def widen(
    rows: np.ndarray,
    mask: np.ndarray | None,
    places: Places,
    dtype: np.dtype[Any],
    ignore_index: int,
) -> tuple[np.ndarray, np.ndarray]:
    """(inputs, targets), (B, T) each, of rows (B, T + 1): row i is row `places[i]` of the batch.

    Targets that are not in the loss, as `mask` (B, T + 1) says, are `ignore_index`.
    """
    num_rows, row_len = rows.shape
    inputs = np.empty((num_rows, row_len - 1), dtype)
    targets = np.empty((num_rows, row_len - 1), dtype)
    inputs[places] = rows[:, :-1]
    targets[places] = rows[:, 1:]
    if mask is not None:
        is_ignored = ~in_place(mask, places)[:, 1:]
        np.copyto(targets, ignore_index, where=is_ignored)  # half the time of putmask
    return inputs, targets


def in_place(mask: np.ndarray, places: Places) -> np.ndarray:
    """A mask of rows in the order of the batch."""
    if isinstance(places, slice):
        return mask
    in_order = np.empty_like(mask)
    in_order[places] = mask
    return in_order


class NumpyArrays:
    """Makes arrays of `dtype`."""

    def __init__(self, dtype: np.dtype[Any], ignore_index: int):
        self._dtype = dtype
        self._ignore_index = ignore_index

    def send(
        self, rows: np.ndarray, mask: np.ndarray | None, places: Places
    ) -> tuple[np.ndarray, np.ndarray]:
        return widen(rows, mask, places, self._dtype, self._ignore_index)

    def receive(self, sent: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        return sent


def integer_type(dtype: Any, vocab_size: int, ignore_index: int | None) -> np.dtype[Any]:
    """The type of the arrays' tokens. `ignore_index` is None if every target is in the loss.

    ValueError if it is no integer type, or cannot hold every token id and the ignore_index.
    """
    try:
        integers: np.dtype[Any] = np.dtype(dtype)
        limits = np.iinfo(integers)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"dtype must be an integer type, as 'int32' or np.uint16, found {dtype!r}"
        ) from error
    for what, number in (("the largest token id", vocab_size - 1), ("ignore_index", ignore_index)):
        if number is not None and not limits.min <= number <= limits.max:
            raise ValueError(
                f"dtype {integers} cannot hold {what}, {number:,}; pass a wider or a signed dtype"
            )
    return integers
