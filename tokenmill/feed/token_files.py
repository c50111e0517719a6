"""TokenFiles: the files that the spans of a window's rows are in, and reading them.

A local shard is one file. A shard at an address is a part file for each MiB, so a span that crosses a MiB is split when
the table is made, and reading is the same for both. With parts of 8 bytes, the span 6 to 18 of shard 3 becomes

    shard 3, part 0: 6 to 8        part 1: 0 to 8        part 2: 0 to 2

A part that is not there yet is `MISSING`, whose slices raise: then the parts of these rows are required, ahead of what
is prefetched, and the rows are read again.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tokenmill.remote.part_cache import PART_BYTES
from tokenmill.remote.prefetch import expect, require
from tokenmill.remote.token_set import RemoteTokenSet
from tokenmill.rows import windows
from tokenmill.store.shards import Shard
from tokenmill.store.token_sets import TokenSet

WINDOWS = (
    2  # that a loader needs in the cache: the current one, and the next one while it is fetched
)


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

    A span is (number in `shards`, first byte, one after the last), int64: (num_spans, 3).
    """

    def __init__(self, shards: Sequence[Shard], offsets: np.ndarray, span: np.ndarray):
        self._offsets, self._span = offsets, span
        self._jobs: list[Any] = [_File(shard.tokens.data.cast("B")) for shard in shards]
        if any(shard.part_bytes for shard in shards):
            self._split(shards)
        self._look()

    def _split(self, shards: Sequence[Shard]) -> None:
        shard, begin, end = self._span.T
        part_bytes = np.array([one.part_bytes or 1 << 60 for one in shards])[shard]
        first = begin // part_bytes
        many = (end - 1) // part_bytes - first + 1  # files of each span
        ends = np.cumsum(many)
        span = np.repeat(np.arange(len(many)), many)
        part = first[span] + np.arange(len(span)) - (ends - many)[span]
        start = part * part_bytes[span]
        keys, at, file = np.unique(shard[span] << 32 | part, return_index=True, return_inverse=True)
        order = np.argsort(at)  # files in the order in which rows need them
        number = np.empty(len(order), np.int64)
        number[order] = np.arange(len(order))
        self._span = np.empty((len(span), 3), np.int64)
        self._span[:, 0] = number[file]
        self._span[:, 1] = np.maximum(begin[span] - start, 0)
        self._span[:, 2] = np.minimum(end[span] - start, part_bytes[span])
        self._offsets = np.concatenate([[0], ends])[self._offsets]
        parts = ((shards[key >> 32], key >> 32, key & 0xFFFFFFFF) for key in keys[order].tolist())
        self._jobs = [
            one.part(part) if one.part_bytes else self._jobs[number] for one, number, part in parts
        ]

    def _look(self) -> None:
        self._views = [MISSING if job.result is None else job.result for job in self._jobs]

    def views(self, first: int, last: int) -> list[Any]:
        """The bytes of each span of rows `first` to before `last`. Waits for parts, and raises what fetching raises."""
        span, views = self._span[self._offsets[first] : self._offsets[last]], self._views
        try:
            return [views[number][begin:end] for number, begin, end in span.tolist()]
        except _NotThere:
            require([self._jobs[number] for number in dict.fromkeys(span[:, 0].tolist())])
            self._look()
            return self.views(first, last)

    @property
    def missing(self) -> list[Any]:
        """The parts that are not there yet, in the order of the rows."""
        return [job for job in self._jobs if job.result is None]

    def fetch(self, after: int = 0) -> None:
        """Has missing parts fetched, after so many others."""
        expect(self.missing, after)


def require_room(sets: Iterable[TokenSet], split: str) -> None:
    """ValueError, with both numbers, if two windows of each remote set do not fit into the cache."""
    remote = [token_set for token_set in sets if isinstance(token_set, RemoteTokenSet)]
    needed, limit = (
        sum(_needed(token_set, split) for token_set in remote),
        remote[0].cache.limit() if remote else 0,
    )
    if needed > limit:
        raise ValueError(
            f"{remote[0].cache.root}: the cache may take {limit:,} bytes, but rows need {needed:,}: {WINDOWS} windows "
            "of each token set, or all of a smaller one; pass a larger cache_bytes, a cache_dir on a disk with more "
            "room, or pull the set"
        )


def _needed(token_set: RemoteTokenSet, split: str) -> int:
    """Bytes of two windows, or of the split if it is smaller. The last document of a slice ends in the next part."""
    size, itemsize, window = windows.DEFAULT_WINDOW_SIZE, token_set.numpy_dtype.itemsize, 1.0
    tokens = np.array([entry.tokens for entry in token_set.split(split)], np.int64)
    parts = int((-(-tokens * itemsize // PART_BYTES)).sum())
    if (
        token_set.view is not None
    ):  # a slice of a view spans all tokens from its first document to its last
        slices = token_set.view.slices_of(split, windows.SLICE)
        window = int((slices["end"] - slices["begin"]).sum()) / max(1, token_set.view.tokens(split))
    of_slices = -(-int(window * size.window) * itemsize // PART_BYTES) + 2 * (
        size.window // size.slice + 1
    )
    return min(parts, WINDOWS * of_slices) * PART_BYTES
