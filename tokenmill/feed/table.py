"""Table: where the tokens of a window's rows are; and `read_batch`, which joins rows into an array.

With every packing, a row is a few spans of shards' token streams. A piece that begins inside a document has a BOS
inserted before it: its span starts one token earlier, and that token is overwritten. For example, a piece of 2 tokens
that starts at token 3 of document 1, with offsets 0 4 9 in shard 2, of uint16:

    shard 2, bytes 12 to 18; its first token becomes BOS

So at training time, spans only have to be joined: `bytearray.join` of memoryview slices takes two thirds of the time of
copying each span into an array. Spans are kept in arrays, 18 bytes each, and become Python numbers one batch at a time.

Which tokens are in the loss:

    a chat set     those that its mask says; never padding
    text           all; with loss="once", not BOS and filler, so that each token is a target exactly once an epoch
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from tokenmill.feed.pieces import Padding, Piece, mask_of, pieces_of
from tokenmill.feed.token_files import TokenFiles
from tokenmill.rows.packing import RowPlan
from tokenmill.store.shards import Shard

Loss = Literal["all", "once"]
Starts = tuple[np.ndarray, np.ndarray]
LOSSES = ("all", "once")
CHECK_SECONDS = 1.0  # between two checks of whether files have changed


class ChangeCheck:
    """Checks now and then that shards are still the files that were opened."""

    due = 0.0

    def require(self, shards: Iterable[Shard]) -> None:
        """ValueError if a shard changed on disk. It is due again after a second, and takes at most 1% of the time."""
        started = time.monotonic()
        for shard in shards:
            shard.require_unchanged()
        now = time.monotonic()
        self.due = now + max(CHECK_SECONDS, 100 * (now - started))


class Table:
    """The rows of one window. Row r has the spans offsets[r] to offsets[r + 1].

    A span is (number in `shards`, first byte, one after the last), int64; with `bos`, its first token becomes BOS.
    `place` is the epoch and the window; `starts` are the number in `shards`, and the first token there, of each
    document of the plan. Every span begins with BOS, unless `bos_id` is None.
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
        self.place, self.shards, self.row_len, self.num_rows = (
            place,
            shards,
            plan.row_len,
            plan.num_rows,
        )
        self.bos_id, self.dtype, (shard, start) = bos_id, shards[0].dtype, starts
        size = self.dtype.itemsize
        self.offsets, self.filler, self.bos = (
            plan.row_offsets.astype(np.int32),
            plan.filler,
            plan.bos,
        )
        self.span = np.empty((len(plan.document), 3), np.int64)
        first = start[plan.document] + plan.start
        self.span[:, 0], self.span[:, 1] = shard[plan.document], (first - plan.bos) * size
        self.span[:, 2] = (first + plan.length) * size
        masks = [one.mask_bytes for one in self.shards]  # a bit a token, of a chat set
        self._masks = None if masks[0] is None else masks
        self.is_masked = self._masks is not None or loss == "once"
        self._targets = self._count_targets(plan) if self.is_masked else None
        self.check, self.files = ChangeCheck(), TokenFiles(self.shards, self.offsets, self.span)

    def views(self, first: int, last: int) -> list[Any]:
        """The bytes of each span of rows `first` to before `last`."""
        return self.files.views(first, last)

    def loss_mask(self, first: int, last: int, rows: np.ndarray) -> np.ndarray:
        """Which tokens of these rows, as they were read, are in the loss: (rows, row_len) bool."""
        some, masks = slice(self.offsets[first], self.offsets[last]), self._masks
        shard, begin, end = self._tokens(some)
        if masks is None:
            mask: np.ndarray = rows != self.bos_id
            ends = np.cumsum(end - begin)
            for span in np.flatnonzero(self.filler[some]).tolist():
                mask.reshape(-1)[ends[span] - (end - begin)[span] : ends[span]] = False
            return mask
        # bytes are joined as those of tokens are, unpacked at once, and the bits around each span are left out:
        # tokens 5 to 12 are bits 5 to 12 of bytes 0 and 1
        low, high = begin >> 3, (end + 7) >> 3
        places = zip(shard.tolist(), low.tolist(), high.tolist(), strict=True)
        joined = bytearray().join([masks[number][a:b] for number, a, b in places])
        bits = np.unpackbits(np.frombuffer(joined, np.uint8), bitorder="little").data
        at = 8 * (np.cumsum(high - low) - (high - low)) + (begin & 7)
        parts = [bits[a:b] for a, b in zip(at.tolist(), (at + end - begin).tolist(), strict=True)]
        return np.frombuffer(bytearray().join(parts), bool).reshape(rows.shape)

    def targets(self, first: int, last: int) -> int:
        """How many targets of rows `first` to before `last` are in the loss."""
        if self._targets is None:
            return (last - first) * (self.row_len - 1)
        return int(self._targets[first:last].sum())

    def pieces(self, row: int) -> list[Piece]:
        """The pieces of a row, for display. A span that covers several documents is several pieces."""
        some = slice(self.offsets[row], self.offsets[row + 1])
        (shard, begin, end), bos = self._tokens(some), self.bos[some]
        columns = (shard, begin + bos, end - begin - bos, bos, self.filler[some])
        facts = zip(*(column.tolist() for column in columns), strict=True)
        return [piece for number, *span in facts for piece in pieces_of(self.shards[number], *span)]

    def rows_with(self, shard: str, begin: int, end: int) -> Iterator[tuple[int, bool]]:
        """The rows that hold any of the tokens `begin` to `end` of a shard, each with whether they are only filler."""
        numbers = [number for number, one in enumerate(self.shards) if one.entry.name == shard]
        own, first, last = self._tokens(slice(None))
        spans = np.flatnonzero(np.isin(own, numbers) & (first + self.bos < end) & (last > begin))
        rows = np.searchsorted(self.offsets, spans, side="right") - 1
        for row in np.unique(rows).tolist():
            yield row, bool(self.filler[spans[rows == row]].all())

    def _tokens(self, some: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The number of each span's shard, its first token there, and one after its last."""
        shard, begin, end = self.span[some].T
        return shard, begin // self.dtype.itemsize, end // self.dtype.itemsize

    def _count_targets(self, plan: RowPlan) -> np.ndarray:
        """How many targets of each row are in the loss: (num_rows,) int64."""
        counts = np.where(plan.filler, 0, plan.length + plan.bos - 1)  # of text: all but BOS
        shard, begin, _ = self._tokens(slice(None))
        for number, one in enumerate(self.shards) if self._masks is not None else ():
            own = np.flatnonzero(shard == number)
            if isinstance(one, Padding):
                counts[own] = 0
                continue
            document = (
                np.searchsorted(one.offsets, begin[own].astype(one.offsets.dtype), side="right") - 1
            )
            counts[own] = one.target_counts[document]
            cropped = own[plan.length[own] < one.lengths[document]]
            spans = zip(
                cropped.tolist(),
                begin[cropped].tolist(),
                plan.length[cropped].tolist(),
                strict=True,
            )
            for span, first, length in spans:
                counts[span] = np.count_nonzero(mask_of(one, first, first + length))
        done = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        found: np.ndarray = np.diff(done[plan.row_offsets])
        return found


class Part(NamedTuple):
    """Rows `first` to before `last` of a window's table, of the source with this number."""

    source: int
    table: Any  # or nanochat's PickedRows, which have the same methods
    first: int
    last: int


class Batch(NamedTuple):
    """Rows of one rank: row i of the parts, one after the other, is row `places[i]` of the batch.

    A source's rows among consecutive turns are consecutive, so there are as many parts as sources, or a few more.
    """

    parts: list[Part]
    places: np.ndarray | slice  # (rows,) int64, or all in order

    @property
    def sources(self) -> list[tuple[int, int]]:
        """(the number of its source, how many rows) of each part."""
        return [(part.source, part.last - part.first) for part in self.parts]


def read_batch(
    batch: Batch, shape: tuple[int, int], dtype: np.dtype[Any]
) -> tuple[np.ndarray, np.ndarray | None]:
    """The rows of a batch, part after part: tokens (rows, T + 1) of `dtype`, the tokens'; and which of them are in the
    loss, (rows, T + 1) bool, or None for all. ValueError if a piece that must begin with BOS does not.
    """
    if not batch.parts:
        return np.zeros((0, shape[1]), dtype), None
    views, spans, inserted, now = (
        list[Any](),
        list[np.ndarray](),
        list[np.ndarray](),
        time.monotonic(),
    )
    is_masked = False
    for _, table, first, last in batch.parts:
        if now >= table.check.due:
            table.check.require(table.shards)
        is_masked = is_masked or table.is_masked
        some = slice(table.offsets[first], table.offsets[last])
        span, bos = table.span[some], table.bos[some]
        views += table.views(first, last)
        spans.append(span)
        inserted.append(bos)
    rows = np.frombuffer(bytearray().join(views), dtype).reshape(-1, shape[1])
    if batch.parts[0].table.bos_id is not None:
        one = len(spans) == 1
        span, bos = (
            (spans[0], inserted[0]) if one else (np.concatenate(spans), np.concatenate(inserted))
        )
        _mark_pieces(batch.parts, rows.reshape(-1), span, bos)
    if not is_masked:
        return rows, None
    done, masks = 0, list[np.ndarray]()
    for _, table, first, last in batch.parts:
        own = rows[done : done + last - first]
        masks.append(
            table.loss_mask(first, last, own) if table.is_masked else np.ones(own.shape, bool)
        )
        done += last - first
    return rows, masks[0] if len(masks) == 1 else np.concatenate(masks)


def _mark_pieces(
    parts: Sequence[Part], tokens: np.ndarray, span: np.ndarray, bos: np.ndarray
) -> None:
    """Inserts BOS where a piece begins inside a document, and requires that all pieces begin with BOS."""
    firsts, bos_id = np.zeros(len(span), np.int64), parts[0].table.bos_id
    np.cumsum((span[:-1, 2] - span[:-1, 1]) // tokens.itemsize, out=firsts[1:])
    tokens[firsts[bos]] = bos_id
    if (wrong := tokens[firsts] != bos_id).any():
        at = int(np.argmax(wrong))
        ends = np.cumsum(
            [table.offsets[last] - table.offsets[first] for _, table, first, last in parts]
        )
        table = parts[int(np.searchsorted(ends, at, side="right"))].table
        raise not_bos(int(tokens[firsts[at]]), bos_id, table.shards[span[at, 0]])


def not_bos(found: int, bos_id: int, shard: Shard) -> ValueError:
    """The error for a document of a shard that begins with the token `found` instead of BOS."""
    return ValueError(
        f"{shard.path}: expected a document to begin with BOS ({bos_id}), found {found}: "
        "the offsets do not match the tokens; delete the shard's .json record and prepare again"
    )
