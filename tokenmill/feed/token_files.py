"""TokenFiles: the files that the spans of a window's rows are in, and reading them.

A local shard is one file. A shard at an address is a part file for each MiB, so a span that crosses
a MiB is split when the table is made, and reading is the same for both. With parts of 8 bytes, the
span 6 to 18 of shard 3 becomes

    shard 3, part 0: 6 to 8        part 1: 0 to 8        part 2: 0 to 2

A part that is not there yet is `MISSING`, whose slices raise: then the parts of these rows are
required, ahead of what is prefetched, and the rows are read again.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tokenmill.remote.part_cache import PART_BYTES
from tokenmill.remote.prefetch import expect, require
from tokenmill.remote.token_set import RemoteTokenSet
from tokenmill.rows import windows
from tokenmill.rows.groups import offsets_of, within_groups
from tokenmill.store.shards import Shard
from tokenmill.store.token_sets import TokenSet

WINDOWS = 2  # that a loader needs in the cache: this one, and the next while it is fetched
UNSPLIT = 1 << 60  # the part bytes of a local shard, which is one file
PART = 32  # bits of a key below the shard's number


class _NotThere(Exception):
    """A part was sliced that is not there yet."""


class _Missing:
    def __getitem__(self, span: slice) -> memoryview:
        raise _NotThere


MISSING = _Missing()


class _File(NamedTuple):
    """The tokens of a local shard, in the form of a part that is there."""

    result: memoryview


class TokenFiles:
    """The spans of rows, by file: row r is spans offsets[r] to offsets[r + 1].

    A span of `byte_ranges` is (number in `shards`, first byte, one after the last): (num_spans, 3).
    """

    def __init__(self, shards: Sequence[Shard], offsets: np.ndarray, byte_ranges: np.ndarray):
        self._offsets = offsets
        self._byte_ranges = byte_ranges  # in files
        self._jobs: list[Any] = [_File(shard.tokens.data.cast("B")) for shard in shards]
        if any(shard.part_bytes for shard in shards):
            self._split(shards)
        self._look()

    def _split(self, shards: Sequence[Shard]) -> None:
        """Splits spans where a part ends."""
        shard, begin, end = self._byte_ranges.T
        part_bytes = np.array([opened.part_bytes or UNSPLIT for opened in shards])[shard]
        first_part = begin // part_bytes
        num_parts = (end - 1) // part_bytes - first_part + 1
        span = np.repeat(np.arange(len(num_parts)), num_parts)
        part = first_part[span] + within_groups(num_parts)
        part_bytes = part_bytes[span]
        part_begin = part * part_bytes
        keys, number = _numbered(shard[span] << PART | part)
        ranges = np.empty((len(span), 3), np.int64)
        ranges[:, 0] = number
        ranges[:, 1] = np.maximum(begin[span] - part_begin, 0)
        ranges[:, 2] = np.minimum(end[span] - part_begin, part_bytes)
        self._byte_ranges = ranges
        self._offsets = offsets_of(num_parts)[self._offsets]
        local = self._jobs
        self._jobs = []
        for key in keys.tolist():
            opened = shards[key >> PART]
            part_number = key & (1 << PART) - 1
            self._jobs.append(opened.part(part_number) if opened.part_bytes else local[key >> PART])

    def _look(self) -> None:
        self._views = [MISSING if job.result is None else job.result for job in self._jobs]

    def views(self, first: int, last: int) -> list[Any]:
        """The bytes of each span of rows `first` to before `last`.

        Waits for parts, and raises what fetching raises.
        """
        ranges = self._byte_ranges[self._offsets[first] : self._offsets[last]]
        views = self._views
        try:
            return [views[number][begin:end] for number, begin, end in ranges.tolist()]
        except _NotThere:
            require([self._jobs[number] for number in dict.fromkeys(ranges[:, 0].tolist())])
            self._look()
            return self.views(first, last)

    @property
    def missing(self) -> list[Any]:
        """The parts that are not there yet, in the order of the rows."""
        return [job for job in self._jobs if job.result is None]

    def fetch(self, after: int = 0) -> None:
        """Has missing parts fetched, after so many others."""
        expect(self.missing, after)


def _numbered(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different keys in the order in which they come first, and the number of each key."""
    unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return unique[order], number[inverse]


def require_room(sets: Iterable[TokenSet], split: str) -> None:
    """ValueError, with both numbers, if two windows of each remote set do not fit in the cache."""
    remote = [token_set for token_set in sets if isinstance(token_set, RemoteTokenSet)]
    if not remote:
        return
    needed = sum(_bytes_needed(token_set, split) for token_set in remote)
    cache = remote[0].cache
    limit = cache.limit()
    if needed > limit:
        raise ValueError(
            f"{cache.root}: the cache may take {limit:,} bytes, but rows need {needed:,}: "
            f"{WINDOWS} windows of each token set, or all of a smaller one; pass a larger "
            "cache_bytes, a cache_dir on a disk with more room, or pull the set"
        )


def _bytes_needed(token_set: RemoteTokenSet, split: str) -> int:
    """Bytes of two windows, or of the split if it is smaller."""
    size = windows.DEFAULT_WINDOW_SIZE
    itemsize = token_set.numpy_dtype.itemsize
    shard_bytes = np.array([entry.tokens * itemsize for entry in token_set.split(split)], np.int64)
    parts_of_split = int((-(-shard_bytes // PART_BYTES)).sum())
    spread = 1.0  # of the tokens that are read, to those of the rows
    if token_set.view is not None:
        # a slice of a view spans all tokens from its first document to its last
        slices = token_set.view.slices_of(split, windows.SLICE)
        spanned = int((slices["end"] - slices["begin"]).sum())
        spread = spanned / max(1, token_set.view.tokens(split))
    window_bytes = int(spread * size.window) * itemsize
    num_slices = size.window // size.slice + 1
    # the last document of a slice ends in the next part
    parts_of_window = -(-window_bytes // PART_BYTES) + 2 * num_slices
    return min(parts_of_split, WINDOWS * parts_of_window) * PART_BYTES
