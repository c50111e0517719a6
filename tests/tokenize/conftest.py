"""Each test proves engines itself: what an engine that a test has made wrong shows is not kept."""

import pytest


@pytest.fixture(autouse=True)
def new_cache(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
