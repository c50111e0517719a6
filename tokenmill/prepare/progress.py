"""Progress of a long run: in a terminal one line that changes; otherwise a line every few seconds.

    with Progress() as progress:
        progress.say("46 files")
        progress.begin("preparing", 12_345_678)
        progress.add(256, 250_000, 1_100_000, 1_100_000)

    preparing 61%  12,345 documents  8.1 MB/s  2,531,000 tokens/s  1 min 10 s left

Everything goes to standard error, so standard output has results only. Any thread may call `say`.
"""

import shutil
import sys
import threading
import time

from tokenmill.messages import counted, in_bytes, in_time, sanitize

LINE_SECONDS, CHANGE_SECONDS = 5.0, 0.1


class Progress:
    """Counts documents, tokens and bytes of text, and how much is done of a total in any unit."""

    def __init__(self) -> None:
        self._sums, self._total = [0, 0, 0, 0], 0
        self._verb, self._started, self._told = "", 0.0, 0.0
        self._is_terminal, self._lock = sys.stderr.isatty(), threading.Lock()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: object) -> None:
        self._write("")

    def say(self, text: str) -> None:
        """Prints a line."""
        self._write(f"{sanitize(text)}\n")

    def _write(self, text: str) -> None:
        with self._lock:
            sys.stderr.write(f"\r\x1b[K{text}" if self._is_terminal else text)
            sys.stderr.flush()

    def begin(self, verb: str, total: int) -> None:
        """Begins to count."""
        self._verb, self._total = verb, total
        self._started = self._told = time.monotonic()

    def add(self, *numbers: int) -> None:
        """Adds what was done since: documents, tokens, bytes of text, and how much of the total."""
        self._sums = list(map(sum, zip(self._sums, numbers, strict=True)))
        if time.monotonic() - self._told < (CHANGE_SECONDS if self._is_terminal else LINE_SECONDS):
            return  # workers report a thousand times a second
        self._told = time.monotonic()
        line = f"{self._verb} {min(1.0, self._sums[3] / max(1, self._total)):.0%}  {self._line()}"
        self._write(
            line[: shutil.get_terminal_size().columns - 1] if self._is_terminal else f"{line}\n"
        )

    def _line(self) -> str:
        """What was done, how fast, and how long the rest takes at this rate."""
        seconds, (documents, tokens, text_bytes, done) = (
            time.monotonic() - self._started,
            self._sums,
        )
        line = f"{counted(documents, 'document')}  {in_bytes(text_bytes / seconds)}/s  {tokens / seconds:,.0f} tokens/s"
        left = seconds * (self._total - done) / max(1, done)
        return line + f"  {in_time(left)} left" * (0 < done < self._total)

    def end(self) -> None:
        """Prints what was done."""
        self.say(f"made {self._line()} in {time.monotonic() - self._started:.1f} s")
