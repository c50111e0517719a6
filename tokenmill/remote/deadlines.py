"""Ends an HTTP request at a given time, wherever it is.

    with ends_by(until):                  a monotonic time
        pool.request(...)                 of a urllib3 manager with pool_classes()

The timeouts of sockets start again with each byte, so a server that sends a byte of its headers now and then holds a
request for hours. Here, one thread of the process shuts the connection down when the time is over, which the reader
sees as a connection that was closed.
"""

import contextlib
import functools
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

LOOK_SECONDS = 0.25  # between looks for requests that are over time

_asking = threading.local()  # .until: of the request that this thread makes; .connections: those that it uses
_open: dict[int, tuple[float, Any]] = {}  # by the id of the connection: until when, and its socket
_watched_by: dict[int, threading.Thread] = {}  # by process


@contextlib.contextmanager
def ends_by(until: float) -> Iterator[None]:
    """Shuts down the connections that this thread uses inside, when it is `until` in monotonic time."""
    _asking.until, _asking.connections = until, []
    try:
        yield
    finally:
        for connection in _asking.connections:
            if _open.get(id(connection), (0.0, None))[0] == until:  # another thread may use it by now
                _open.pop(id(connection), None)
        del _asking.until


def watch(connection: Any) -> None:
    """Notes that a connection of http.client is about to be waited for."""
    until = getattr(_asking, "until", None)
    if until is not None:
        _asking.connections.append(connection)
        _open[id(connection)] = (until, connection.sock)  # which it forgets if the answer has no length
        if os.getpid() not in _watched_by:
            thread = _watched_by[os.getpid()] = threading.Thread(target=_shut_down_what_is_over, daemon=True)
            thread.start()


def _shut_down_what_is_over() -> None:
    while True:
        now = time.monotonic()
        for until, open_socket in list(_open.values()):
            if now > until and open_socket is not None:
                with contextlib.suppress(OSError):
                    open_socket.shutdown(socket.SHUT_RDWR)
        time.sleep(LOOK_SECONDS)


@functools.cache
def pool_classes() -> dict[str, Any]:
    """The classes of urllib3's pools, with connections that are watched."""
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    class Watched(HTTPConnection):
        def getresponse(self) -> Any:
            watch(self)
            return super().getresponse()

    class WatchedSecure(HTTPSConnection):
        def getresponse(self) -> Any:
            watch(self)
            return super().getresponse()

    class Pool(HTTPConnectionPool):
        ConnectionCls = Watched

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = WatchedSecure

    return {"http": Pool, "https": SecurePool}


def _forget() -> None:
    """A fork has no thread that watches, and none of the connections."""
    _open.clear()


os.register_at_fork(after_in_child=_forget)
