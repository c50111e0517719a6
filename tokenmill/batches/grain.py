"""How large windows are where the cache of sets that lie elsewhere is small.

A plan needs the window at hand and, meanwhile, fetches the next: two of 768 MiB for uint16. Where cache_bytes holds
less, windows are halved until two of each source fit. Rows are then mixed over fewer places, and their order is
another, so a position says so: window_tokens. One that was saved with smaller windows is gone on from with these.

    2 windows of 2^28 tokens of 2 bytes      1.5 GiB: each slice of 2 MiB, and the block behind it
    cache_bytes=1_000_000_000                windows of 2^27 tokens
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from tokenmill.batches import plans
from tokenmill.batches.callers import warn
from tokenmill.checks import whole_number
from tokenmill.remote.fetcher import fetcher
from tokenmill.remote.sets import RemoteTokenSet
from tokenmill.rows.windows import Grain
from tokenmill.store.files import BLOCK_BYTES
from tokenmill.store.token_sets import TokenSet

FEWEST_SLICES = 8  # of a window: fewer places are no sample
WINDOWS = 2  # that a plan needs: at hand, and on their way


def grain_within(sets: Iterable[TokenSet], split: str) -> Grain | None:
    """The windows that fit into the caches of these sets; None for those that everybody has.

    ValueError where not even small ones fit.
    """
    elsewhere = [token_set for token_set in sets if isinstance(token_set, RemoteTokenSet)]
    if not elsewhere:
        return None
    limit, whole = fetcher().budget(elsewhere[0].cache).limit, plans.GRAIN
    grain = whole
    while (needed := _needed(elsewhere, split, grain)) > limit and grain.window >= 2 * FEWEST_SLICES * grain.slice:
        grain = grain._replace(window=grain.window // 2)
    if needed > limit:
        raise ValueError(
            f"{elsewhere[0].cache.folder.parent}: blocks may take {limit:,} bytes there, and rows need at least "
            f"{needed:,}: of each token set there {WINDOWS} windows of {grain.window:,} tokens, or all of a smaller "
            "one; give a larger cache_bytes, or a cache_dir on a disk with more room"
        )
    if grain == whole:
        return None
    warn(
        f"blocks may take {limit:,} bytes in {elsewhere[0].cache.folder.parent}, and {WINDOWS} windows of "
        f"{whole.window:,} tokens take {_needed(elsewhere, split, whole):,}: windows are of {grain.window:,} tokens, "
        "so rows are mixed over fewer places and come in another order; a larger cache_bytes gives the usual one"
    )
    return grain


def _needed(sets: list[RemoteTokenSet], split: str, grain: Grain) -> int:
    """Bytes of the blocks that a plan needs of each set: of its windows, or of all of a split that is smaller."""
    return sum(
        _needed_of([entry.tokens for entry in token_set.split(split)], token_set.numpy_dtype.itemsize, grain)
        for token_set in sets
    )


def _needed_of(shard_tokens: list[int], itemsize: int, grain: Grain) -> int:
    """The last document of a slice goes on in the block behind it, where the shard has one."""
    tokens = np.array(shard_tokens, np.int64)
    slices, total = -(-tokens // grain.slice), int(tokens.sum()) * itemsize
    behind = int(np.maximum(slices - 1, 0).sum()) * BLOCK_BYTES
    windows = max(1, round(int(tokens.sum()) / grain.window))
    largest = (total + behind) // windows + grain.slice * itemsize + BLOCK_BYTES  # as the cuts are at slices' ends
    return min(WINDOWS * largest, total)


def told_of(grain: Grain | None) -> dict[str, int]:
    """What a position's identity says of windows: nothing of the usual ones."""
    return {} if grain is None else {"window_tokens": grain.window}


def grain_of(state: dict[str, Any], own: Grain | None) -> Grain | None:
    """The windows of a position, where they are smaller than one's own; else one's own, which it must fit."""
    if state.get("window_tokens") is None:
        return own
    asked = whole_number("window_tokens of the position", state["window_tokens"], 1)
    return plans.GRAIN._replace(window=asked) if asked < (own or plans.GRAIN).window else own
