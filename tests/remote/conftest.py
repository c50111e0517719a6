"""A set of 17 MB, and a server of it."""

from pathlib import Path

import pytest
from elsewhere import SMALL, lengths
from file_server import FileServer, Hub
from making import make_token_set

from tokenmill.remote import files, ranges, retry
from tokenmill.rows import windows


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A set of 17 MB in 5 training shards, one of less than a part, and one for validation."""
    sizes = (3_000_000, 300_000, 1_900_000, 2_500_000, 900_000)
    train = [lengths(size, seed) for seed, size in enumerate(sizes)]
    return make_token_set(
        tmp_path_factory.mktemp("elsewhere") / "web", train=train, val=[lengths(200_000, 9)]
    )


@pytest.fixture
def server(folder):
    with FileServer.of(folder) as server:
        yield server


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub with one repository, o/n, that is empty."""
    with Hub("o/n", {}) as server:
        server.token = "hf_S3CRET"
        for key, value in {
            "HF_ENDPOINT": server.url,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_TOKEN": server.token,
            "HF_HUB_DISABLE_XET": "1",
        }.items():
            monkeypatch.setenv(key, value)
        files._url_on_the_hub.cache_clear()
        yield server
        files._url_on_the_hub.cache_clear()


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(windows, "DEFAULT_WINDOW_SIZE", SMALL)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(retry, "PATIENCE_SECONDS", 2.0)
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(ranges, "SILENCE_SECONDS", 0.3)
    monkeypatch.setattr(ranges, "SECONDS", 0.8)
