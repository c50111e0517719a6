"""Some dozens of the random histories of `make torture`: loader, pull, push, show and prepare, with every fault."""

from pathlib import Path

import pytest
from faulty_server import READING
from histories import PATCHES, World, torture


@pytest.mark.slow
def test_through_every_fault_a_row_is_the_local_set_s_or_an_error_is_raised(tmp_path, tokenizer_json, monkeypatch):
    for module, name, value in PATCHES:
        monkeypatch.setattr(module, name, value)  # and back, as histories set them
    for name in ("AWS_ENDPOINT_URL", "TOKENMILL_CACHE"):
        monkeypatch.setenv(name, "")
    counts = torture(World(tmp_path, Path(tokenizer_json)), histories=24, seed=2400, operations=5)
    assert counts["histories"] == 24
    done = [doing for doing in ("read", "show", "pull", "push", "prepare") if counts[f"{doing} done"]]
    assert done == ["read", "show", "pull", "push", "prepare"], "each succeeded under faults, too"
    assert sum(counts[fault] for fault in READING) > 50
