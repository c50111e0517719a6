"""Progress of a long run: a live bar in a terminal; otherwise a plain line every few seconds.

    with Progress() as progress:
        progress.say("46 files")
        progress.begin("preparing", 12_345_678)
        progress.add(256, 250_000, 1_100_000, 1_100_000)

    preparing 61%  12,345 documents  8.1 MB/s  2,531,000 tokens/s  1 min 10 s left

Everything goes to standard error, so standard output has results only. Any thread may call `say`.
"""

import time

from tokenmill.humanize import counted, in_bytes, in_time
from tokenmill.sanitize import sanitize

LINE_SECONDS, BAR_SECONDS = 5.0, 0.1


class Progress:
    """Counts documents, tokens and bytes of text, and how much is done of a total in any unit."""

    def __init__(self) -> None:
        from rich.console import Console  # here, as workers import this module too
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        self._console = Console(stderr=True)
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[rates]}", markup=False),
            console=self._console,
        )
        self.documents = self.tokens = self.text_bytes = self.done = 0
        self._verb, self._total, self._started = "", 0, time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: object) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    def say(self, text: str) -> None:
        """Prints a line."""
        self._console.print(sanitize(text), highlight=False, markup=False, soft_wrap=True)

    def begin(self, verb: str, total: int) -> None:
        """Begins to count."""
        self._verb, self._total, self._started = verb, total, time.monotonic()
        self._shown = self._started
        if self._console.is_terminal:
            self._bar = self._bars.add_task(verb, total=max(total, 1), rates="")
            self._bars.start()

    def add(self, documents: int, tokens: int, text_bytes: int, done: int) -> None:
        """Adds what was done since."""
        self.documents += documents
        self.tokens += tokens
        self.text_bytes += text_bytes
        self.done += done
        now = time.monotonic()
        if now - self._shown < (BAR_SECONDS if self._console.is_terminal else LINE_SECONDS):
            return  # workers report a thousand times a second
        self._shown = now
        if self._console.is_terminal:
            self._bars.update(self._bar, completed=self.done, rates=self.line())
        else:
            self.say(f"{self._verb} {min(1.0, self.done / max(1, self._total)):.0%}  {self.line()}")

    def line(self) -> str:
        """What was done, how fast, and how long the rest takes at this rate."""
        seconds = max(time.monotonic() - self._started, 1e-9)
        rates = f"{in_bytes(self.text_bytes / seconds)}/s  {self.tokens / seconds:,.0f} tokens/s"
        left = (
            f"  {in_time(seconds * (self._total - self.done) / self.done)} left" if 0 < self.done < self._total else ""
        )
        return f"{counted(self.documents, 'document')}  {rates}{left}"

    def end(self) -> None:
        """Prints what was done."""
        self.say(f"made {self.line()} in {time.monotonic() - self._started:.1f} s")
