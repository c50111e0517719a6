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
from tokenmill.store.shard_writer import ShardWriter
from tokenmill.store.shards import TEXT_COUNTS
from tokenmill.store.token_sets import TokenSet, write_manifest

NAMES = ("web", "code", "math", "chat")
PACKINGS = [("best_fit", "split")] * 4 + [
    ("best_fit", "crop"),
    ("concat", "split"),
    ("random", "split"),
]
LENGTHS = (7, 16, 16, 24, 40)  # of rows, less one


@contextmanager
def small_windows() -> Iterator[None]:
    """Windows of about eight slices of 64 tokens."""
    before, windows.DEFAULT_WINDOW_SIZE = windows.DEFAULT_WINDOW_SIZE, WindowSize(64, 512)
    try:
        yield
    finally:
        windows.DEFAULT_WINDOW_SIZE = before


class History:
    """The sets of a history in a folder, what was dealt so far, and where the run stands."""

    def __init__(self, folder: Path, seed: int):
        self.rng, self.folder, self.next_id = random.Random(seed), folder, 1
        for name in NAMES[:3]:
            self.grow(name, self.rng.randint(1, 4))
        self.packing, self.long_documents = self.rng.choice(PACKINGS)
        self.has_chat = self.packing == "best_fit" and self.rng.random() < 0.3
        if self.has_chat:
            self.long_documents = self.rng.choice(["crop", "drop"])
            lengths = [
                [8] * 12 + [self.rng.randint(2, 60) for _ in range(self.rng.randint(5, 40))]
                for _ in range(2)
            ]
            make_chat_set(folder / "chat", lengths, [[9]], seed, vocab=1 << 22)
            make_view(
                folder / "chat",
                "v",
                {"train_1.000": self.rng.choices([0, 1, 2, 3], k=len(lengths[1]))},
            )
        self.shuffle = self.rng.random() < 0.8
        self.views: dict[str, str | None] = {"chat": self.rng.choice([None, "v"])}
        self.batch_size, self.seq_len, self.world_size = 2, 16, 1
        self.weights: dict[str, int] = {"web": 2, "code": 1} | (
            {"chat": 1} if self.has_chat else {}
        )
        self.stage: tuple[int, dict[str, int]] | None = None
        self.caps: dict[str, int] = {}
        self.state: Any = None
        self.saved: list[tuple[Any, int]] = []
        self.log: list[
            tuple[Any, Any, dict[str, TokenSet]]
        ] = []  # (rows dealt, or pieces skipped, sets then)

    def grow(self, name: str, shards: int) -> None:
        """Adds shards to a set, whose tokens no other has."""
        folder, old = self.folder / name, list[Any]()
        if (folder / "manifest.json").exists():
            token_set = TokenSet(folder)
            old = [(token_set.record(entry), entry.split) for entry in token_set.entries]
        folder.mkdir(exist_ok=True)
        for _ in range(shards):
            shard = f"s{len(old):03}.000"
            few = [
                self.rng.choice([1, 2, 5, 9, 17, 30, 60, 90])
                for _ in range(self.rng.randint(3, 25))
            ]
            lengths = [
                41,
                *(length + self.rng.randint(0, 9) for length in few),
            ]  # as long as any row, for concat
            tokens = np.arange(self.next_id, self.next_id + sum(lengths))
            self.next_id += len(tokens)
            tokens[np.cumsum([0, *lengths[:-1]])] = BOS
            with ShardWriter(folder, shard, "uint32") as writer:
                writer.write(tokens, lengths)
                source = {
                    "file": f"{shard}.parquet",
                    "row_groups": [0],
                    "row_group_documents": [len(lengths)],
                }
                facts = dict.fromkeys(TEXT_COUNTS, 0) | {"fingerprint": "f" * 64, "source": source}
                old.append((writer.finish(facts), "train"))
        facts = {
            "name": "r",
            "fingerprint": "f" * 64,
            "vocab_size": 1 << 22,
            "bos_token": "b",
            "bos_id": BOS,
        }
        write_manifest(folder, name, facts, old)

    def sets(self) -> dict[str, TokenSet]:
        """The sets as they are on disk now."""
        names = NAMES if self.has_chat else NAMES[:3]
        return {name: TokenSet(self.folder / name).viewed(self.views.get(name)) for name in names}

    # ------------------------------------------------------------------------ what happens

    def happen(self, operations: int) -> Counter[str]:
        """Some operations, and the checks at their end: counts of what was checked."""
        for _ in range(operations):
            self.change()
            loaders, sets = self.loaders(), self.sets()
            if self.rng.random() < 0.15:
                self.skip(loaders, sets, self.rng.randint(1, 3))
            self.deal(loaders, sets, self.rng.choice([0, 1, 2, 5, 20]))
            self.saved.append((self.state, len(self.log)))
            for loader in loaders:
                loader.close()
            if self.rng.random() < 0.1:  # a kill, and back to an earlier checkpoint
                self.state, length = self.rng.choice(self.saved)
                self.log, self.saved = (
                    self.log[:length],
                    [one for one in self.saved if one[1] <= length],
                )
        return self.check() if self.state else Counter()

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
            names = rng.sample(NAMES if self.has_chat else NAMES[:3], rng.randint(1, 3))
            self.weights = {name: rng.randint(1, 6) for name in names}
            other = {name: rng.randint(1, 6) for name in names}
            self.stage = (rng.randint(1, 8000), other) if rng.random() < 0.4 else None
            self.caps = {name: rng.randint(1, 4) for name in names if rng.random() < 0.2}
        grows = rng.choice(NAMES[:3]) if rng.random() < 0.2 else None
        if grows:
            self.grow(grows, 1)
        if self.packing == "best_fit" and (
            rng.random() < 0.2 or (grows == "web" and self.views.get("web"))
        ):
            token_set = TokenSet(self.folder / "web")
            times = {
                e.name: [1, *rng.choices([0, 1, 1, 1, 2, 3], k=e.documents - 1)]
                for e in token_set.entries
            }
            name = f"v{len(token_set.view_stems())}"
            make_view(self.folder / "web", name, times)
            self.views["web"] = name if rng.random() < 0.8 else None

    def loaders(self) -> list[RowLoader]:
        """A loader for each rank, which goes on from the position."""
        stages = [(0, self.weights), *([self.stage] if self.stage else [])]
        gone = [name for name in NAMES if name not in self.weights]
        found = []
        for rank in range(self.world_size):
            mixture = Mixture(
                stages,
                sources={name: self.folder / name for name in self.weights},
                views={name: view for name, view in self.views.items() if name in self.weights},
                max_epochs=self.caps,
                removed=gone,
            )
            settings = {
                "packing": self.packing,
                "long_documents": self.long_documents,
                "shuffle": self.shuffle,
            }
            if self.has_chat and "chat" not in self.weights:  # else it is said of the chats
                settings["long_documents"] = "split"
            many = {
                "batch_size": self.batch_size,
                "seq_len": self.seq_len,
                "prefetch": self.rng.choice([0, 0, 2]),
            }
            loader = RowLoader(mixture, rank=rank, world_size=self.world_size, **many, **settings)
            if self.state:
                loader.load_state_dict(self.state)
            found.append(loader)
        return found

    def deal(self, loaders: list[RowLoader], sets: dict[str, TokenSet], count: int) -> int:
        """How many of `count` batches there were: each is written down."""
        for number in range(count):
            try:
                batches = [next(loader) for loader in loaders]
            except (StopIteration, ValueError) as error:
                if isinstance(error, StopIteration) or "are used up after" in str(error):
                    return number
                raise
            self.state = loaders[0].state_dict()
            assert all(loader.state_dict() == self.state for loader in loaders)
            assert len({loader.targets for loader in loaders}) == 1
            self.log.append((np.concatenate(batches, axis=1), None, sets))
        return count

    def skip(self, loaders: list[RowLoader], sets: dict[str, TokenSet], count: int) -> None:
        """Leaves out batches: the same rows that other loaders deal here."""
        before, length = self.state, len(self.log)
        if self.deal(self.loaders(), sets, count) == count:
            step = loaders[0].step
            skipped = [
                list(RunRows.of_position(self.state, sets).step(step + number))
                for number in range(count)
            ]
            after = read_position(self.state)[0].now.cursors
            for loader in loaders:
                loader.skip(count)
            self.state, self.log = loaders[0].state_dict(), self.log[:length]
            assert read_position(self.state)[0].now.cursors == after
            self.log += [(None, some, sets) for some in skipped]
        else:
            self.state, self.log = before, self.log[:length]

    # ------------------------------------------------------------------------ what must be so at
    # the end

    def check(self) -> Counter[str]:
        """What the docstring of this module says."""
        sets, found, step = self.sets(), Counter[str](), 0
        dealt: dict[tuple[str, int], Counter[Any]] = defaultdict(Counter)
        shortest: dict[tuple[str, int], int] = {}
        on_disk: dict[
            tuple[str, int], TokenSet
        ] = {}  # what was there when an epoch's first row came
        last: dict[str, int] = {}
        for rows, shown, then in self.log:
            if shown is None:
                shown = list(RunRows.of_position(self.state, sets).step(step))
                told = [
                    [token for piece in row.pieces for token in tokens_of(piece)] for row in shown
                ]
                inputs, targets = rows
                assert [row[:-1] for row in told] == inputs.tolist(), (
                    f"step {step} is not as it was dealt"
                )
                in_loss = targets != -100
                assert (np.array([row[1:] for row in told])[in_loss] == targets[in_loss]).all()
                step += 1
                found["rows"] += len(told)
            for row in shown:
                place, before = (row.name, row.epoch), last.get(row.name, row.epoch)
                assert row.epoch >= before, "epochs only grow"
                last[row.name] = row.epoch
                on_disk.setdefault(place, then[row.name])
                size = sum(piece.length + piece.bos for piece in row.pieces)
                for some in (
                    place,
                    (row.name, before),
                ):  # the end of an epoch may have no rows of this length
                    shortest[some] = min(size, shortest.get(some, size))
                kept = [piece for piece in row.pieces if not piece.filler]
                shared = self.packing in (
                    "concat",
                    "random",
                )  # the last token of a row begins the next one
                for number, piece in enumerate(kept, 1):
                    end = piece.start + piece.length - (shared and number == len(kept))
                    shard = piece.shard.entry.name
                    dealt[place].update(
                        (shard, piece.document, token) for token in range(piece.start, end)
                    )
        for place, counts in dealt.items():
            self.check_epoch(counts, on_disk[place], shortest[place], place[1] < last[place[0]])
            found["epochs"] += place[1] < last[place[0]]
        run = read_position(self.state)[0]
        assert run.now.step == step
        assert sum(run.now.rows.values()) == found["rows"]
        found["legs"], found["bytes"] = len(run.legs), len(self.state["tokenmill"])
        for number, leg in enumerate(run.legs):
            pasts = [
                past_of(run.legs[: number + 1], n, *c[:2])[0] for n, c in leg.begin.cursors.items()
            ]
            found["windows packed again"] += sum(map(bool, pasts))
            found["more than once"] += sum(len(past) > 1 for past in pasts)
        return found

    def check_epoch(
        self, counts: Counter[Any], then: TokenSet, row_len: int, is_done: bool
    ) -> None:
        """Each token as often as its document counts, or at most so often where it may be left out."""
        most, least = Counter[Any](), Counter[Any]()
        for entry in then.split("train"):
            shard = then.open(entry)
            lengths, times = shard.lengths.tolist(), then.repeats_of(entry).tolist()
            for document, (length, many) in enumerate(zip(lengths, times, strict=True)):
                tokens = {(entry.name, document, token): many for token in range(length) if many}
                most.update(tokens)
                kept = row_len if self.long_documents == "crop" and not self.has_chat else length
                if then.is_chat:  # those that fit whatever row there was, and have a target
                    kept = length if length <= row_len and shard.target_counts[document] else 0
                least.update({token: many for token, many in tokens.items() if token[2] < kept})
        if self.packing != "random":
            assert counts <= most, counts - most
        if is_done and self.packing == "best_fit":
            assert least <= counts, least - counts


def tokens_of(piece: Piece) -> list[int]:
    """The tokens of a piece as in its row."""
    tokens = piece.shard.tokens[: piece.length] if piece.is_padding else piece.tokens(BOS)
    return [*map(int, tokens)]
