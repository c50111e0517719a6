"""Plain HTTP with ranges, by urllib3: what https://, S3 and the hub are read by.

    HttpBackend("https://host/tokens/web").read("shards/a.000.bin", 1048576, 2097152)      one attempt, these bytes

A time limit each on connecting, on silence and on the whole range: a trickle defeats the first two. S3
(s3_backend.py) and the hub (hub_backend.py) differ only in the URL of a file, and in how they get a new one when a
403 says that it has expired.
"""

import os
import re
import time
import urllib.request
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from tokenmill.addresses import display_address, joined
from tokenmill.extras import naming_the_extra
from tokenmill.remote.retry import Again

CONNECT_SECONDS, SILENCE_SECONDS = 10.0, 20.0
RANGE_SECONDS, SLOWEST = 60.0, 256_000  # for a range: so long, and a second more for so many bytes
REDIRECTS = 5
WHOLE = 256 << 20  # bytes of a file that is read whole: manifests, records, tokenizers
TROUBLED = {408, 425, 429, 500, 502, 503, 504}


class Answer(NamedTuple):
    """The answer of a server."""

    status: int
    headers: Any
    body: bytes


class HttpBackend:
    """Files under an address. `read` is one attempt, from any thread."""

    def __init__(self, address: str):
        self.address = address
        self._redirects: dict[str, str] = {}  # by name: where a file was last found

    def display(self, name: str) -> str:
        """The address of a file, to be shown."""
        return display_address(joined(self.address, name))

    def url_of(self, name: str) -> tuple[str, dict[str, str]]:
        """The URL of a file, and the headers of a request for it."""
        return joined(self.address, name), {}

    def renew(self, name: str, answer: Answer) -> None:
        """Forgets what may have expired."""
        self._redirects.pop(name, None)

    def read(self, name: str, start: int = 0, stop: int | None = None, fresh: bool = False) -> bytes:
        """The bytes `start` to `stop` of a file, or all; `fresh` on a connection of its own.

        Again for what may pass; FileNotFoundError, PermissionError or OSError for what does not.
        """
        span = None if stop is None else (start, stop)
        answer = self._get(name, span, fresh)
        if answer.status in (400, 401, 403):
            self.renew(name, answer)
            answer = self._get(name, span, fresh)
        return self._body(name, span, answer)

    def _body(self, name: str, span: tuple[int, int] | None, answer: Answer) -> bytes:
        status = answer.status
        if status in (200, 206):
            return answer.body
        if status in TROUBLED:
            raise Again(f"the server answered {status}", _retry_after(answer.headers))
        if status in (404, 410):
            code = re.search(rb"<Code>(\w+)</Code>", answer.body)
            why = code[1].decode() if code else f"the server answered {status}"
            raise FileNotFoundError(f"{self.display(name)}: no such file ({why})")
        if status in (401, 403):
            raise PermissionError(f"{self.display(name)}: no access (the server answered {status}); {self.access}")
        if status == 416 and span is not None:
            raise _too_short(self.display(name), span[1], None)
        raise OSError(f"{self.display(name)}: the server answered {status} {answer.body[:200]!r}")

    @property
    def access(self) -> str:
        """What error messages advise if there is no access."""
        return "name an address that may be read, or one with its signature"

    def _get(self, name: str, span: tuple[int, int] | None, fresh: bool) -> Answer:
        url, headers = self.url_of(name)
        first = url
        url = self._redirects.get(name, url)
        for _ in range(REDIRECTS):
            same = urlsplit(url)[:2] == urlsplit(first)[:2]  # a token is for the host that it is of
            answer = get(url, headers if same else {}, span, fresh, self.display(name))
            if answer.status not in (301, 302, 303, 307, 308):
                return answer
            url = urljoin(url, answer.headers.get("Location", ""))
            if urlsplit(url).scheme not in ("http", "https") or "Location" not in answer.headers:
                raise OSError(
                    f"{self.display(name)}: redirected to {display_address(url)!r}, which is no address of the web"
                )
            self._redirects[name] = url
        raise OSError(f"{self.display(name)}: redirected more than {REDIRECTS} times")


def get(url: str, headers: dict[str, str], span: tuple[int, int] | None, fresh: bool, what: str) -> Answer:
    """One GET. Again where the connection fails, or the body is not what was asked for."""
    import urllib3

    asked = {"Accept-Encoding": "identity", **headers}
    if span is not None:
        asked["Range"] = f"bytes={span[0]}-{span[1] - 1}"
    limits = urllib3.Timeout(connect=CONNECT_SECONDS, read=SILENCE_SECONDS)
    pool = _pool(url, fresh)
    try:
        response = pool.request(
            "GET", url, headers=asked, timeout=limits, retries=False, redirect=False, preload_content=False
        )
        try:
            return _answer(response, span, what)
        finally:
            response.close()  # of a body that was read whole the connection was kept already
    except urllib3.exceptions.SSLError as error:
        raise OSError(
            f"{what}: no secure connection ({str(error)[:200]}); check the address and its certificate"
        ) from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        if isinstance(error, _Final):
            raise error.args[0] from error
        raise Again(f"{type(error).__name__}: {str(error)[:200]}") from error


def _too_short(what: str, expected: int, found: int | None) -> OSError:
    size = "fewer" if found is None else f"{found:,}"
    return OSError(f"{what}: expected {expected:,} bytes or more, found {size}; it was replaced, or cut")


class _Final(OSError):
    """Holds an error that no further attempt would mend."""


def _answer(response: Any, span: tuple[int, int] | None, what: str) -> Answer:
    length = response.headers.get("Content-Length")
    expected = None if length is None else int(length)
    if span is not None and response.status == 200 and (span[0] or expected != span[1]):
        raise _Final(OSError(f"{what}: the server answers a range with the whole file; it must know Range requests"))
    if span is not None and response.status in (200, 206):
        expected = span[1] - span[0]
        total = response.headers.get("Content-Range", "").rpartition("/")[2]
        if response.status == 206 and total.isdigit() and int(total) < span[1]:
            raise _Final(_too_short(what, span[1], int(total)))
    most = WHOLE if expected is None or span is None else expected
    body = bytearray()
    deadline = time.monotonic() + RANGE_SECONDS + (expected or 0) / SLOWEST
    while chunk := response.read1(1 << 18):
        body += chunk
        if len(body) > most or (expected or 0) > most:
            raise _Final(OSError(f"{what}: expected at most {most:,} bytes, found {expected or 'more'}; not read"))
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(body):,} of {expected or 0:,} bytes came in {RANGE_SECONDS:.0f} s")
    if response.status in (200, 206) and expected is not None and len(body) != expected:
        raise ConnectionError(f"expected {expected:,} bytes, found {len(body):,}")
    return Answer(response.status, response.headers, bytes(body))


_pools: dict[tuple[int, str], Any] = {}


def _pool(url: str, fresh: bool) -> Any:
    """Connections of this process: none survives a fork. Through a proxy where the environment names one."""
    with naming_the_extra("remote"):
        import urllib3

    proxy = _proxy(*urlsplit(url)[:2])
    make = lambda: urllib3.ProxyManager(proxy, maxsize=64) if proxy else urllib3.PoolManager(maxsize=64)  # noqa: E731
    if fresh:
        return make()
    key = (os.getpid(), proxy)
    if key not in _pools:
        _pools[key] = make()
    return _pools[key]


@cache
def _proxy(scheme: str, host: str) -> str:
    """What the environment names for a host, when it is first asked."""
    return "" if urllib.request.proxy_bypass(host) else urllib.request.getproxies().get(scheme, "")


def _retry_after(headers: Any) -> float | None:
    """Seconds, or until a date."""
    found = headers.get("Retry-After")
    if found is None:
        return None
    try:
        return max(0.0, float(found))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(found).timestamp() - time.time())
    except ValueError:
        return None
