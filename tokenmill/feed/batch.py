"""A batch: rows of the tables of some sources; and `read_batch`, which joins their spans.

    batch = Batch([TableRows(0, table, 40, 48)], slice(None))
    rows, mask = read_batch(batch, (8, 2049), np.dtype("uint16"))

Spans are joined by `bytearray.join` of memoryview slices, which takes two thirds of the time of
copying each span into an array.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tokenmill.store.shards import Shard

T = TypeVar("T")


class TableRows(NamedTuple):
    """Rows `first` to before `last` of a window's table, of the source with this number."""

    source: int
    table: Any  # or nanochat's PickedRows, which have the same methods
    first: int
    last: int

    @property
    def num_rows(self) -> int:
        return self.last - self.first

    @property
    def spans(self) -> slice:
        """The spans of the table that these rows have."""
        return slice(self.table.offsets[self.first], self.table.offsets[self.last])


class Batch(NamedTuple):
    """Rows of one rank: row i of the parts, one after the other, is row `places[i]` of the batch.

    A source's rows among consecutive turns are consecutive, so there are as many parts as sources,
    or a few more.
    """

    parts: list[TableRows]
    places: np.ndarray | slice  # (rows,) int64, or all in order

    def in_order(self, rows: Sequence[T]) -> list[T]:
        """What there is of each row of the parts, one after the other, in the batch's order."""
        places = np.arange(len(rows))[self.places]
        return [rows[number] for number in np.argsort(places).tolist()]

    @property
    def sources(self) -> list[tuple[int, int]]:
        """(the number of its source, how many rows) of each part."""
        return [(part.source, part.num_rows) for part in self.parts]


def read_batch(
    batch: Batch, shape: tuple[int, int], dtype: np.dtype[Any]
) -> tuple[np.ndarray, np.ndarray | None]:
    """The rows of a batch, part after part: tokens (rows, T + 1) of `dtype`, the tokens' type.

    And which of them are in the loss, (rows, T + 1) bool, or None for all. ValueError if a piece
    that must begin with BOS does not.
    """
    parts = batch.parts
    row_len = shape[1]
    if not parts:
        return np.zeros((0, row_len), dtype), None
    views: list[Any] = []
    started = time.monotonic()
    for part in parts:
        if started >= part.table.check.due:
            part.table.check.require(part.table.shards)
        views += part.table.views(part.first, part.last)
    rows = np.frombuffer(bytearray().join(views), dtype).reshape(-1, row_len)
    if parts[0].table.bos_id is not None:
        _mark_pieces(parts, rows.reshape(-1))
    if not any(part.table.is_masked for part in parts):
        return rows, None
    masks = []
    done = 0
    for part in parts:
        part_rows = rows[done : done + part.num_rows]
        masks.append(_mask(part, part_rows))
        done += part.num_rows
    return rows, _concatenated(masks)


def _mask(part: TableRows, rows: np.ndarray) -> np.ndarray:
    if not part.table.is_masked:
        return np.ones(rows.shape, bool)
    mask: np.ndarray = part.table.loss_mask(part.first, part.last, rows)
    return mask


def _concatenated(arrays: list[np.ndarray]) -> np.ndarray:
    """The arrays one after the other; one alone is not copied."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _mark_pieces(parts: Sequence[TableRows], tokens: np.ndarray) -> None:
    """Inserts BOS where a piece begins in a document; requires that all pieces begin with BOS."""
    ranges = _concatenated([part.table.byte_ranges[part.spans] for part in parts])
    bos = _concatenated([part.table.bos[part.spans] for part in parts])
    bos_id = parts[0].table.bos_id
    firsts = np.zeros(len(ranges), np.int64)
    np.cumsum((ranges[:-1, 2] - ranges[:-1, 1]) // tokens.itemsize, out=firsts[1:])
    tokens[firsts[bos]] = bos_id
    is_wrong = tokens[firsts] != bos_id
    if is_wrong.any():
        span = int(np.argmax(is_wrong))
        ends = np.cumsum([part.spans.stop - part.spans.start for part in parts])
        table = parts[int(np.searchsorted(ends, span, side="right"))].table
        raise not_bos(int(tokens[firsts[span]]), bos_id, table.shards[ranges[span, 0]])


def not_bos(token: int, bos_id: int, shard: Shard) -> ValueError:
    """The error for a document of a shard that begins with this token instead of BOS."""
    return ValueError(
        f"{shard.path}: expected a document to begin with BOS ({bos_id}), found {token}: the "
        "offsets do not match the tokens; delete the shard's .json record and prepare again"
    )
