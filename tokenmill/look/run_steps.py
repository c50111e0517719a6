"""RunSteps: which rows of a run were a call's or a step's, from the batch sizes that its position says.

    steps = RunSteps([(0, BatchSizes(0, 4, 2))], global_batch_size=None)
    steps.rows_of(step=5)                     range(40, 48): rows of the run, counted from its first
    steps.place_of(row=43)                    (5, 1, 1): step, rank, row of the rank's batch

Rows are counted over all ranks and sources. A call is one call of `next` on all ranks. A step is a call, or with
`global_batch_size` as many rows as that, however many calls gave them.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from tokenmill.rows.batch_sizes import BatchSizes
from tokenmill.rows.segments import SegmentStart


class _Calls(NamedTuple):
    """From a row and a call of the run on, calls of these sizes."""

    row: int
    call: int
    sizes: BatchSizes


class StepPlace(NamedTuple):
    """The step of a row, and which rank got it, as which row of its batch; None where that is not known."""

    step: int
    rank: int | None
    row: int | None


class RunSteps:
    """Counts the calls and steps of a run."""

    def __init__(self, sizes: Sequence[tuple[int, BatchSizes]], global_batch_size: int | None):
        """`sizes` are those from a row of the run on: the first item begins with row 0."""
        self._global = global_batch_size
        self._calls = [_Calls(sizes[0][0], 0, sizes[0][1])]
        for row, one in sizes[1:]:
            begin, call, before = self._calls[-1]
            calls = -(-(row - begin) // before.rows) if before.rows else 0  # the last one may have fewer rows
            self._calls.append(_Calls(row, call + calls, one))
        if global_batch_size is not None and (off := [row for row, _ in sizes if row % global_batch_size]):
            raise ValueError(
                f"the sizes of batches changed after {off[0]:,} rows of this run, which are no whole number of steps "
                f"of --global-batch-size {global_batch_size:,}; leave it out if every call was a step"
            )

    def rows_of(self, step: int) -> range:
        """The rows of a step. Raises ValueError if the sizes of its calls are not known."""
        if self._global is not None:
            return range(step * self._global, (step + 1) * self._global)
        return self.rows_of_call(step)

    def rows_of_call(self, call: int) -> range:
        """The rows of all ranks at a call. Raises ValueError if its sizes are not known."""
        number = bisect_right([one.call for one in self._calls], call) - 1
        row, first_call, sizes = self._calls[number]
        if any(not one.sizes.rows for one in self._calls[: number + 1]):
            raise ValueError(
                "a DataLoader made the batches of this run, from single rows of PackedRows, and the position does not "
                "say of what size; pass --global-batch-size, the rows of all ranks in a step"
            )
        first = row + (call - first_call) * sizes.rows
        end = self._calls[number + 1].row if number + 1 < len(self._calls) else first + sizes.rows
        return range(first, min(first + sizes.rows, end))

    def sizes_at(self, row: int) -> BatchSizes:
        """The sizes of the call that a row of the run is of."""
        return self._at(row).sizes

    def _at(self, row: int) -> _Calls:
        return self._calls[bisect_right([one.row for one in self._calls], row) - 1]

    def place_of(self, row: int) -> StepPlace:
        """The step of a row of the run, and its rank."""
        begin, call, sizes = self._at(row)
        if not sizes.rows:
            return StepPlace(row // self._global if self._global else -1, None, None)
        calls, within = divmod(row - begin, sizes.rows)
        step = call + calls if self._global is None else row // self._global
        return StepPlace(step, *divmod(within, sizes.batch_size))


def rows_before(segments: Sequence[SegmentStart], tokens: int) -> int:
    """The rows of a run before it had given this many tokens."""
    ends = [*(one.tokens for one in segments[1:]), None]
    rows = 0
    for segment, end in zip(segments, ends, strict=True):
        if segment.tokens >= tokens:
            break
        rows += ((tokens if end is None else min(end, tokens)) - segment.tokens) // segment.seq_len
    return rows
