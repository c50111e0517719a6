"""Objects at an address, through fsspec: s3://, gs://, hf://, https://, memory:// and whatever else it knows.

    read("s3://bucket/web", "shards/a.bin", 0, 1 << 20)       the first MiB of an object
    read("s3://bucket/web", "manifest.json")                  all of it
    write("s3://bucket/web", "manifest.json", path)           sends a file
    sizes("s3://bucket/web")                                  what is there

HTTP is read by `ranges.py`, and so are objects whose file system can sign a URL of them: S3 and the Hugging Face hub.
fsspec and botocore retry what they know. What is left is tried again here, after pauses that grow and are random ("full
jitter", Brooker 2015), for five minutes at most: NCCL gives up a collective after ten, with a worse message.
"""

import functools
import logging
import os
import random
import time
from collections.abc import Callable
from io import UnsupportedOperation
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tokenmill import hub_client
from tokenmill.addresses import joined, named
from tokenmill.extras import naming_the_extra
from tokenmill.messages import redact, sanitize
from tokenmill.store.files import LARGEST

REQUEST_SECONDS = 60.0  # of a range, for file systems that have no time limit
PATIENCE_SECONDS, WARN_SECONDS = (
    300.0,
    5.0,
)  # of all tries; after which the log says why nothing comes
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
CLIENT_SECONDS = 1800  # after which credentials are read again, as files of them may be renewed
TRIES_OF_WRONG_BYTES = 3  # a second copy behind a load balancer may be right
HTTP, SIGNED = ("http", "https"), ("s3", "s3a", "hf")
BUCKETS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "memory")  # where nobody makes folders
# botocore keeps 10 connections, too few for the threads; a bucket's region is looked up
OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"config_kwargs": {"max_pool_connections": 64}, "cache_regions": True}
}
FINAL = (
    "SSLError",
    "ParamValidation",
    "IsADirectory",
    "NotADirectory",
    "OfflineMode",
)  # the same each time
ADVICE = {
    "s3": "; set AWS credentials that have access, or, for a public bucket, FSSPEC_S3_ANON=true"
}
ADVICE["hf"] = f"; {hub_client.ACCESS}"
LOG = logging.getLogger("tokenmill")
Check = Callable[[bytes], None]  # raises WrongBytes


class WrongBytes(ValueError):
    """What came is not what a record or a manifest says."""


def scheme_of(address: str) -> str:
    """The scheme of an address: "s3"."""
    return address.partition("://")[0]


def file_system(address: str) -> tuple[Any, str]:
    """fsspec's file system of an address, and its path there. ValueError for a scheme that fsspec does not know.

    fsspec keeps one instance a process, so asking each time costs microseconds, and is right after a fork.
    """
    with naming_the_extra("remote"):
        from fsspec.core import url_to_fs
    try:
        found: tuple[Any, str] = url_to_fs(address, **OPTIONS.get(scheme_of(address), {}))
    except (ImportError, ValueError, TypeError) as error:
        raise type(error)(
            f"{redact(address)}: no such kind of address, or not here ({error})"
        ) from error
    return found


def read(
    address: str,
    name: str,
    start: int = 0,
    end: int | None = None,
    check: Check | None = None,
    most: int = LARGEST,
) -> bytes:
    """Bytes `start` to `end` of an object, or as many as there are; without `end`, all of them, at most `most`.

    `check` raises WrongBytes for the bytes of another. Raises FileNotFoundError, PermissionError, or ConnectionError
    with the address and the last reason.
    """

    def attempt() -> bytes:
        data = _get(joined(address, name), start, end, most)
        if check is not None:
            check(data)
        return data

    return bytes(_retried(attempt, f"{redact(address)}/{name}", "read"))


def write(address: str, name: str, source: Path) -> None:
    """Sends a file. Raises what `require_writable` does, PermissionError or ConnectionError."""
    require_writable(address)

    def attempt() -> None:
        fs, path = file_system(joined(address, name))
        if scheme_of(address) not in BUCKETS:
            fs.makedirs(fs._parent(path), exist_ok=True)
        fs.put_file(str(source), path)

    _retried(attempt, f"{redact(address)}/{name}", "written")


def require_writable(address: str) -> None:
    """ValueError for a web server and the hub, which do not take one file after the other."""
    named(address)  # ValueError for a bucket with credentials or options
    if scheme_of(address) in (*HTTP, "hf"):
        raise ValueError(
            f"{redact(address)}: files cannot be sent there one by one; name s3://, gs://, or what else "
            "fsspec writes to, or push to hf://datasets/OWNER/NAME"
        )


def sizes(address: str, below: str = "") -> dict[str, int]:
    """The size of each object under an address, by name, or of those in a folder `below` it; none if it is not there.

    Web servers cannot be asked: empty.
    """

    def attempt() -> dict[str, int]:
        if scheme_of(address) == "hf":
            where = hub_client.parse_address(address)
            files = hub_client.files_of(
                where.repository, where.revision, where.under(below).rstrip("/")
            )
            return {file.name.removeprefix(where.under("")): file.bytes for file in files}
        (fs, root), (_, path) = file_system(address), file_system(joined(address, below))
        fs.invalidate_cache()
        found = fs.find(path, detail=True)
        return {name.removeprefix(root).lstrip("/"): facts["size"] for name, facts in found.items()}

    if scheme_of(address) in HTTP:
        return {}
    try:
        return dict(_retried(attempt, f"{redact(address)}/{below}", "listed"))
    except FileNotFoundError:
        return {}


# ---------------------------------------------------------------------------- one attempt


def _get(address: str, start: int, end: int | None, most: int) -> bytes:
    if scheme_of(address) not in (*HTTP, *SIGNED):
        return _cat(address, start, end, most)
    with naming_the_extra("remote"):
        from tokenmill.remote.ranges import Refused, read_url
    if scheme_of(address) in HTTP:
        return read_url(address, {}, start, end, most)
    is_hub = scheme_of(address) == "hf"
    try:
        url, headers = _url_on_the_hub(address) if is_hub else (_signed(address), {})
        return read_url(url, headers, start, end, most)
    except Refused as error:
        if error.status in (408, 429) or error.status >= 500:
            raise
    except Exception as error:
        if "redential" not in repr(error):  # there are none
            raise
    if not is_hub:
        return _cat(
            address, start, end, most
        )  # it knows regions and public buckets, and what S3 says
    _url_on_the_hub.cache_clear()  # the URL may have expired
    return read_url(*_url_on_the_hub(address), start, end, most)


def _cat(address: str, start: int, end: int | None, most: int) -> bytes:
    fs, path = file_system(address)
    span = {"start": start, "end": most + 1 if end is None else end}
    if fs.async_impl:
        from fsspec.asyn import sync

        data = bytes(
            sync(
                fs.loop,
                fs._cat_file,
                path,
                **span,
                timeout=REQUEST_SECONDS * (10 if end is None else 1),
            )
        )
    else:
        data = bytes(fs.cat_file(path, **span, cache_type="none"))  # or it reads 5 MiB ahead
    if len(data) > most and end is None:
        raise ValueError(f"expected at most {most:,} bytes, found more")
    if end is not None and len(data) > end - start:
        raise UnsupportedOperation(
            f"asked for {end - start:,} bytes, found {len(data):,}: no ranges there"
        )
    return data


def _signed(address: str) -> str:
    """A URL that plain HTTP reads an object of S3 by. Making one takes a sixth of a millisecond."""
    bucket, _, key = address.partition("://")[2].partition("/")
    what, client = (
        {"Bucket": bucket, "Key": key},
        _s3_client(os.getpid(), int(time.time() // CLIENT_SECONDS)),
    )
    return str(client.generate_presigned_url("get_object", Params=what))


@functools.lru_cache(1)
def _s3_client(process: int, period: int) -> Any:
    """botocore's: it signs in a third of the time that s3fs takes."""
    with naming_the_extra("remote"):
        import botocore.session
        from botocore.config import Config
    return botocore.session.get_session().create_client(
        "s3", config=Config(signature_version="s3v4")
    )


@functools.lru_cache(4096)
def _url_on_the_hub(address: str) -> tuple[str, dict[str, str]]:
    """Where the hub keeps a file: on another host, which must not see the token, or, of a small file, on its own."""
    with naming_the_extra("remote"):
        from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url
    where, token, endpoint = hub_client.parse_address(address), get_token(), hub_client.endpoint()
    how: dict[str, Any] = {"repo_type": "dataset", "revision": where.revision, "endpoint": endpoint}
    url = hf_hub_url(where.repository, where.path, **how)
    found = get_hf_file_metadata(url, token=token or False).location
    is_elsewhere = urlsplit(found).netloc != urlsplit(url).netloc
    return found, {"Authorization": f"Bearer {token}"} if token and not is_elsewhere else {}


# ---------------------------------------------------------------------------- retries


def _retried(attempt: Callable[[], Any], what: str, done: str) -> Any:
    """What attempt() returns, after as many tries as may help."""
    began, tries, wrong = time.monotonic(), 0, 0
    while True:
        tries += 1
        try:
            return attempt()
        except Exception as error:  # of each library another
            wrong += isinstance(error, WrongBytes)
            spent, reason = time.monotonic() - began, sanitize(hub_client.first_line(error))
            pause = random.uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * 2**tries))
            pause = max(pause, min(LONGEST_PAUSE, getattr(error, "after", 0.0)))
            kind, may_pass = _judge(error)
            if not may_pass or wrong == TRIES_OF_WRONG_BYTES or spent + pause > PATIENCE_SECONDS:
                how = f", {tries} tries over {spent:,.0f} s" if tries > 1 else ""
                if kind is PermissionError:
                    _forget_credentials(what)
                advice = ADVICE.get(scheme_of(what), "") if kind is PermissionError else ""
                raise kind(f"{what}: cannot be {done}{how}: {reason}{advice}") from None
            if spent + pause > WARN_SECONDS:
                LOG.warning(
                    "%s: not %s yet; trying for up to %.0f s: %s",
                    what,
                    done,
                    PATIENCE_SECONDS,
                    reason,
                )
            time.sleep(pause)


def _forget_credentials(address: str) -> None:
    """Looks them up again next time, as a notebook sets them after an error."""
    _s3_client.cache_clear()
    if scheme_of(address) in ("s3", "s3a"):
        file_system(address)[0].clear_instance_cache()


def _judge(error: Exception) -> tuple[type[Exception], bool]:
    """The type of the error that is raised in place of a library's, and whether trying again may help: not for what is
    missing, forbidden or not supported.
    """
    # the HTTP status that it is about: ranges.py's, aiohttp's, or huggingface_hub's
    status = getattr(
        error, "status", getattr(getattr(error, "response", None), "status_code", None)
    )
    if status in (401, 403) or "redential" in repr(error):  # or there are no credentials
        return PermissionError, False
    if isinstance(status, int):
        kind: type[Exception] = {404: FileNotFoundError, 416: WrongBytes}.get(
            status, ConnectionError
        )
        return kind, status in (408, 429) or status >= 500
    final = (FileNotFoundError, PermissionError, ImportError, UnsupportedOperation, ValueError)
    kind = next((kind for kind in (WrongBytes, *final) if isinstance(error, kind)), ConnectionError)
    is_final = isinstance(error, TypeError) or any(word in repr(error) for word in FINAL)
    return kind, kind in (WrongBytes, ConnectionError) and not is_final
