"""Files that are read instead of mapped give the same numbers, and cost no map."""

import contextlib
import os
import shutil
import threading
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from making import make_token_set, wait_until
from reference import PACKINGS, make_loader, rows_of

from tokenmill.feed import table
from tokenmill.store import maps, pread
from tokenmill.store.pread import FileNumbers

UINT16 = np.dtype("<u2")


@pytest.fixture
def many(tmp_path):
    return make_token_set(tmp_path / "many", train=[[9, 5, 30, 2]] * 60, val=[[9]])


@pytest.fixture
def same(many, tmp_path):
    """The same set in another folder, whose maps are told apart."""
    return Path(shutil.copytree(many, tmp_path / "same"))


def mapped(folder):
    with open("/proc/self/maps") as file:
        return file.read().count(f"{folder}/shards/")


def some_rows(path, **settings):
    with make_loader(path, **settings) as loader:
        return [rows_of(next(loader)) for _ in range(120)]


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("settings", [*PACKINGS, {"packing": "nanochat"}])
def test_rows_are_the_same_and_nothing_is_mapped(many, same, small_windows, monkeypatch, settings, prefetch):
    expected = some_rows(same, **settings)
    monkeypatch.setenv("TOKENMILL_READ", "pread")
    loader = make_loader(many, prefetch=prefetch, **settings)
    assert [rows_of(next(loader)) for _ in range(120)] == expected
    assert mapped(many) == 0


def test_an_unknown_way_to_read_is_refused(many, monkeypatch):
    monkeypatch.setenv("TOKENMILL_READ", "aio")
    with pytest.raises(ValueError, match="TOKENMILL_READ must be one of mmap, pread, not 'aio'"):
        next(make_loader(many))


def test_shards_are_read_as_soon_as_half_of_the_maps_are_taken(many, same, monkeypatch):
    """The rest is the program's: without a map, the next large array fails."""
    expected = some_rows(same)
    maps.unmap_dropped()
    most = 2 * (len(maps._mapped) + 20)
    monkeypatch.setattr(maps, "_most_maps", lambda: most)
    loader = make_loader(many)
    assert [rows_of(next(loader)) for _ in range(120)] == expected
    assert 0 < mapped(many) <= 20


def test_few_files_are_open_in_each_thread(many, small_windows, monkeypatch):
    monkeypatch.setenv("TOKENMILL_READ", "pread")
    monkeypatch.setattr(pread, "FILES_OPEN", 4)
    opened = []

    def read():
        some_rows(many, prefetch=0)
        opened.append(sum(path.is_relative_to(many) for path, _ in pread._open_files._files))

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert 0 < opened[0] <= 4


def open_below(folder):
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return [link for link in found if link.startswith(str(folder))]


def test_files_are_closed_when_a_thread_ends(many, monkeypatch):
    """Every evaluation, and every position that is loaded, has a thread of its own."""
    monkeypatch.setenv("TOKENMILL_READ", "pread")
    for _ in range(10):
        with make_loader(many, prefetch=2, epochs=1) as loader:
            for _ in range(5):
                next(loader)
    wait_until(lambda: not open_below(many))


def test_a_file_that_is_cut_while_it_is_read_is_an_error(many, monkeypatch):
    """With a memory map it would end the process."""
    monkeypatch.setenv("TOKENMILL_READ", "pread")
    monkeypatch.setattr(table.ChangeCheck, "require", lambda self, shards: None)
    loader = make_loader(many, prefetch=0)
    next(loader)
    for path in many.glob("shards/*.bin"):
        os.truncate(path, 10)
    with pytest.raises(ValueError, match=r"\.bin: deleted, truncated or replaced while it was being read"):
        list(islice(loader, 100))


def test_numbers_are_those_of_the_file(tmp_path):
    np.arange(50_000, dtype=UINT16).tofile(tmp_path / "numbers")
    numbers = FileNumbers(tmp_path / "numbers", UINT16)
    assert (len(numbers), numbers.nbytes, numbers.itemsize) == (50_000, 100_000, 2)
    for part in (slice(0, 3), slice(49_990, 60_000), slice(7, 7), slice(9, 4), slice(None)):
        assert np.array_equal(numbers[part], np.arange(50_000)[part])
    (tmp_path / "other").write_bytes(b"12")
    os.replace(tmp_path / "other", tmp_path / "numbers")
    pread._open_files._files.clear()
    with pytest.raises(ValueError, match="numbers: deleted, truncated or replaced"):
        numbers[0:3]
