"""Batches as the loader's thread makes them, ahead: rows are read, and sent to the arrays."""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tokenmill.feed.batch import Batch, read_batch
from tokenmill.feed.dealers import Rows
from tokenmill.rows.run import Run


class Made(NamedTuple):
    """A batch that was made ahead."""

    sent: Any  # what the arrays have sent
    batch: Batch
    targets: int
    run: Run  # after the batch


def make_batches(
    rows: Rows, arrays: Any, shape: tuple[int, int], dtype: np.dtype[Any], depth: int
) -> Iterator[Made]:
    """The batches of these rows, each with the run after it. `depth` of them are made ahead."""
    # kept, so that the thread frees them, and not the caller's `next`
    kept: deque[Any] = deque(maxlen=depth + 2)
    for batch, targets, run in rows:
        kept.append((batch, run))
        tokens, mask = read_batch(batch, shape, dtype)
        # no variable for what was sent: it would live until the next batch is made
        yield Made(arrays.send(tokens, mask, batch.places), batch, targets, run)
