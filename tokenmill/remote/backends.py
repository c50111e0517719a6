"""Reads files at an address, with a backend for each kind of address, and retries.

backend = backend_of("s3://bucket/tokens/web")
read(backend, "manifest.json")                              whole
read(backend, "shards/a.000.bin", 1048576, 2097152)         a range
"""

import os
import time
from collections.abc import Callable
from typing import Protocol

from tokenmill.addresses import hide_secrets
from tokenmill.remote.fsspec_backend import FsspecBackend
from tokenmill.remote.http_backend import HttpBackend, Limits
from tokenmill.remote.hub_backend import HubBackend
from tokenmill.remote.retry import patiently
from tokenmill.remote.s3_backend import S3Backend
from tokenmill.sanitize import sanitize_logs
from tokenmill.store.files import LARGEST
from tokenmill.store.small_files import SMALL_FILES

KINDS = {"s3": S3Backend, "hf": HubBackend, "http": HttpBackend, "https": HttpBackend}


class Backend(Protocol):
    """Files under an address. `read` is one attempt within limits, from any thread of the process that made it."""

    address: str

    def display(self, name: str) -> str: ...
    def read(self, name: str, start: int, stop: int | None, fresh: bool, limits: Limits) -> bytes: ...


_backends: dict[tuple[int, str], Backend] = {}


def backend_of(address: str) -> Backend:
    """The backend of an address, one for each in a process. ValueError if its kind is not known."""
    key = (os.getpid(), address)
    if key not in _backends:
        hide_secrets(address)
        kind = KINDS.get(address.partition("://")[0], FsspecBackend)
        _backends[key] = kind(address)
        sanitize_logs()
    return _backends[key]


def read(
    backend: Backend,
    name: str,
    start: int = 0,
    stop: int | None = None,
    fresh: bool = False,
    pause_for: Callable[[float], None] = time.sleep,
) -> bytes:
    """The bytes `start` to `stop` of a file, or all of it, if it has at most `most_bytes(name)`.

    What may pass is retried (retry.py), after `pause_for(seconds)`. FileNotFoundError, PermissionError, ConnectionError
    or OSError, with the address, if it cannot be read.
    """
    most = most_bytes(name) if stop is None else stop - start
    return patiently(
        lambda until: backend.read(name, start, stop, fresh, Limits(most, until)), backend.display(name), pause_for
    )


def require_same_again(backend: Backend, name: str, data: bytes) -> None:
    """OSError if a file that has no checksum comes in another version when it is read again."""
    if read(backend, name, fresh=True) != data:
        raise OSError(
            f"{backend.display(name)} was read twice and came in two versions: it is being replaced, or was damaged on "
            "the way; run again"
        )


def most_bytes(name: str) -> int:
    """How many bytes a file of a token set may have that is read whole."""
    return SMALL_FILES.get(name, LARGEST)
