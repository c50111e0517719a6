"""How long a read is tried: again after a pause where that may help, and never for ten minutes.

    patiently(attempt, "s3://bucket/web/shards/a.bin")      what attempt() returns, or a clear error

`attempt` raises Again for what may pass: a connection that drops, a stall, 429 and 503 with their Retry-After. Pauses
grow and are drawn at random from 0 on ("full jitter", Brooker 2015), so that a thousand ranks do not come back
together. Everything else is an error at once.
"""

import random
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_SECONDS = 300.0  # of one read; NCCL gives up a collective after ten minutes, with a worse message
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0

Found = TypeVar("Found")


class Again(Exception):
    """An attempt failed in a way that may pass; `after` so many seconds, where the other side says so."""

    def __init__(self, reason: str, after: float | None = None):
        super().__init__(reason)
        self.after = after


def patiently(attempt: Callable[[int], Found], what: str) -> Found:
    """What attempt(number of tries before) returns. ConnectionError where it fails for too long."""
    began, number = time.monotonic(), 0
    while True:
        try:
            return attempt(number)
        except Again as again:
            pause = random.uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(number, 20)))
            if again.after is not None:
                pause += min(again.after, 2 * LONGEST_PAUSE)
            number += 1
            spent = time.monotonic() - began
            if spent + pause > PATIENCE_SECONDS:
                raise ConnectionError(
                    f"{what}: could not be read in {number} tries over {spent:,.0f} s; the last ended with: {again}"
                ) from again
            time.sleep(pause)
