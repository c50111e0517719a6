"""Apart: a packer for a window in which documents come several times, the copies in different rows.

The first copies of all documents are packed as they are without others, then the second copies, and so on; the rows of
all are shuffled together. With documents a, b, c that come 1, 3 and 2 times:

    rows of a b c    rows of b c    rows of b

No row has a document twice, whatever the packer does, and each part is packed as well as it is alone. Only the last row
of each part has more filler, which comes from all documents of the window; it repeats one of the row only where these
do not fill the gap.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tokenmill.rows import concat
from tokenmill.rows.packing import RowPlan, Stretches, whole_documents

Seed = tuple[int, ...]


class Apart:
    """A packer (packers.py) of documents of `lengths` tokens that come `times` times, by a packer of these documents.

    Document d's copy c has the number c * (documents + 1) + d in its plans; see `document_of`.
    """

    def __init__(self, packer: Any, lengths: np.ndarray, times: np.ndarray):
        self._packer, self._lengths, self._times = packer, lengths, times
        self._stride = len(lengths) + 1  # one more, as padding has a number of its own (whole_documents.py)

    def plan(self, row_len: int, seed: Seed, left: Sequence[Any] | None) -> RowPlan:
        plans = []
        for copy, some in enumerate(self._parts(left)):
            plan = self._packer.plan(row_len, (*seed, copy) if copy else seed, some)
            moved = np.where(plan.filler, 0, copy * self._stride)
            plans.append(replace(plan, document=plan.document.astype(np.int64) + moved))
        return concat.shuffled(plans, seed)

    def count(self, row_len: int, seed: Seed, left: Sequence[Any] | None) -> int:
        parts = enumerate(self._parts(left))
        return sum(self._packer.count(row_len, (*seed, copy) if copy else seed, some) for copy, some in parts)

    def left(self, plan: RowPlan, rows: np.ndarray, before: Sequence[Any] | None) -> list[Any]:
        found, copy_of = [], plan.document // self._stride
        for copy, some in enumerate(self._parts(before)):
            own = replace(plan, document=self.document_of(plan.document), filler=plan.filler | (copy_of != copy))
            found.append(self._packer.left(own, rows, some))
        return found

    def document_of(self, numbers: np.ndarray) -> np.ndarray:
        """The documents that the numbers in a plan stand for."""
        found: np.ndarray = numbers % self._stride
        return found

    def _parts(self, left: Sequence[Any] | None) -> Sequence[Any]:
        """What is left of each copy; None for all documents."""
        if left is not None:
            return left
        whole = whole_documents(self._lengths)
        more = range(1, int(self._times.max(initial=1)))
        return [None, *(Stretches(*(column[self._times > copy] for column in whole)) for copy in more)]
