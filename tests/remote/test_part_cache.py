"""The cache of parts: what is evicted, deleted, damaged or killed in it costs time, never a row."""

import errno
import os
import random
import signal
import stat
import subprocess
import threading
import time
import zlib
from functools import partial

import fsspec
import pytest
import torch
import warm
from elsewhere import MIB, READ, WINDOW, batches, digest_of, lengths, parts, read_code, same, size
from file_server import FileServer
from making import make_token_set, wait_until

from tokenmill import RowLoader
from tokenmill.addresses import cache_root
from tokenmill.remote import part_cache
from tokenmill.remote.part_cache import Cache, PartFolder
from tokenmill.remote.prefetch import Job, expect, require
from tokenmill.store.files import with_message

as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can give files to another user, and mount disks"
)


def test_a_cache_of_two_windows_keeps_its_limit_and_the_rows(folder, server, tmp_path):
    rows = []
    most = 0
    with RowLoader(
        f"{server.url}/set",
        batch_size=8,
        seq_len=512,
        epochs=2,
        cache_dir=tmp_path,
        cache_bytes=2 * WINDOW,
    ) as loader:
        for inputs, targets in loader:
            rows.append(torch.stack([inputs, targets]))
            if len(rows) % 20 == 0:
                most = max(most, len(parts(tmp_path)) * MIB)
    assert same(rows, batches(folder, epochs=2))
    assert WINDOW < most <= 2 * WINDOW + WINDOW // 2
    assert server.tokens_served() < 2 * 2 * size(folder)


def test_a_disk_that_returns_other_bytes_each_time_is_an_error(monkeypatch, tmp_path):
    fsspec.filesystem("memory").pipe("/bad-disk/a.bin", b"tokens")
    folder = PartFolder(
        Cache(tmp_path), "key", "memory://bad-disk", "a.bin", 6, (zlib.crc32(b"tokens"),)
    )
    monkeypatch.setattr(part_cache, "TRIES", 3)
    monkeypatch.setattr(PartFolder, "_write", lambda self, path, data: path.write_bytes(b"others"))
    with pytest.raises(OSError, match="was fetched 3 times, and the disk has other bytes"):
        folder.load(0)


def test_the_error_of_a_job_is_raised_with_all_that_it_has():
    class OfTwo(Exception):
        """Is not made of its args."""

        def __init__(self, first, second):
            super().__init__(first + second)

    def fail(error):
        raise error

    full = with_message(OSError(errno.ENOSPC, "no space"), "the disk is full")
    with pytest.raises(OSError, match="the disk is full") as raised:
        require([Job(partial(fail, full))])
    assert raised.value.errno == errno.ENOSPC
    with pytest.raises(OfTwo, match="ab"):
        require([Job(partial(fail, OfTwo("a", "b")))])


def test_a_job_that_failed_and_is_required_again_is_done():
    class Slow(Job):
        """Takes its time between its error and the end of its run."""

        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            if name == "error" and value is not None:
                has_failed.set()
                time.sleep(0.2)

    def fail_once():
        if not has_failed.is_set():
            raise OSError("a disk")
        return "done"

    has_failed = threading.Event()
    job = Slow(fail_once)
    expect([job])
    assert has_failed.wait(10)
    threading.Thread(target=require, args=([job],), daemon=True).start()
    wait_until(lambda: job.result == "done")


def test_a_home_folder_is_the_user_s(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TOKENMILL_CACHE", "~/a")
    assert cache_root() == tmp_path / "a"
    assert cache_root("~/b") == tmp_path / "b"


def test_too_small_a_cache_is_an_error_with_both_numbers(server, tmp_path):
    message = r"the cache may take 1,048,576 bytes, but rows need [\d,]+: 2 windows"
    with pytest.raises(ValueError, match=message):
        RowLoader(
            f"{server.url}/set", batch_size=8, seq_len=512, cache_dir=tmp_path, cache_bytes=MIB
        )


def test_parts_that_are_deleted_or_damaged_are_fetched_again(folder, server, tmp_path):
    """While they are read, as by eviction, and between runs, as by a power cut."""
    here = batches(folder)
    rng = random.Random(3)
    with RowLoader(
        f"{server.url}/set", batch_size=8, seq_len=512, epochs=1, cache_dir=tmp_path
    ) as loader:
        for number, (inputs, _) in enumerate(loader):
            assert torch.equal(inputs, here[number][0])
            if number % 10 == 0:
                there = sorted(parts(tmp_path))
                for path in rng.sample(there, min(3, len(there))):
                    path.unlink(missing_ok=True)
    assert same(batches(f"{server.url}/set", cache_dir=tmp_path), here)
    served = server.tokens_served()
    flipped, emptied, zeroed = sorted(parts(tmp_path))[:3]
    right = flipped.read_bytes()
    flipped.write_bytes(bytes([right[0] ^ 1]) + right[1:])
    emptied.write_bytes(b"")
    zeroed.write_bytes(bytes(zeroed.stat().st_size))
    for path in tmp_path.glob("sets/*/shards/*"):
        path.write_bytes(b"[]")
    done = warm.run("-c", read_code(f"{server.url}/set", tmp_path))
    assert done.stdout.strip() == digest_of(folder), done.stderr
    assert served < server.tokens_served() <= served + 3 * MIB


def test_kills_evictions_and_deleted_parts_never_give_a_wrong_row(folder, server, tmp_path):
    """Four ranks on a cache of two windows, killed at random."""
    of_all = [inputs.split(8) for inputs, _ in batches(folder, batch_size=32)]
    for rank in range(4):
        torch.save([inputs[rank].clone() for inputs in of_all], tmp_path / f"{rank}.pt")
    cache = tmp_path / "cache"
    code = (
        READ
        + f"""
import torch
rank = int(sys.argv[1])
right = torch.load("{tmp_path}/" + str(rank) + ".pt")
with RowLoader("{server.url}/set", batch_size=8, seq_len=512, epochs=1, rank=rank, world_size=4,
        cache_dir="{cache}", cache_bytes=2 * {WINDOW}) as loader:
    for number, (inputs, _) in enumerate(loader):
        print("right" if torch.equal(inputs, right[number]) else "WRONG", flush=True)
print("whole" if number + 1 == len(right) else "WRONG", flush=True)
"""
    )
    rng = random.Random(5)
    running = {}
    printed = ""
    kills = 0
    end = time.monotonic() + 4
    while time.monotonic() < end or running:
        for rank in range(4):
            if rank not in running and time.monotonic() < end:
                running[rank] = warm.Command("-c", code, rank)
        time.sleep(rng.random() * 0.2)
        there = parts(cache)
        for path in rng.sample(there, min(len(there), 3)):
            path.unlink(missing_ok=True)
        for rank, command in list(running.items()):
            killed = rng.random() < 0.1 and time.monotonic() < end
            if killed:
                command.send_signal(signal.SIGKILL)
                kills += 1
            if killed or time.monotonic() > end or "whole" in command.printed():
                done = running.pop(rank).done()
                printed += done.stdout + done.stderr
    assert kills > 3
    assert printed.count("right") > 300
    assert "whole" in printed
    assert not printed.replace("right", "").replace("whole", "").split(), printed[-2000:]
    assert len(parts(cache)) * MIB <= 3 * WINDOW


def test_where_locks_do_nothing_rows_are_right(folder, server, tmp_path):
    lying = "import fcntl\nfcntl.flock = lambda *_: None\n"
    running = [
        warm.Command("-c", lying + read_code(f"{server.url}/set", tmp_path)) for _ in range(2)
    ]
    assert {process.done(240).stdout.strip() for process in running} == {digest_of(folder)}


def test_a_cache_belongs_to_its_user(server, tmp_path):
    batches(f"{server.url}/set", 1, cache_dir=tmp_path / "mine")
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o700


@as_root
def test_a_cache_of_another_user_is_refused(server, tmp_path):
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 4242, -1)
    with pytest.raises(
        PermissionError,
        match="expected a cache of user 0, found one of user 4242; pass a cache_dir",
    ):
        batches(f"{server.url}/set", 1, cache_dir=tmp_path / "theirs")


@pytest.fixture
def disk(tmp_path):
    """A disk of 4 MiB."""
    (folder := tmp_path / "disk").mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True
    ).returncode:
        pytest.skip("no tmpfs may be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@as_root
def test_a_full_disk_is_an_error_that_says_how_much_is_needed(server, disk):
    unread = disk / "parts" / ("0" * 64)  # of a set that nobody reads: it goes first
    unread.mkdir(parents=True)
    for number in range(3):
        (unread / str(number)).write_bytes(bytes(MIB))
    with pytest.raises(
        OSError, match=rf"{disk}: no room for [\d,]+ more bytes, and nothing to evict. Make room"
    ):
        batches(f"{server.url}/set", cache_dir=disk, cache_bytes=100 * MIB)
    assert not list(disk.rglob("*.tmp"))
    assert not list(unread.iterdir())


def test_two_sets_of_one_name_share_no_part(tmp_path):
    """The same shards' names and sizes, other tokens; and one address whose set was replaced
    between two runs.
    """
    sets = [
        make_token_set(tmp_path / name, train=[lengths(MIB, 5)], val=[[9]], seed=n)
        for n, name in enumerate("ab")
    ]
    with FileServer.of(sets[0]) as server:
        for folder in (sets[0], sets[1], sets[0]):
            server.files = FileServer.of(folder).files
            assert same(batches(f"{server.url}/set", cache_dir=tmp_path / "c"), batches(folder))
