"""BatchSizes: how many rows each rank took at a call, since training began, so that a row's step can be told.

    [BatchSizes(0, 32, 8), BatchSizes(16_777_216, 32, 4)]       from 16,777,216 tokens on, 4 ranks instead of 8

A position stores them in the column `seq_len` of its segments, beside the length of rows: 2048, or
[2048, [0, 32, 8], [16777216, 32, 4]] with the sizes that began in that segment. No new key is needed for them, so
torch.distributed.checkpoint loads the positions of older versions too.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tokenmill.checks import whole_number

KEPT = 64  # a position stays small, however often the sizes change


class BatchSizes(NamedTuple):
    """From a number of tokens on, calls of `batch_size` rows on each of `world_size` ranks.

    `batch_size` is 0 if the loader gives single rows, which a DataLoader makes batches of.
    """

    tokens: int
    batch_size: int
    world_size: int

    @property
    def rows(self) -> int:
        """The rows that all ranks take at a call."""
        return self.batch_size * self.world_size


def continued(sizes: Sequence[BatchSizes], seq_len: int, now: BatchSizes, seq_len_now: int) -> tuple[BatchSizes, ...]:
    """The sizes of a run that had `sizes`, and rows of `seq_len`, until it continues as `now`.

    An item is added if anything changed, or if the last call before took fewer rows than a whole one.
    """
    before = tuple(one for one in sizes if one.tokens < now.tokens)
    if before and before[-1][1:] == now[1:] and seq_len == seq_len_now:
        last = before[-1]
        if not last.rows or (now.tokens - last.tokens) % (last.rows * seq_len) == 0:
            return before
    return (*before, now)[-KEPT:]


def with_batch_sizes(position: dict[str, Any], sizes: Sequence[BatchSizes]) -> dict[str, Any]:
    """The position with these sizes; unchanged if it has no segments, as before its first row."""
    segments = position["segments"]
    if not segments.get("tokens"):
        return position
    column: list[list[Any]] = [[seq_len] for seq_len in segments["seq_len"]]
    for one in sizes:
        if one.tokens == position["tokens_seen"]:
            continue  # no batch of these sizes was returned yet, and perhaps none will be
        column[max(0, bisect_right(segments["tokens"], one.tokens) - 1)].append(list(one))
    plain = [item if len(item) > 1 else item[0] for item in column]
    return position | {"segments": segments | {"seq_len": plain}}


def split_seq_len(item: Any) -> tuple[Any, list[BatchSizes]]:
    """The length of rows and the sizes in an item of the column `seq_len`. ValueError if `with_batch_sizes` did not
    make it.
    """
    if not isinstance(item, list | tuple):
        return item, []
    try:
        seq_len, *sizes = item
        return seq_len, [_read(*one) for one in sizes]
    except (TypeError, ValueError) as error:
        raise ValueError(
            "seq_len of a segment of the position must be a length, or [length, [tokens, batch_size, world_size], ...] "
            f"as state_dict makes it, found {item!r}: {error}"
        ) from error


def _read(tokens: Any, batch_size: Any, world_size: Any) -> BatchSizes:
    return BatchSizes(
        whole_number("tokens", tokens, 0),
        whole_number("batch_size", batch_size, 0),
        whole_number("world_size", world_size, 1),
    )


def batch_sizes_of(position: Mapping[str, Any]) -> tuple[BatchSizes, ...]:
    """The sizes that a position of any version says, from the earliest on; () if it says none."""
    items = position.get("segments", {}).get("seq_len", [])
    found = tuple(one for item in items for one in split_seq_len(item)[1])
    if [one.tokens for one in found] != sorted({one.tokens for one in found}):
        raise ValueError(f"the batch sizes of the position must ascend by tokens, found {[list(one) for one in found]}")
    return found
