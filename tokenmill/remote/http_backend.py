"""Plain HTTP with ranges, by urllib3: what https://, S3 and the hub are read by.

    HttpBackend("https://host/tokens/web").read("shards/a.000.bin", 1048576, 2097152)      one attempt, these bytes

A time limit each on connecting, on silence and on the whole answer: a trickle defeats the first two, in the headers as
well as in the body (deadlines.py). S3 (s3_backend.py) and the hub (hub_backend.py) differ only in the URL of a file,
and in how they get a new one when a 403 says that it has expired.
"""

import contextlib
import os
import re
import time
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from tokenmill.addresses import display_address, joined
from tokenmill.extras import naming_the_extra
from tokenmill.remote.deadlines import ends_by, pool_classes
from tokenmill.remote.retry import Again
from tokenmill.sanitize import sanitize, sanitize_logs

CONNECT_SECONDS, SILENCE_SECONDS = 10.0, 20.0
RANGE_SECONDS, SLOWEST = 60.0, 256_000  # for a range: so long, and a second more for so many bytes
REDIRECTS = 5
KEPT_URLS = 1024  # redirects and signed URLs that a backend remembers
ERROR_BYTES = 1 << 16  # of the text of an error
TROUBLED = {408, 425, 429, 500, 502, 503, 504}


class Answer(NamedTuple):
    """The answer of a server."""

    status: int
    headers: Any
    body: bytes


class Limits(NamedTuple):
    """Of one attempt: how many bytes it may read, and the monotonic time at which it must end."""

    most: int
    until: float


class Recent(dict[str, Any]):
    """The values that were set last, at most KEPT_URLS of them."""

    def __setitem__(self, name: str, value: Any) -> None:
        self.pop(name, None)
        super().__setitem__(name, value)
        while len(self) > KEPT_URLS:
            with contextlib.suppress(RuntimeError, StopIteration):  # another thread changes it
                self.pop(next(iter(self)), None)


class HttpBackend:
    """Files under an address. `read` is one attempt, from any thread."""

    def __init__(self, address: str):
        self.address = address
        self._redirects = Recent()  # by name: where a file was last found

    def display(self, name: str) -> str:
        """The address of a file, to be shown."""
        return display_address(joined(self.address, name))

    def url_of(self, name: str) -> tuple[str, dict[str, str]]:
        """The URL of a file, and the headers of a request for it."""
        return joined(self.address, name), {}

    def renew(self, name: str, answer: Answer) -> None:
        """Forgets what may have expired."""
        self._redirects.pop(name, None)

    def read(self, name: str, start: int, stop: int | None, fresh: bool, limits: Limits) -> bytes:
        """The bytes `start` to `stop` of a file, or all; `fresh` on a connection of its own.

        Again for what may pass; FileNotFoundError, PermissionError or OSError for what does not.
        """
        span = None if stop is None else (start, stop)
        if fresh:
            self._redirects.pop(name, None)  # what it led to may be what is wrong
        answer = self._get(name, span, fresh, limits)
        if answer.status in (400, 401, 403):
            self.renew(name, answer)
            answer = self._get(name, span, fresh, limits)
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

    def _get(self, name: str, span: tuple[int, int] | None, fresh: bool, limits: Limits) -> Answer:
        """Follows redirects. A redirect is remembered only as long as what it leads to can be read."""
        try:
            answer = self._follow(name, span, fresh, limits)
        except BaseException:
            self._redirects.pop(name, None)
            raise
        if answer.status not in (200, 206, 400, 401, 403):  # for those, `renew` decides
            self._redirects.pop(name, None)
        return answer

    def _follow(self, name: str, span: tuple[int, int] | None, fresh: bool, limits: Limits) -> Answer:
        url, headers = self.url_of(name)
        first = url
        url = self._redirects.get(name, url)
        for _ in range(REDIRECTS):
            same = urlsplit(url)[:2] == urlsplit(first)[:2]  # a token is for the host that it is of
            answer = get(url, headers if same else {}, span, fresh, self.display(name), limits)
            if answer.status not in (301, 302, 303, 307, 308):
                return answer
            url = _redirected(url, answer.headers.get("Location", ""), self.display(name))
            self._redirects[name] = url
        raise OSError(f"{self.display(name)}: redirected more than {REDIRECTS} times")


def _redirected(url: str, location: str, what: str) -> str:
    """The URL that a redirect leads to. OSError if it is none of the web."""
    try:
        found = urljoin(url, location)
        if location and urlsplit(found).scheme in ("http", "https"):
            return found
        shown = display_address(found)
    except ValueError:
        shown = ""
    raise OSError(f"{what}: redirected to {shown!r}, which is no address of the web")


def get(
    url: str, headers: dict[str, str], span: tuple[int, int] | None, fresh: bool, what: str, limits: Limits
) -> Answer:
    """One GET. Again where the connection fails, or the body is not what was asked for."""
    import urllib3

    asked = {"Accept-Encoding": "identity", **headers}
    if span is not None:
        asked["Range"] = f"bytes={span[0]}-{span[1] - 1}"
    timeouts = urllib3.Timeout(connect=CONNECT_SECONDS, read=SILENCE_SECONDS)
    pool, until = _pool(url, fresh), min(limits.until, time.monotonic() + RANGE_SECONDS + limits.most / SLOWEST)
    try:
        with ends_by(until):
            response = pool.request(
                "GET", url, headers=asked, timeout=timeouts, retries=False, redirect=False, preload_content=False
            )
            try:
                return _answer(response, span, what, Limits(limits.most, until))
            finally:
                response.close()  # of a body that was read whole the connection was kept already
    except urllib3.exceptions.SSLError as error:
        raise OSError(
            f"{what}: no secure connection ({sanitize(str(error))[:200]}); check the address and its certificate"
        ) from None  # whose text may have the URL, with its signature
    except (urllib3.exceptions.HTTPError, OSError) as error:
        if isinstance(error, _Final):
            raise error.args[0] from None
        raise Again(f"{type(error).__name__}: {sanitize(str(error))[:200]}") from None


def _too_short(what: str, expected: int, found: int | None) -> OSError:
    size = "fewer" if found is None else f"{found:,}"
    return OSError(f"{what}: expected {expected:,} bytes or more, found {size}; it was replaced, or cut")


class _Final(OSError):
    """Holds an error that no further attempt would mend."""


def _answer(response: Any, span: tuple[int, int] | None, what: str, limits: Limits) -> Answer:
    expected = _number(response.headers.get("Content-Length"))
    if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
        how = sanitize(encoding[:20])
        raise _Final(OSError(f"{what}: expected it as it is, the server sends it packed ({how}); not read"))
    if span is not None and response.status == 200 and (span[0] or expected != span[1]):
        raise _Final(OSError(f"{what}: the server answers a range with the whole file; it must know Range requests"))
    if span is not None and response.status in (200, 206):
        expected = span[1] - span[0]
        total = _number(response.headers.get("Content-Range", "").rpartition("/")[2])
        if response.status == 206 and total is not None and total < span[1]:
            raise _Final(_too_short(what, span[1], total))
    most = limits.most if response.status in (200, 206) else ERROR_BYTES
    body = bytearray()
    while not (too_many := max(len(body), expected or 0) > most) and (
        chunk := response.read1(1 << 18, decode_content=False)
    ):
        body += chunk
        if time.monotonic() > limits.until and len(body) != expected:
            raise TimeoutError(f"only {len(body):,} of {expected or 0:,} bytes came in the time that they may take")
    if expected is None and time.monotonic() > limits.until:  # a connection that is shut down can look like an end
        raise TimeoutError("the answer did not end in the time that it may take")
    if response.status not in (200, 206):
        return Answer(response.status, response.headers, bytes(body[:ERROR_BYTES]))
    if too_many:
        raise _Final(OSError(f"{what}: expected at most {most:,} bytes, found {expected or 'more'}; not read"))
    if expected is None and not body:  # as of headers that were cut
        raise ConnectionError("an answer without a length, and without anything in it")
    if expected is not None and len(body) != expected:
        raise ConnectionError(f"expected {expected:,} bytes, found {len(body):,}")
    return Answer(response.status, response.headers, bytes(body))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch("[0-9]{1,18}", text) else None


_pools: dict[tuple[int, str], Any] = {}


def _pool(url: str, fresh: bool) -> Any:
    """Connections of this process: none survives a fork. Through a proxy where the environment names one."""
    with naming_the_extra("remote"):
        import urllib3

    proxy = _proxy(*urlsplit(url)[:2])
    key = (os.getpid(), proxy)
    if fresh or key not in _pools:
        made = urllib3.ProxyManager(proxy, maxsize=64) if proxy else urllib3.PoolManager(maxsize=64)
        made.pool_classes_by_scheme = pool_classes()
        sanitize_logs()  # of urllib3, which has its loggers by now
        if fresh:
            return made
        _pools[key] = made
    return _pools[key]


@cache
def _proxy(scheme: str, host: str) -> str:
    """What the environment names for a host, when it is first asked."""
    import urllib.request  # takes 20 ms, which whoever reads local files does not wait for

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
    import email.utils

    try:
        return max(0.0, email.utils.parsedate_to_datetime(found).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
