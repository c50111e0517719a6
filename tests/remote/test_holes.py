"""A hole in the cache never becomes tokens, whether or not locks work."""

import os
from itertools import pairwise

import numpy as np
import pytest
from elsewhere import MIB, WINDOW, batches, begin, digest_of, punch, read_code, same, told
from hypothesis import given
from hypothesis import strategies as st
from making import some_slow

from tokenmill.remote import cache as caching
from tokenmill.remote.block_state import THERE
from tokenmill.remote.holes import doubtful
from tokenmill.remote.sets import Kept, open_set


def is_doubtful(stretch: list[int], known: bool) -> bool:
    """Whether a stretch, without a first token that is known, has a zero at an end or two in a row."""
    left = stretch[known:]
    return bool(left) and (0 in (left[0], left[-1]) or (0, 0) in pairwise(left))


@given(st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.booleans()), min_size=1, max_size=6))
def test_doubtful_stretches_are_those_with_zeros_in_a_row_or_at_an_end(stretches):
    tokens = [token for stretch, _ in stretches for token in stretch]
    ends = np.cumsum([len(stretch) for stretch, _ in stretches])
    firsts = np.array([0, *ends[:-1]])
    known = np.array([known for _, known in stretches])
    expected = [number for number, stretch in enumerate(stretches) if is_doubtful(*stretch)]
    assert doubtful(np.array(tokens, np.uint16), firsts, known).tolist() == expected


@pytest.mark.parametrize("packing", ["best_fit", "concat", "random", "nanochat"])
def test_a_block_that_is_a_hole_though_it_is_marked_as_there_is_fetched_again(
    folder, server, small_windows, tmp_path, packing
):
    more = {"packing": packing, "count": 800} | ({"epochs": None} if packing == "nanochat" else {})
    here = batches(folder, **more)
    assert same(batches(f"{server.url}/set", cache_dir=tmp_path, **more), here)
    for path in tmp_path.rglob("shards/train*.bin"):
        punch(path, MIB, MIB)
        punch(path, 3 * MIB + 8192, 4096)  # as two processes leave it, of which one fetched while the other evicted
    assert same(batches(f"{server.url}/set", cache_dir=tmp_path, **more), here)


@pytest.mark.parametrize("packing", ["best_fit", "nanochat"])
def test_rows_of_a_set_whose_bos_is_0_are_not_verified_again(folder, server, tmp_path, monkeypatch, packing):
    """BOS is 0 here, and fills many gaps of one token: verifying a block for each cost nine tenths of the speed."""
    verified = []
    real = caching.Cache.read_if_right
    monkeypatch.setattr(caching.Cache, "read_if_right", lambda *of: verified.append(of) or real(*of))
    found = batches(f"{server.url}/set", cache_dir=tmp_path, packing=packing, epochs=None, count=400)
    assert sum(len(inputs) for inputs in found) == 3200
    assert not verified


def test_a_hole_never_comes_from_a_shard_s_read(folder, server, tmp_path):
    token_set = open_set(f"{server.url}/set", Kept(tmp_path))
    shard = token_set.open(token_set.entries[0])
    right = np.fromfile(folder / "shards" / "train_0.000.bin", np.uint16)
    assert np.array_equal(shard.read(0, len(right)), right)
    punch(shard.path, MIB, MIB)
    assert np.array_equal(shard.read(MIB // 2 - 100, MIB // 2 + 1), right[MIB // 2 - 100 : MIB // 2 + 1])
    assert (shard.cache.marks.states()[shard.cache.blocks_of("train_0.000")] == THERE).all()
    punch(shard.path, 0, 5 * MIB)
    assert np.array_equal(np.concatenate(list(shard.in_blocks(300_000))), right)


def test_a_text_with_zeros_is_read_as_it_is(server, folder, tmp_path):
    """Zeros that verified blocks have, too, are tokens: nothing is fetched again for them."""
    path = "set/shards/train_1.000.bin"
    token_set = open_set(f"{server.url}/set", Kept(tmp_path))
    shard = token_set.open(next(entry for entry in token_set.entries if entry.name == "train_1.000"))
    right = np.frombuffer(server.files[path], np.uint16)
    shard.read(0, len(right))
    asked = len(server.asked)
    zeros = np.flatnonzero(right == 0)
    assert len(zeros), "the shard has token 0"
    assert np.array_equal(shard.read(int(zeros[0]), int(zeros[0]) + 1), right[zeros[:1]])
    assert len(server.asked) == asked


LOCKS = {
    "working": "",
    "none": "import fcntl, errno\n"
    "def none(*_): raise OSError(errno.ENOLCK, 'No locks available')\n"
    "fcntl.lockf = fcntl.flock = none",
    "lying": "import fcntl; fcntl.lockf = fcntl.flock = lambda *_: None",
}


@pytest.mark.parametrize("locks", some_slow(LOCKS, quick=["none"]))
@pytest.mark.parametrize("packing", ["best_fit", "concat"])
def test_four_processes_with_a_tight_budget_deal_right_rows(folder, server, small_windows, tmp_path, locks, packing):
    more = f", cache_bytes={2 * WINDOW}, packing={packing!r}, seed="
    running = [begin(read_code(server, tmp_path, more + str(seed), LOCKS[locks])) for seed in (1, 2, 3, 1)]
    found = [told(process) for process in running]
    for seed, (out, error) in zip((1, 2, 3, 1), found, strict=True):
        assert out.strip() == digest_of(folder, seed=seed, packing=packing), error


def test_a_full_disk_waits_for_room_that_other_threads_took(folder, server, tmp_path, monkeypatch):
    """Two threads make room, and one of them writes into both: the other makes room again."""
    token_set = open_set(f"{server.url}/set", Kept(tmp_path))
    shard = token_set.open(token_set.entries[0])
    real, failures = os.pwrite, [True, True, True]

    def full_at_first(descriptor, data, start):
        if failures:
            failures.pop()
            raise OSError(28, os.strerror(28))
        return real(descriptor, data, start)

    monkeypatch.setattr(caching.os, "pwrite", full_at_first)
    right = np.fromfile(folder / "shards" / "train_0.000.bin", np.uint16)
    assert np.array_equal(shard.read(0, 1000), right[:1000])
    assert not failures
