"""Tries again what may succeed later, with a limit, and one error for all libraries.

    retried(lambda: get(url), "s3://bucket/web/a.bin", "read", forget_credentials)

fsspec and botocore retry what they know. What is left is tried again here, after pauses that grow
and are random ("full jitter", Brooker 2015), for five minutes at most: NCCL gives up a collective
after ten, with a worse message.
"""

import logging
import random
import re
import time
from collections.abc import Callable
from io import UnsupportedOperation
from typing import Any

from tokenmill import hub_client
from tokenmill.messages import first_line, sanitize

PATIENCE_SECONDS = 300.0  # of all tries
WARN_SECONDS = 5.0  # after which the log says why nothing comes
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 30.0
TRIES_OF_WRONG_BYTES = 3  # a second copy behind a load balancer may be right
FINAL_TYPES = (
    FileNotFoundError,
    PermissionError,
    ImportError,
    UnsupportedOperation,
    ValueError,
)
FINAL_NAMES = (
    "SSLError",
    "ParamValidation",
    "IsADirectory",
    "NotADirectory",
    "OfflineMode",
)  # the same each time
# not in a path, which may have a part of that name
CREDENTIALS = re.compile(r"(?<![\w/.-])\w*[Cc]redential\w*(?![\w/-]|\.\w)")
ADVICE = {
    "s3": "; set AWS credentials that have access, or, for a public bucket, FSSPEC_S3_ANON=true",
    "hf": f"; {hub_client.ACCESS}",
}
LOG = logging.getLogger("tokenmill")


class WrongBytes(ValueError):
    """What came is not what a record or a manifest says."""


def retried(
    attempt: Callable[[], Any], what: str, done: str, forget_credentials: Callable[[str], None]
) -> Any:
    """What attempt() returns, after as many tries as may help.

    Raises FileNotFoundError, PermissionError, ConnectionError or the attempt's own final error,
    with `what` and the last reason. `forget_credentials` is called before a PermissionError.
    """
    began = time.monotonic()
    tries = 0
    wrong = 0
    while True:
        tries += 1
        try:
            return attempt()
        except Exception as error:  # of each library another
            kind, may_pass = judge(error)
            wrong += isinstance(error, WrongBytes)
            spent = time.monotonic() - began
            reason = sanitize(first_line(error))
            pause = _pause(error, tries)
            is_over = wrong == TRIES_OF_WRONG_BYTES or spent + pause > PATIENCE_SECONDS
            if is_over or not may_pass:
                effort = f", {tries} tries over {spent:,.0f} s" if tries > 1 else ""
                advice = ""
                if kind is PermissionError:
                    forget_credentials(what)
                    advice = ADVICE.get(what.partition("://")[0], "")
                raise kind(f"{what}: cannot be {done}{effort}: {reason}{advice}") from None
            if spent + pause > WARN_SECONDS:
                message = "%s: not %s yet; trying for up to %.0f s: %s"
                LOG.warning(message, what, done, PATIENCE_SECONDS, reason)
            time.sleep(pause)


def _pause(error: Exception, tries: int) -> float:
    """Seconds before the next try: random, and at least as long as the server asks for."""
    pause = random.uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * 2**tries))
    asked = getattr(error, "after", 0.0)
    return max(pause, min(LONGEST_PAUSE, asked))


def judge(error: Exception) -> tuple[type[Exception], bool]:
    """The error to raise in place of a library's, and whether trying again may help.

    It may not for what is missing, forbidden or not supported.
    """
    status = _status(error)
    if status in (401, 403) or lacks_credentials(error):
        return PermissionError, False
    if isinstance(status, int):
        kinds: dict[int, type[Exception]] = {404: FileNotFoundError, 416: WrongBytes}
        return kinds.get(status, ConnectionError), is_transient(status)
    if isinstance(error, WrongBytes):
        return WrongBytes, not _is_named_final(error)
    for kind in FINAL_TYPES:
        if isinstance(error, kind):
            return kind, False
    is_final = isinstance(error, TypeError) or _is_named_final(error)
    return ConnectionError, not is_final


def lacks_credentials(error: Exception) -> bool:
    """Whether an error is about credentials, by its type or a word of its message."""
    return CREDENTIALS.search(repr(error)) is not None


def is_transient(status: int) -> bool:
    """Whether what has this HTTP status may succeed later."""
    return status in (408, 429) or status >= 500


def _status(error: Exception) -> Any:
    """The HTTP status that an error is about: ranges.py's, aiohttp's, or huggingface_hub's."""
    response = getattr(error, "response", None)
    return getattr(error, "status", getattr(response, "status_code", None))


def _is_named_final(error: Exception) -> bool:
    shown = repr(error)
    return any(name in shown for name in FINAL_NAMES)
