"""Counts the rows of each window once and caches the counts, so that a late step is found in less than a second.

    ~/.cache/tokenmill/counts-<digest>.json     {"format": ..., "rows": [131210, 131188, ...]}

There is one small file for each combination of manifest, split, row length, packing, seed and epoch; the digest is a
hash of these. XDG_CACHE_HOME replaces ~/.cache. If nothing can be written there, rows are counted again each time.
"""

import contextlib
import copy
import hashlib
import os
from pathlib import Path

from tokenmill.feed.window_plans import WindowPlans
from tokenmill.rows.position import VERSION
from tokenmill.store.files import header, read_json, write_json


class RowCounts:
    """The number of rows of each window of `plans`. Raises ValueError or OSError if a shard is damaged or missing."""

    def __init__(self, plans: WindowPlans):
        self._plans, self._plain = plans, copy.copy(plans)
        self._plain.pasts, self._plain.began = {}, None  # counts of partly used windows are not cached
        self._rows: dict[Path, list[int]] = {}  # the counts of an epoch's first windows
        self._new: set[Path] = set()

    def count_rows(self, epoch: int, window: int) -> int:
        """The number of rows of a window of an epoch."""
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
        """Writes the new counts to the cache."""
        for path in self._new:
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json(path, header("counts") | {"rows": self._rows[path]})
        self._new.clear()

    def _count(self, epoch: int, window: int) -> int:
        rows = self._plain.count_rows(epoch, window)
        if window % 100 == 99:  # after about ten seconds of work
            self.keep()
        return rows

    def _path(self, epoch: int) -> Path:
        plans = self._plans
        order = (plans.name, plans.long_documents, plans.shuffle, plans.seed, plans.order_epoch(epoch))
        what = (
            VERSION,
            plans.window_size,
            plans.order_version,
            plans.documents_key(epoch),
            plans.split,
            plans.row_len,
            plans.packing.name,
            order,
        )
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "tokenmill" / f"counts-{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}.json"


def _read(path: Path) -> list[int]:
    try:
        return [int(rows) for rows in read_json(path, "counts")["rows"]]
    except (OSError, ValueError, KeyError, TypeError):  # missing or not valid: count again
        return []
