"""Table: where the tokens of a window's rows are; batch.py joins them.

With every packing, a row is a few spans of shards' token streams. A piece that begins inside a
document has a BOS inserted before it: its span starts one token earlier, and that token is
overwritten. For example, a piece of 2 tokens that starts at token 3 of document 1, with offsets
0 4 9 in shard 2, of uint16:

    shard 2, bytes 12 to 18; its first token becomes BOS

So at training time, spans only have to be joined. They are kept in arrays, 18 bytes each, and are
made Python numbers one batch at a time.

Which tokens are in the loss:

    a chat set     those that its mask says; never padding
    text           all; with loss="once", not BOS and filler, so that each token is a target exactly
                   once an epoch; with "skip_cuts", not the first targets after an inserted BOS
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np

from tokenmill.feed.conversations import Padding, documents_at, mask_of
from tokenmill.feed.pieces import Piece, pieces_of
from tokenmill.feed.token_files import TokenFiles
from tokenmill.rows.groups import offsets_of
from tokenmill.rows.packing import RowPlan
from tokenmill.store.shards import Shard

Loss = Literal["all", "once", "skip_cuts"]
Starts = tuple[np.ndarray, np.ndarray]
LOSSES = ("all", "once", "skip_cuts")
SKIPPED = 16  # targets after an inserted BOS, with "skip_cuts" (docs/packing.md has what it does)
CHECK_SECONDS = 1.0  # between two checks of whether files have changed


class ChangeCheck:
    """Checks now and then that shards are still the files that were opened."""

    due = 0.0

    def require(self, shards: Iterable[Shard]) -> None:
        """ValueError if a shard changed on disk.

        It is due again after a second, and takes at most 1% of the time.
        """
        started = time.monotonic()
        for shard in shards:  # other tables have some of them too
            if started - shard.checked >= CHECK_SECONDS:
                shard.require_unchanged()
                shard.checked = started
        finished = time.monotonic()
        self.due = finished + max(CHECK_SECONDS, 100 * (finished - started))


class Table:
    """The rows of one window. Row r has the spans offsets[r] to offsets[r + 1].

    A span of `byte_ranges` is (number in `shards`, first byte, one after the last), int64; with
    `bos`, its first token becomes BOS. `place` is the epoch and the window; `starts` are the number
    in `shards`, and the first token there, of each document of the plan. Every span begins with
    BOS, unless `bos_id` is None.
    """

    def __init__(
        self,
        place: tuple[int, int],
        plan: RowPlan,
        shards: list[Shard],
        starts: Starts,
        bos_id: int | None,
        loss: Loss,
    ):
        self.place = place
        self.shards = shards
        self.row_len = plan.row_len
        self.num_rows = plan.num_rows
        self.bos_id = bos_id
        self.dtype = shards[0].dtype
        self.offsets = plan.row_offsets.astype(np.int32)
        self.filler = plan.filler
        self.bos = plan.bos
        shard, start = starts
        first = start[plan.document] + plan.start
        self.byte_ranges = np.empty((len(first), 3), np.int64)
        self.byte_ranges[:, 0] = shard[plan.document]
        self.byte_ranges[:, 1] = (first - plan.bos) * self.dtype.itemsize
        self.byte_ranges[:, 2] = (first + plan.length) * self.dtype.itemsize
        self._masks: list[Any] = [opened.mask_bytes for opened in shards]  # a bit a token
        self._is_chat = self._masks[0] is not None
        self._loss = loss
        self.is_masked = self._is_chat or loss != "all"
        self._targets = self._count_targets(plan) if self.is_masked else None
        self.check = ChangeCheck()
        self.files = TokenFiles(shards, self.offsets, self.byte_ranges)

    def views(self, first: int, last: int) -> list[Any]:
        """The bytes of each span of rows `first` to before `last`."""
        return self.files.views(first, last)

    def loss_mask(self, first: int, last: int, rows: np.ndarray) -> np.ndarray:
        """Which tokens of these rows, as they were read, are in the loss: (rows, row_len) bool."""
        spans = slice(self.offsets[first], self.offsets[last])
        if self._is_chat:
            return self._chat_mask(spans).reshape(rows.shape)
        _, begin, end = self._tokens(spans)
        offsets = offsets_of(end - begin)
        if self._loss == "skip_cuts":
            return _mask_after_cuts(rows.size, offsets, self.bos[spans]).reshape(rows.shape)
        mask: np.ndarray = rows != self.bos_id
        flat = mask.reshape(-1)
        for span in np.flatnonzero(self.filler[spans]).tolist():
            flat[offsets[span] : offsets[span + 1]] = False
        return mask

    def _chat_mask(self, spans: slice) -> np.ndarray:
        """The masks of spans, one after the other.

        Bytes are joined as those of tokens are, unpacked at once, and the bits around each span are
        left out: tokens 5 to 12 are bits 5 to 12 of bytes 0 and 1.
        """
        shard, begin, end = self._tokens(spans)
        masks = self._masks
        first_byte = begin >> 3
        last_byte = (end + 7) >> 3
        places = zip(shard.tolist(), first_byte.tolist(), last_byte.tolist(), strict=True)
        packed = bytearray().join([masks[number][first:last] for number, first, last in places])
        bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little").data
        first_bit = 8 * offsets_of(last_byte - first_byte)[:-1] + (begin & 7)
        last_bit = first_bit + end - begin
        bounds = zip(first_bit.tolist(), last_bit.tolist(), strict=True)
        return np.frombuffer(bytearray().join([bits[first:last] for first, last in bounds]), bool)

    def targets(self, first: int, last: int) -> int:
        """How many targets of rows `first` to before `last` are in the loss."""
        if self._targets is None:
            return (last - first) * (self.row_len - 1)
        return int(self._targets[first:last].sum())

    def pieces(self, row: int) -> list[Piece]:
        """The pieces of a row, for display. A span of several documents is several pieces."""
        spans = slice(self.offsets[row], self.offsets[row + 1])
        shard, begin, end = self._tokens(spans)
        bos = self.bos[spans]
        columns = (shard, begin + bos, end - begin - bos, bos, self.filler[spans])
        pieces = []
        for number, *span in zip(*(column.tolist() for column in columns), strict=True):
            pieces += pieces_of(self.shards[number], *span)
        return pieces

    def rows_with(self, shard: str, begin: int, end: int) -> Iterator[tuple[int, bool]]:
        """The rows that hold any of the tokens `begin` to `end` of a shard.

        Each with whether they are only filler.
        """
        numbers = [
            number for number, opened in enumerate(self.shards) if opened.entry.name == shard
        ]
        shard_of, first, last = self._tokens(slice(None))
        has_it = np.isin(shard_of, numbers) & (first + self.bos < end) & (last > begin)
        spans = np.flatnonzero(has_it)
        rows = np.searchsorted(self.offsets, spans, side="right") - 1
        for row in np.unique(rows).tolist():
            yield row, bool(self.filler[spans[rows == row]].all())

    def _tokens(self, spans: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The number of each span's shard, its first token there, and one after its last."""
        shard, begin, end = self.byte_ranges[spans].T
        return shard, begin // self.dtype.itemsize, end // self.dtype.itemsize

    def _count_targets(self, plan: RowPlan) -> np.ndarray:
        """How many targets of each row are in the loss: (num_rows,) int64."""
        if self._is_chat:
            counts = self._count_chat_targets(plan)
        elif self._loss == "skip_cuts":
            counts = plan.length + plan.bos
            counts[plan.bos] -= np.minimum(plan.length[plan.bos], SKIPPED)
            counts[plan.row_offsets[:-1]] -= 1  # the first token of a row is no target
        else:
            counts = np.where(plan.filler, 0, plan.length + plan.bos - 1)  # all but BOS
        counts_before = offsets_of(counts)
        return np.asarray(np.diff(counts_before[plan.row_offsets]))

    def _count_chat_targets(self, plan: RowPlan) -> np.ndarray:
        """How many targets of each span are in the loss: (num_spans,) int64."""
        counts = np.zeros(len(plan.length), np.int64)
        shard, begin, _ = self._tokens(slice(None))
        for number, opened in enumerate(self.shards):
            if isinstance(opened, Padding):
                continue
            spans = np.flatnonzero(shard == number)
            documents = documents_at(opened, begin[spans])
            counts[spans] = opened.target_counts[documents]
            is_cropped = plan.length[spans] < opened.lengths[documents]
            for span in spans[is_cropped].tolist():
                first = int(begin[span])
                mask = mask_of(opened, first, first + int(plan.length[span]))
                counts[span] = np.count_nonzero(mask)
        return counts


def _mask_after_cuts(size: int, offsets: np.ndarray, bos: np.ndarray) -> np.ndarray:
    """All of `size` tokens but the first of each span, from `offsets`, after its inserted BOS."""
    mask = np.ones(size, bool)
    places = offsets[:-1][bos][:, None] + np.arange(1, SKIPPED + 1)
    ends = offsets[1:][bos][:, None]
    mask[places[places < ends]] = False
    return mask
