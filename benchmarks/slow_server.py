"""A server on loopback that is as slow as a far bucket: 20 ms a request, 100 MB/s in all. Counts what it sends.

    with serving(files_of(folder)) as address:       http://127.0.0.1:PORT/set, in a process of its own
        sent(address)                                bytes so far

It knows GET with ranges and HEAD, so that clients of S3 are served too: s3://set/... at the endpoint before `/set`.
"""

import os
import threading
import time
import urllib.request
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DELAY, RATE = 0.020, 100_000_000  # seconds a request, bytes a second of all together


class Server(ThreadingHTTPServer):
    """Sends what `find` has for a path, slowly; counts bytes."""

    daemon_threads, request_queue_size = True, 256

    def __init__(self, find):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.find, self.sent, self._free, self._lock = find, 0, 0.0, threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        """A client that leaves in the middle is what some of these do."""

    def wait_for_room(self, size):
        """Until so many bytes may go, at RATE in all."""
        with self._lock:
            now = time.monotonic()
            self._free = max(self._free, now) + size / RATE
            self.sent += size
            pause = self._free - now
        time.sleep(max(0.0, pause))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        time.sleep(DELAY)
        if self.path == "/sent":
            return self.reply(200, str(self.server.sent).encode())
        data = self.server.find(self.path.lstrip("/").partition("?")[0])
        if data is None:
            return self.reply(404, b"")
        first, last = 0, len(data) - 1
        if asked := self.headers.get("Range", ""):
            begin, _, end = asked.removeprefix("bytes=").partition("-")
            first, last = int(begin), min(int(end or last), last)
        part = memoryview(data)[first : last + 1]
        for begin in range(0, len(part), 1 << 18):
            self.server.wait_for_room(len(part[begin : begin + (1 << 18)]))
            if not begin:
                self.begin(
                    206 if asked else 200,
                    len(part),
                    f"bytes {first}-{last}/{len(data)}" if asked else "",
                )
            self.wfile.write(part[begin : begin + (1 << 18)])
        return None

    def do_HEAD(self):
        time.sleep(DELAY)
        data = self.server.find(self.path.lstrip("/").partition("?")[0])
        self.begin(404 if data is None else 200, len(data or b""))

    def begin(self, status, size, span=""):
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", '"0"')
        self.send_header("Last-Modified", "Sat, 01 Nov 2025 00:00:00 GMT")
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()

    def reply(self, status, data):
        self.begin(status, len(data))
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def files_of(folder):
    """The files of a folder, by what follows the first part of a path; read once."""

    @cache
    def find(path):
        there = folder / path.partition("/")[2]
        return there.read_bytes() if there.is_file() else None

    return find


@contextmanager
def serving(find):
    """The server, in a process of its own."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        server = Server(find)
        os.write(writing, f"{server.server_port}\n".encode())
        time.sleep(86_400)
        os._exit(0)
    try:
        yield f"http://127.0.0.1:{int(os.read(reading, 16))}/set"
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def sent(address):
    """Bytes that a server has sent."""
    with urllib.request.urlopen(address.removesuffix("/set") + "/sent") as answer:
        return int(answer.read())
