"""Rows never change: SHA-256 sums of every 1,000 rows that a loader deals, for each kind of
packing.

A position names rows by their number, so a run that resumes after an upgrade needs the same rows.
Each setting deals three epochs of sets of random ids, with small windows; rows are summed in their
global order, inputs before targets. `WRITE_SUMS=1 pytest tests/feed/test_row_sums.py` writes
row_sums.json anew.
"""

import hashlib
import itertools
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
from making import make_chat_set, make_token_set
from making_views import make_view

from tokenmill import Mixture
from tokenmill.numpy import RowLoader
from tokenmill.rows import windows
from tokenmill.rows.windows import WindowSize
from tokenmill.store.token_sets import TokenSet

SUMS = Path(__file__).with_name("row_sums.json")
NAMES = ("web", "code", "math")
EPOCHS = 3
ROWS = 1_000
GLOBAL_BATCH = 12
KINDS = {
    "best_fit": {},
    "crop": {"long_documents": "crop"},
    "skip_cuts": {"loss": "skip_cuts"},
    "concat": {"packing": "concat"},
    "random": {"packing": "random"},
    "nanochat": {"packing": "nanochat"},
    "chat": {"long_documents": "drop"},
    "view": {},
    "copies": {},  # a view that counts documents up to three times
}
SETTINGS = [
    (kind, seq_len, mixed, 1)
    for kind, mixed, seq_len in itertools.product(KINDS, (False, True), (40, 100))
    if kind != "nanochat"
]
SETTINGS += [("nanochat", 40, False, 3), ("nanochat", 100, False, 1)]  # each rank has its own order


def lengths_of(rng, least, most):
    return [rng.randint(least, most) for _ in range(300)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Token sets web, code and math of text, with views, and of chats, in folders `text` and
    `chat`.
    """
    monkeypatch.setattr(windows, "DEFAULT_WINDOW_SIZE", WindowSize(1 << 8, 1 << 12))
    for number, name in enumerate(NAMES):
        rng = random.Random(number)
        lengths = [lengths_of(rng, 1, 60) + [rng.randint(90, 400)] * 12 for _ in range(3 - number)]
        for shard_lengths in lengths:
            rng.shuffle(shard_lengths)
        make_token_set(tmp_path / "text" / name, train=lengths, val=[[20] * 5], seed=number)
        documents = {
            entry.name: entry.documents for entry in TokenSet(tmp_path / "text" / name).entries
        }
        for view, times in (("view", (0, 1, 1)), ("copies", (0, 1, 2, 3))):
            make_view(
                tmp_path / "text" / name,
                view,
                {s: rng.choices(times, k=n) for s, n in documents.items()},
            )
        lengths = [lengths_of(rng, 4, 120) for _ in range(3 - number)]
        make_chat_set(tmp_path / "chat" / name, train=lengths, val=[[9]], seed=number)
    return tmp_path


def sums_of(folder, kind, seq_len, mixed, world_size):
    """The first 16 hex digits of the SHA-256 of each 1,000 rows."""
    paths = {name: folder / ("chat" if kind == "chat" else "text") / name for name in NAMES}
    view = kind if kind in ("view", "copies") else None
    common = dict(
        batch_size=GLOBAL_BATCH // world_size, seq_len=seq_len, dtype="int64", **KINDS[kind]
    )
    if mixed:
        begin = 20_000 if kind == "chat" else 40_000
        stages = [(0, {"web": 6, "code": 3, "math": 1}), (begin, {"web": 2, "code": 1, "math": 5})]
        tokens = Mixture(stages, sources=paths, views=dict.fromkeys(NAMES, view), max_epochs=EPOCHS)
    else:
        tokens = paths["web"]
        common = common | {"view": view, "epochs": None if kind == "nanochat" else EPOCHS}
    ranks = [
        RowLoader(tokens, rank=rank, world_size=world_size, **common) for rank in range(world_size)
    ]
    calls = itertools.islice(
        zip(*ranks, strict=True), 4 * ROWS // GLOBAL_BATCH if kind == "nanochat" else None
    )
    dealt = []
    for pair in itertools.chain.from_iterable(calls):
        dealt += [row.astype("<i8").tobytes() for row in np.concatenate(pair, axis=1)]
    every = [b"".join(dealt[first : first + ROWS]) for first in range(0, len(dealt), ROWS)]
    return [
        f"{len(dealt)} rows",
        *(hashlib.sha256(thousand).hexdigest()[:16] for thousand in every),
    ]


@pytest.mark.filterwarnings(
    "ignore:.*(longer than a row|have no target in their first):UserWarning"
)
def test_rows_of_every_kind_are_those_that_were_written_down(folder):
    dealt = {" ".join(map(str, setting)): sums_of(folder, *setting) for setting in SETTINGS}
    if os.environ.get("WRITE_SUMS"):
        lines = [f"{json.dumps(name)}: {json.dumps(sums)}" for name, sums in dealt.items()]
        SUMS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert dealt == json.loads(SUMS.read_text())
