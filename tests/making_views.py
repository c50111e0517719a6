"""Views for tests: of counts that a test gives."""

from pathlib import Path

import numpy as np

from tokenmill.rows import windows
from tokenmill.store.token_sets import TokenSet
from tokenmill.views.write_view import write_view


def make_view(folder: Path, name: str, counts: dict[str, list[int]]) -> dict:
    """A view of a token set in which the documents of each shard count as given; of other shards, once."""
    token_set = TokenSet(folder)

    def of_shard(entry, lengths):
        return np.array(counts.get(entry.name, [1] * entry.documents), np.uint8)

    return write_view(token_set, name, {"where": "of a test"}, of_shard, slice_tokens=windows.DEFAULT_WINDOW_SIZE.slice)
