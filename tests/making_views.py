"""Views for tests: of counts that a test gives."""

from pathlib import Path

import numpy as np

from tokenmill.rows import windows
from tokenmill.store.token_sets import TokenSet
from tokenmill.views.make_view import write_view


def make_view(folder: Path, name: str, counts: dict[str, list[int]]) -> dict:
    """A view of a token set in which the documents of each shard count as given; of other shards,
    once.
    """
    token_set = TokenSet(folder)

    all_counts = (
        (e, np.array(counts.get(e.name, [1] * e.documents), np.uint8)) for e in token_set.entries
    )
    return write_view(
        token_set, name, {"where": "of a test"}, all_counts, windows.DEFAULT_WINDOW_SIZE.slice
    )
