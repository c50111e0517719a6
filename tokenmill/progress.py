"""Progress of a long run: a live bar in a terminal, a plain line every few seconds elsewhere.

    preparing 61%  12,345 documents  8.1 MB/s  2,531,000 tokens/s  0:01:10 left

Everything goes to standard error, so that standard output holds results alone.
"""

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

LINE_SECONDS = 5.0


class Meter:
    """Counts documents, tokens and bytes of text against a known number of documents.

    with Meter("preparing", total_documents=12_345) as meter:
        meter.add(256, 250_000, 1_100_000)
    """

    def __init__(self, verb: str, total_documents: int):
        self.verb, self.total = verb, total_documents
        self.documents = self.tokens = self.text_bytes = 0
        self.started = self._last_line = time.monotonic()
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[rates]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
        )
        self._task = self._bar.add_task(self.verb, total=max(1, total_documents), rates="")
        self._live = console.is_terminal

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def add(self, documents: int, tokens: int, text_bytes: int) -> None:
        self.documents += documents
        self.tokens += tokens
        self.text_bytes += text_bytes
        self._bar.update(self._task, completed=self.documents, rates=self.rates())
        if not self._live and time.monotonic() - self._last_line >= LINE_SECONDS:
            self._last_line = time.monotonic()
            self._bar.console.print(self.line(), highlight=False, soft_wrap=True)

    def rates(self) -> str:
        seconds = max(self.seconds, 1e-9)
        return (
            f"{self.documents:,} documents  {self.text_bytes / seconds / 1e6:.1f} MB/s  "
            f"{self.tokens / seconds:,.0f} tokens/s"
        )

    def line(self) -> str:
        done = self.documents / max(1, self.total)
        left = self.seconds * (1 - done) / done if done else 0
        return f"{self.verb} {done:.0%}  {self.rates()}  {left:,.0f} s left"

    def __enter__(self):
        if self._live:
            self._bar.start()
        return self

    def __exit__(self, *error):
        if self._live:
            self._bar.stop()
