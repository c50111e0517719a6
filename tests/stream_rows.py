"""Where the rows of one token stream begin, in order: of `concat`, or with a seed of `random`."""

import numpy as np

from tokenmill.rows.stream_packings import plan_concat, plan_random
from tokenmill.rows.windows import Window


def starts(num_tokens: int, row_len: int, seed: tuple[int, ...] | None = None) -> np.ndarray:
    """(num_rows,) int64, ascending."""
    tokens = np.array([num_tokens])
    stream = Window(np.array([0]), np.array([0]), tokens)
    plan = (
        plan_concat(stream, tokens, row_len, None)
        if seed is None
        else plan_random(stream, tokens, row_len, seed)
    )
    return np.sort(plan.start)
