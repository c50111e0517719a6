"""Progress of a long run: in a terminal one line that changes; else a line every few seconds.

    with Progress() as progress:
        progress.say("46 files")
        progress.begin("preparing", 12_345_678)
        progress.add(256, 250_000, 1_100_000, 1_100_000)

    preparing 61%  12,345 documents  8.1 MB/s  2,531,000 tokens/s  1 min 10 s left

Everything goes to standard error, so standard output has results only. Any thread may call `say`.
(tqdm and rich write no lines where there is no terminal, as in a job's log.)
"""

import shutil
import sys
import threading
import time

from tokenmill.messages import counted, in_bytes, in_time, sanitize

LINE_SECONDS = 5.0  # between lines
CHANGE_SECONDS = 0.1  # between changes of the line in a terminal
CLEAR_LINE = "\r\x1b[K"


class Progress:
    """Counts documents, tokens and bytes of text, and how much is done of a total in any unit."""

    def __init__(self) -> None:
        self._counts = (0, 0, 0, 0)
        self._total = 0
        self._verb = ""
        self._started = 0.0
        self._shown = 0.0  # when the last line was written
        self._is_terminal = sys.stderr.isatty()
        self._lock = threading.Lock()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: object) -> None:
        self._write("")

    def say(self, text: str) -> None:
        """Prints a line."""
        self._write(f"{sanitize(text)}\n")

    def begin(self, verb: str, total: int) -> None:
        """Begins to count."""
        self._verb = verb
        self._total = total
        self._started = time.monotonic()
        self._shown = self._started

    def add(self, documents: int, tokens: int, text_bytes: int, done: int) -> None:
        """Adds what was done since: the last one is how much of the total."""
        sums = self._counts
        self._counts = sums[0] + documents, sums[1] + tokens, sums[2] + text_bytes, sums[3] + done
        moment = time.monotonic()
        if moment - self._shown < (CHANGE_SECONDS if self._is_terminal else LINE_SECONDS):
            return  # workers report a thousand times a second
        self._shown = moment
        seconds = moment - self._started
        share = min(1.0, self._counts[3] / max(1, self._total))
        line = f"{self._verb} {share:.0%}  {self._speeds(seconds)}{self._time_left(seconds)}"
        if self._is_terminal:
            self._write(line[: shutil.get_terminal_size().columns - 1])
        else:
            self._write(f"{line}\n")

    def end(self) -> None:
        """Prints what was done, if anything was."""
        if not self._counts[0]:
            return
        seconds = time.monotonic() - self._started
        self.say(f"made {self._speeds(seconds)} in {seconds:.1f} s")

    def _speeds(self, seconds: float) -> str:
        documents, tokens, text_bytes, _ = self._counts
        text_speed = in_bytes(text_bytes / seconds)
        token_speed = tokens / seconds
        return f"{counted(documents, 'document')}  {text_speed}/s  {token_speed:,.0f} tokens/s"

    def _time_left(self, seconds: float) -> str:
        done = self._counts[3]
        if not 0 < done < self._total:
            return ""
        seconds_left = seconds * (self._total - done) / done
        return f"  {in_time(seconds_left)} left"

    def _write(self, text: str) -> None:
        with self._lock:
            sys.stderr.write(f"{CLEAR_LINE}{text}" if self._is_terminal else text)
            sys.stderr.flush()
