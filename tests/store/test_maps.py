"""Files are arrays without a descriptor each, and their maps are given back."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from tokenmill.store import maps
from tokenmill.store.maps import map_file, read_ahead, unmap_dropped

UINT16 = np.dtype("<u2")


@pytest.fixture
def path(tmp_path) -> Path:
    np.arange(50_000, dtype=UINT16).tofile(tmp_path / "numbers")
    return tmp_path / "numbers"


def mapped(path):
    return Path("/proc/self/maps").read_text().count(str(path))


def test_a_file_is_read_only_numbers_without_an_open_descriptor(path):
    before = os.listdir("/proc/self/fd")
    numbers = map_file(path, UINT16)
    assert np.array_equal(numbers, np.arange(50_000))
    assert (numbers.dtype, numbers.data.readonly) == (UINT16, True)
    with pytest.raises(ValueError, match="read-only"):
        numbers[0] = 1
    assert os.listdir("/proc/self/fd") == before


def test_a_map_stays_as_long_as_anything_of_it(path):
    numbers = map_file(path, UINT16)
    part = numbers[40_000:40_003]
    view = memoryview(numbers)[7:9]
    del numbers
    gc.collect()
    unmap_dropped()
    assert mapped(path) == 1
    assert (part.tolist(), view.tolist()) == ([40_000, 40_001, 40_002], [7, 8])
    del part, view
    unmap_dropped()
    assert mapped(path) == 0


def test_a_process_leaves_half_of_the_maps_to_its_program(path, monkeypatch):
    """With tens of thousands of small shards: the others are read."""
    held = map_file(path, UINT16)
    monkeypatch.setattr(maps, "_most_maps", lambda: 2)
    before = mapped(path)
    numbers = map_file(path, UINT16)
    assert (mapped(path), numbers.data.readonly) == (before, True)
    assert np.array_equal(numbers, held)
    read_ahead(numbers[4:9])
