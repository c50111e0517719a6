"""How far a transfer is: shards and bytes, on stderr, where somebody looks."""

import contextlib
import threading
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn


class Count:
    """Called with shards and bytes since the last call."""

    def __init__(self, bar: Progress):
        self.shards = 0
        self._bar, self._lock = bar, threading.Lock()
        self._task = bar.add_task("", total=None, shards=0)

    def of(self, size: int) -> None:
        """So many bytes in all."""
        self._bar.update(self._task, total=size)

    def __call__(self, shards: int, size: int) -> None:
        with self._lock:
            self.shards += shards
            self._bar.update(self._task, advance=size, shards=self.shards)


@contextlib.contextmanager
def counting(what: str) -> Iterator[Count]:
    """A line that says how far it is."""
    columns = (TextColumn(what, markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    more = (TextColumn("{task.fields[shards]:,} shards"), TimeRemainingColumn())
    with Progress(*columns, *more, console=Console(stderr=True), transient=True) as bar:
        yield Count(bar)
