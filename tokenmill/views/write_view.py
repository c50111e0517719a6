"""Writes a view from how often each document of each shard counts.

    write_view(token_set, "good", rule, counts)       counts(entry, lengths) -> (documents,) uint8, shard after shard

The slices that training shuffles are cut here, once, so that opening a view reads no offsets.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tokenmill.rows.windows import DEFAULT_WINDOW_SIZE, cut_slices
from tokenmill.store.shards import ShardEntry
from tokenmill.store.token_sets import TokenSet
from tokenmill.store.views import ViewWriter

Counts = Callable[[ShardEntry, np.ndarray], np.ndarray]


def write_view(
    token_set: TokenSet,
    name: str,
    rule: dict[str, Any],
    counts_of: Counts,
    on_shard: Callable[[int], None] = lambda documents: None,
    slice_tokens: int = DEFAULT_WINDOW_SIZE.slice,
) -> dict[str, Any]:
    """Writes the view and returns its facts; calls `on_shard(documents)` after each shard.

    Raises ValueError if no document of the training split counts, as nothing could be trained on.
    """
    with ViewWriter(token_set.path, token_set.digest, slice_tokens) as writer:
        for number, entry in enumerate(token_set.entries):
            shard = token_set.open(entry)
            counts = counts_of(entry, shard.lengths)
            slices = cut_slices(number, np.asarray(shard.offsets), counts, slice_tokens)
            writer.write(entry.split, shard.lengths, counts, slices)
            on_shard(entry.documents)
        if not writer.documents:
            raise ValueError(
                f"{token_set.display_name}: view {name!r} keeps none of its {token_set.manifest['documents']:,} "
                "documents; check the rule"
            )
        return writer.finish(name, rule)
