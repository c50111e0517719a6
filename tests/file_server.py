"""A web server on loopback that serves files by ranges, with faults to order: as a plain server and as a hub's."""

import base64
import contextlib
import json
import re
import threading
import time
import uuid
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "c" * 40


class FileServer(ThreadingHTTPServer):
    """`files` are bytes by path, without a slash before it. What was served is in `served`, bytes by path.

    `faults` has, by path, what goes wrong at the next times that it is asked for: "drop" (in the middle), "flip" (a
    bit), "503", "429" (with Retry-After), "stall", "trickle", "short", "whole" (200 for a range), "403", "redirect".
    `always` has what goes wrong every time, by a part of the path. Under /hub/ it is a hub with one repository, o/n,
    whose files are redirected to URLs that expire when `renew` is called.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, files: dict[str, bytes], delay: float = 0.0):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.delay, self.served = files, delay, Counter()
        self.asked: list[tuple[str, str]] = []  # path, range
        self.faults: dict[str, list[str]] = {}
        self.always: dict[str, str] = {}
        self.location: str | None = None  # where "redirect" sends
        self.sig: str | None = None  # what a plain address must say behind `?sig=`
        self.token, self.signature = None, uuid.uuid4().hex
        self.objects: dict[str, bytes] = {}  # that were pushed to the hub, by their SHA-256
        self.commits, self.resolved = 0, 0  # on the hub: commits, and addresses of files that were asked for
        self.lock, self.ended = threading.Lock(), threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @classmethod
    def of(cls, folder, under: str = "set", **more) -> "FileServer":
        """All files of a folder, under a name."""
        files = {
            f"{under}/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()
        }
        return cls(files, **more)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def renew(self) -> None:
        """From now on the URLs that the hub has signed are no longer good."""
        self.signature = uuid.uuid4().hex

    def tokens_served(self) -> int:
        """Bytes of shards' tokens that were served."""
        return sum(count for path, count in self.served.items() if path.endswith(".bin"))

    def __enter__(self) -> "FileServer":
        return self

    def __exit__(self, *_) -> None:
        self.ended.set()  # what stalls is hung up, or a client's threads would wait for it during the next tests
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server, url = self.server, urlsplit(self.path)
        path = unquote(url.path).lstrip("/")
        time.sleep(server.delay)
        if path.startswith("hub/"):
            return self.as_hub(path.removeprefix("hub/"))
        if path.startswith("cdn/"):
            path = path.removeprefix("cdn/")
            if parse_qs(url.query)["signature"] != [server.signature]:
                return self.reply(403, b"expired")
            if self.headers.get("Authorization"):
                return self.reply(400, b"a token was sent to another host")
        return self.serve(path)

    do_HEAD = do_GET

    def do_POST(self):
        """What huggingface_hub asks to push: a repository, which files are large, where to, and a commit of them."""
        server, path = self.server, urlsplit(self.path).path.lstrip("/").removeprefix("hub/")
        told = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if server.token and self.headers.get("Authorization") != f"Bearer {server.token}":
            return self.reply(401, b"")
        if path == "api/repos/create":
            return self.reply(200, json.dumps({"url": f"{server.url}/hub/datasets/o/n"}).encode())
        if path == "api/validate-yaml":
            return self.reply(200, b"{}")
        if path.startswith("api/datasets/o/n/preupload/"):
            modes = [
                (f["path"], "lfs" if f["path"].endswith((".bin", ".idx")) else "regular")
                for f in json.loads(told)["files"]
            ]
            files = [{"path": p, "uploadMode": mode, "shouldIgnore": False, "oid": None} for p, mode in modes]
            return self.reply(200, json.dumps({"files": files}).encode())
        if path == "datasets/o/n.git/info/lfs/objects/batch":
            objects = [
                {"oid": o["oid"], "size": o["size"]}
                | (
                    {}
                    if o["oid"] in server.objects
                    else {"actions": {"upload": {"href": f"{server.url}/lfs/{o['oid']}"}}}
                )
                for o in json.loads(told)["objects"]
            ]
            return self.reply(200, json.dumps({"transfer": "basic", "objects": objects}).encode())
        if path.startswith("api/datasets/o/n/commit/"):
            server.commits += 1
            for line in map(json.loads, told.splitlines()):
                if line["key"] == "file":
                    server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                if line["key"] == "lfsFile":
                    server.files[line["value"]["path"]] = server.objects[line["value"]["oid"]]
            found = {"commitUrl": f"{server.url}/hub/datasets/o/n/commit/{COMMIT}", "commitOid": COMMIT}
            return self.reply(200, json.dumps({**found, "hookOutput": "", "pullRequestUrl": None}).encode())
        return self.reply(404, b"")

    def do_PUT(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.objects[urlsplit(self.path).path.removeprefix("/lfs/")] = data
        self.reply(200, b"")

    def as_hub(self, path):
        server = self.server
        if server.token and self.headers.get("Authorization") != f"Bearer {server.token}":
            return self.reply(401, b"")
        if found := re.fullmatch(r"api/datasets/o/n/revision/(\w+)", path):
            known = found[1] in ("main", COMMIT)
            return self.reply(200 if known else 404, json.dumps({"sha": COMMIT}).encode())
        if found := re.fullmatch(r"api/datasets/o/n/tree/main(?:/(.+?))?/?", path):
            below = f"{found[1]}/" if found[1] else ""
            there = [name for name in server.files if name.startswith(below)]
            listed = [{"type": "file", "path": p, "size": len(server.files[p]), "oid": "0" * 40} for p in there]
            headers = {"Content-Type": "application/json"} | ({} if there else {"X-Error-Code": "EntryNotFound"})
            return self.reply(200 if there else 404, json.dumps(listed).encode() if there else b"", headers)
        if found := re.fullmatch(r"datasets/o/renamed/resolve/(.+)", path):
            return self.reply(307, b"", {"Location": f"/hub/datasets/o/n/resolve/{found[1]}"})
        if found := re.fullmatch(rf"datasets/o/n/resolve/(?:main|{COMMIT})/(.+)", path):
            server.resolved += 1
            if found[1] not in server.files:
                return self.reply(404, b"")
            # another host, as the hub's is: a token must not follow
            there = f"http://localhost:{server.server_port}/cdn/{found[1]}?signature={server.signature}"
            return self.reply(302, b"", {"Location": there})
        return self.reply(404, b"")

    def serve(self, path):
        server = self.server
        with server.lock:
            server.asked.append((path, self.headers.get("Range", "")))
            waiting = server.faults.get(path)
            fault = waiting.pop(0) if waiting else None
        fault = fault or next((what for part, what in server.always.items() if part in path), None)
        data = server.files.get(path)
        if data is None:
            return self.reply(404, b"")
        if server.sig is not None and parse_qs(urlsplit(self.path).query).get("sig") != [server.sig]:
            return self.reply(403, b"expired")
        if fault == "redirect":
            return self.reply(302, b"", {"Location": server.location} if server.location else {})
        if fault in ("503", "429", "403", "301"):
            return self.reply(int(fault), b"", {"Retry-After": "0"})
        status, headers = 200, {}
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked and fault != "whole":
            first, last = int(asked[1]), int(asked[2])
            if first >= len(data):
                return self.reply(416, b"")
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            status, data = 206, data[first : last + 1]
        if fault == "flip":
            data = bytes([data[0] ^ 1]) + data[1:]
        if fault == "short":
            data = data[: len(data) // 2]
        return self.send(status, path, data, headers, fault)

    def send(self, status, path, data, headers, fault):
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if fault in ("drop", "stall"):
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            if fault == "stall":
                self.server.ended.wait(30)
            self.close_connection = True
            return
        if fault == "trickle":
            for byte in data[:600]:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(0.02)
            self.close_connection = True
            return
        if self.command == "HEAD":
            return
        with self.server.lock:
            self.server.served[path] += len(data)
        self.wfile.write(data)

    def reply(self, status, data, headers=None):
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_):
        pass

    def handle(self):
        with contextlib.suppress(ConnectionError, TimeoutError):  # the client left
            super().handle()
