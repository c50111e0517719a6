"""Random histories of a run, against an oracle that knows what was dealt, and nothing of legs and
cursors.

In a history, loaders are made again and again with other ranks, batch sizes, row lengths, weights,
sources, stages and caps, over sets that grow and change their view; batches are skipped, and runs
go back to an earlier position. All tokens of text are different numbers, so what was dealt says
where it is from. At the end:

- each row is the tokens of the pieces that its step has, as found from the last position alone;
- each token came as often in each epoch of each source as it should, in pieces that are no filler;
- all ranks had the same position, which counts the steps, rows and tokens that were dealt.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from making import BOS, make_chat_set
from making_views import make_view

from tokenmill import Mixture
from tokenmill.feed.pieces import Piece
from tokenmill.look.steps import RunRows
from tokenmill.numpy import RowLoader
from tokenmill.rows import windows
from tokenmill.rows.position import read_position
from tokenmill.rows.run import past_of
from tokenmill.rows.windows import WindowSize
from tokenmill.store.manifests import write_manifest
from tokenmill.store.shard_writer import ShardWriter
from tokenmill.store.shards import TEXT_COUNTS
from tokenmill.store.token_sets import TokenSet

NAMES = ("web", "code", "math", "chat")
Place = tuple[str, int]  # a source and an epoch of it
PACKINGS = [("best_fit", "split")] * 4 + [
    ("best_fit", "crop"),
    ("concat", "split"),
    ("random", "split"),
]
LENGTHS = (7, 16, 16, 24, 40)  # of rows, less one
FINGERPRINT = {"fingerprint": "f" * 64}


@contextmanager
def small_windows() -> Iterator[None]:
    """Windows of about eight slices of 64 tokens."""
    before = windows.DEFAULT_WINDOW_SIZE
    windows.DEFAULT_WINDOW_SIZE = WindowSize(64, 512)
    try:
        yield
    finally:
        windows.DEFAULT_WINDOW_SIZE = before


class History:
    """The sets of a history in a folder, what was dealt so far, and where the run stands."""

    def __init__(self, folder: Path, seed: int):
        self.rng = rng = random.Random(seed)
        self.folder = folder
        self.next_id = 1
        for name in NAMES[:3]:
            self.grow(name, rng.randint(1, 4))
        self.packing, self.long_documents = rng.choice(PACKINGS)
        self.has_chat = self.packing == "best_fit" and rng.random() < 0.3
        self.weights: dict[str, int] = {"web": 2, "code": 1}
        if self.has_chat:
            self.long_documents = rng.choice(["crop", "drop"])
            self.make_chat(seed)
            self.weights["chat"] = 1
        self.names = NAMES if self.has_chat else NAMES[:3]
        self.shuffle = rng.random() < 0.8
        self.views: dict[str, str | None] = {"chat": rng.choice([None, "v"])}
        self.batch_size = 2
        self.seq_len = 16
        self.world_size = 1
        self.stage: tuple[int, dict[str, int]] | None = None
        self.caps: dict[str, int] = {}
        self.state: Any = None
        self.saved: list[tuple[Any, int]] = []
        # rows dealt, or pieces skipped, and the sets then
        self.log: list[tuple[Any, Any, dict[str, TokenSet]]] = []

    def make_chat(self, seed: int) -> None:
        rng = self.rng
        shards = []
        for _ in range(2):
            longer = [rng.randint(2, 60) for _ in range(rng.randint(5, 40))]
            shards.append([8] * 12 + longer)
        make_chat_set(self.folder / "chat", shards, [[9]], seed, vocab=1 << 22)
        repeats = rng.choices([0, 1, 2, 3], k=len(shards[1]))
        make_view(self.folder / "chat", "v", {"train_1.000": repeats})

    def grow(self, name: str, shards: int) -> None:
        """Adds shards to a set, whose tokens no other has."""
        folder = self.folder / name
        records: list[Any] = []
        if (folder / "manifest.json").exists():
            token_set = TokenSet(folder)
            records = [(token_set.record(entry), entry.split) for entry in token_set.entries]
        folder.mkdir(exist_ok=True)
        for _ in range(shards):
            records.append((self.write_shard(folder, f"s{len(records):03}.000"), "train"))
        facts = {"name": "r", "vocab_size": 1 << 22, "bos_token": "b", "bos_id": BOS}
        write_manifest(folder, name, facts | FINGERPRINT, records)

    def write_shard(self, folder: Path, shard: str) -> Any:
        rng = self.rng
        count = rng.randint(3, 25)
        short = [rng.choice([1, 2, 5, 9, 17, 30, 60, 90]) for _ in range(count)]
        lengths = [41]  # as long as any row, for concat
        lengths += [length + rng.randint(0, 9) for length in short]
        tokens = np.arange(self.next_id, self.next_id + sum(lengths))
        self.next_id += len(tokens)
        tokens[np.cumsum([0, *lengths[:-1]])] = BOS
        with ShardWriter(folder, shard, "uint32") as writer:
            writer.write(tokens, lengths)
            source = {"file": f"{shard}.parquet", "row_groups": [0]}
            source["row_group_documents"] = [len(lengths)]
            return writer.finish(dict.fromkeys(TEXT_COUNTS, 0) | FINGERPRINT | {"source": source})

    def sets(self) -> dict[str, TokenSet]:
        """The sets as they are on disk now."""
        return {
            name: TokenSet(self.folder / name).viewed(self.views.get(name)) for name in self.names
        }

    # ------------------------------------------------------------------------ what happens

    def happen(self, operations: int) -> Counter[str]:
        """Some operations, and the checks at their end: counts of what was checked."""
        for _ in range(operations):
            self.change()
            loaders = self.loaders()
            sets = self.sets()
            if self.rng.random() < 0.15:
                self.skip(loaders, sets, self.rng.randint(1, 3))
            self.deal(loaders, sets, self.rng.choice([0, 1, 2, 5, 20]))
            self.saved.append((self.state, len(self.log)))
            for loader in loaders:
                loader.close()
            if self.rng.random() < 0.1:
                self.go_back()
        return self.check() if self.state else Counter()

    def go_back(self) -> None:
        """A kill, and back to an earlier checkpoint."""
        self.state, length = self.rng.choice(self.saved)
        self.log = self.log[:length]
        self.saved = [checkpoint for checkpoint in self.saved if checkpoint[1] <= length]

    def change(self) -> None:
        """Some of what may change in a run."""
        rng = self.rng
        if rng.random() < 0.5:
            self.batch_size = rng.randint(1, 4)
        if rng.random() < 0.4:
            self.world_size = rng.randint(1, 3)
        if rng.random() < 0.5 and self.packing == "best_fit":
            self.seq_len = rng.choice(LENGTHS)
        if rng.random() < 0.3:
            names = rng.sample(self.names, rng.randint(1, 3))
            self.weights = {name: rng.randint(1, 6) for name in names}
            later = {name: rng.randint(1, 6) for name in names}
            self.stage = (rng.randint(1, 8000), later) if rng.random() < 0.4 else None
            self.caps = {name: rng.randint(1, 4) for name in names if rng.random() < 0.2}
        grows = rng.choice(NAMES[:3]) if rng.random() < 0.2 else None
        if grows:
            self.grow(grows, 1)
        if self.packing != "best_fit":
            return
        if rng.random() < 0.2 or (grows == "web" and self.views.get("web")):
            self.change_view()

    def change_view(self) -> None:
        token_set = TokenSet(self.folder / "web")
        repeats = {}
        for entry in token_set.entries:
            repeats[entry.name] = [1, *self.rng.choices([0, 1, 1, 1, 2, 3], k=entry.documents - 1)]
        name = f"v{len(token_set.view_stems())}"
        make_view(self.folder / "web", name, repeats)
        self.views["web"] = name if self.rng.random() < 0.8 else None

    def loaders(self) -> list[RowLoader]:
        """A loader for each rank, which goes on from the position."""
        stages = [(0, self.weights)]
        if self.stage:
            stages.append(self.stage)
        mixture = {
            "sources": {name: self.folder / name for name in self.weights},
            "views": {name: view for name, view in self.views.items() if name in self.weights},
            "max_epochs": self.caps,
            "removed": [name for name in NAMES if name not in self.weights],
        }
        settings: dict[str, Any] = {
            "batch_size": self.batch_size,
            "seq_len": self.seq_len,
            "packing": self.packing,
            "long_documents": self.long_documents,
            "shuffle": self.shuffle,
            "world_size": self.world_size,
        }
        if self.has_chat and "chat" not in self.weights:  # else it is said of the chats
            settings["long_documents"] = "split"
        loaders = []
        for rank in range(self.world_size):
            settings["prefetch"] = self.rng.choice([0, 0, 2])
            loader = RowLoader(Mixture(stages, **mixture), rank=rank, **settings)
            if self.state:
                loader.load_state_dict(self.state)
            loaders.append(loader)
        return loaders

    def deal(self, loaders: list[RowLoader], sets: dict[str, TokenSet], count: int) -> int:
        """How many of `count` batches there were: each is written down."""
        for number in range(count):
            try:
                batches = [next(loader) for loader in loaders]
            except StopIteration:
                return number
            except ValueError as error:
                if "are used up after" in str(error):
                    return number
                raise
            self.state = loaders[0].state_dict()
            assert all(loader.state_dict() == self.state for loader in loaders)
            assert len({loader.targets for loader in loaders}) == 1
            self.log.append((np.concatenate(batches, axis=1), None, sets))
        return count

    def skip(self, loaders: list[RowLoader], sets: dict[str, TokenSet], count: int) -> None:
        """Leaves out batches: the same rows that other loaders deal here."""
        before = self.state
        log = self.log
        self.log = []
        dealt = self.deal(self.loaders(), sets, count)
        self.log = log
        if dealt < count:
            self.state = before
            return
        steps = range(loaders[0].step, loaders[0].step + count)
        skipped = [list(RunRows.of_position(self.state, sets).step(step)) for step in steps]
        after = read_position(self.state)[0].now.cursors
        for loader in loaders:
            loader.skip(count)
        self.state = loaders[0].state_dict()
        assert read_position(self.state)[0].now.cursors == after
        self.log += [(None, rows, sets) for rows in skipped]

    # ---------------------------------------------------------------- what must be so at the end

    def check(self) -> Counter[str]:
        """What the docstring of this module says."""
        sets = self.sets()
        counts = Counter[str]()
        step = 0
        dealt: dict[Place, Counter[Any]] = defaultdict(Counter)
        shortest: dict[Place, int] = {}
        on_disk: dict[Place, TokenSet] = {}  # what was there when an epoch's first row came
        last: dict[str, int] = {}
        for batch, rows, sets_then in self.log:
            if rows is None:
                rows = list(RunRows.of_position(self.state, sets).step(step))
                check_batch(batch, rows, step)
                step += 1
                counts["rows"] += len(rows)
            for row in rows:
                place = (row.name, row.epoch)
                before = last.get(row.name, row.epoch)
                assert row.epoch >= before, "epochs only grow"
                last[row.name] = row.epoch
                on_disk.setdefault(place, sets_then[row.name])
                size = sum(piece.length + piece.bos for piece in row.pieces)
                # the end of an epoch may have no rows of this length
                for near in (place, (row.name, before)):
                    shortest[near] = min(size, shortest.get(near, size))
                dealt[place].update(self.tokens_dealt(row.pieces))
        for place, tokens in dealt.items():
            name, epoch = place
            is_done = epoch < last[name]
            self.check_epoch(tokens, on_disk[place], shortest[place], is_done)
        self.check_run(step, counts)
        return counts

    def tokens_dealt(self, pieces: list[Piece]) -> Iterator[tuple[str, int, int]]:
        """(shard, document, token) of a row, but of the token that begins the next row too."""
        kept = [piece for piece in pieces if not piece.filler]
        is_shared = self.packing in ("concat", "random")
        for number, piece in enumerate(kept, 1):
            end = piece.start + piece.length
            if is_shared and number == len(kept):
                end -= 1
            for token in range(piece.start, end):
                yield piece.shard.entry.name, piece.document, token

    def check_run(self, step: int, counts: Counter[str]) -> None:
        run = read_position(self.state)[0]
        assert run.now.step == step
        assert sum(run.now.rows.values()) == counts["rows"]
        for number, leg in enumerate(run.legs, 1):
            for name, cursor in leg.begin.cursors.items():
                past = past_of(run.legs[:number], name, *cursor[:2])[0]
                counts["windows packed again"] += bool(past)

    def check_epoch(
        self, counts: Counter[Any], token_set: TokenSet, row_len: int, is_done: bool
    ) -> None:
        """Each token as often as its document counts.

        Or at most so often, where it may be left out.
        """
        most = Counter[Any]()
        least = Counter[Any]()
        for entry in token_set.split("train"):
            shard = token_set.open(entry)
            for document, repeats in enumerate(token_set.repeats_of(entry).tolist()):
                length = int(shard.lengths[document])
                kept = length
                if token_set.is_chat:  # those that fit whatever row there was, and have a target
                    if length > row_len or not shard.target_counts[document]:
                        kept = 0
                elif self.long_documents == "crop" and not self.has_chat:
                    kept = row_len
                for token in range(length if repeats else 0):
                    most[entry.name, document, token] = repeats
                    if token < kept:
                        least[entry.name, document, token] = repeats
        if self.packing != "random":
            assert counts <= most, counts - most
        if is_done and self.packing == "best_fit":
            assert least <= counts, least - counts


def check_batch(batch: np.ndarray, rows: list[Any], step: int) -> None:
    """The rows that a position says are those that were dealt."""
    inputs, targets = batch
    tokens: list[list[int]] = []
    for row in rows:
        tokens.append([])
        for piece in row.pieces:
            tokens[-1] += tokens_of(piece)
    assert [row[:-1] for row in tokens] == inputs.tolist(), f"step {step} is not as it was dealt"
    in_loss = targets != -100
    expected = np.array([row[1:] for row in tokens])
    assert (expected[in_loss] == targets[in_loss]).all()


def tokens_of(piece: Piece) -> list[int]:
    """The tokens of a piece as in its row."""
    tokens = piece.shard.tokens[: piece.length] if piece.is_padding else piece.tokens(BOS)
    return [*map(int, tokens)]
