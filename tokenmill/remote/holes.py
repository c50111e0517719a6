"""Finds tokens that may come from a hole in a file of the cache, and reads them again from blocks that are verified.

Only verified bytes are written to the cache, and evicting a block punches a hole, which reads as zeros. So each byte
of a file is either right or zero, whatever the marks say and whether or not locks work: on a file system without
working locks, a process may punch a block that another one has just fetched again. A hole covers whole pages.
Therefore, what is read from it has two zero tokens in a row, or a zero token at the beginning or end of a stretch:

    tokens   7 9 4 0 0 0 | 5 0 8 2 | 0 3        the first and last stretch are doubtful, the middle one is not

A text may contain such tokens, too. They are rare, and verifying them costs the CRC-32 of a MiB.
"""

import time

import numpy as np

from tokenmill.remote.block_locks import FILES
from tokenmill.remote.block_state import ABSENT
from tokenmill.remote.cache import Cache
from tokenmill.remote.fetcher import WAIT_SECONDS, fetcher
from tokenmill.store.files import BLOCK_BYTES


def doubtful(tokens: np.ndarray, firsts: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Which stretches may come from a hole: their numbers, ascending.

    Stretch s begins at tokens[firsts[s]] and has at least one token. If known[s] is set, its first token is left out,
    as its value does not matter: with a BOS of 0, a copy of BOS alone that fills a row is not doubtful.
    """
    lasts = np.empty_like(firsts)
    lasts[:-1], lasts[-1] = firsts[1:] - 1, len(tokens) - 1
    begins = firsts + known
    zero = tokens == 0
    zero[firsts[known]] = False  # so that most batches have no two in a row, and are done sooner
    doubted = (zero[np.minimum(begins, lasts)] | zero[lasts]) & (begins <= lasts)
    if (in_a_row := zero[1:] & zero[:-1]).any():
        pairs = np.flatnonzero(in_a_row)
        stretch = np.searchsorted(firsts, pairs, side="right") - 1
        doubted[stretch[pairs < lasts[stretch]]] = True  # not if the second one begins the next stretch
    found: np.ndarray = np.flatnonzero(doubted)
    return found


def read_verified(cache: Cache, shard: int, begin: int, end: int) -> bytes:
    """Bytes `begin` to `end` of a shard, from blocks whose CRC-32 was compared after they were read.

    Raises what fetching raises; OSError if a block is not right within eight minutes.
    """
    first = int(cache.blocks.first[shard])
    parts = []
    for number in range(begin // BLOCK_BYTES, (end - 1) // BLOCK_BYTES + 1):
        data, start = _verified_block(cache, shard, first + number), number * BLOCK_BYTES
        parts.append(data[max(begin - start, 0) : end - start])
    return b"".join(parts)


def _verified_block(cache: Cache, shard: int, block: int) -> bytes:
    began = time.monotonic()
    while time.monotonic() - began < WAIT_SECONDS:
        fetcher().require(cache, np.array([FILES + shard, block]))
        if (data := cache.read_if_right(block)) is not None:
            return data
        cache.marks.set(block, ABSENT)  # a hole, so it is fetched again
    raise OSError(
        f"{cache.folder}: block {block} was fetched again and again for {WAIT_SECONDS:.0f} s, and found damaged each "
        "time: the disk is failing, or other processes evict the block, and locks do not work there; name another "
        "cache_dir, or a larger cache_bytes"
    )
