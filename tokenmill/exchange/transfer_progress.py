"""How far a transfer is, on stderr: a bar in a terminal, else a line now and then."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

LINE_SECONDS = 15.0


class Count:
    """Called with shards and bytes since the last call."""

    def __init__(self, bar: Progress, what: str):
        self.what, self.shards, self.bytes, self.total = what, 0, 0, 0
        self._due = time.monotonic() + LINE_SECONDS
        self._bar, self._lock = bar, threading.Lock()
        self._task = bar.add_task("", total=None, shards=0)

    def of(self, size: int) -> None:
        """So many bytes in all."""
        self.total = size
        self._bar.update(self._task, total=size)

    def __call__(self, shards: int, size: int) -> None:
        with self._lock:
            self.shards, self.bytes = self.shards + shards, self.bytes + size
            self._bar.update(self._task, advance=size, shards=self.shards)
            if not self._bar.console.is_terminal and time.monotonic() > self._due:
                self._due = time.monotonic() + LINE_SECONDS
                of = f" of {self.total / 1e6:,.0f}" if self.total else ""
                print(
                    f"{self.what}: {self.bytes / 1e6:,.0f}{of} MB, {self.shards:,} shards", file=sys.stderr, flush=True
                )


@contextlib.contextmanager
def counting(what: str) -> Iterator[Count]:
    """A line that says how far it is."""
    columns = (TextColumn(what, markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    more = (TextColumn("{task.fields[shards]:,} shards"), TimeRemainingColumn())
    console = Console(stderr=True, markup=False)
    with Progress(*columns, *more, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield Count(bar, what)
