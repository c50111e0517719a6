"""A column per token that preparing computes: how far each token is from its document's beginning, up to 255."""

import numpy as np

from tokenmill.store.columns import Column


def distance(tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    begins = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.minimum(np.arange(len(tokens)) - begins, 255).astype(np.uint8)


DISTANCE = Column("distance", "uint8", "token", of_tokens=distance)
