"""Progress of a long run: live bars in a terminal; otherwise a plain line every few seconds.

    preparing 61%  12,345 documents  8.1 MB/s  2,531,000 tokens/s  1 min 10 s left
    shard_00007.parquet 43%  39.1 MB/s  2 s left

Everything goes to standard error, so standard output has results only.
"""

import time
from typing import TYPE_CHECKING

from tokenmill.humanize import counted, in_bytes, in_time
from tokenmill.sanitize import sanitize

if TYPE_CHECKING:
    from rich.progress import TaskID

LINE_SECONDS, BAR_SECONDS = 5.0, 0.1


class Bars:
    """The bars of a run, one below the other, with lines printed above them. Any thread may call the methods."""

    def __init__(self) -> None:
        from rich.console import Console  # here, as workers import this module too
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(stderr=True)
        self.live = self._console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),  # a file may be called "a[/b].parquet"
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[rates]}", markup=False),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=self._console,
        )

    def say(self, text: str) -> None:
        """Prints a line."""
        self._console.print(sanitize(text), highlight=False, markup=False, soft_wrap=True)

    def begin(self, what: str) -> "TaskID":
        return self._progress.add_task(sanitize(what), total=1.0, rates="")

    def move(self, bar: "TaskID", done: float, total: float, rates: str) -> None:
        self._progress.update(bar, completed=done, total=max(total, 1), rates=rates)

    def end(self, bar: "TaskID") -> None:
        self._progress.remove_task(bar)

    def __enter__(self):
        if self.live:
            self._progress.start()
        return self

    def __exit__(self, *error):
        if self.live:
            self._progress.stop()


class Meter:
    """Counts documents, tokens and bytes of text, and how much is done of a total in any unit.

    with Meter(bars, "preparing", total=12_345_678) as meter:
        meter.add(256, 250_000, 1_100_000, 1_100_000)
    """

    def __init__(self, bars: Bars, verb: str, total: float):
        self.verb, self.total, self._bars = verb, total, bars
        self.documents = self.tokens = self.text_bytes = self.done = 0
        self.started = self._last_shown = time.monotonic()
        # when the first part was done, as starting takes its time; and how much that was
        self._began: tuple[float, float] | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def add(self, documents: int, tokens: int, text_bytes: int, done: int) -> None:
        self.documents += documents
        self.tokens += tokens
        self.text_bytes += text_bytes
        self.done += done
        now = time.monotonic()
        self._began = self._began or (now, self.done)
        if now - self._last_shown < (BAR_SECONDS if self._bars.live else LINE_SECONDS):
            return  # workers report a thousand times a second
        self._last_shown = now
        if self._bars.live:
            self._bars.move(self._bar, self.done, self.total, self.rates())
        else:
            self._bars.say(self.line())

    def rates(self) -> str:
        seconds = max(self.seconds, 1e-9)
        return (
            f"{counted(self.documents, 'document')}  {in_bytes(self.text_bytes / seconds)}/s  "
            f"{self.tokens / seconds:,.0f} tokens/s"
        )

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at the rate so far; None if there is no rate yet, or nothing left."""
        if self._began is None or self.done <= self._began[1] or self.done >= self.total:
            return None
        began, before = self._began
        return (time.monotonic() - began) * (self.total - self.done) / (self.done - before)

    def line(self) -> str:
        seconds = self.seconds_left  # once, as another thread may change the total
        left = "" if seconds is None else f"  {in_time(seconds)} left"
        return f"{self.verb} {min(1.0, self.done / max(1, self.total)):.0%}  {self.rates()}{left}"

    def __enter__(self):
        self._bar = self._bars.begin(self.verb)
        return self

    def __exit__(self, *error):
        self._bars.end(self._bar)
