"""A server of files, by HTTP ranges and as S3, with a switch for every fault that a server can have.

    with FaultyServer(random.Random(1)) as server:
        server.faults = {"stall": 0.1, "wrong bytes": 0.1}        each with its probability, for each request
        RowLoader(f"{server.url}/b/web"), RowLoader("s3://b/web") under server.environment()

Files are in `files`, by "bucket/key". What a fault does to reading:

    503 storm           the next requests are all answered 503
    stall               half of the body, and then nothing
    drip                a byte now and then, in the body
    drip of headers     a byte now and then, before there is a body
    cut                 half of the body, and the connection is closed
    wrong bytes         a byte of the body is another
    wrong range         the bytes beside those that were asked for
    200 for 206         the whole file
    gzip                the body, compressed, with Content-Encoding
    redirect            to this server by another name
    redirect to nobody  to a port where nobody listens
    login page          a page of HTML, with status 200
    403                 as of a signature that has expired
    another object      what lies there is another's, with another ETag

Writing knows 503 storms and connections that are cut before or after the object is stored.
"""

import contextlib
import gzip
import random
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

READING = (
    "503 storm",
    "stall",
    "drip",
    "drip of headers",
    "cut",
    "wrong bytes",
    "wrong range",
    "200 for 206",
    "gzip",
    "redirect",
    "redirect to nobody",
    "login page",
    "403",
    "another object",
)
WRITING = ("503 storm", "cut", "cut after")
PAGE = b"<!doctype html><title>Sign in</title>" * 20


class FaultyServer(ThreadingHTTPServer):
    """Draws faults for requests, and serves `files`. What it did is in `counts`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, rng: random.Random):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.rng, self.files, self.faults = rng, dict[str, bytes](), dict[str, float]()
        self.counts, self.lock, self.storm, self.ended = Counter(), threading.Lock(), 0, threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def environment(self) -> dict[str, str]:
        """What boto3 finds this server by."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
            "AWS_MAX_ATTEMPTS": "2",
        }

    def draw(self, known: tuple[str, ...]) -> str:
        """The fault of this request, or ""."""
        with self.lock:
            if self.storm:
                self.storm -= 1
                return "503"
            for fault, probability in self.faults.items():
                if fault in known and self.rng.random() < probability:
                    self.counts[fault] += 1
                    if fault == "503 storm":
                        self.storm = self.rng.randrange(12)
                        return "503"
                    return fault
            self.counts["no fault"] += 1
            return ""

    def end_faults(self) -> None:
        with self.lock:
            self.faults, self.storm = {}, 0

    def __enter__(self) -> "FaultyServer":
        return self

    def __exit__(self, *_) -> None:
        self.ended.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyServer

    def key(self) -> str:
        return unquote(urlsplit(self.path).path).strip("/")

    def do_PUT(self):
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.server.draw(WRITING)
        if fault == "503":
            return self.reply(503, b"")
        if fault == "cut":
            return self.hang_up()
        self.server.files[self.key()] = data
        return self.hang_up() if fault == "cut after" else self.reply(200, b"", {"ETag": '"1"'})

    def do_GET(self):
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            return self.list_files(query.get("prefix", [""])[0])
        fault, data = self.server.draw(READING), self.server.files.get(self.key())
        if fault in ("503", "403"):
            return self.reply(int(fault), b"")
        if fault == "redirect":
            return self.reply(302, b"", {"Location": f"http://localhost:{self.server.server_port}{self.path}"})
        if fault == "redirect to nobody":
            return self.reply(302, b"", {"Location": f"http://127.0.0.1:1{self.path}"})
        if fault == "login page":
            return self.reply(200, PAGE, {"Content-Type": "text/html"})
        if data is None:
            return self.reply(404, b"")
        if fault == "another object":
            return self.serve(bytes(len(data)), "", '"2"')
        return self.serve(data, fault, '"1"')

    def serve(self, data: bytes, fault: str, etag: str) -> None:
        status, headers = 200, {"ETag": etag}
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked and fault != "200 for 206":
            first, last = int(asked[1]), int(asked[2])
            if first >= len(data):
                return self.reply(416, b"")
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            beside = min(len(data), last + 1) - first if fault == "wrong range" else 0
            status, data = 206, (data + data)[first + beside : last + 1 + beside]
        if fault == "wrong bytes" and data:
            at = self.server.rng.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        if fault == "gzip":
            data, headers["Content-Encoding"] = gzip.compress(data, 1), "gzip"
        if fault == "drip of headers":
            return self.drip(b"HTTP/1.1 206 Partial Content\r\nX-Drip: " + b"0" * 1000)
        self.begin(status, {**headers, "Content-Length": str(len(data))})
        if fault == "drip":
            return self.drip(data)
        if fault in ("cut", "stall"):
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            if fault == "stall":
                self.server.ended.wait(5)
            return self.hang_up()
        self.wfile.write(data)
        return None

    def drip(self, data: bytes) -> None:
        for byte in data[:200]:
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
            if self.server.ended.wait(0.02):
                break
        self.hang_up()

    def list_files(self, prefix: str) -> None:
        if self.server.draw(WRITING):
            return self.reply(503, b"")
        bucket = self.key()
        keys = [key.removeprefix(f"{bucket}/") for key in sorted(self.server.files) if key.startswith(f"{bucket}/")]
        found = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.server.files[f'{bucket}/{key}'])}</Size></Contents>"
            for key in keys
            if key.startswith(prefix)
        )
        text = f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{found}</ListBucketResult>'
        return self.reply(200, text.encode(), {"Content-Type": "application/xml"})

    def hang_up(self) -> None:
        self.close_connection = True

    def begin(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()

    def reply(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.begin(status, {**(headers or {}), "Content-Length": str(len(data))})
        self.wfile.write(data)

    def log_message(self, *_):
        pass

    def handle(self):
        with contextlib.suppress(ConnectionError, TimeoutError):  # the client left
            super().handle()
