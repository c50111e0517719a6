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

CONNECTIONS, BLOCK = 64, 1 << 18
CONNECT_SECONDS, SILENCE_SECONDS = 10.0, 20.0
SECONDS, SLOWEST = (
    60.0,
    1 << 16,
)  # a read may take 60 s, and a second more for each 64 KiB that came
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
    """An answer other than the bytes: `status` says which, and `after` how many seconds the server asks to wait."""

    def __init__(self, status: int, after: str | None = None):
        super().__init__(f"HTTP status {status}")
        self.status, self.after = status, float(after) if after and after.isdecimal() else 0.0


@functools.cache
def _pool(process: int, proxy: str | None) -> urllib3.PoolManager:
    """The connections of a process: after a fork there are none."""
    how: dict[str, Any] = {"maxsize": CONNECTIONS, "retries": NO_RETRIES}  # files.py retries
    return urllib3.PoolManager(**how) if proxy is None else urllib3.ProxyManager(proxy, **how)


def read_url(
    url: str, headers: dict[str, str], start: int = 0, end: int | None = None, most: int = 1 << 62
) -> bytes:
    """Bytes `start` to `end` of what a URL names; without `end`, all of them, at most `most`.

    Raises Refused; UnsupportedOperation, an OSError, for a server without ranges; ValueError for more than `most`;
    TimeoutError; or what urllib3 raises.
    """
    began, found, size = time.monotonic(), list[bytes](), 0
    whole, most = end is None, most if end is None else end - start
    headers = (
        {"Accept-Encoding": "identity"}
        | headers
        | ({} if end is None else {"Range": f"bytes={start}-{end - 1}"})
    )
    parts = urlsplit(url)
    proxy = None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)
    timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=SILENCE_SECONDS)
    answer = _pool(os.getpid(), proxy).request(
        "GET", url, headers=headers, preload_content=False, timeout=timeout
    )
    try:
        if answer.status not in (200, 206):
            raise Refused(answer.status, answer.headers.get("Retry-After"))
        announced = answer.headers.get("Content-Length", "")
        while size <= most and not (announced.isdecimal() and int(announced) > most):
            if not (block := answer.read1(BLOCK)):
                break
            found.append(block)
            size += len(block)
            if time.monotonic() - began > SECONDS + size / SLOWEST:
                raise TimeoutError(f"only {size:,} bytes came in {time.monotonic() - began:.0f} s")
        else:
            if whole:
                raise ValueError(f"expected at most {most:,} bytes, found more")
            raise UnsupportedOperation(
                f"asked for {most:,} bytes, and more came: the server does not support ranges"
            )
    except BaseException:
        answer.close()
        raise
    answer.release_conn()
    return b"".join(found)
