"""Objects at an address, through fsspec: s3://, gs://, hf://, https://, memory:// and all it knows.

    read("s3://bucket/web", "shards/a.bin", 0, 1 << 20)       the first MiB of an object
    read("s3://bucket/web", "manifest.json")                  all of it
    write("s3://bucket/web", "manifest.json", path)           sends a file
    sizes("s3://bucket/web")                                  what is there

HTTP is read by `ranges.py`, and so are objects whose file system can sign a URL of them: S3 and the
Hugging Face hub. `retry.py` tries again.
"""

import functools
import os
import time
from collections.abc import Callable
from io import UnsupportedOperation
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tokenmill import hub_client
from tokenmill.addresses import joined, named
from tokenmill.extras import naming_the_extra
from tokenmill.messages import redact
from tokenmill.remote.retry import is_transient, lacks_credentials, retried
from tokenmill.store.json_files import LARGEST

RANGE_SECONDS = 60.0  # for a range, of file systems that have no time limit
WHOLE_SECONDS = 600.0  # for an object
CLIENT_SECONDS = 1800  # after which credentials are read again, as files of them may be renewed
HTTP = ("http", "https")
SIGNED = ("s3", "hf")
BUCKETS = ("s3", "gs", "gcs", "az", "abfs", "memory")  # where nobody makes folders
# botocore keeps 10 connections, too few for the threads; a bucket's region is looked up
S3_OPTIONS = {"config_kwargs": {"max_pool_connections": 64}, "cache_regions": True}
Check = Callable[[bytes], None]  # raises WrongBytes


def scheme_of(address: str) -> str:
    """The scheme of an address: "s3"."""
    return address.partition("://")[0]


def file_system(address: str) -> tuple[Any, str]:
    """fsspec's file system of an address, and its path there.

    fsspec keeps one instance a process, so asking each time costs microseconds, and is right after
    a fork. ValueError for a scheme that fsspec does not know.
    """
    with naming_the_extra("remote"):
        from fsspec.core import url_to_fs
    options = S3_OPTIONS if scheme_of(address) == "s3" else {}
    try:
        location: tuple[Any, str] = url_to_fs(address, **options)
    except (ImportError, ValueError, TypeError) as error:
        raise type(error)(
            f"{redact(address)}: no such kind of address, or not here ({error})"
        ) from error
    return location


def read(
    address: str,
    name: str,
    start: int = 0,
    end: int | None = None,
    check: Check | None = None,
    most: int = LARGEST,
) -> bytes:
    """Bytes `start` to `end` of an object; without `end`, all of them, at most `most`.

    There may be fewer. `check` raises WrongBytes for the bytes of another. Raises
    FileNotFoundError, PermissionError, or ConnectionError with the address and the last reason.
    """

    def attempt() -> bytes:
        data = _get(joined(address, name), start, end, most)
        if check is not None:
            check(data)
        return data

    shown = f"{redact(address)}/{name}"
    return bytes(retried(attempt, shown, "read", _forget_credentials))


def write(address: str, name: str, source: Path) -> None:
    """Sends a file. Raises what `require_writable` does, PermissionError or ConnectionError."""
    require_writable(address)

    def attempt() -> None:
        fs, path = file_system(joined(address, name))
        if scheme_of(address) not in BUCKETS:
            fs.makedirs(fs._parent(path), exist_ok=True)
        fs.put_file(str(source), path)

    retried(attempt, f"{redact(address)}/{name}", "written", _forget_credentials)


def require_writable(address: str) -> None:
    """ValueError for a web server and the hub, which do not take one file after the other."""
    named(address)  # ValueError for a bucket with credentials or options
    if scheme_of(address) in (*HTTP, "hf"):
        raise ValueError(
            f"{redact(address)}: files cannot be sent there one by one; name s3://, gs://, or what "
            "else fsspec writes to, or push to hf://datasets/OWNER/NAME"
        )


def sizes(address: str, below: str = "") -> dict[str, int]:
    """The size of each object under an address, or in a folder `below` it, by name.

    Empty if nothing is there, and for web servers, which cannot be asked.
    """
    if scheme_of(address) in HTTP:
        return {}
    is_hub = scheme_of(address) == "hf"
    listed = _sizes_on_the_hub if is_hub else _sizes_by_fsspec
    attempt = functools.partial(listed, address, below)
    try:
        return dict(retried(attempt, f"{redact(address)}/{below}", "listed", _forget_credentials))
    except FileNotFoundError:
        return {}


def _sizes_on_the_hub(address: str, below: str) -> dict[str, int]:
    location = hub_client.parse_address(address)
    folder = location.under(below).rstrip("/")
    files = hub_client.files_of(location.repository, location.revision, folder)
    prefix = location.under("")
    return {file.name.removeprefix(prefix): file.bytes for file in files}


def _sizes_by_fsspec(address: str, below: str) -> dict[str, int]:
    fs, root = file_system(address)
    _, path = file_system(joined(address, below))
    fs.invalidate_cache()
    objects = fs.find(path, detail=True)
    return {name.removeprefix(root).lstrip("/"): facts["size"] for name, facts in objects.items()}


# ---------------------------------------------------------------------------- one attempt


def _get(address: str, start: int, end: int | None, most: int) -> bytes:
    scheme = scheme_of(address)
    if scheme not in (*HTTP, *SIGNED):
        return _cat(address, start, end, most)
    with naming_the_extra("remote"):
        from tokenmill.remote.ranges import read_url
    if scheme in HTTP:
        return read_url(address, {}, start, end, most)
    try:
        if scheme == "hf":
            return read_url(*_url_on_the_hub(address), start, end, most)
        return read_url(_signed(address), {}, start, end, most)
    except Exception as error:
        if not _is_refused(error):
            raise
    if scheme == "hf":
        _url_on_the_hub.cache_clear()  # the URL may have expired
        return read_url(*_url_on_the_hub(address), start, end, most)
    return _cat(address, start, end, most)  # fsspec knows regions and public buckets


def _is_refused(error: Exception) -> bool:
    """Whether a URL is refused for good, or there are no credentials to make one."""
    from tokenmill.remote.ranges import Refused

    if isinstance(error, Refused):
        return not is_transient(error.status)
    return lacks_credentials(error)


def _cat(address: str, start: int, end: int | None, most: int) -> bytes:
    """Reads by fsspec. UnsupportedOperation, an OSError, if more comes than was asked for."""
    fs, path = file_system(address)
    stop = most + 1 if end is None else end
    if fs.async_impl:
        from fsspec.asyn import sync

        seconds = WHOLE_SECONDS if end is None else RANGE_SECONDS
        content = sync(fs.loop, fs._cat_file, path, start=start, end=stop, timeout=seconds)
    else:
        # without its cache, which reads 5 MiB ahead
        content = fs.cat_file(path, start=start, end=stop, cache_type="none")
    data = bytes(content)
    if end is None and len(data) > most:
        raise ValueError(f"expected at most {most:,} bytes, found more")
    if end is not None and len(data) > end - start:
        asked = end - start
        raise UnsupportedOperation(
            f"asked for {asked:,} bytes, found {len(data):,}: no ranges there"
        )
    return data


def _signed(address: str) -> str:
    """A URL that plain HTTP reads an object of S3 by. Making one takes a sixth of a millisecond."""
    bucket, _, key = address.partition("://")[2].partition("/")
    client = _s3_client(os.getpid(), int(time.time() // CLIENT_SECONDS))
    parameters = {"Bucket": bucket, "Key": key}
    return str(client.generate_presigned_url("get_object", Params=parameters))


@functools.lru_cache(1)
def _s3_client(process: int, period: int) -> Any:
    """botocore's: it signs in a third of the time that s3fs takes."""
    with naming_the_extra("remote"):
        import botocore.session
        from botocore.config import Config
    config = Config(signature_version="s3v4")
    return botocore.session.get_session().create_client("s3", config=config)


@functools.lru_cache(4096)
def _url_on_the_hub(address: str) -> tuple[str, dict[str, str]]:
    """Where the hub keeps a file, and the headers to ask with.

    That is on another host, which must not see the token, or, of a small file, on its own.
    """
    with naming_the_extra("remote"):
        from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url
    place = hub_client.parse_address(address)
    url = hf_hub_url(
        place.repository,
        place.path,
        repo_type="dataset",
        revision=place.revision,
        endpoint=hub_client.endpoint(),
    )
    token = get_token()
    location = get_hf_file_metadata(url, token=token or False).location
    is_elsewhere = urlsplit(location).netloc != urlsplit(url).netloc
    if not token or is_elsewhere:
        return location, {}
    return location, {"Authorization": f"Bearer {token}"}


def _forget_credentials(address: str) -> None:
    """Looks them up again next time, as a notebook sets them after an error."""
    _s3_client.cache_clear()
    if scheme_of(address) == "s3":
        file_system(address)[0].clear_instance_cache()
