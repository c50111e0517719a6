"""What the folder of a cache goes through: deleted, cut, shared by two names and threads; no hole becomes tokens."""

import os
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import warm
from elsewhere import MIB, Watcher, batches, lengths, same, used
from file_server import FileServer
from making import ROOT, make_token_set, wait_until

from tokenmill import RowLoader
from tokenmill.remote import budget, retry
from tokenmill.remote import fetcher as fetching
from tokenmill.remote.block_locks import NEEDED
from tokenmill.remote.block_state import ABSENT, COMING, THERE
from tokenmill.remote.sets import Kept, RemoteShard, open_set

READ = {"batch_size": 8, "seq_len": 512, "epochs": 1}
DELETED = "deleted or cut while it was in use; leave the cache alone while a run uses it, and resume"


def read_on(loader, found) -> None:
    """Until the loader raises."""
    while True:
        found.append(next(loader)[0].clone())


def read_in_another_process(server, cache, count=None) -> None:
    """The first batches, or an epoch."""
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests')!r}]; from elsewhere import batches\n"
    code += f"batches({server.url + '/set'!r}, {count}, cache_dir={str(cache)!r})"
    done = warm.run("-c", code)
    assert done.returncode == 0, done.stderr


def delete(path):
    path.unlink()


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("harm", [delete, cut])
@pytest.mark.parametrize("suffix", ["bin", "idx"])
@pytest.mark.parametrize("who", ["this process", "another"])
def test_a_file_that_was_deleted_or_cut_comes_anew(folder, server, small_windows, tmp_path, harm, suffix, who):
    here = batches(folder)
    if who == "this process":
        assert same(batches(f"{server.url}/set", cache_dir=tmp_path), here)
    else:
        read_in_another_process(server, tmp_path)
    for path in tmp_path.rglob(f"shards/train*.{suffix}"):
        harm(path)
    assert same(batches(f"{server.url}/set", cache_dir=tmp_path), here)


def test_a_record_that_was_deleted_alone_comes_anew_in_a_living_process(folder, server, tmp_path):
    more = {"packing": "nanochat", "epochs": None, "count": 3}
    here = batches(folder, **more)
    assert same(batches(f"{server.url}/set", cache_dir=tmp_path, **more), here)
    for path in tmp_path.rglob("shards/train*.json"):
        path.unlink()
    assert same(batches(f"{server.url}/set", cache_dir=tmp_path, **more), here)


def test_a_folder_that_is_deleted_and_begun_anew_ends_what_reads_the_old_one(folder, server, small_windows, tmp_path):
    """By a loader of the same process, while blocks of the first are on their way."""
    here = batches(folder)
    server.delay = 0.01
    for read in (1, 200, 700):
        cache, found = tmp_path / str(read), []
        first = RowLoader(f"{server.url}/set", cache_dir=cache, **READ)
        found = [next(first)[0].clone() for _ in range(read)]
        shutil.rmtree(cache)
        second = RowLoader(f"{server.url}/set", cache_dir=cache, **READ)
        after = [next(second)[0].clone() for _ in range(3)]
        with pytest.raises(FileNotFoundError, match=f"{DELETED}|shards: cannot be written to"):
            read_on(first, found)
        assert same(found, here[: len(found)]), "right up to the error"
        after += [next(second)[0].clone() for _ in range(len(here) - 3)]
        assert same(after, here)
        first.close()
        second.close()


def test_a_shard_whose_file_is_made_anew_is_not_read_by_who_opened_the_old_one(folder, server, tmp_path):
    token_set = open_set(f"{server.url}/set", Kept(tmp_path))
    shard = token_set.open(token_set.entries[0])
    assert isinstance(shard, RemoteShard)
    shard.read(0, 1000)
    delete(shard.path)
    again = token_set.open(token_set.entries[0])
    assert (again.read(0, 1000) > 0).any()
    with pytest.raises(FileNotFoundError, match=DELETED):
        shard.read(MIB, MIB + 1000)


def test_rows_end_where_a_shard_s_file_is_made_anew(folder, server, small_windows, tmp_path):
    """Without the look that comes once a second."""
    here = batches(folder)
    with RowLoader(f"{server.url}/set", cache_dir=tmp_path, prefetch=0, **READ) as loader:
        found = [next(loader)[0].clone() for _ in range(20)]
        for path in tmp_path.rglob("shards/train*.bin"):
            delete(path)
        token_set = open_set(f"{server.url}/set", Kept(tmp_path))
        for entry in token_set.split("train"):
            token_set.open(entry).read(0, entry.tokens)
        with pytest.raises(FileNotFoundError, match=DELETED):
            read_on(loader, found)
    assert len(found) == 20
    assert same(found, here[:20])


def test_a_folder_has_one_cache_by_whatever_name_and_from_whichever_thread(folder, server, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real", target_is_directory=True)
    (tmp_path / "real").mkdir()
    found, begin = [], threading.Barrier(8)

    def open_one(number):
        begin.wait()
        found.append(open_set(f"{server.url}/set", Kept(tmp_path / ("link" if number % 2 else "real"))).cache)

    threads = [threading.Thread(target=open_one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


def claimed(cache) -> int:
    """Blocks that this process says it needs, as the kernel knows it."""
    inode, pid = os.stat(cache.folder / "claims").st_ino, str(os.getpid())
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines() if f":{inode} " in line]
    stretches = [(int(lock[6]), int(lock[7])) for lock in locks if lock[4] == pid]
    return sum(last - first + 1 for first, last in stretches if first >= NEEDED)


@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="needs Linux's list of locks")
def test_a_set_that_lay_there_before_it_was_opened_is_counted_once_and_keeps_its_claims(
    folder, server, small_windows, tmp_path, monkeypatch
):
    monkeypatch.setattr(budget, "LOOK_SECONDS", 0.0)
    other = make_token_set(tmp_path / "other", train=[lengths(3_000_000, 70)], val=[[50] * 40], seed=70)
    cache = tmp_path / "cache"
    with FileServer.of(other) as of_other:
        read_in_another_process(of_other, cache, 20)
        with RowLoader(f"{server.url}/set", cache_dir=cache, cache_bytes=60 * MIB, **READ) as one:
            next(one)
            with RowLoader(f"{of_other.url}/set", cache_dir=cache, cache_bytes=60 * MIB, **READ) as two:
                next(two)
                found = budget.Budget(cache)
                wait_until(lambda: abs(found.used() - used(cache)) < 2 * MIB)  # blocks on their way count already
                needed = two.token_set.cache.needed()
                assert claimed(two.token_set.cache) >= len(needed) > 0


def test_the_cache_bytes_that_was_said_last_counts(folder, server, small_windows, tmp_path):
    batches(f"{server.url}/set", split="val", count=1, cache_dir=tmp_path)
    with Watcher(tmp_path) as watcher:
        found = batches(f"{server.url}/set", cache_dir=tmp_path, cache_bytes=22 * MIB)
    assert watcher.most <= 22 * MIB
    assert same(found, batches(folder))
    batches(f"{server.url}/set", cache_dir=tmp_path, cache_bytes=100 * MIB)
    assert sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("train*.bin")) > 22 * MIB


def test_a_renewed_signature_counts_in_the_same_process(folder, server, small_windows, tmp_path):
    server.sig = "old"
    loader = RowLoader(f"{server.url}/set?sig=old", cache_dir=tmp_path, **READ)
    found = [next(loader)[0].clone()]
    server.sig = "new"
    with pytest.raises(PermissionError, match="403"):
        read_on(loader, found)
    state = loader.state_dict()
    loader.close()
    with RowLoader(f"{server.url}/set?sig=new", cache_dir=tmp_path, **READ) as loader:
        loader.load_state_dict(state)
        with pytest.raises(StopIteration):
            read_on(loader, found)
    assert same(found, batches(folder))


def test_another_server_of_the_same_set_is_asked_once_it_is_named(folder, small_windows, tmp_path):
    with FileServer.of(folder) as gone:
        batches(f"{gone.url}/set", count=1, cache_dir=tmp_path)
    with FileServer.of(folder) as server:
        assert same(batches(f"{server.url}/set", cache_dir=tmp_path), batches(folder))


def test_a_server_in_trouble_keeps_nobody_from_another(folder, server, small_windows, tmp_path, monkeypatch):
    """Though every thread that fetches waits to try it again."""
    monkeypatch.setattr(retry, "LONGEST_PAUSE", 1.0)
    other = make_token_set(tmp_path / "other", train=[lengths(3_000_000, 70)], val=[[50] * 40], seed=70)
    server.always[".bin"] = "503"
    sick = RowLoader(f"{server.url}/set", cache_dir=tmp_path / "cache", **READ)
    waiting = threading.Thread(target=lambda: next(sick, None), daemon=True)
    waiting.start()
    time.sleep(1)
    with FileServer.of(other) as healthy:
        assert same(batches(f"{healthy.url}/set", cache_dir=tmp_path / "cache"), batches(other))
    server.always.clear()
    waiting.join(60)
    assert not waiting.is_alive()
    assert torch.equal(next(sick)[0], batches(folder, 2)[1]), "and comes when it is well"
    sick.close()


@pytest.mark.parametrize("stalls", [".bin", "000.json", ".idx"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_closing_does_not_wait_for_a_server_that_stalls(folder, server, small_windows, tmp_path, stalls, prefetch):
    """Whether blocks are waited for, or what a window is planned of, by whichever thread."""
    server.always[stalls] = "stall"
    loader, ended = RowLoader(f"{server.url}/set", cache_dir=tmp_path, prefetch=prefetch, **READ), []
    waiting = threading.Thread(target=lambda: ended.append(pytest.raises(ValueError, next, loader)), daemon=True)
    waiting.start()
    time.sleep(0.5)
    began = time.monotonic()
    loader.close()
    waiting.join(30)
    assert time.monotonic() - began < 8, "a stalled request ends after 20 s, and a thread is waited for for 10"
    assert "closed" in str(ended[0].value)


def test_a_shard_that_is_cut_is_not_made_whole_by_what_comes_next(folder, server, tmp_path):
    """Writing behind its end would give it its size again, and holes."""
    token_set = open_set(f"{server.url}/set", Kept(tmp_path))
    entry = token_set.entries[0]
    shard = token_set.open(entry)
    first = shard.read(MIB // 2, MIB // 2 + 1000)
    os.truncate(shard.path, 4096)
    with pytest.raises(FileNotFoundError, match=DELETED):
        shard.read(2 * MIB, 2 * MIB + 1000)
    again = token_set.open(entry)
    assert (again.read(MIB // 2, MIB // 2 + 1000) == first).all()


def test_a_block_that_comes_while_a_process_begins_is_not_fetched_again(server, tmp_path, monkeypatch):
    """What killed processes were fetching is marked as missing then, and this one was not."""
    token_set = open_set(f"{server.url}/set", Kept(tmp_path))
    token_set.open(token_set.entries[0]).read(MIB // 2, MIB // 2 + 1000)
    cache = token_set.cache
    block = int(np.flatnonzero(cache.marks.states() == THERE)[0])
    cache.marks.set(block, COMING)
    take = cache.claims.take

    def comes_first(number):
        cache.marks.set(number, THERE)
        return take(number)

    monkeypatch.setattr(cache.claims, "take", comes_first)
    cache._sweep()
    assert cache.marks.state(block) == THERE
    monkeypatch.undo()
    cache.marks.set(block, COMING)
    cache._sweep()
    assert cache.marks.state(block) == ABSENT, "whose process is gone"


def test_a_map_that_is_deleted_ends_what_reads_by_it(folder, server, small_windows, tmp_path):
    """While the shards stay, and another loader of the process gives blocks back by a new map."""
    here = batches(folder)
    first = RowLoader(f"{server.url}/set", cache_dir=tmp_path, **READ)
    found = [next(first)[0].clone() for _ in range(150)]
    (first.token_set.cache.folder / "blocks").unlink()
    assert same(batches(f"{server.url}/set", cache_dir=tmp_path, cache_bytes=22 * MIB), here)
    with pytest.raises(FileNotFoundError, match=DELETED):
        read_on(first, found)
    assert same(found, here[: len(found)]), "right up to the error"
    first.close()


def test_shards_without_a_map_are_not_taken(folder, server, tmp_path):
    """Nobody knows what is there, and a hole looks like zeros."""
    here = batches(folder, packing="concat", count=20)
    read_in_another_process(server, tmp_path)
    (cached,) = tmp_path.iterdir()
    for path in (cached / "shards").glob("*.bin"):
        path.write_bytes(bytes([7, 1]) * (path.stat().st_size // 2))
    (cached / "blocks").unlink()
    assert same(batches(f"{server.url}/set", cache_dir=tmp_path, packing="concat", count=20), here)


def test_a_block_that_a_killed_process_was_fetching_is_missing(folder, server, tmp_path):
    read_in_another_process(server, tmp_path)
    (cached,) = tmp_path.iterdir()
    data = bytearray((cached / "blocks").read_bytes())
    data[24] = data[24] & ~3 | COMING  # as it was when the process died
    (cached / "blocks").write_bytes(data)
    token_set = open_set(f"{server.url}/set", Kept(tmp_path))
    assert token_set.cache.marks.state(0) == ABSENT


def test_a_fork_needs_nothing_of_its_parent_s(folder, server, small_windows, tmp_path):
    with RowLoader(f"{server.url}/set", cache_dir=tmp_path, **READ) as loader:
        next(loader)
        assert len(loader.token_set.cache.needed())
        if not (child := os.fork()):
            needed = open_set(f"{server.url}/set", Kept(tmp_path)).cache.needed()
            os._exit(bool(len(needed)))
        assert os.waitpid(child, 0)[1] == 0
        assert len(loader.token_set.cache.needed())


def test_a_set_that_no_run_uses_may_be_deleted_under_a_tight_budget(folder, server, small_windows, tmp_path):
    other = make_token_set(tmp_path / "other", train=[lengths(6_000_000, 70)], val=[[50] * 40], seed=70)
    cache = tmp_path / "cache"
    with FileServer.of(other) as of_other:
        read_in_another_process(of_other, cache)
    unused = next(path for path in cache.iterdir())
    with RowLoader(f"{server.url}/set", cache_dir=cache, cache_bytes=24 * MIB, **READ) as loader:
        found = [next(loader)[0].clone()]
        shutil.rmtree(unused)
        with pytest.raises(StopIteration):
            read_on(loader, found)
    assert same(found, batches(folder))


def test_a_process_has_one_fetcher_whoever_asks_first(monkeypatch):
    monkeypatch.setattr(fetching, "_fetchers", {})
    found, begin = [], threading.Barrier(16)
    threads = [threading.Thread(target=lambda: (begin.wait(), found.append(fetching.fetcher()))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


@pytest.mark.parametrize("linked", ["shards/train_0.000.bin", "shards/train_0.000.idx", "blocks", "claims", "shards"])
def test_nothing_is_written_through_a_link_in_a_cache(folder, server, tmp_path, linked):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "diary").write_bytes(b"my own" * 1000)
    read_in_another_process(server, tmp_path / "cache", count=1)
    (path,) = (tmp_path / "cache").glob(f"*/{linked}")
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.symlink_to(mine if linked == "shards" else mine / "diary")
    with pytest.raises(AssertionError, match="Traceback"):
        read_in_another_process(server, tmp_path / "cache")
    assert {path.name: path.read_bytes() for path in mine.iterdir()} == {"diary": b"my own" * 1000}
