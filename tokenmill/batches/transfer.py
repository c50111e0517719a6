"""Transfer: how rows of token ids become the arrays that training wants, on the device that it wants them on.

    transfer.send(rows)      in the loader's thread     fills arrays, and begins to copy them
    batch.receive()          where `next` is called     (inputs, targets[, document_ids][, sources])

There is one for each kind of arrays: torch_transfer.py, numpy_transfer.py and jax_transfer.py. This module imports none
of them.
"""

from typing import Any, Protocol

import numpy as np


class Batch(Protocol):
    """The arrays of a batch, which may still be on their way."""

    def receive(self) -> tuple[Any, ...]:
        """Returns the arrays, ready for the caller's next operation on them."""


class Transfer(Protocol):
    """Makes batches of rows."""

    def send(self, rows: np.ndarray, sources: np.ndarray | None = None, mask: np.ndarray | None = None) -> Batch:
        """Makes a batch from rows, (B, T + 1) of uint16 or uint32; optionally their sources, (B,) int64, and which of
        their tokens bear loss, (B, T + 1) bool. The rows are the transfer's own.
        """
