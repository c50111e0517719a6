"""What must never change: SHA-256 sums of every 1,000 rows that a loader deals, for each kind of packing.

    python tests/row_sums.py            compares with tests/row_sums.json, and names the settings that differ
    python tests/row_sums.py --write    writes that file

A position names rows by their number, so a run that resumes after an upgrade needs the same rows. Each setting deals
three epochs of sets of random ids, with small windows; rows are summed in their global order, inputs before targets.
test_row_sums.py runs it.
"""

import argparse
import hashlib
import itertools
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from making import BOS, VOCAB, make_token_set
from making_views import make_view

from tokenmill import Mixture
from tokenmill.numpy import RowLoader
from tokenmill.rows import windows
from tokenmill.rows.windows import WindowSize
from tokenmill.store.shard_writer import ShardWriter
from tokenmill.store.shards import TEXT_COUNTS
from tokenmill.store.token_sets import TokenSet, write_manifest
from tokenmill.tokenize.chat_rule import ChatRule

SUMS = Path(__file__).with_suffix(".json")
WINDOW = WindowSize(1 << 8, 1 << 12)
NAMES, EPOCHS, ROWS, GLOBAL_BATCH = ("web", "code", "math"), 3, 1_000, 12
KINDS: dict[str, dict[str, Any]] = {
    "best_fit": {},
    "crop": {"long_documents": "crop"},
    "concat": {"packing": "concat"},
    "random": {"packing": "random"},
    "nanochat": {"packing": "nanochat"},
    "chat": {"long_documents": "drop"},
    "view": {},
    "copies": {},  # a view that counts documents up to three times
}


def settings() -> Iterator[tuple[str, int, bool, int]]:
    """(kind, seq_len, whether it is a mixture, world_size) of each setting."""
    for kind, seq_len, mixed, world_size in itertools.product(KINDS, (40, 100), (False, True), (1, 3)):
        if not (kind == "nanochat" and mixed):
            yield kind, seq_len, mixed, world_size


def make_sets(folder: Path) -> None:
    """Token sets web, code and math of text, with views, and of chats, in folders `text` and `chat`."""
    for number, name in enumerate(NAMES):
        rng = random.Random(number)
        lengths = [[rng.randint(1, 60) for _ in range(300)] + [rng.randint(90, 400)] * 12 for _ in range(3 - number)]
        for many in lengths:
            rng.shuffle(many)
        make_token_set(folder / "text" / name, train=lengths, val=[[20] * 5], seed=number)
        documents = {entry.name: entry.documents for entry in TokenSet(folder / "text" / name).entries}
        for view, times in (("view", (0, 1, 1)), ("copies", (0, 1, 2, 3))):
            make_view(folder / "text" / name, view, {s: rng.choices(times, k=n) for s, n in documents.items()})
        make_chats(
            folder / "chat" / name, [[rng.randint(4, 120) for _ in range(300)] for _ in range(3 - number)], number
        )


def make_chats(folder: Path, train: list[list[int]], seed: int) -> None:
    """A chat set of random ids, of which the second half of every document is learned."""
    rng, shards = np.random.default_rng(seed), []
    folder.mkdir(parents=True)
    for number, lengths in enumerate(train):
        tokens, ends = rng.integers(1, VOCAB, sum(lengths)), np.cumsum(lengths)
        tokens[ends - lengths] = BOS
        with ShardWriter(folder, f"s{number}.000", "uint16", ["mask", "targets"]) as writer:
            writer.write(tokens, lengths)
            writer.write_column("mask", np.concatenate([np.arange(n) >= n // 2 for n in lengths]))
            writer.write_column("targets", [n - n // 2 for n in lengths])
            source = {"file": f"s{number}.parquet", "row_groups": [0], "row_group_documents": [len(lengths)]}
            facts = dict.fromkeys(TEXT_COUNTS, 0) | {"fingerprint": "e" * 64, "source": source}
            shards.append((writer.finish(facts), "train"))
    chat = ChatRule.named("chatml", "all").as_dict() | {"text_fingerprint": "f" * 64}
    facts = {"name": "random", "vocab_size": VOCAB, "bos_token": "<|bos|>", "bos_id": BOS}
    write_manifest(folder, "chats", facts | {"fingerprint": "e" * 64, "chat": chat}, shards)


def sums_of(folder: Path, kind: str, seq_len: int, mixed: bool, world_size: int) -> list[str]:
    """The first 16 hex digits of the SHA-256 of each 1,000 rows."""
    paths = {name: folder / ("chat" if kind == "chat" else "text") / name for name in NAMES}
    view = kind if kind in ("view", "copies") else None
    common = dict(batch_size=GLOBAL_BATCH // world_size, seq_len=seq_len, dtype="int64", **KINDS[kind])
    loaders = []
    for rank in range(world_size):
        if mixed:
            stages = [(0, {"web": 6, "code": 3, "math": 1}), (40_000, {"web": 2, "code": 1, "math": 5})]
            mixture = Mixture(stages, sources=paths, views=dict.fromkeys(NAMES, view), max_epochs=EPOCHS)
            loaders.append(RowLoader(mixture, rank=rank, world_size=world_size, **common))
        else:
            epochs = None if kind == "nanochat" else EPOCHS
            loaders.append(
                RowLoader(paths["web"], view=view, rank=rank, world_size=world_size, epochs=epochs, **common)
            )
    found, dealt = [], []
    for batches in itertools.islice(
        zip(*loaders, strict=True), 4 * ROWS // GLOBAL_BATCH if kind == "nanochat" else None
    ):
        dealt += [row.astype("<i8").tobytes() for pair in batches for row in np.concatenate(pair, axis=1)]
    for first in range(0, len(dealt), ROWS):
        found.append(hashlib.sha256(b"".join(dealt[first : first + ROWS])).hexdigest()[:16])
    return [f"{len(dealt)} rows", *found]


def all_sums() -> dict[str, list[str]]:
    """The sums of every setting, by its name."""
    before, windows.DEFAULT_WINDOW_SIZE = windows.DEFAULT_WINDOW_SIZE, WINDOW
    try:
        with tempfile.TemporaryDirectory() as folder:
            make_sets(Path(folder))
            return {
                f"{kind} {seq_len} {'mixture' if mixed else 'one'} {world_size}": sums_of(
                    Path(folder), kind, seq_len, mixed, world_size
                )
                for kind, seq_len, mixed, world_size in settings()
            }
    finally:
        windows.DEFAULT_WINDOW_SIZE = before


def differing() -> list[str]:
    """The names of the settings whose rows are not those of row_sums.json."""
    known, found = json.loads(SUMS.read_text()), all_sums()
    return [name for name in known.keys() | found.keys() if known.get(name) != found.get(name)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        lines = [f"{json.dumps(name)}: {json.dumps(sums)}" for name, sums in all_sums().items()]
        SUMS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    elif wrong := differing():
        sys.exit(f"these rows are others than before: {', '.join(sorted(wrong))}")
