"""What a stranger's manifest, server or cache folder can do: nothing that costs memory, disk, time or right tokens."""

import gzip
import hashlib
import json
import os
import shutil
import stat
import threading
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from elsewhere import SOMEBODY, as_root, batches, cached_set, in_a_new_process, same, write_records_anew
from file_server import FileServer, Odd
from making import make_token_set, of_shards, read_manifest

from tokenmill import RowLoader, TokenSet, cli
from tokenmill.prepare.choose_tokenizer import save_tokenizer
from tokenmill.remote import backends, cache_folder, http_backend, retry
from tokenmill.remote.backends import backend_of, read
from tokenmill.remote.cache_folder import own_folder
from tokenmill.remote.sets import Kept, open_set
from tokenmill.store import schema
from tokenmill.store.small_files import SMALL_FILES

READ = {"batch_size": 8, "seq_len": 512, "epochs": 1}

# ---------------------------------------------------------------------------- the folder of a cache


def test_a_link_in_place_of_a_set_s_folder_is_refused_and_nothing_behind_it_changes(folder, server, tmp_path):
    cached = cached_set(server, tmp_path / "cache")
    in_a_new_process(server, tmp_path)
    mine = shutil.copytree(folder, tmp_path / "mine")
    before = {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()}
    shutil.rmtree(cached)
    cached.symlink_to(mine)
    with pytest.raises(ValueError, match="expected a folder of the cache, found a link"):
        batches(f"{server.url}/set", count=3, cache_dir=tmp_path / "cache")
    assert {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()} == before


def test_a_link_in_place_of_shards_is_refused(server, tmp_path):
    cached = cached_set(server, tmp_path / "cache")
    in_a_new_process(server, tmp_path)
    (cached / "shards").rename(tmp_path / "others")
    (cached / "shards").symlink_to(tmp_path / "others")
    before = sorted(path.stat().st_mtime_ns for path in (tmp_path / "others").iterdir())
    with pytest.raises(ValueError, match="shards: expected a folder of the cache, found a link"):
        batches(f"{server.url}/set", count=3, cache_dir=tmp_path / "cache")
    assert sorted(path.stat().st_mtime_ns for path in (tmp_path / "others").iterdir()) == before


@as_root
def test_blocks_that_another_user_laid_down_are_not_taken(folder, server, tmp_path):
    cached = cached_set(server, tmp_path)
    in_a_new_process(server, tmp_path)
    for path in (cached / "shards").glob("*.bin"):  # other tokens, marked as there
        path.write_bytes(bytes([7, 1]) * (path.stat().st_size // 2))
    for path in (cached, *cached.rglob("*")):
        os.chown(path, SOMEBODY, SOMEBODY)
    assert same(batches(f"{server.url}/set", cache_dir=tmp_path), batches(folder))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {cached.name, f"{cached.name}.0"}, "each user has a folder"


@as_root
def test_a_root_of_another_user_is_refused_unless_it_is_shared_on_purpose(server, folder, tmp_path):
    root = tmp_path / "theirs"
    root.mkdir()
    os.chown(root, SOMEBODY, SOMEBODY)
    os.chmod(root, 0o777)
    with pytest.raises(PermissionError, match=r"belongs to another user \(id 4242\).* chmod 1777"):
        batches(f"{server.url}/set", count=3, cache_dir=root)
    assert not list(root.iterdir())
    os.chmod(root, 0o1777)
    assert same(batches(f"{server.url}/set", 3, cache_dir=root), batches(folder, 3))


def test_a_folder_that_others_could_write_to_is_begun_anew(folder, server, tmp_path, caplog):
    cached = cached_set(server, tmp_path)
    in_a_new_process(server, tmp_path)
    for path in (cached / "shards").glob("*.bin"):
        path.write_bytes(bytes([7, 1]) * (path.stat().st_size // 2))
    os.chmod(cached, 0o775)
    assert same(batches(f"{server.url}/set", cache_dir=tmp_path), batches(folder))
    assert "other users could write" in caplog.text
    assert stat.S_IMODE(cached.stat().st_mode) == 0o700


def test_blocks_of_a_folder_that_was_moved_to_another_s_place_are_checked(folder, server, tmp_path):
    """Whoever may write into the root can rename the folders in it, whosever they are."""
    shutil.copytree(folder, other := tmp_path / "other")
    for path in other.glob("shards/*.bin"):
        tokens = np.fromfile(path, np.uint16)
        path.write_bytes(np.where(tokens, tokens % 900 + 5, 0).astype(np.uint16).tobytes())
    write_records_anew(other)
    with FileServer.of(other) as second:
        for one in (server, second):
            batches(f"{one.url}/set", cache_dir=tmp_path / "cache", packing="concat")
        in_a_new_process(server, tmp_path)
        one, two = (open_set(f"{one.url}/set", Kept(tmp_path / "cache")).path for one in (server, second))
        in_a_new_process(server, tmp_path)
        for path, to in ((one, tmp_path / "moved"), (two, one), (tmp_path / "moved", two)):
            path.rename(to)
        assert same(
            batches(f"{server.url}/set", cache_dir=tmp_path / "cache", packing="concat"),
            batches(folder, packing="concat"),
        )


@pytest.mark.parametrize("moment", ["mkdir", "rmtree"])
def test_a_kill_while_a_folder_is_begun_anew_leaves_nothing_that_is_taken(
    folder, server, tmp_path, monkeypatch, moment
):
    cached = cached_set(server, tmp_path)
    in_a_new_process(server, tmp_path)
    for path in (cached / "shards").glob("*.bin"):
        path.write_bytes(bytes([7, 1]) * (path.stat().st_size // 2))
    os.chmod(cached, 0o777)

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path if moment == "mkdir" else shutil, moment, killed)
        with pytest.raises(KeyboardInterrupt):
            cache_folder._close_to_others(cached)
    more = {"cache_dir": tmp_path, "packing": "concat"}
    assert same(batches(f"{server.url}/set", **more), batches(folder, packing="concat"))
    assert [path.name for path in tmp_path.iterdir()] == [cached.name]


def test_a_file_system_without_modes_does_not_begin_a_folder_anew_each_time(server, tmp_path, monkeypatch):
    cached = cached_set(server, tmp_path)
    in_a_new_process(server, tmp_path)
    os.chmod(cached, 0o777)
    monkeypatch.setattr(cache_folder, "_keeps_modes", lambda root: False)
    asked = len(server.asked)
    assert batches(f"{server.url}/set", cache_dir=tmp_path)
    assert not [path for path, _ in server.asked[asked:] if path.endswith(".bin")]
    assert cache_folder.own_folder(tmp_path, cached.name) == cached


def test_a_folder_of_the_cache_is_closed_to_others_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        folder = own_folder(tmp_path / "root", "0" * 16)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    descriptor = cache_folder.open_own(folder)
    os.close(descriptor)


def test_shards_that_are_deleted_alone_come_anew_in_a_living_process(folder, server, small_windows, tmp_path):
    """As tmpwatch leaves it. What had them open ends with an error; what is opened next does not."""
    here = batches(folder)
    loader = RowLoader(f"{server.url}/set", cache_dir=tmp_path, prefetch=0, **READ)
    next(loader)
    (cached,) = tmp_path.iterdir()
    shutil.rmtree(cached / "shards")
    with pytest.raises(FileNotFoundError, match="deleted or cut while it was in use"):
        list(loader)
    loader.close()
    assert same(batches(f"{server.url}/set", cache_dir=tmp_path), here)


# ---------------------------------------------------------------------------- counts that lie


def lying(folder: Path, tokens: int, documents: int = 20) -> None:
    """Gives the first shard of a set other counts, in manifest and sums."""
    manifest = read_manifest(folder)
    first, *others = manifest["shards"]
    shards = [first | {"tokens": tokens, "documents": documents}, *others]
    (folder / "manifest.json").write_text(json.dumps(of_shards(manifest, shards)))


@pytest.mark.parametrize("tokens", [1 << 41, 1 << 50, 1 << 60])
def test_a_folder_whose_manifest_lies_costs_no_memory(tmp_path, capsys, tokens):
    folder = make_token_set(tmp_path / "set", train=[[50] * 40], val=[[50] * 20])
    lying(folder, tokens)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"train_0.000.bin: expected [\d,]+ bytes, found 4,000"):
        RowLoader(folder, **READ)
    for words in (
        ["show", str(folder), "--row", "0", "--seq-len", "64"],
        ["report", str(folder)],
        ["verify", str(folder)],
    ):
        assert cli.main(words) == 1
    assert tracemalloc.get_traced_memory()[1] < 200 << 20
    tracemalloc.stop()
    assert "train_0.000.bin: expected" in capsys.readouterr().err


@pytest.mark.parametrize("tokens", [1 << 34, 1 << 40, 1 << 43])
def test_a_manifest_at_an_address_that_lies_costs_no_disk_and_no_memory(tmp_path, tokens):
    folder = make_token_set(tmp_path / "set", train=[[50] * 40], val=[[50] * 20])
    lying(folder, tokens)
    tracemalloc.start()
    told = r"train_0.000.bin: expected [\d,]+ bytes or more, found fewer"
    with FileServer.of(folder) as server, pytest.raises(OSError, match=told):
        batches(f"{server.url}/set", cache_dir=tmp_path / "cache")
    assert tracemalloc.get_traced_memory()[1] < 50 << 20
    tracemalloc.stop()
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("tokens", [1 << 33, 1 << 46, 1 << 60])
def test_a_manifest_at_an_address_of_more_tokens_than_there_are_is_refused(tmp_path, tokens):
    """Of one shard, or of thousands that are small enough not to be asked for one by one."""
    folder = make_token_set(tmp_path / "set", train=[[50] * 40], val=[[50] * 20])
    manifest = read_manifest(folder)
    first, *others = manifest["shards"]
    many = [first | {"tokens": tokens, "name": f"n{number}"} for number in range(max(1, (1 << 46) // tokens))]
    (folder / "manifest.json").write_text(json.dumps(of_shards(manifest, [*many, *others])))
    with FileServer.of(folder) as server:
        with pytest.raises(ValueError, match=r"expected at most 17,592,186,044,416 tokens in a set at an address"):
            batches(f"{server.url}/set", cache_dir=tmp_path / "cache")
        assert len(server.asked) == 1, "for the manifest"
    assert not (tmp_path / "cache").exists()


def test_the_map_of_blocks_takes_disk_only_for_shards_that_were_seen(folder, server, tmp_path):
    """A shard may list what its file has not; its record, which has a CRC-32 for each block, must come first."""
    manifest = read_manifest(folder)
    first, *others = manifest["shards"]
    shards = [*others, first | {"tokens": 1 << 33, "name": "huge"}]
    server.files["set/manifest.json"] = json.dumps(of_shards(manifest, shards)).encode()
    token_set = open_set(f"{server.url}/set", Kept(tmp_path))
    (blocks,) = tmp_path.rglob("blocks")
    assert blocks.stat().st_size > 60_000
    assert blocks.stat().st_blocks * 512 <= 16 << 10
    entry = next(entry for entry in token_set.entries if entry.name == "val_0.000")
    right = np.fromfile(folder / "shards" / "val_0.000.bin", np.uint16)
    assert np.array_equal(token_set.open(entry).read(0, entry.tokens), right)
    with pytest.raises((ValueError, OSError), match="huge"):
        token_set.open(token_set.entries[-1])


def test_sums_of_a_manifest_are_checked_first(tmp_path):
    folder = make_token_set(tmp_path / "set", train=[[50] * 40], val=[[50] * 20])
    manifest = read_manifest(folder)
    for key in ("documents", "tokens", "text_bytes"):
        (folder / "manifest.json").write_text(json.dumps(manifest | {key: manifest[key] + 1}))
        with pytest.raises(ValueError, match=f"manifest.json: {key}: expected .*, as its shards have"):
            TokenSet(folder)
    lying(folder, tokens=10, documents=11)
    with pytest.raises(ValueError, match=r"documents of shard train_0.000: expected at most 10"):
        TokenSet(folder)


# ---------------------------------------------------------------------------- tokenizer.json and token_bytes.npy

PAGE = b"<!doctype html><title>Sign in</title>" + b" " * 400


def served_set(prepared, tmp_path, old: bool) -> FileServer:
    """A server of a prepared set; `old` as a manifest without the SHA-256 of these files says it."""
    folder = shutil.copytree(prepared[1], tmp_path / "served")
    manifest = read_manifest(folder)
    assert manifest["files"].keys() == SMALL_FILES.keys()
    if old:
        (folder / "manifest.json").write_text(json.dumps({k: v for k, v in manifest.items() if k != "files"}))
    return FileServer.of(folder)


def flipped(data: bytes) -> bytes:
    """One byte in the middle is another."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("name", SMALL_FILES)
@pytest.mark.parametrize("harm", ["flipped", "page", "cut"])
def test_a_small_file_that_is_not_the_set_s_is_neither_pulled_nor_kept(prepared, tmp_path, capsys, old, name, harm):
    if old and name == "token_bytes.npy" and harm == "flipped":
        pytest.skip("a manifest from before has nothing that tells a flipped bit in this file")
    with served_set(prepared, tmp_path, old) as server:
        right = server.files[f"set/{name}"]
        bad = {"flipped": flipped(right), "page": PAGE, "cut": right[: len(right) // 2]}[harm]
        server.files[f"set/{name}"] = bad
        assert cli.main(["pull", f"{server.url}/set", str(tmp_path / "back")]) == 1
        told = capsys.readouterr().err
        assert f"/set/{name}: expected" in told
        assert not (tmp_path / "back" / "manifest.json").exists()
        with pytest.raises(OSError, match=f"/set/{name}: expected"):
            open_set(f"{server.url}/set", Kept(tmp_path / "cache")).file(name)
        server.files[f"set/{name}"] = right
        assert open_set(f"{server.url}/set", Kept(tmp_path / "cache")).file(name).read_bytes() == right
        assert cli.main(["pull", f"{server.url}/set", str(tmp_path / "back")]) == 0
    assert (tmp_path / "back" / name).read_bytes() == right


def test_a_valid_file_of_another_set_is_not_taken_for_an_older_set_s(prepared, tokenizer, tmp_path, capsys):
    """Whose manifest has no checksums of these files: the fingerprint and the vocabulary tell."""
    other = replace(tokenizer, special_tokens=tokenizer.special_tokens | {"<|more|>": tokenizer.vocab_size})
    (tmp_path / "files").mkdir()
    save_tokenizer(tmp_path / "files", other)
    for number, name in enumerate(SMALL_FILES):
        (tmp_path / str(number)).mkdir()
        with served_set(prepared, tmp_path / str(number), old=True) as server:
            server.files[f"set/{name}"] = (tmp_path / "files" / name).read_bytes()
            assert cli.main(["pull", f"{server.url}/set", str(tmp_path / str(number) / "back")]) == 1
            assert f"/set/{name}: expected" in capsys.readouterr().err


def test_a_login_page_that_a_cache_has_kept_is_fetched_again(prepared, tmp_path):
    with served_set(prepared, tmp_path, old=False) as server:
        token_set = open_set(f"{server.url}/set", Kept(tmp_path / "cache"))
        (token_set.path / "tokenizer.json").write_bytes(PAGE)
        assert token_set.file("tokenizer.json").read_bytes() == server.files["set/tokenizer.json"]


def test_a_damaged_small_file_is_not_pushed_and_is_found_by_verify(prepared, tmp_path, capsys):
    folder = shutil.copytree(prepared[1], tmp_path / "set")
    path = folder / "token_bytes.npy"
    path.write_bytes(flipped(path.read_bytes()))
    assert cli.main(["push", str(folder), f"memory://damaged/{tmp_path.name}"]) == 1
    assert "token_bytes.npy: expected SHA-256" in capsys.readouterr().err
    assert cli.main(["verify", str(folder)]) == 1
    assert "token_bytes.npy: expected SHA-256" in capsys.readouterr().out


def test_a_pull_takes_the_manifest_that_the_address_has_now(prepared, tmp_path):
    """Its digest is the same if only the SHA-256 of another tokenizer.json is in it."""
    with served_set(prepared, tmp_path, old=False) as server:
        left = open_set(f"{server.url}/set", Kept(tmp_path / "back" / ".incoming"))
        (left.path / "manifest.json").write_bytes(b"")  # as a power cut leaves it
        saved = json.loads(server.files["set/tokenizer.json"]) | {"name": "renamed"}
        server.files["set/tokenizer.json"] = json.dumps(saved).encode()
        manifest = json.loads(server.files["set/manifest.json"])
        manifest["files"]["tokenizer.json"] = hashlib.sha256(server.files["set/tokenizer.json"]).hexdigest()
        server.files["set/manifest.json"] = json.dumps(manifest).encode()
        assert cli.main(["pull", f"{server.url}/set", str(tmp_path / "back")]) == 0
    assert read_manifest(tmp_path / "back")["files"] == manifest["files"]


@pytest.mark.parametrize("name", ["manifest.bak", "0" * 16])
def test_a_manifest_that_is_not_called_after_its_digest_is_neither_pushed_nor_right(prepared, tmp_path, capsys, name):
    folder = shutil.copytree(prepared[1], tmp_path / "set")
    shutil.copy(folder / "manifest.json", folder / "manifests" / f"{name}.json")
    assert cli.main(["push", str(folder), f"memory://odd/{tmp_path.name}"]) == 1
    assert f"{name}.json: expected a manifest that is called after its digest" in capsys.readouterr().err
    assert cli.main(["verify", str(folder), "--quick"]) == 1
    assert f"{name}.json: expected a manifest that is called after its digest" in capsys.readouterr().out


def test_a_pulled_set_may_be_read_by_whom_a_prepared_one_may(prepared, tmp_path):
    with served_set(prepared, tmp_path, old=False) as server:
        assert cli.main(["pull", f"{server.url}/set", str(tmp_path / "back")]) == 0
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "back" / "shards").iterdir()}
    assert modes == {stat.S_IMODE((tmp_path / "back" / "manifest.json").stat().st_mode)}


def test_a_record_of_other_documents_is_refused_before_their_offsets_are_fetched(server, tmp_path):
    path = "set/shards/train_0.000.json"
    record = json.loads(server.files[path])
    record["documents"], record["idx"]["bytes"] = (1 << 24) - 1, 8 << 24
    record["idx"]["crc32"], record["source"] = [0] * 128, {"file": "x"}
    server.files[path] = json.dumps(record).encode()
    with pytest.raises(ValueError, match="expected the record of the shard that the manifest lists"):
        batches(f"{server.url}/set", cache_dir=tmp_path)
    assert not [name for name, _ in server.asked if name.endswith("train_0.000.idx")]


# ---------------------------------------------------------------------------- what a server sends


def measured(do) -> float:
    """The most MiB that do() takes."""
    tracemalloc.start()
    do()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most / (1 << 20)


@pytest.mark.parametrize("way", ["length", "chunked", "gzip"])
@pytest.mark.parametrize("name", ["manifest.json", "train_0.000.json"])
def test_what_is_not_json_of_a_right_size_is_not_parsed(folder, server, tmp_path, monkeypatch, way, name):
    """Scaled down: 250 MB of `{},` are parsed into gigabytes."""
    monkeypatch.setattr(backends, "LARGEST", 1 << 20)
    data = b"[" + b"{}," * (4 << 20) + b"{}]"  # 12 MB

    def answer(handler):
        if way == "length":
            return handler.reply(200, data)
        handler.send_response(200)
        if way == "gzip":
            packed = gzip.compress(data)
            handler.send_header("Content-Encoding", "gzip")
            handler.send_header("Content-Length", str(len(packed)))
            handler.end_headers()
            return handler.wfile.write(packed)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for first in range(0, len(data), 1 << 16):
            part = data[first : first + (1 << 16)]
            handler.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        return handler.wfile.write(b"0\r\n\r\n")

    def ask():
        with Odd(server.files, name, answer) as odd, pytest.raises(OSError, match=rf"{name}: expected .*; not read"):
            batches(f"{odd.url}/set", cache_dir=tmp_path)

    assert measured(ask) < 40


def test_json_of_over_64_mib_is_not_parsed_wherever_it_comes_from(tmp_path, monkeypatch):
    from tokenmill.store import files

    monkeypatch.setattr(files, "LARGEST", 1000)
    with pytest.raises(ValueError, match="expected the manifest of a token set of at most 1,000 bytes, found 3,001"):
        files.parse_json(b"[" + b"{}," * 1000, "here", "tokens")
    assert schema.MOST_IDS == 1 << 24


DRIPS = {
    "status line": b"HTTP",
    "headers": b"HTTP/1.1 206 Partial Content\r\nX-A: ",
    "a chunk's size": b"",
    "the size of a second chunk": b"5\r\nhello\r\n",
}


@pytest.mark.parametrize("where", DRIPS)
def test_a_server_that_drips_holds_nobody_for_longer_than_the_patience(server, monkeypatch, where):
    """Each byte starts the timeout of a socket again, so a total is needed."""
    monkeypatch.setattr(retry, "PATIENCE_SECONDS", 2.0)
    monkeypatch.setattr(http_backend, "RANGE_SECONDS", 60.0)
    monkeypatch.setattr(http_backend, "SILENCE_SECONDS", 1.0)
    ended = threading.Event()

    def answer(handler):
        handler.close_connection = True
        if "chunk" in where:
            handler.send_response(200)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
        handler.wfile.write(DRIPS[where])
        while not ended.is_set():
            handler.wfile.write(b"0")
            handler.wfile.flush()
            time.sleep(0.05)

    with Odd(server.files, "manifest.json", answer) as odd:
        began = time.monotonic()
        with pytest.raises(ConnectionError, match="manifest.json: could not be read"):
            read(backend_of(f"{odd.url}/set"), "manifest.json")
        ended.set()
    assert time.monotonic() - began < 10, "and not for minutes"


def test_a_large_file_that_drips_is_left_when_the_patience_ends(server, monkeypatch):
    monkeypatch.setattr(retry, "PATIENCE_SECONDS", 1.5)
    ended = threading.Event()

    def answer(handler):
        handler.close_connection = True
        handler.send_response(200)
        handler.send_header("Content-Length", str(60 << 20))
        handler.end_headers()
        while not ended.is_set():
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.05)

    with Odd(server.files, "manifest.json", answer) as odd:
        began = time.monotonic()
        with pytest.raises(ConnectionError, match="could not be read in 1 tries"):
            read(backend_of(f"{odd.url}/set"), "manifest.json")
        ended.set()
    assert time.monotonic() - began < 10


# ---------------------------------------------------------------------------- redirects and signed URLs


@pytest.mark.parametrize("harm", ["503", "drop", "gone"])
def test_a_redirect_whose_target_dies_is_forgotten(server, monkeypatch, harm):
    """The origin leads elsewhere by then."""
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.01)
    data = bytes(range(256)) * 8
    with FileServer({"set/a.bin": data}) as first, FileServer({"set/a.bin": data}) as second:
        server.files["set/a.bin"], server.always["a.bin"] = b"", "redirect"
        server.location = f"{first.url}/set/a.bin"
        backend = backend_of(f"{server.url}/set")
        assert read(backend, "a.bin", 0, 100) == data[:100]
        server.location = f"{second.url}/set/a.bin"
        assert read(backend, "a.bin", 100, 200) == data[100:200]
        assert not second.asked, "a redirect that works is not asked for again"
        if harm == "gone":
            del first.files["set/a.bin"]
            with pytest.raises(FileNotFoundError):
                read(backend, "a.bin", 100, 200)
        else:
            first.always["a.bin"] = harm
        assert read(backend, "a.bin", 100, 200) == data[100:200]
        assert len(second.asked) == 1


def test_a_redirect_to_wrong_bytes_is_asked_for_anew(folder, server, tmp_path):
    with FileServer.of(folder) as target:
        token_set = open_set(f"{server.url}/set", Kept(tmp_path))
        shard = token_set.open(next(entry for entry in token_set.entries if entry.name == "val_0.000"))
        server.always[".bin"], server.location = "redirect", f"{target.url}/set/shards/val_0.000.bin"
        target.faults["set/shards/val_0.000.bin"] = ["flip"] * 9
        began = len(server.asked)
        with pytest.raises(OSError, match="expected CRC-32"):
            shard.read(0, 100)
        assert len(server.asked) == began + 3, "the origin is asked at each try"


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Length": "\xb2"},
        {"Content-Length": "9" * 5000},
        {"Location": "http://[x"},
        {"Content-Encoding": "\x1b[2Jgz"},
    ],
)
def test_headers_that_cannot_be_read_are_errors_with_the_address(server, monkeypatch, headers):
    monkeypatch.setattr(retry, "PATIENCE_SECONDS", 0.2)

    def answer(handler):
        handler.close_connection = True
        handler.send_response(302 if "Location" in headers else 200)
        for key, value in headers.items():
            handler.send_header(key, value)
        handler.end_headers()

    with (
        Odd(server.files, "manifest.json", answer) as odd,
        pytest.raises(OSError, match="/set/manifest.json: ") as error,
    ):
        read(backend_of(f"{odd.url}/set"), "manifest.json")
    assert "\x1b" not in str(error.value)


def test_redirects_and_signed_urls_are_kept_for_some_files_only(monkeypatch):
    monkeypatch.setattr(http_backend, "KEPT_URLS", 10)
    files = {f"set/{number}.bin": bytes(100) for number in range(40)}
    with FileServer(files) as target, FileServer(files) as server:
        server.always[".bin"] = "redirect"
        backend = backend_of(f"{server.url}/set")
        for number in range(40):
            server.location = f"{target.url}/set/{number}.bin"
            assert read(backend, f"{number}.bin", 0, 50) == bytes(50)
        assert list(backend._redirects) == [f"{number}.bin" for number in range(30, 40)]
    recent = http_backend.Recent()
    for number in range(40):
        recent[str(number)] = number
    recent["30"] = 1
    assert list(recent) == [*map(str, range(31, 40)), "30"]


def test_a_signed_url_is_used_for_minutes_only(monkeypatch):
    """Temporary credentials end sooner than the hour that a URL is good for."""
    from tokenmill.remote import s3_backend

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    backend, now = s3_backend.S3Backend("s3://bucket/web"), [1000.0]
    monkeypatch.setattr(s3_backend.time, "monotonic", lambda: now[0])
    first, _ = backend.url_of("a.bin")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")
    backend._client = None
    assert backend.url_of("a.bin")[0] == first
    now[0] += 301
    assert "other" in backend.url_of("a.bin")[0]


# ---------------------------------------------------------------------------- offsets


def test_offsets_of_more_than_any_json_are_read_again_by_every_process(folder, server, tmp_path, monkeypatch):
    """33.5M documents have 256 MiB of offsets. Here, the limit of what is read whole is smaller."""
    from tokenmill.remote import cache as caching

    monkeypatch.setattr(caching, "LARGEST", 30_000)
    monkeypatch.setattr(backends, "LARGEST", 30_000)
    small = make_token_set(tmp_path / "small", train=[[3] * 5000], val=[[3] * 10])
    with FileServer.of(small) as of_small:
        assert (
            len(of_small.files["set/shards/train_0.000.json"])
            < 30_000
            < len(of_small.files["set/shards/train_0.000.idx"])
        )
        for _ in range(2):
            here = batches(small, seq_len=64)
            assert same(batches(f"{of_small.url}/set", seq_len=64, cache_dir=tmp_path / "cache"), here)
            in_a_new_process(of_small, tmp_path)
