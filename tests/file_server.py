"""Servers on loopback with faults to order: a web server that serves files by ranges, and a Hugging
Face hub.
"""

import base64
import contextlib
import hashlib
import json
import os
import re
import threading
import time
import uuid
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit


class FileServer(ThreadingHTTPServer):
    """`files` are bytes by path, without a slash before it. What was served is in `served`, bytes
    by path.

    `faults` has, by path, what goes wrong at the next times that it is asked for: "drop" (in the
    middle), "flip" (a bit), "503", "429" (with Retry-After), "stall", "trickle", "short", "whole"
    (200 for a range), "403", "redirect". `always` has what goes wrong every time, by a part of the
    path.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, files: dict[str, bytes], delay: float = 0.0):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.delay = delay
        self.served = Counter()
        self.asked: list[tuple[str, str]] = []  # path, range
        self.faults: dict[str, list[str]] = {}
        self.always: dict[str, str] = {}
        self.location: str | None = None  # where "redirect" sends
        self.sig: str | None = None  # what a plain address must say behind `?sig=`
        self.lock = threading.Lock()
        self.ended = threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @classmethod
    def of(cls, folder, under: str = "set", **more) -> "FileServer":
        """All files of a folder, under a name."""
        files = {}
        for path in folder.rglob("*"):
            if path.is_file():
                files[f"{under}/{path.relative_to(folder)}"] = path.read_bytes()
        return cls(files, **more)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def tokens_served(self) -> int:
        """Bytes of shards' tokens that were served."""
        return sum(count for path, count in list(self.served.items()) if path.endswith(".bin"))

    def answer(self, handler, path: str, body: bytes) -> None:
        handler.serve(path, self.files.get(path))

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        # what stalls is hung up, or a client's threads would wait for it during the next tests
        self.ended.set()
        self.shutdown()
        self.server_close()


class Hub(FileServer):
    """A hub with one repository, whose files are redirected to URLs that expire when `renew` is
    called.

    `commits` has the files of each commit, `main` is one of them. `fetched` and `ranges` say what
    was asked for of them, in order; `resolved` counts the addresses of files that were asked for,
    `pushes` the commits that came, and `created` the repositories that were asked for.
    """

    PATH = re.compile(
        r"(?:api/)?(?:datasets/|models/)?(?P<repository>[^/]+/[^/]+?)(?:\.git/info)?"
        r"(?:/(?P<verb>revision|tree|resolve|paths-info|preupload|commit|lfs)/"
        r"(?P<revision>[^/]+))?(?:/(?P<name>.*))?"
    )

    def __init__(self, repository: str, files: dict[str, bytes]):
        self.repository = repository
        self.main = "a" * 40
        self.commits = {self.main: files}
        self.token: str | None = None
        self.objects: dict[str, bytes] = {}  # large files that were pushed, by their SHA-256
        self.pushes = 0
        self.created = 0  # how often a repository was asked for
        self.resolved = 0
        self.renew()
        super().__init__(files)

    @property
    def fetched(self) -> list[str]:
        return [path for path, _ in self.asked]

    @property
    def ranges(self) -> list[tuple[str, int]]:
        ranges = []
        for path, asked in self.asked:
            begin = re.match(r"bytes=(\d+)", asked)
            if begin:
                ranges.append((path, int(begin[1])))
        return ranges

    def renew(self) -> None:
        """From now on the URLs that the hub has signed are no longer good."""
        self.signature = uuid.uuid4().hex

    def answer(self, handler, path: str, body: bytes) -> None:
        if path.startswith("cdn/"):
            return self.of_cdn(handler, path.removeprefix("cdn/"))
        if path.startswith("lfs/"):
            self.objects[path.removeprefix("lfs/")] = body
            return handler.reply(200)
        self.created += path == "api/repos/create"
        if path in ("api/repos/create", "api/validate-yaml"):
            return handler.reply_json({"url": f"{self.url}/datasets/{self.repository}"})
        asked = self.PATH.fullmatch(path)
        if asked and asked["repository"] == "o/renamed":
            renamed = path.replace("o/renamed", self.repository)
            return handler.reply(307, headers={"Location": f"/{renamed}"})
        if asked is None or asked["repository"] != self.repository:
            return handler.refuse("RepoNotFound")
        if self.token and handler.headers.get("Authorization") != f"Bearer {self.token}":
            return handler.refuse("RepoNotFound", status=401)
        name = asked["name"] or ""
        return self.of_repository(handler, asked["verb"], asked["revision"], name, body)

    def of_repository(self, handler, verb, revision, name: str, body: bytes) -> None:
        commit = self.main if revision in ("main", "objects", None) else revision
        if commit not in self.commits:
            return handler.refuse("RevisionNotFound")
        files = self.commits[commit]
        if verb in ("revision", None):
            facts = {"id": self.repository, "sha": commit, "siblings": [], "tags": []}
            return handler.reply_json(facts)
        if verb == "tree":
            folder = f"{name}/" if name else ""
            below = [_entry(path, files[path]) for path in files if path.startswith(folder)]
            return handler.reply_json(below) if below else handler.refuse("EntryNotFound")
        if verb == "paths-info":
            wanted = parse_qs(body.decode())["paths"]
            entries = [_entry(path, files[path]) for path in wanted if path in files]
            return handler.reply_json(entries)
        if verb == "resolve":
            self.resolved += 1
            if name not in files:
                return handler.refuse("EntryNotFound")
            # another host, as the hub's is: a token must not follow
            host = f"http://localhost:{self.server_port}"
            headers = {
                "Location": f"{host}/cdn/{commit}/{quote(name)}?signature={self.signature}",
                "X-Linked-Size": str(len(files[name])),
                "X-Linked-ETag": f'"{hashlib.sha256(files[name]).hexdigest()}"',
                "X-Repo-Commit": commit,
            }
            return handler.reply(302, headers=headers)
        return self.of_push(handler, verb, body)

    def of_push(self, handler, verb: str, body: bytes) -> None:
        """What huggingface_hub asks to push: which files are large, where to, and a commit."""
        if verb == "preupload":
            files = []
            for file in json.loads(body)["files"]:
                mode = "lfs" if file["path"].endswith((".bin", ".idx")) else "regular"
                answer = {"path": file["path"], "uploadMode": mode}
                files.append({**answer, "shouldIgnore": False, "oid": None})
            return handler.reply_json({"files": files})
        if verb == "lfs":
            objects = []
            for asked in json.loads(body)["objects"]:
                oid = asked["oid"]
                objects.append({"oid": oid, "size": asked["size"]})
                if oid not in self.objects:
                    objects[-1]["actions"] = {"upload": {"href": f"{self.url}/lfs/{oid}"}}
            return handler.reply_json({"transfer": "basic", "objects": objects})
        self.pushes += 1
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            if line["key"] == "lfsFile":
                self.files[value["path"]] = self.objects[value["oid"]]
        url = f"{self.url}/datasets/{self.repository}/commit/{self.main}"
        pushed = {"commitUrl": url, "commitOid": self.main}
        return handler.reply_json({**pushed, "hookOutput": "", "pullRequestUrl": None})

    def of_cdn(self, handler, path: str) -> None:
        if parse_qs(urlsplit(handler.path).query)["signature"] != [self.signature]:
            return handler.reply(403)
        if handler.headers.get("Authorization"):
            return handler.reply(400)  # a token was sent to another host
        commit, _, name = path.partition("/")
        return handler.serve(name, self.commits[commit].get(name))


def environment(url, tmp_path) -> dict[str, str]:
    """In which the real client talks to the hub at this address, and keeps what it keeps below
    tmp_path.
    """
    more = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
    more |= {"no_proxy": "127.0.0.1,localhost"}
    return {**{key: value for key, value in os.environ.items() if key != "HF_TOKEN"}, **more}


def _entry(name: str, data: bytes) -> dict:
    entry = {"type": "file", "path": name, "size": len(data)}
    if name.endswith((".md", ".jsonl")):
        return entry | {"oid": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}
    lfs = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return entry | {"oid": "f" * 40, "lfs": lfs}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        time.sleep(self.server.delay)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.answer(self, unquote(urlsplit(self.path).path).lstrip("/"), body)

    do_HEAD = do_POST = do_PUT = do_GET

    def serve(self, path: str, data: bytes | None) -> None:
        """Serves a file, or the fault that was ordered."""
        server = self.server
        fault = self.fault_of(path)
        if data is None:
            return self.reply(404)
        signed = parse_qs(urlsplit(self.path).query).get("sig")
        if server.sig is not None and signed != [server.sig]:
            return self.reply(403)
        if fault == "redirect":
            return self.reply(302, headers={"Location": server.location} if server.location else {})
        if fault in ("503", "429", "403", "301"):
            return self.reply(int(fault), headers={"Retry-After": "0"})
        status = 200
        headers = {"Accept-Ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and fault != "whole":
            first = int(asked[1])
            last = int(asked[2] or len(data) - 1)
            if first >= len(data):
                return self.reply(416)
            status = 206
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            data = data[first : last + 1]
        if fault == "flip":
            data = bytes([data[0] ^ 1]) + data[1:]
        if fault == "short":
            data = data[: len(data) // 2]
        if fault in ("drop", "stall", "trickle"):
            self.close_connection = True
            return self.serve_in_part(fault, status, data, headers)
        self.reply(status, data, headers)
        if self.command != "HEAD":
            with server.lock:
                server.served[path] += len(data)
        return None

    def fault_of(self, path: str) -> str | None:
        server = self.server
        with server.lock:
            server.asked.append((path, self.headers.get("Range", "")))
            faults = server.faults.get(path)
            if faults:
                return faults.pop(0)
        for part, fault in server.always.items():
            if part in path:
                return fault
        return None

    def serve_in_part(self, fault: str, status: int, data: bytes, headers) -> None:
        if fault == "trickle":
            self.reply(status, data, headers, sent=b"")
            for byte in data[:600]:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(0.02)
            return
        self.reply(status, data, headers, sent=data[: len(data) // 2])
        if fault == "stall":
            self.wfile.flush()
            self.server.ended.wait(30)

    def refuse(self, code: str, status: int = 404) -> None:
        self.reply(status, headers={"X-Error-Code": code})

    def reply_json(self, value) -> None:
        self.reply(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def reply(
        self, status: int, data: bytes = b"", headers=None, sent: bytes | None = None
    ) -> None:
        """Says that `data` comes; `sent` of it does."""
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data if sent is None else sent)

    def log_message(self, *_):
        pass

    def handle(self):
        with contextlib.suppress(ConnectionError, TimeoutError):  # the client left
            super().handle()
