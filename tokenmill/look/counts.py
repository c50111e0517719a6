"""How many rows each window has, counted once and kept: a deep step is then found in less than a second.

    ~/.cache/tokenmill/counts-<digest>.json     {"format": ..., "rows": [131210, 131188, ...]}

One small file for each manifest, split, length and packing of rows, seed and epoch; which these are is its digest.
XDG_CACHE_HOME names another folder than ~/.cache. Where nothing can be kept, rows are counted again.
"""

import contextlib
import copy
import hashlib
import os
from pathlib import Path

from tokenmill.batches.plans import WindowPlans
from tokenmill.rows.position import VERSION
from tokenmill.store.files import header, read_json, write_json


class Counts:
    """Rows of the windows of `plans`. ValueError or OSError where a shard that is counted is damaged or gone."""

    def __init__(self, plans: WindowPlans):
        self._plans, self._plain = plans, copy.copy(plans)
        self._plain.pasts, self._plain.began = {}, None  # what a run left of a window is not kept
        self._rows: dict[Path, list[int]] = {}  # of the epoch's windows, as far as they were counted
        self._new: set[Path] = set()

    def count_rows(self, epoch: int, window: int) -> int:
        """The rows of a window of an epoch."""
        if self._plans.pasts or self._plans.began is not None:
            return self._plans.count_rows(epoch, window)
        path = self._path(epoch)
        if path not in self._rows:
            self._rows[path] = _read(path)
        rows = self._rows[path]
        while len(rows) <= window:
            rows.append(self._count(epoch, len(rows)))
            self._new.add(path)
        return rows[window]

    def keep(self) -> None:
        """Writes down what was counted since."""
        for path in self._new:
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json(path, header("counts") | {"rows": self._rows[path]})
        self._new.clear()

    def _count(self, epoch: int, window: int) -> int:
        rows = self._plain.count_rows(epoch, window)
        if window % 100 == 99:  # some ten seconds' work
            self.keep()
        return rows

    def _path(self, epoch: int) -> Path:
        plans = self._plans
        order = (plans.long_documents, plans.shuffle, plans.seed, plans.drawn(epoch))
        what = (VERSION, plans.grain, plans.set_of(epoch).digest, plans.split, plans.row_len, plans.packing, order)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "tokenmill" / f"counts-{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}.json"


def _read(path: Path) -> list[int]:
    try:
        return [int(rows) for rows in read_json(path, "counts")["rows"]]
    except (OSError, ValueError, KeyError, TypeError):  # not there, or not ours: counted again
        return []
