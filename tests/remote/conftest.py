"""A set of 42 MB, and a server of it."""

from pathlib import Path

import pytest
from elsewhere import SMALL, lengths
from file_server import FileServer
from making import make_token_set

from tokenmill.remote import http_backend, retry
from tokenmill.rows import windows


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A set of 42 MB in 5 training shards, one of less than a block, and one for validation."""
    sizes = (4_900_000, 300_000, 3_000_000, 4_300_000, 1_600_000)
    train = [lengths(size, seed) for seed, size in enumerate(sizes)]
    return make_token_set(tmp_path_factory.mktemp("elsewhere") / "web", train=train, val=[lengths(200_000, 9)])


@pytest.fixture
def server(folder):
    with FileServer.of(folder) as server:
        yield server


@pytest.fixture
def small_windows(monkeypatch):
    monkeypatch.setattr(windows, "DEFAULT_WINDOW_SIZE", SMALL)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(retry, "PATIENCE_SECONDS", 2.0)
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(http_backend, "SILENCE_SECONDS", 0.3)
    monkeypatch.setattr(http_backend, "RANGE_SECONDS", 0.8)
