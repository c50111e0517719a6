"""Retries a read after a pause if that may help, for less than ten minutes.

    patiently(attempt, "s3://bucket/web/shards/a.bin")      what attempt(until) returns, or a clear error

`attempt` raises Again for what may pass: a connection that drops, a stall, 429 and 503 with their Retry-After. Pauses
grow, and are random from 0 up ("full jitter", Brooker 2015), so that a thousand ranks do not come back together. An
attempt ends at the time `until` at the latest, so that all of them together take no longer than PATIENCE_SECONDS.
Everything else is an error at once. After some seconds of retries, the log "tokenmill" has a warning.
"""

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_SECONDS = 300.0  # of one read; NCCL gives up a collective after ten minutes, with a worse message
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
WARN_SECONDS = 5.0  # after which the log says why nothing comes
LOG = logging.getLogger("tokenmill")

Found = TypeVar("Found")


class Again(Exception):
    """An attempt failed in a way that may pass, `after` so many seconds if the other side says so."""

    def __init__(self, reason: str, after: float | None = None):
        super().__init__(reason)
        self.after = after


def patiently(attempt: Callable[[float], Found], what: str, pause_for: Callable[[float], None] = time.sleep) -> Found:
    """Returns attempt(until), where `until` is the monotonic time at which it must end.

    ConnectionError if it fails for too long.
    """
    began, patience, number, warned = time.monotonic(), PATIENCE_SECONDS, 0, False
    until = began + patience
    while True:
        try:
            return attempt(until)
        except Again as again:
            pause = random.uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(number, 20)))
            if again.after is not None:
                pause += min(again.after, 2 * LONGEST_PAUSE)
            number += 1
            spent = time.monotonic() - began
            if spent > WARN_SECONDS and not warned:
                warned = True
                LOG.warning("%s: not read yet, tried again for up to %.0f s: %s", what, patience, again)
            if spent + pause > patience:
                raise ConnectionError(
                    f"{what}: could not be read in {number} tries over {spent:,.0f} s; the last ended with: {again}"
                ) from again
            pause_for(pause)
