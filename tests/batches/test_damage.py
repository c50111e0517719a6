"""A shard that changes on disk is a clear error, and never other tokens."""

import hashlib
import os
import time
from itertools import islice

import numpy as np
import pytest
from making import make_token_set
from reference import make_loader, rows_of

from tokenmill.feed import window_rows


@pytest.fixture(autouse=True)
def checked_at_every_batch(monkeypatch):
    """As a file is looked at once a second otherwise."""
    monkeypatch.setattr(window_rows, "CHECK_SECONDS", 0)
    monkeypatch.setattr(
        window_rows.ChangeCheck, "require", lambda self, shards: [s.require_unchanged() for s in shards]
    )


@pytest.fixture
def own_set(tmp_path):
    """A token set of two training shards that a test may damage; a batch of 8 rows takes one shard and some."""
    return make_token_set(tmp_path / "own", train=[[17] * 10, [17] * 10], val=[[17]])


DAMAGE = {
    "deleted": lambda path: path.unlink(),
    "truncated": lambda path: os.truncate(path, 34),
    "written over": lambda path: path.write_bytes(b"\1" * path.stat().st_size),
    "replaced by other tokens": lambda path: (
        path.with_suffix(".new").write_bytes(path.read_bytes()[::-1]),
        path.with_suffix(".new").replace(path),
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("packing", ["best_fit", "concat", "nanochat"])
def test_a_shard_that_changes_under_a_running_loader_is_an_error_not_other_tokens(own_set, damage, packing):
    # prefetch=0: a file that shrinks while a thread is copying from it ends the process, as with every memory map
    loader = make_loader(own_set, packing=packing, batch_size=1, prefetch=0)
    next(loader)
    for path in own_set.glob("shards/train_*.bin"):
        DAMAGE[damage](path)
    message = "deleted, truncated or replaced while it was being read|no such file|expected 340 bytes|another file than"
    with pytest.raises((ValueError, FileNotFoundError), match=rf"shards/train_\d.000.bin: ({message})"):
        list(islice(loader, 40))


HARMLESS = {
    "touched": lambda path: os.utime(path, (1, 1)),
    "put back": lambda path: (
        path.with_suffix(".new").write_bytes(path.read_bytes()),
        path.with_suffix(".new").replace(path),
    ),
}


@pytest.mark.parametrize("change", HARMLESS)
@pytest.mark.parametrize("packing", ["best_fit", "nanochat"])
def test_a_file_of_the_same_bytes_is_the_same_file(own_set, change, packing):
    loader, expected = make_loader(own_set, packing=packing), make_loader(own_set, packing=packing)
    expected = [rows_of(batch) for batch in islice(expected, 40)]
    batches = [rows_of(next(loader))]
    for path in own_set.glob("shards/train_*.bin"):
        HARMLESS[change](path)
    assert batches + [rows_of(batch) for batch in islice(loader, 39)] == expected


def test_files_are_looked_at_once_a_second_and_for_little_of_the_time(own_set, monkeypatch):
    monkeypatch.undo()
    looked, now = [], [100.0]
    monkeypatch.setattr(window_rows.time, "monotonic", lambda: now[0])

    class Shard:
        def require_unchanged(self):
            looked.append(now[0])
            now[0] += took

    unchanged = window_rows.ChangeCheck()
    for took, pause in [(0.001, 1.0), (0.5, 50.0)]:  # noqa: B007 (Shard takes it)
        looked.clear()
        now[0] += 100
        unchanged.require([Shard()])
        for _ in range(2_000):
            now[0] += pause / 1_000
            unchanged.require([Shard()])
        assert 2 <= len(looked) <= 3


@pytest.mark.parametrize("prefetch", [0, 2])
def test_after_an_error_the_next_call_tries_again_from_the_same_row(own_set, prefetch):
    loader, expected = make_loader(own_set, prefetch=prefetch), make_loader(own_set)
    for _ in range(3):
        assert rows_of(next(loader)) == rows_of(next(expected))
    hidden = [path.rename(path.with_suffix(".hidden")) for path in own_set.glob("shards/train_*.bin")]
    with pytest.raises(ValueError, match="deleted, truncated or replaced while it was being read"):
        list(islice(loader, 40))
    state = loader.state_dict()
    with pytest.raises(FileNotFoundError, match="no such file, though the manifest lists it"):
        next(loader)
    for path in hidden:
        path.rename(path.with_suffix(".bin"))
    other = make_loader(own_set)
    other.load_state_dict(state)
    assert [rows_of(next(loader)) for _ in range(15)] == [rows_of(next(other)) for _ in range(15)]


@pytest.mark.parametrize("packing", ["best_fit", "nanochat"])
@pytest.mark.parametrize("offsets", [[0, 20, 10, 170], [0, 10, 10, 170], [0, 10, 20, 180], [1, 10, 20, 170]])
def test_an_offset_index_that_is_not_the_tokens_is_found_when_its_shard_is_opened(tmp_path, offsets, packing):
    path = make_token_set(tmp_path / "set", train=[[10, 10, 150]], val=[[9]])
    np.array(offsets, "<u8").tofile(path / "shards" / "train_0.000.idx")
    with pytest.raises(ValueError, match=r"train_0.000.idx: expected offsets increasing from 0 to 170, found damage"):
        next(make_loader(path, packing=packing, batch_size=1))


def test_tokens_that_the_offsets_do_not_fit_are_found_when_a_row_does_not_begin_with_bos(own_set):
    for path in own_set.glob("shards/train_*.idx"):
        np.array([0, 16, *range(34, 171, 17)], "<u8").tofile(path)
    with pytest.raises(ValueError, match=r"expected a document to begin with BOS \(0\), found [1-9]"):
        list(make_loader(own_set, epochs=1, batch_size=1))


@pytest.mark.parametrize("by", [-1, 1])
def test_one_offset_that_is_wrong_by_one_is_found_wherever_its_document_is_in_a_row(tmp_path, by):
    lengths = [5, 9, 3, 7, 4, 6, 8, 30]
    for damaged in range(1, len(lengths)):
        path = make_token_set(tmp_path / str(damaged), train=[lengths], val=[[9]])
        offsets = np.cumsum([0, *lengths]).astype("<u8")
        offsets[damaged] = int(offsets[damaged]) + by
        offsets.tofile(path / "shards" / "train_0.000.idx")
        with pytest.raises(ValueError, match=r"expected a document to begin with BOS \(0\), found [1-9]"):
            list(make_loader(path, epochs=1, batch_size=1))


@pytest.mark.parametrize("packing", ["best_fit", "concat"])
def test_a_set_that_was_touched_since_its_manifest_was_read_is_hashed_once(
    tmp_path, small_windows, monkeypatch, packing
):
    """As after `touch`, `chown` or a backup: the files are the same, and look changed."""
    touched = make_token_set(tmp_path / "touched", train=[[17] * 10] * 12, val=[[17]])
    loader = make_loader(touched, packing=packing, prefetch=0, batch_size=1)
    time.sleep(0.02)  # the clock of files is coarse
    for path in touched.glob("shards/*.bin"):
        os.utime(path)
    hashed, digest = [], hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda file, how: hashed.append(file.name) or digest(file, how))
    batches = [rows_of(next(loader)) for _ in range(400)]
    assert sorted(set(hashed)) == sorted(map(str, touched.glob("shards/train*.bin")))
    assert len(hashed) == len(set(hashed)), "each file once, however many windows it is in"
    expected = make_loader(touched, packing=packing, batch_size=1)
    assert batches == [rows_of(next(expected)) for _ in range(400)]


def test_a_shard_that_was_replaced_after_the_loader_was_made_and_before_it_was_opened(own_set):
    loader = make_loader(own_set, batch_size=1, packing="nanochat", prefetch=0)  # opens one shard after the other
    next(loader)
    path = own_set / "shards" / "train_1.000.bin"
    path.with_suffix(".new").write_bytes(path.read_bytes()[::-1])
    path.with_suffix(".new").replace(path)
    with pytest.raises(ValueError, match=r"train_1.000.bin: deleted, truncated or replaced while it was being read"):
        list(islice(loader, 40))
