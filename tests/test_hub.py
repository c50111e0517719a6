"""Files of a hub repository are fetched once, with the real client, from a small hub on loopback."""

import hashlib
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from making import make_text, run_prepare, write_parquet

REPOSITORY = "owner/corpus"


class Hub(BaseHTTPRequestHandler):
    """Just enough of the hub: the list of a repository's files, and the files."""

    files: dict[str, bytes] = {}
    fetched: list[str] = []

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        path = self.path.split("?")[0]
        name = path.removeprefix(f"/datasets/{REPOSITORY}/resolve/main/")
        if path.startswith(f"/api/datasets/{REPOSITORY}/tree/main"):
            tree = [{"type": "file", "path": n, "size": len(d), "oid": _oid(d)} for n, d in self.files.items()]
            self.reply(200, json.dumps(tree).encode(), body, {"Content-Type": "application/json"})
        elif name in self.files:
            if body:
                self.fetched.append(name)
            data = self.files[name]
            self.reply(200, data, body, {"ETag": f'"{_oid(data)}"', "X-Repo-Commit": "c" * 40})
        else:
            self.reply(404, b"", body, {"X-Error-Code": "RepoNotFound"})

    def reply(self, status, data, body, headers):
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *_):
        pass


def _oid(data):
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def hub(tmp_path):
    Hub.files, Hub.fetched = {"README.md": b"a data set"}, []
    for number in range(4):
        path = write_parquet(tmp_path / "there" / f"{number}.parquet", make_text(documents=5, seed=number))
        Hub.files[f"shard_{number}.parquet"] = path.read_bytes()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield {
        **os.environ,
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "no_proxy": "127.0.0.1",
    }
    server.shutdown()
    server.server_close()


def test_the_first_files_in_name_order_are_fetched_once_and_more_later(hub, tokenizer_json, tmp_path):
    flags = ("--source", REPOSITORY, "--tokenizer", tokenizer_json, "--num-shards")
    done = run_prepare(*flags, 2, cwd=tmp_path, env=hub)
    assert Hub.fetched == ["shard_0.parquet", "shard_1.parquet"]
    assert (tmp_path / "data/raw/owner--corpus/shard_1.parquet").read_bytes() == Hub.files["shard_1.parquet"]
    assert done.stdout.splitlines()[-1].startswith("data/tokens/corpus-bpe400-")
    run_prepare(*flags, 2, cwd=tmp_path, env=hub)
    more = run_prepare(*flags, 3, cwd=tmp_path, env=hub)
    assert Hub.fetched == ["shard_0.parquet", "shard_1.parquet", "shard_2.parquet"]
    assert "2 of 3 shards are there, 1 to make" in more.stderr


def test_a_repository_that_is_not_there_or_too_small_is_an_error(hub, tokenizer_json, tmp_path):
    flags = ("--tokenizer", tokenizer_json, "--source")
    done = run_prepare(*flags, "owner/nothing", cwd=tmp_path, env=hub, check=False)
    assert done.returncode == 1
    assert "owner/nothing: no such local file or folder, and no such dataset repository on the hub" in done.stderr
    done = run_prepare(*flags, REPOSITORY, cwd=tmp_path, env=hub, check=False)
    assert done.returncode == 1
    assert "expected 46 parquet files, found 4; lower --num-shards" in done.stderr


def test_a_hub_that_does_not_answer_is_an_error_that_says_what_to_do(tokenizer_json, tmp_path):
    env = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "hf"), "no_proxy": "127.0.0.1"}
    done = run_prepare("--source", REPOSITORY, "--tokenizer", tokenizer_json, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 1
    assert "the Hugging Face hub could not be reached" in done.stderr
    assert "--source data/raw/owner--corpus" in done.stderr
    assert "Traceback" not in done.stderr
