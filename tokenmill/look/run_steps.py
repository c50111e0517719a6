"""RunSteps: which rows of a run were a call's or a step's, and which rank got them, from the log of its position.

    steps = RunSteps([(0, LogEntry(0, 4, 2))], global_batch_size=None)
    steps.rows_of(step=5)                     range(40, 48): rows of the run, counted from its first
    steps.place_of(row=43)                    (5, 0, 3): step, rank, row of the rank's batch

Rows are counted over all ranks and sources. A call is one call of `next` on all ranks. A step is a call, or with
`global_batch_size` as many rows as that, however many calls gave them.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from tokenmill.rows.row_stream import range_of_rank
from tokenmill.rows.run_log import LogEntry
from tokenmill.rows.segments import SegmentStart


class _Calls(NamedTuple):
    """From a row and a call of the run on, calls of these sizes."""

    row: int
    call: int
    sizes: LogEntry


class StepPlace(NamedTuple):
    """The step of a row, and which rank got it, as which row of its batch."""

    step: int
    rank: int
    row: int


class RunSteps:
    """Counts the calls and steps of a run.

    `sizes` are those from a row of the run on: the first item begins with row 0. `end` is the number of rows after
    which the last call may have had fewer rows; None if the run continues with whole calls. Raises ValueError if
    `global_batch_size` is no whole number of calls.
    """

    def __init__(self, sizes: Sequence[tuple[int, LogEntry]], global_batch_size: int | None, end: int | None = None):
        self._global, self._end = global_batch_size, end
        self._calls = [_Calls(sizes[0][0], 0, sizes[0][1])]
        for row, one in sizes[1:]:
            begin, call, before = self._calls[-1]
            calls = -(-(row - begin) // before.rows) if before.rows else 0  # the last one may have fewer rows
            self._calls.append(_Calls(row, call + calls, one))
        for row, one in sizes:
            if global_batch_size is not None and (
                row % global_batch_size or (one.rows and global_batch_size % one.rows)
            ):
                raise ValueError(
                    f"from row {row:,} of this run on, all ranks together got {one.rows:,} rows at a call, and "
                    f"--global-batch-size {global_batch_size:,} is no whole number of these calls; leave it out if "
                    "every call was a step"
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
        self._require_known(number)
        first = row + (call - first_call) * sizes.rows
        end = self._end_of(number)
        if end is not None and first >= end:
            raise ValueError(
                f"the run has {first_call + -(-(end - row) // sizes.rows):,} calls up to the checkpoint, and because "
                "its loader has `epochs`, or ended, what came then is not known; use a later checkpoint"
            )
        return range(first, first + sizes.rows if end is None else min(first + sizes.rows, end))

    def sizes_at(self, row: int) -> LogEntry:
        """The sizes of the call that a row of the run is of."""
        return self._calls[self._number(row)].sizes

    def place_of(self, row: int) -> StepPlace | None:
        """The step of a row of the run, and its rank; None if the sizes of calls are not known."""
        number = self._number(row)
        begin, call, sizes = self._calls[number]
        if not sizes.rows or (self._global is None and any(not one.sizes.rows for one in self._calls[:number])):
            return None
        calls, within = divmod(row - begin, sizes.rows)
        step = call + calls if self._global is None else row // self._global
        end, first = self._end_of(number), row - within
        total = sizes.rows if end is None else min(sizes.rows, end - first)
        for rank in range(sizes.world_size):  # a call with fewer rows is divided among the ranks
            begin, last = range_of_rank(total, rank, sizes.world_size)
            if within < last:
                return StepPlace(step, rank, within - begin)
        raise AssertionError("a row of a call is of one of its ranks")

    def _number(self, row: int) -> int:
        return bisect_right([one.row for one in self._calls], row) - 1

    def _end_of(self, number: int) -> int | None:
        return self._calls[number + 1].row if number + 1 < len(self._calls) else self._end

    def _require_known(self, number: int) -> None:
        if any(not one.sizes.rows for one in self._calls[: number + 1]):
            raise ValueError(
                "the position does not say how many rows the calls of this run had, because a DataLoader made its "
                "batches from single rows of PackedRows, or an older tokenmill made the position; pass "
                "--global-batch-size, the rows of all ranks in a step, if all steps had as many"
            )


def rows_before(segments: Sequence[SegmentStart], tokens: int) -> int:
    """The rows of a run before it had given this many tokens."""
    ends = [*(one.tokens for one in segments[1:]), None]
    rows = 0
    for segment, end in zip(segments, ends, strict=True):
        if segment.tokens >= tokens:
            break
        rows += ((tokens if end is None else min(end, tokens)) - segment.tokens) // segment.seq_len
    return rows
