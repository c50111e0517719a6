"""Makes text from elsewhere safe to print: nothing in it controls a terminal, and URLs have no passwords.

    sanitize("fetching \\x1b[2Jhttp://me:secret@host/a.parquet")     ␛ for the control character; http://host/a.parquet

Control characters are replaced with their symbols (U+2400 and following). Other characters that move, hide or reorder
text are replaced with their code, as \\x9b. Log records, warnings and errors all go through `sanitize`.
"""

import contextlib
import logging
import re
import sys
import traceback
import warnings
from typing import Any

PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
C1 = {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}
REORDERING = {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029)}
SHOWN: dict[int, int | str] = {**PICTURES, **C1, **REORDERING}
PASSWORD = re.compile(r"://[^/\s@'\"]*@")
SIGNATURE = re.compile(r"(://[^\s?'\"]*)\?[^\s'\"]+")
QUERY = re.compile(r"(\s/[^\s?'\"]*)\?[^\s'\"]+")  # as urllib3 logs requests: "GET /a.bin?sig=...
HIDDEN = "[hidden]"
SHORTEST = 8  # characters of a secret that is hidden wherever it is: shorter ones are in any text
MOST_SECRETS = 10_000
LOGGERS = (
    "tokenmill",
    "urllib3",
    "fsspec",
    "s3fs",
    "gcsfs",
    "adlfs",
    "aiohttp",
    "botocore",
    "aiobotocore",
)  # whose records name URLs and paths

_secrets: dict[str, None] = {}  # parts of addresses of this process, in the order in which they came in


def hide(*secrets: str) -> None:
    """Notes parts of addresses, passwords and signatures, that nothing of what is printed may have."""
    for secret in secrets:
        if len(secret) >= SHORTEST and secret not in _secrets and len(_secrets) < MOST_SECRETS:
            _secrets[secret] = None


def redact(text: str) -> str:
    """Removes what is before the host of a URL or after its `?`, and the secrets of `hide`."""
    text = QUERY.sub(r"\1", SIGNATURE.sub(r"\1", PASSWORD.sub("://", text)))
    for secret in list(_secrets):
        text = text.replace(secret, HIDDEN)
    return text


def escape_controls(text: str) -> str:
    """Replaces every character that would control a terminal; keeps newlines and tabs."""
    return text.translate(SHOWN)


def sanitize(text: str) -> str:
    """Does the same, and also removes passwords and signatures (`redact`)."""
    return redact(escape_controls(text))


class _Sanitizing(logging.Filter):
    """Sanitizes log records, whichever handler they come to."""

    def filter(self, record: logging.LogRecord) -> bool:
        with contextlib.suppress(TypeError, ValueError):  # arguments that do not fit: logging says so
            record.msg, record.args = sanitize(record.getMessage()), ()
        if record.exc_info:
            record.exc_text = sanitize("".join(traceback.format_exception(*record.exc_info)).rstrip())
        return True


def sanitize_logs() -> None:
    """Sanitizes what tokenmill, urllib3, fsspec, its file systems and botocore log, from now on."""
    below = tuple(f"{name}." for name in LOGGERS)
    for name in {*LOGGERS, *(known for known in list(logging.root.manager.loggerDict) if known.startswith(below))}:
        logger = logging.getLogger(name)
        if not any(isinstance(known, _Sanitizing) for known in logger.filters):
            logger.addFilter(_Sanitizing())


def sanitize_errors() -> None:
    """Sanitizes the traceback and the warnings that this process prints, from now on: for commands."""
    sys.excepthook = _print_exception
    warnings.showwarning = _print_warning  # type: ignore[assignment]


def _print_exception(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    print(sanitize("".join(traceback.format_exception(kind, error, trace))), file=sys.stderr, end="")


def _print_warning(message: Any, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
    print(sanitize(f"{category.__name__}: {message}"), file=sys.stderr)
