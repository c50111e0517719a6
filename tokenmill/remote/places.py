"""Where files lie: one that reads for each kind of address, and reading with patience.

place = place_of("s3://bucket/tokens/web")
read(place, "manifest.json")                              whole
read(place, "shards/a.000.bin", 1048576, 2097152)         a range
"""

import os
import time
from collections.abc import Callable
from typing import Protocol

from tokenmill.remote.fs import FileSystem
from tokenmill.remote.http import Web
from tokenmill.remote.hub import Hub
from tokenmill.remote.patience import patiently
from tokenmill.remote.s3 import S3

KINDS = {"s3": S3, "hf": Hub, "http": Web, "https": Web}


class Place(Protocol):
    """Files under an address. `read` is one attempt; from any thread of the process that made it."""

    address: str

    def told(self, name: str) -> str: ...
    def read(self, name: str, start: int = 0, stop: int | None = None, fresh: bool = False) -> bytes: ...


_places: dict[tuple[int, str], Place] = {}


def place_of(address: str) -> Place:
    """What reads an address, one for each in a process. ValueError where its kind is not known."""
    key = (os.getpid(), address)
    if key not in _places:
        kind = KINDS.get(address.partition("://")[0], FileSystem)
        _places[key] = kind(address)
    return _places[key]


def read(
    place: Place,
    name: str,
    start: int = 0,
    stop: int | None = None,
    fresh: bool = False,
    pause_for: Callable[[float], None] = time.sleep,
) -> bytes:
    """The bytes `start` to `stop` of a file, or all of it; tried again where that may help (patience.py), after
    `pause_for` so many seconds.

    FileNotFoundError, PermissionError, ConnectionError or OSError, with the address, where it cannot be had.
    """
    return patiently(lambda _: place.read(name, start, stop, fresh), place.told(name), pause_for)
