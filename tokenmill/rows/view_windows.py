"""The slices of a view, and the windows of its epochs.

A view says how often each document counts (store/views.py). Copy c of a shard is the stream of its documents that count
more than c, one after the other, and slice k of a copy is what begins in its tokens k S to (k + 1) S. With S = 8:

    documents of 4, 4, 2, 6, 2 tokens that count 1, 0, 3, 1, 2
    copy 0     4 2 6 2      slices (4 2 6)  (2)
    copy 1     2 2          slice (2 2)
    copy 2     2            slice (2)

So a slice has as many tokens as one of a whole set, however few documents the view has, and windows are of about 2^28
tokens of the view. If every document counts once, the slices and their order are those of the whole set (windows.py).

Slices are sorted by their first document. The copies of a document are therefore neighbors, which the systematic sample
puts into different windows; not all of them, as a slice of a rare copy covers many others.
"""

import numpy as np

from tokenmill.rows.order import ORDER_VERSION
from tokenmill.rows.windows import Arrangement, Copies, Key, Window

SLICE = np.dtype(
    [
        ("begin", "<u8"),  # the tokens of the shard that its documents are in
        ("end", "<u8"),
        ("shard", "<u4"),  # the shard's number
        ("first", "<u4"),  # its documents are among these of the shard: first to before last
        ("last", "<u4"),
        ("tokens", "<u4"),  # of its copy's stream: S, or fewer at the end
        ("copy", "<u4"),
    ]
)


def cut_slices(shard: int, offsets: np.ndarray, counts: np.ndarray, slice_tokens: int) -> np.ndarray:
    """The slices of a shard with document `offsets` (documents + 1,), whose documents count `counts` (documents,):
    (num_slices,) of SLICE.
    """
    lengths, found = np.diff(offsets.astype(np.int64)), [np.zeros(0, SLICE)]
    for copy in range(int(counts.max(initial=0))):
        chosen = np.flatnonzero(counts > copy)
        own = lengths[chosen]
        total = int(own.sum())
        number = np.arange(-(-total // slice_tokens))
        first = np.searchsorted(np.cumsum(own) - own, number * slice_tokens)  # the document that begins there or after
        last = np.append(first[1:], len(chosen))
        slices = np.zeros(len(number), SLICE)
        slices["shard"], slices["copy"] = shard, copy
        slices["tokens"] = np.minimum(slice_tokens, total - number * slice_tokens)
        slices["first"] = chosen[np.minimum(first, len(chosen) - 1)]
        slices["last"] = np.where(last > first, chosen[last - 1] + 1, slices["first"])
        slices["begin"], slices["end"] = offsets[slices["first"]], offsets[slices["last"]]
        found.append(slices)
    slices = np.concatenate(found)
    return slices[np.lexsort((slices["copy"], slices["first"]))]


class ViewEpoch(Arrangement):
    """The windows of one epoch of a view whose split has these `slices`, (num_slices,) of SLICE, sorted by shard and
    then as `cut_slices` returns them.
    """

    def __init__(self, slices: np.ndarray, key: Key | None, window_tokens: int, order_version: int = ORDER_VERSION):
        self._slices = slices
        super().__init__(slices["tokens"].astype(np.int64), key, window_tokens, order_version)

    def window(self, number: int) -> Window:
        """The slices of a window."""
        some = self._slices[self.of_window(number)]
        shard, begin, end, first, last, copy = (
            some[name].astype(np.int64) for name in ("shard", "begin", "end", "first", "last", "copy")
        )
        return Window(shard, begin, end, Copies(first, last, copy))

    def slices(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All slices: (shard, begin, end), each (num_slices,) int64."""
        shard, begin, end = (self._slices[name].astype(np.int64) for name in ("shard", "begin", "end"))
        return shard, begin, end

    def slices_of(self, shard: int) -> np.ndarray:
        """The numbers of a shard's slices: int64."""
        first, last = np.searchsorted(self._slices["shard"], np.array([shard, shard + 1], np.uint32)).tolist()
        return np.arange(first, last)

    def copies_of(self, slices: np.ndarray) -> Copies:
        """The documents of slices with these numbers."""
        first, last, copy = (self._slices[name][slices].astype(np.int64) for name in ("first", "last", "copy"))
        return Copies(first, last, copy)
