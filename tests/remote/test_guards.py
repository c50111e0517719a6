"""What each guard of the cache prevents, one at a time: each of these fails without the line that it is about."""

import contextlib
import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import traceback
import tracemalloc

import fsspec
import numpy as np
import pytest
from elsewhere import (
    MIB,
    SOMEBODY,
    as_root,
    batches,
    cached_set,
    in_a_new_process,
    punch,
    same,
    write_records_anew,
)
from file_server import FileServer, Odd
from making import ROOT, make_token_set, read_manifest, tree

from tokenmill import TokenSet, cli
from tokenmill.feed.remote_rows import BlockGuard
from tokenmill.prepare import upload
from tokenmill.remote import block_state, budget, cache_folder, fetcher, http_backend, retry
from tokenmill.remote.backends import backend_of, read
from tokenmill.remote.block_state import ABSENT, THERE
from tokenmill.remote.pull import pull
from tokenmill.remote.sets import Kept, open_set, while_there


@pytest.fixture
def shard(server, tmp_path):
    """A shard of 10 blocks of which two are there."""
    token_set = open_set(f"{server.url}/set", Kept(tmp_path / "cache"))
    shard = token_set.open(next(entry for entry in token_set.entries if entry.name == "train_0.000"))
    shard.read(0, MIB)
    return shard


def blocks(shard) -> np.ndarray:
    """The blocks of the shard that are there."""
    found = shard.cache.blocks_of(shard.entry.name)
    return found[shard.cache.marks.states()[found] == THERE]


def ended_by_eviction(shard, result):
    """A copy that another process's eviction disturbs the first time. It returns whether it was disturbed."""
    calls = []

    def copy():
        calls.append(None)
        if len(calls) == 1:
            assert shard.cache.give_back(int(blocks(shard)[0]))
            return result + " with a hole"
        return result

    return copy, calls


# ---------------------------------------------------------------------------- a block that is given back under a reader


def test_a_read_is_made_again_if_a_block_was_given_back_meanwhile(shard):
    copy, calls = ended_by_eviction(shard, "right")
    assert while_there(shard.cache, blocks(shard), copy) == "right"
    assert len(calls) == 2


def test_rows_are_joined_again_if_a_block_was_given_back_meanwhile(shard):
    guard = BlockGuard([shard])
    join, calls = ended_by_eviction(shard, "right")
    one, end = np.zeros(1, np.int64), np.array([2 * MIB])
    assert guard.join(one, one, end, join) == "right"
    assert len(calls) == 2


def test_rows_are_not_taken_by_their_era_if_a_block_was_given_back_meanwhile(shard):
    guard, join = BlockGuard([shard]), ended_by_eviction(shard, "right")[0]
    assert guard.join_if_all_present(lambda: "right") is None, "nothing was checked yet"
    guard.check_all_present([(shard.cache, blocks(shard))])
    assert guard.join_if_all_present(lambda: "right") == "right"
    assert guard.join_if_all_present(join) is None
    assert guard.join_if_all_present(lambda: pytest.fail("not from a file with holes")) is None


def test_blocks_that_are_given_back_while_they_are_checked_are_not_taken_by_their_era(shard, monkeypatch):
    guard = BlockGuard([shard])
    monkeypatch.setattr(shard, "require_unchanged", lambda: shard.cache.give_back(int(blocks(shard)[0])))
    guard.check_all_present([(shard.cache, blocks(shard))])
    assert guard.join_if_all_present(lambda: pytest.fail("a block is missing")) is None


def test_a_block_is_marked_as_missing_before_it_is_punched(shard, monkeypatch):
    """So that whoever reads it meanwhile looks again."""
    block, real, states = int(blocks(shard)[0]), shard.cache._punch, []
    monkeypatch.setattr(shard.cache, "_punch", lambda at: (states.append(shard.cache.marks.state(block)), real(at)))
    era = shard.cache.marks.era
    assert shard.cache.give_back(block)
    assert states == [ABSENT]
    assert shard.cache.marks.era != era


@contextlib.contextmanager
def another_process_that_needs(shard):
    """It needs the blocks of the shard that are there."""
    code = (
        f"import sys, numpy as np; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path; from tokenmill.remote.block_locks import Claims\n"
        f"claims = Claims(Path({str(shard.cache.folder / 'claims')!r}))\n"
        f"claims.need(np.array({blocks(shard).tolist()})); print('needed', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"needed\n"
        yield
        other.stdin.close()


def test_a_block_that_another_process_needs_is_not_given_back(shard):
    block = int(blocks(shard)[0])
    with another_process_that_needs(shard):
        assert not shard.cache.give_back(block)
        assert shard.cache.marks.state(block) == THERE
    assert shard.cache.give_back(block), "once nobody needs it"


def test_processes_whose_windows_do_not_fit_together_do_not_wait_for_each_other(shard, folder, monkeypatch, caplog):
    """Each would keep what the others wait for."""
    monkeypatch.setattr(fetcher, "ROOM_SECONDS", 0.3)
    monkeypatch.setitem(budget._said, shard.cache.folder.parent, 2 * MIB)
    right = np.fromfile(folder / "shards" / shard.path.name, np.uint16)[2 * MIB : 3 * MIB]
    with another_process_that_needs(shard):
        mine = blocks(shard)
        assert np.array_equal(shard.read(2 * MIB, 3 * MIB), right)
        assert (shard.cache.marks.states()[mine] == THERE).all(), "what the other needs has stayed"
    assert "the limit is exceeded, as this process has waited" in caplog.text


# ---------------------------------------------------------------------------- files that are not the cache's


@pytest.mark.parametrize("name", ["blocks", "claims"])
def test_a_link_in_place_of_the_map_of_blocks_is_not_followed(server, tmp_path, name):
    cached = cached_set(server, tmp_path / "cache")
    in_a_new_process(server, tmp_path)
    (mine := tmp_path / "mine").write_bytes(b"")
    (cached / name).unlink()
    (cached / name).symlink_to(mine)
    with pytest.raises(OSError, match=name) as error:
        batches(f"{server.url}/set", count=3, cache_dir=tmp_path / "cache")
    assert error.value.errno == errno.ELOOP
    assert mine.read_bytes() == b""


@as_root
def test_shards_of_another_user_are_refused(server, tmp_path):
    cached = cached_set(server, tmp_path)
    in_a_new_process(server, tmp_path)
    os.chown(cached / "shards", SOMEBODY, SOMEBODY)
    with pytest.raises(ValueError, match="shards: belongs to another user"):
        batches(f"{server.url}/set", count=3, cache_dir=tmp_path)


def test_folders_of_the_cache_are_never_open_to_others(tmp_path, monkeypatch, server):
    """They are made closed: closing them afterwards leaves others a moment."""
    monkeypatch.setattr(cache_folder, "_close_to_others", lambda folder: None)
    before = os.umask(0)
    try:
        folder = open_set(f"{server.url}/set", Kept(tmp_path / "cache")).path
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "shards")] == [0o700] * 2


def test_a_file_that_is_cut_is_neither_written_nor_made_whole(shard):
    """Writing its last block would give it its size again, with holes for blocks that are marked as there."""
    os.truncate(shard.path, MIB)
    last = int(shard.cache.blocks_of(shard.entry.name)[-1])
    with pytest.raises(FileNotFoundError, match="deleted or cut while it was in use"):
        shard.cache.fetch(last, lambda **_: None)
    assert shard.path.stat().st_size == MIB
    assert not len(blocks(shard)), "what was there is doubted"


def test_a_block_that_was_written_to_a_deleted_file_does_not_count(shard, monkeypatch):
    last, real = int(shard.cache.blocks_of(shard.entry.name)[-1]), os.pwrite

    def deleted_meanwhile(*what):
        shard.path.unlink()
        return real(*what)

    monkeypatch.setattr(os, "pwrite", deleted_meanwhile)
    with pytest.raises(FileNotFoundError, match="deleted or cut while it was in use"):
        shard.cache.fetch(last, lambda **_: None)
    assert shard.cache.marks.state(last) != THERE


# ---------------------------------------------------------------------------- holes where BOS is no zero


@pytest.mark.parametrize("packing", ["best_fit", "nanochat"])
def test_a_hole_in_place_of_a_bos_that_is_not_0_is_found(tmp_path, small_windows, packing):
    """Documents begin at the last token of a page, so a hole of a page takes their BOS and nothing else of them."""
    folder = make_token_set(tmp_path / "set", train=[[2047] + [2048] * 4000], val=[[50] * 40], bos=7)
    more = {"packing": packing, "count": 400} | ({"epochs": None} if packing == "nanochat" else {})
    here = batches(folder, **more)
    with FileServer.of(folder) as server:
        for _ in range(2):
            assert same(batches(f"{server.url}/set", cache_dir=tmp_path / "cache", **more), here)
            for path in (tmp_path / "cache").rglob("shards/train*.bin"):
                for block in range(path.stat().st_size // MIB):
                    punch(path, block * MIB + 4096 * (20 + block), 4096)


# ---------------------------------------------------------------------------- disk and memory


def test_a_full_disk_is_an_error_before_the_map_of_blocks_is_written(shard, monkeypatch):
    """A page of the map without room for it would be a signal that ends the process."""
    real = os.posix_fallocate

    def full(descriptor, offset, size):
        if offset >= block_state.HEAD:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    cache = shard.cache
    number = cache.number["train_2.000"]
    with pytest.raises(OSError, match="blocks: cannot be written .No space left") as error:
        cache.fetch(int(cache.blocks_of("train_2.000")[0]), lambda **_: None)
    assert error.value.errno == errno.ENOSPC
    assert number not in cache._checksums


@pytest.mark.parametrize("name", ["manifest.json", "shards/train_0.000.json"])
def test_a_file_of_a_tebibyte_is_not_read(tmp_path, name):
    folder = make_token_set(tmp_path / "set", train=[[50] * 40], val=[[50] * 20])
    with open(folder / name, "r+b") as file:
        os.truncate(file.fileno(), 1 << 40)
    tracemalloc.start()
    with pytest.raises(ValueError, match=rf"{name}: expected .* of at most 67,108,864 bytes, found 1,099,511,627,776"):
        (token_set := TokenSet(folder)).record(token_set.entries[0])
    assert tracemalloc.get_traced_memory()[1] < 20 * MIB
    tracemalloc.stop()


# ---------------------------------------------------------------------------- limits of time


class Slow(Odd):
    """Answers the first request for `a.bin` with `first(handler, wait)`, and the others as a server does.

    wait(seconds) returns False once the test has ended.
    """

    def __init__(self, data: bytes, first, length: bool = True):
        self.data, self.ended, waiting = data, threading.Event(), [first]

        def answer(handler):
            handler.close_connection = True
            if waiting:
                waiting.pop()(handler, lambda seconds: not self.ended.wait(seconds))
            else:
                start_answer(handler, len(data) if length else None)
                handler.wfile.write(data)

        super().__init__({"set/a.bin": data}, "a.bin", answer)

    def __exit__(self, *of):
        self.ended.set()
        super().__exit__(*of)


def start_answer(handler, length: int | None) -> None:
    handler.send_response(200)
    if length is not None:
        handler.send_header("Content-Length", str(length))
    handler.end_headers()
    handler.wfile.flush()


def drip(handler, wait):
    """A byte now and then, for longer than anybody waits."""
    start_answer(handler, 100_000)
    for _ in range(1500):
        if not wait(0.02):
            break
        handler.wfile.write(b"x")
        handler.wfile.flush()


def stall(handler, wait):
    start_answer(handler, 100_000)
    handler.wfile.write(b"x" * 1000)
    handler.wfile.flush()
    wait(300)


def stall_without_a_length(handler, wait):
    start_answer(handler, None)
    handler.wfile.write(b"x" * 1000)
    handler.wfile.flush()
    wait(300)


def no_answer(handler, wait):
    start_answer(handler, None)


DATA = bytes(range(256)) * 40


def read_slowly(monkeypatch, first, silence: float, total: float, length: bool = True) -> bytes:
    """What is read of a server that answers badly once, if each attempt has these limits of time, in seconds."""
    monkeypatch.setattr(retry, "PATIENCE_SECONDS", 25.0)
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(http_backend, "SILENCE_SECONDS", silence)
    monkeypatch.setattr(http_backend, "RANGE_SECONDS", total)
    monkeypatch.setattr(http_backend, "SLOWEST", 1 << 40)
    with Slow(DATA, first, length) as server:
        return read(backend_of(f"{server.url}/set"), "a.bin")


def test_silence_alone_ends_an_attempt(monkeypatch):
    assert read_slowly(monkeypatch, stall, silence=0.3, total=60) == DATA


def test_the_time_of_a_body_alone_ends_an_attempt(monkeypatch):
    """Also where nobody shuts the connection down meanwhile."""
    monkeypatch.setattr(http_backend, "ends_by", lambda until: threading.Lock())
    assert read_slowly(monkeypatch, drip, silence=60, total=0.5) == DATA


def test_a_connection_that_is_shut_down_alone_ends_an_attempt(monkeypatch):
    assert read_slowly(monkeypatch, stall, silence=60, total=0.5) == DATA


def test_a_body_without_a_length_that_was_shut_down_is_not_taken_for_a_whole_one(monkeypatch):
    assert read_slowly(monkeypatch, stall_without_a_length, silence=60, total=0.5, length=False) == DATA


def test_an_empty_answer_without_a_length_is_asked_for_again(monkeypatch):
    assert read_slowly(monkeypatch, no_answer, silence=60, total=60, length=False) == DATA


# ---------------------------------------------------------------------------- what errors show, what pull keeps


def test_a_connection_that_is_not_secure_is_an_error_without_the_signature(server):
    address = f"https://127.0.0.1:{server.server_port}/set?signature=abcdef123"
    with pytest.raises(OSError, match="no secure connection") as error:
        read(backend_of(address), "manifest.json")
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__
    assert "abcdef123" not in "".join(traceback.format_exception(error.value))


def test_a_pull_takes_no_other_shard_for_the_set_s(prepared, tmp_path):
    """Its name and sizes are the same, its record and tokens are another set's."""
    folder = prepared[1]
    shutil.copytree(folder, there := tmp_path / "there")
    bos = read_manifest(folder)["tokenizer"]["bos_id"]
    path = min(there.glob("shards/*.bin"))
    tokens = np.fromfile(path, np.uint16)
    path.write_bytes(np.where(tokens == bos, bos, tokens % 90 + 5).astype(np.uint16).tobytes())
    write_records_anew(there)
    (there / "manifest.json").unlink()
    with FileServer.of(folder) as server:
        assert pull(f"{server.url}/set", there) >= 1
    kept = {name: data for name, data in tree(folder).items() if name.endswith((".bin", ".idx"))}
    assert {name: data for name, data in tree(there).items() if name in kept} == kept


def harmed_record(folder, shard: str) -> bytes:
    """A record whose columns are described rightly, and whose source file has another name."""
    path = folder / "shards" / f"{shard}.json"
    data = path.read_bytes()
    harmed = data.replace(b'"file": "', b'"file": "x', 1)
    assert harmed != data
    return harmed


def test_a_record_with_a_wrong_byte_is_fetched_again_and_never_kept(prepared, tmp_path):
    folder = prepared[1]
    shard = TokenSet(folder).entries[0].name
    path = f"set/shards/{shard}.json"
    with FileServer.of(folder) as server:
        server.files[path] = harmed_record(folder, shard)
        with pytest.raises(ValueError, match=rf"{shard}.json: expected the record of the shard that .* lists"):
            pull(f"{server.url}/set", tmp_path / "back")
        server.files[path] = (folder / "shards" / f"{shard}.json").read_bytes()
        server.faults[path] = ["flip", "flip"]
        assert TokenSet(folder).record(TokenSet(folder).entries[0]) == open_record(server, tmp_path / "cache")
        assert pull(f"{server.url}/set", tmp_path / "back") >= 1
        (tmp_path / "back" / "shards" / f"{shard}.json").write_bytes(harmed_record(folder, shard))
        assert pull(f"{server.url}/set", tmp_path / "back") == 1, "as an older version has pulled it"
    assert tree(tmp_path / "back") == {name: data for name, data in tree(folder).items() if name != "lock"}


def open_record(server, cache) -> dict:
    token_set = open_set(f"{server.url}/set", Kept(cache))
    return token_set.record(token_set.entries[0])


def test_a_record_with_a_wrong_byte_is_neither_pushed_nor_right_and_mended_by_a_push(prepared, tmp_path, capsys):
    folder = shutil.copytree(prepared[1], tmp_path / "set")
    shard = TokenSet(folder).entries[0].name
    path, address = folder / "shards" / f"{shard}.json", f"memory://record/{tmp_path.name}"
    right = path.read_bytes()
    path.write_bytes(harmed_record(folder, shard))
    assert cli.main(["push", str(folder), address]) == 1
    assert f"the record of shard {shard} is not the one that the manifest lists" in capsys.readouterr().err
    assert cli.main(["verify", str(folder), "--quick"]) == 1
    assert "record: its SHA-256 is not the manifest's" in capsys.readouterr().out
    path.write_bytes(right)
    assert cli.main(["push", str(folder), address]) == 0
    memory = fsspec.filesystem("memory")
    memory.pipe_file(f"/record/{tmp_path.name}/shards/{shard}.json", harmed_record(folder, shard))
    assert cli.main(["push", str(folder), address]) == 0
    assert memory.cat_file(f"/record/{tmp_path.name}/shards/{shard}.json") == right


def test_a_manifest_that_comes_in_two_versions_is_not_pulled(prepared, tmp_path):
    with FileServer.of(prepared[1]) as server:
        data = server.files["set/manifest.json"]
        name = json.loads(data)["dataset"].encode()
        harmed, versions = data.replace(b'"' + name + b'"', b'"y' + name[1:] + b'"', 1), []

        class Twice(dict):
            def get(self, path, default=None):
                if path == "set/manifest.json":
                    versions.append(path)
                    return harmed if len(versions) == 2 else data
                return super().get(path, default)

        server.files = Twice(server.files)
        with pytest.raises(OSError, match=r"manifest.json was read twice and came in two versions"):
            pull(f"{server.url}/set", tmp_path / "back")
        assert not (tmp_path / "back" / "manifest.json").exists()
        assert pull(f"{server.url}/set", tmp_path / "back") >= 1
    assert (tmp_path / "back" / "manifest.json").read_bytes() == data


@as_root
def test_a_pipe_in_another_user_s_folder_of_a_shared_cache_holds_nobody(folder, server, tmp_path):
    """Whether the manifest was read before is looked up in this user's own folder alone."""
    digest = open_set(f"{server.url}/set", Kept(tmp_path / "mine")).digest
    (theirs := tmp_path / "shared" / digest).mkdir(parents=True)
    os.mkfifo(theirs / "manifest.json")
    for path in (theirs, theirs / "manifest.json"):
        os.chown(path, SOMEBODY, SOMEBODY)
    os.chmod(tmp_path / "shared", 0o1777)
    assert same(batches(f"{server.url}/set", 3, cache_dir=tmp_path / "shared"), batches(folder, 3))


def test_a_new_record_of_a_bucket_that_comes_in_two_versions_is_not_taken(prepared, tmp_path, monkeypatch):
    """No manifest lists it yet, so the manifest would list the wrong one."""
    record = next((prepared[1] / "shards").glob("*.json")).read_bytes()
    name = json.loads(record)["name"]
    fsspec.filesystem("memory").pipe_file(f"/{tmp_path.name}/shards/{name}.json", record)
    bucket = upload.BucketUpload(f"memory://{tmp_path.name}", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(upload, "read", lambda *_: record.replace(b'"file": "', b'"file": "x', 1))
        with pytest.raises(OSError, match=rf"{name}.json was read twice and came in two versions"):
            bucket.fetch_records()
    assert not (tmp_path / "shards" / f"{name}.json").exists()
    bucket.fetch_records()
    assert (tmp_path / "shards" / f"{name}.json").read_bytes() == record
