"""Byte ranges over HTTP, by urllib3: a third of the work of an asynchronous file system.

read_url("https://host/a.bin?sig=...", {}, 0, 1 << 20)         the first MiB
read_url("https://host/manifest.json", {}, most=1 << 26)       all of it, if it is no larger
"""

import functools
import os
import time
from io import UnsupportedOperation
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3

CONNECTIONS = 64
BLOCK = 1 << 18  # bytes that are read at once
CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 20.0
SECONDS = 60.0  # that a read may take, and a second more for each SLOWEST bytes that came
SLOWEST = 1 << 16  # bytes
NO_RETRIES = urllib3.Retry(
    connect=0,
    read=0,
    status=0,
    other=0,
    redirect=5,
    raise_on_redirect=False,
    respect_retry_after_header=False,
)


class Refused(Exception):
    """An answer other than the bytes, with its `status`; `after` is how many seconds to wait."""

    def __init__(self, status: int, after: str | None = None):
        super().__init__(f"HTTP status {status}")
        self.status = status
        self.after = float(after) if after and after.isdecimal() else 0.0  # seconds


@functools.cache
def _pool(process: int, proxy: str | None) -> urllib3.PoolManager:
    """The connections of a process: after a fork there are none."""
    options: dict[str, Any] = {"maxsize": CONNECTIONS, "retries": NO_RETRIES}  # retry.py retries
    if proxy is None:
        return urllib3.PoolManager(**options)
    return urllib3.ProxyManager(proxy, **options)


def read_url(
    url: str, headers: dict[str, str], start: int = 0, end: int | None = None, most: int = 1 << 62
) -> bytes:
    """Bytes `start` to `end` of what a URL names; without `end`, all of them, at most `most`.

    Raises Refused; UnsupportedOperation, an OSError, for a server without ranges; ValueError for
    more than `most`; TimeoutError; or what urllib3 raises.
    """
    began = time.monotonic()
    answer = _request(url, headers, start, end)
    try:
        if answer.status not in (200, 206):
            raise Refused(answer.status, answer.headers.get("Retry-After"))
        data = _body(answer, most if end is None else end - start, began)
    except _TooLong:
        answer.close()
        if end is None:
            raise ValueError(f"expected at most {most:,} bytes, found more") from None
        asked = end - start
        raise UnsupportedOperation(
            f"asked for {asked:,} bytes, and more came: the server does not support ranges"
        ) from None
    except BaseException:
        answer.close()
        raise
    answer.release_conn()
    return data


def _request(
    url: str, headers: dict[str, str], start: int, end: int | None
) -> urllib3.BaseHTTPResponse:
    """The beginning of an answer, whose body is not read yet."""
    headers = {"Accept-Encoding": "identity"} | headers
    if end is not None:
        last = end - 1
        headers["Range"] = f"bytes={start}-{last}"
    parts = urlsplit(url)
    proxy = None
    if not proxy_bypass(parts.hostname or ""):
        proxy = getproxies().get(parts.scheme)
    timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=SILENCE_SECONDS)
    pool = _pool(os.getpid(), proxy)
    return pool.request("GET", url, headers=headers, preload_content=False, timeout=timeout)


class _TooLong(Exception):
    """More bytes come than were asked for."""


def _body(answer: urllib3.BaseHTTPResponse, most: int, began: float) -> bytes:
    """All bytes of an answer. Raises _TooLong, or TimeoutError if they come too slowly."""
    announced = answer.headers.get("Content-Length", "")
    if announced.isdecimal() and int(announced) > most:
        raise _TooLong
    blocks: list[bytes] = []
    size = 0
    while block := answer.read1(BLOCK):
        blocks.append(block)
        size += len(block)
        if size > most:
            raise _TooLong
        seconds = time.monotonic() - began
        if seconds > SECONDS + size / SLOWEST:
            raise TimeoutError(f"only {size:,} bytes came in {seconds:.0f} s")
    return b"".join(blocks)
