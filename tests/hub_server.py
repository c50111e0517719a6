"""A small Hugging Face hub on loopback, with the troubles that a real one can have."""

import hashlib
import json
import os
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote

PATH = re.compile(
    r"/(?:api/)?(?:datasets/|models/)?(?P<repository>[^/]+/[^/]+)"
    r"(?:/(?P<verb>revision|tree|resolve|paths-info)/(?P<revision>[^/?]+))?/?(?P<name>[^?]*)"
)


class Hub(ThreadingHTTPServer):
    """`commits` has the files of each commit, `main` is one of them; `fetched` is what was asked for, in order.

    `troubles` has, for a file's name, what goes wrong at the next times that it is asked for: "503", "drop" (in the
    middle of the body), "truncated" (a shorter body that ends well), "wrong" (other bytes), "stall".
    """

    daemon_threads = True

    def __init__(self, repository: str, files: dict[str, bytes]):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repository, self.commits, self.main, self.token = repository, {"a" * 40: files}, "a" * 40, None
        self.fetched, self.ranges, self.troubles = [], [], {}
        self.wait_before = lambda name: None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


def environment(url, tmp_path):
    """In which the real client talks to the hub at this address, and keeps what it keeps below tmp_path."""
    more = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1", "no_proxy": "127.0.0.1"}
    return {**{key: value for key, value in os.environ.items() if key != "HF_TOKEN"}, **more}


class _Handler(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    do_POST = do_GET

    def answer(self, body: bool) -> None:
        hub, asked = self.server, PATH.match(self.path)
        if asked is None or asked["repository"] != hub.repository:
            return self.reply(404, b"", {"X-Error-Code": "RepoNotFound"})
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self.reply(401, b"", {"X-Error-Code": "RepoNotFound"})
        commit = hub.main if asked["revision"] in ("main", None) else asked["revision"]
        if commit not in hub.commits:
            return self.reply(404, b"", {"X-Error-Code": "RevisionNotFound"})
        files = hub.commits[commit]
        if asked["verb"] in ("revision", None):
            return self.reply_json({"id": hub.repository, "sha": commit, "siblings": [], "tags": []})
        if asked["verb"] == "tree":
            return self.reply_json([_entry(name, data) for name, data in files.items()])
        if asked["verb"] == "paths-info":
            wanted = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())["paths"]
            return self.reply_json([_entry(name, files[name]) for name in wanted if name in files])
        name = unquote(asked["name"])
        if name not in files:
            return self.reply(404, b"", {"X-Error-Code": "EntryNotFound"})
        return self.serve(name, files[name], commit, body)

    def serve(self, name: str, data: bytes, commit: str, body: bool) -> None:
        hub = self.server
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if not body:
            return self.reply(200, data, headers, body=False)
        hub.wait_before(name)
        hub.fetched.append(name)
        trouble = hub.troubles[name].pop(0) if hub.troubles.get(name) else None
        if trouble == "503":
            return self.reply(503, b"", {})
        if trouble == "wrong":
            data = bytes(len(data))
        if trouble == "truncated":
            data = data[: len(data) // 2]
        status, begin = 200, 0
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            status, begin = 206, int(found[1])
            data = data[: int(found[2]) + 1] if found[2] else data
            hub.ranges.append((name, begin))
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        cut = begin + (len(data) - begin) // 2 if trouble in ("drop", "stall") else None
        self.reply(status, data[begin:], headers, body=data[begin:cut])
        if trouble == "stall":
            self.wfile.flush()
            time.sleep(60)
        if trouble:
            self.close_connection = True
        return None

    def reply_json(self, value) -> None:
        self.reply(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def reply(self, status: int, data: bytes, headers: dict, body: bytes | bool = True) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD" and body is not False:
            self.wfile.write(data if body is True else body)

    def log_message(self, *_):
        pass


def _entry(name: str, data: bytes) -> dict:
    entry = {"type": "file", "path": name, "size": len(data)}
    if name.endswith(".md"):
        return entry | {"oid": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}
    lfs = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return entry | {"oid": "f" * 40, "lfs": lfs}
