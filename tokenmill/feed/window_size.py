"""Chooses the window size: smaller than the default if the cache of remote token sets is small.

A plan needs the current window and fetches the next one meanwhile: two of 768 MiB for uint16. If cache_bytes is
smaller, the window size is halved until two windows of each source fit. Rows are then mixed over fewer places and come
in another order, so a position records it: window_tokens. A position that was saved with smaller windows continues with
these.

    2 windows of 2^28 tokens of 2 bytes      1.5 GiB: each slice of 2 MiB, and the block behind it
    cache_bytes=1_000_000_000                windows of 2^27 tokens
"""

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from tokenmill.checks import whole_number
from tokenmill.feed import window_plans
from tokenmill.remote.fetcher import fetcher
from tokenmill.remote.sets import RemoteTokenSet
from tokenmill.rows.view_windows import SLICE
from tokenmill.rows.windows import WindowSize
from tokenmill.store.files import BLOCK_BYTES
from tokenmill.store.token_sets import TokenSet
from tokenmill.store.views import View

FEWEST_SLICES = 8  # of a window; fewer would not be a sample of the split
WINDOWS = 2  # that a plan needs: the current one, and the next one while it is fetched


def window_size_within(sets: Iterable[TokenSet], split: str) -> WindowSize | None:
    """The window size that fits into the caches of these sets; None for the default.

    Raises ValueError if not even small windows fit.
    """
    remote = [token_set for token_set in sets if isinstance(token_set, RemoteTokenSet)]
    if not remote:
        return None
    limit, default = fetcher().budget(remote[0].cache).limit, window_plans.DEFAULT_WINDOW_SIZE
    size, folder = default, remote[0].cache.folder.parent
    while (needed := _needed(remote, split, size)) > limit and size.window >= 2 * FEWEST_SLICES * size.slice:
        size = size._replace(window=size.window // 2)
    if needed > limit:
        raise ValueError(
            f"{folder}: blocks may take {limit:,} bytes there, but rows need at least {needed:,}: {WINDOWS} windows of "
            f"{size.window:,} tokens of each token set, or all of a smaller one; pass a larger cache_bytes, or a "
            "cache_dir on a disk with more room"
        )
    if size == default:
        return None
    warnings.warn(
        f"blocks may take {limit:,} bytes in {folder}, but {WINDOWS} windows of {default.window:,} tokens take "
        f"{_needed(remote, split, default):,}: windows are reduced to {size.window:,} tokens, so rows are mixed over "
        "fewer places and come in another order; pass a larger cache_bytes for the usual order",
        stacklevel=2,
    )
    return size


def _needed(sets: list[RemoteTokenSet], split: str, size: WindowSize) -> int:
    """Bytes of the blocks that a plan needs of each set: of its windows, or of the whole split if that is smaller."""
    return sum(
        _needed_of([entry.tokens for entry in token_set.split(split)], token_set.numpy_dtype.itemsize, size)
        if token_set.view is None
        else _needed_of_view(token_set, token_set.view, split, size)
        for token_set in sets
    )


def _needed_of_view(token_set: RemoteTokenSet, view: View, split: str, size: WindowSize) -> int:
    """Bytes needed of a view: of all blocks from the first document of a slice to its last, however few it keeps."""
    slices, itemsize = view.slices_of(split, SLICE), token_set.numpy_dtype.itemsize
    spans = (slices["end"] - slices["begin"]).astype(np.int64) * itemsize + BLOCK_BYTES
    windows = max(1, round(view.tokens(split) / size.window))
    largest = int(spans.sum()) // windows + int(spans.max(initial=0))
    return min(WINDOWS * largest, sum(entry.tokens for entry in token_set.split(split)) * itemsize)


def _needed_of(shard_tokens: list[int], itemsize: int, size: WindowSize) -> int:
    """Bytes needed of one set. The last document of a slice continues in the next block, if the shard has one."""
    tokens = np.array(shard_tokens, np.int64)
    slices, total = -(-tokens // size.slice), int(tokens.sum()) * itemsize
    behind = int(np.maximum(slices - 1, 0).sum()) * BLOCK_BYTES
    windows = max(1, round(int(tokens.sum()) / size.window))
    largest = (total + behind) // windows + size.slice * itemsize + BLOCK_BYTES  # windows end where a slice ends
    return min(WINDOWS * largest, total)


def as_identity(size: WindowSize | None) -> dict[str, int]:
    """What a position's identity says about windows: nothing if they have the default size."""
    return {} if size is None else {"window_tokens": size.window}


def window_size_of(state: dict[str, Any], own: WindowSize | None) -> WindowSize | None:
    """The window size of a position if it is smaller than the loader's, else the loader's.

    If the position has another one, it is rejected later, because its identity does not match.
    """
    if state.get("window_tokens") is None:
        return own
    window = whole_number("window_tokens of the position", state["window_tokens"], 1)
    default = window_plans.DEFAULT_WINDOW_SIZE
    return default._replace(window=window) if window < (own or default).window else own
