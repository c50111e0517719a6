"""A batch is a fair sample of the whole split, in whatever order its files are."""

import numpy as np
import pytest
from making import make_token_set
from reference import make_loader

from tokenmill import RowLoader
from tokenmill.feed import window_plans
from tokenmill.rows.windows import WindowSize

FILES = 20


@pytest.fixture(scope="module")
def by_file(tmp_path_factory):
    """A token set of 20 equal files, as if each were of another domain."""
    lengths = [np.random.default_rng(n).integers(2, 60, 120).tolist() for n in range(FILES)]
    return make_token_set(tmp_path_factory.mktemp("by_file") / "set", train=lengths, val=lengths[:6])


def files_of(loader, batches):
    """Of each of some batches, the files of its documents (of rows that ignore documents, of its rows)."""
    rows = loader._make_rows(ahead=False)
    rows.seek(loader._state.place)
    for _ in range(batches):
        found = rows.pieces(loader.config.batch_size)
        packed = loader.config.packing == "best_fit"
        pieces = [piece for row in found for piece in (row if packed else row[:1]) if not piece.filler]
        yield [int(piece.shard.entry.name.split("_")[1].split(".")[0]) for piece in pieces]


@pytest.mark.parametrize("packing", ["best_fit", "concat", "random"])
@pytest.mark.parametrize("grain", [WindowSize(), WindowSize(slice=128, window=16_384)])
def test_a_batch_touches_as_many_files_as_random_draws_would(by_file, monkeypatch, packing, grain):
    monkeypatch.setattr(window_plans, "DEFAULT_WINDOW_SIZE", grain)
    loader = make_loader(by_file, batch_size=32, packing=packing)
    rng = np.random.default_rng(0)
    touched, drawn = [], []
    for files in files_of(loader, 60):
        touched.append(len(set(files)))
        drawn.append(len(set(rng.integers(FILES, size=len(files)).tolist())))
    assert np.mean(touched) > 0.95 * np.mean(drawn)


def test_the_first_batches_of_validation_are_a_fair_sample(by_file):
    loader = RowLoader(by_file, "val", batch_size=32, seq_len=16)
    touched = [len(set(files)) for files in files_of(loader, 12)]
    assert min(touched) >= 5
    assert sum(touched) >= 12 * 6 - 2


def test_in_order_the_files_come_in_order(by_file, monkeypatch):
    monkeypatch.setattr(window_plans, "DEFAULT_WINDOW_SIZE", WindowSize(slice=512, window=4_096))
    loader = make_loader(by_file, batch_size=32, shuffle=False)
    first, *_, last = list(files_of(loader, loader.batches_per_epoch()))
    assert max(first) < 3
    assert min(last) > FILES - 4


def test_files_of_one_document_are_packed_together(tmp_path):
    lengths = [[int(n)] for n in np.random.default_rng(0).integers(2, 100, 400)]
    loader = make_loader(make_token_set(tmp_path / "set", train=lengths, val=[[9]]), batch_size=1)
    assert loader.rows * 17 < 1.1 * sum(map(sum, lengths)), "each packed alone, most of it would be filler"
