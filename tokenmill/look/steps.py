"""What a run trained on: the rows of a step, and of a place (those of a document: rows_with.py).

    run = RunRows.of_position(loader.state_dict(), {"web": TokenSet(...), "code": TokenSet(...)})
    for row in run.step(1100):
        print(row.rank, row.place, row.pieces)

The past is the future from an earlier point. The run goes back to where the leg of that step began
(rows/run.py), and the sources of that time walk on by counts, without reading a token. The order of
rows is that of training because it is the same function.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tokenmill.batches.resume import LONG_CHATS, identity_of, order_of, setting_of
from tokenmill.feed.batch import Batch
from tokenmill.feed.config import LoaderConfig
from tokenmill.feed.mixed_rows import forward, next_batch, range_of_rank
from tokenmill.feed.mixture import ONE_SET
from tokenmill.feed.nanochat_rows import nanochat_rows
from tokenmill.feed.order import Order
from tokenmill.feed.pieces import Piece
from tokenmill.feed.source import Source
from tokenmill.feed.turns import batch_of, count_rows
from tokenmill.rows.packing import LONG_DOCUMENTS
from tokenmill.rows.plan import PACKINGS, Packing
from tokenmill.rows.position import read_position
from tokenmill.rows.run import Cursor, Run
from tokenmill.store.shards import SPLITS
from tokenmill.store.token_sets import TokenSet

Sets = Mapping[str, TokenSet]
KNOWN = {
    "packing": PACKINGS,
    "long_documents": LONG_DOCUMENTS,
    "split": SPLITS,
    "shuffle": (True, False),
}
END = Cursor(1 << 62)
MOST_EPOCHS = 100  # that are walked to a step


class LegOfSource(NamedTuple):
    """What one leg dealt of a source: the rows from `first` on, before `end`."""

    run: Run  # where the leg begins
    first: Cursor
    end: Cursor


class ShownRow(NamedTuple):
    """A row, and what it consists of.

    `row` counts the rows of its window, at whatever length they were dealt; with nanochat, the rows
    of the rank.
    """

    name: str
    epoch: int
    window: int
    row: int
    pieces: list[Piece]
    rank: int | None = None
    # of a row that was searched for a document: whether it has only a copy of it
    filler: bool = False

    @property
    def place(self) -> str:
        """epoch:window:row, in a mixture source/epoch:window:row."""
        numbers = f"{self.epoch}:{self.window}:{self.row}"
        return f"{self.name}/{numbers}" if self.name else numbers


class RunRows:
    """The rows of a run whose sources are `sets`, by name, and whose positions say `identity`
    (resume.py).
    """

    def __init__(self, run: Run, identity: Mapping[str, Any], sets: Sets):
        _require_known(identity)
        self.run = run
        packing = Packing(identity["packing"], identity["long_documents"], identity["shuffle"])
        long_chats = identity.get(LONG_CHATS, "split")
        loss = identity.get("loss", "all")
        self.order = Order(identity["split"], packing, identity["seed"], long_chats, loss)
        self.sets = {name: _set_of(name, run, sets) for name in run.setting.sets}
        self._all_sets = sets

    @classmethod
    def of_position(cls, state: Mapping[str, Any], sets: Sets) -> "RunRows":
        """The run of a position. ValueError if it is none, or is of other sets."""
        return cls(*read_position(state), sets)

    @classmethod
    def of_config(cls, config: LoaderConfig, sets: Sets) -> "RunRows":
        """The run that a loader with these settings begins."""
        order = order_of(config, sets)
        setting = setting_of(config, sets, config.world_size or 1)
        return cls(Run.start(setting), identity_of(config, setting, sets, order), sets)

    def step(self, step: int) -> list[ShownRow]:
        """The rows of a global batch, rank after rank.

        A step that the run has not made is shown as it will be.
        """
        leg = self.leg_of(step)
        self._require_near(step)
        setting = leg.setting
        if self.order.packing.name == "nanochat":
            rows: list[ShownRow] = []
            for rank in range(setting.world_size):
                rows += self._of_rank(leg, step, rank)
            return rows
        sources = self._sources(leg)
        turns, run = next_batch(sources, forward(sources, leg, step - leg.now.step))
        if not turns and setting.epochs:  # an iteration ends there: the step is in the next one
            turns, run = next_batch(sources, run.next_iteration())
        total = count_rows(turns)
        if not total:
            raise ValueError(f"the run has no step {step:,}: it ends after {run.now.step:,}")
        in_parts = self._in_parts(batch_of(sources, turns, 0, total), sources)
        rows = []
        for rank in range(setting.world_size):
            first, last = range_of_rank(total, rank, setting)
            rows += [row._replace(rank=rank) for row in in_parts[first:last]]
        return rows

    def _in_parts(self, batch: Batch, sources: Mapping[str, Source]) -> list[ShownRow]:
        """The rows of a batch, in its order."""
        names = list(sources)
        rows = []
        for part in batch.parts:
            name = names[part.source]
            epoch, window = part.table.place
            before = sources[name].rows_of_window(epoch, window).start
            for row in range(part.first, part.last):
                pieces = part.table.pieces(row)
                rows.append(ShownRow(name, epoch, window, before + row, pieces))
        return batch.in_order(rows)

    def _require_near(self, step: int) -> None:
        """ValueError for a step to come that nobody would wait for."""
        setting = self.run.setting
        most = MOST_EPOCHS
        for token_set in self.sets.values():
            tokens = sum(entry.tokens for entry in token_set.split(self.order.split))
            most += MOST_EPOCHS * tokens // setting.seq_len
        rows = (step - self.run.now.step) * setting.global_batch
        if rows > most:
            raise ValueError(
                f"row {rows:,} from here on is not looked up: {MOST_EPOCHS} epochs have about "
                f"{most:,} rows; name a place, as --row 7:0:12 (epoch:window:row)"
            )

    def leg_of(self, step: int) -> Run:
        """The run at the beginning of the leg of a step, or where it is now for one that is to
        come.
        """
        return self.run.back_to(step) if step < self.run.now.step else self.run

    def leg_at(self, name: str, epoch: int, window: int, row: int) -> Run:
        """The run at the beginning of the leg that dealt the row at a place, or will."""
        place = (epoch, window, row)
        (leg,) = [leg for leg in self.legs_of(name) if leg.first <= place < leg.end]
        return leg.run

    def at(self, name: str, epoch: int, window: int, row: int) -> ShownRow:
        """The row at a place, of the length at which it was dealt, or will be.

        ValueError if there is none.
        """
        source = self.source(self.leg_at(name, epoch, window, row), name)
        windows = source.count_windows(epoch)
        if window >= windows:
            raise ValueError(f"no such window: {window} of epoch {epoch}, which has {windows:,}")
        rows = source.rows_of_window(epoch, window)
        if row not in rows:
            last = rows.stop - 1
            raise ValueError(
                f"no such row: {row:,} of epoch {epoch}, window {window}, which has rows "
                f"{rows.start:,} to {last:,} of {source.seq_len:,} + 1 tokens"
            )
        pieces = source.table(epoch, window).pieces(row - rows.start)
        return ShownRow(name, epoch, window, row, pieces)

    def legs_of(self, name: str) -> Iterator[LegOfSource]:
        """The legs with a source, in order. ValueError if epochs were begun anew."""
        if any(leg.restarts for leg in self.run.legs):
            raise ValueError(
                "set_epoch was called in this run, so rows cannot be found by place or document; "
                "use --step"
            )
        legs = self.run.legs
        numbers = [number for number, leg in enumerate(legs) if name in leg.setting.sets]
        later = [legs[number].begin.cursors[name] for number in numbers[1:]]  # they only grow
        firsts = [Cursor(), *later]
        ends = [*later, END]
        for number, first, end in zip(numbers, firsts, ends, strict=False):
            yield LegOfSource(Run(legs[: number + 1], legs[number].begin), first, end)

    def _of_rank(self, leg: Run, step: int, rank: int) -> Iterator[ShownRow]:
        """A rank's rows of nanochat's order."""
        ((name, documents),) = leg.setting.sets.items()
        split = self.order.split
        token_set = self.sets[name].as_it_was(documents.manifest, split)
        batches = nanochat_rows(token_set, split, leg, rank)
        for _ in range(step - leg.now.step):
            next(batches)
        batch, _, run = next(batches)
        batch_size = leg.setting.batch_size
        first = run.now.cursors[name].row - batch_size
        table = batch.parts[0].table
        for row in range(batch_size):
            yield ShownRow(name, 0, 0, first + row, table.pieces(row), rank)

    def _sources(self, run: Run) -> dict[str, Source]:
        return {
            name: self.source(run, name, number) for number, name in enumerate(run.setting.sets)
        }

    def source(self, run: Run, name: str, number: int = 0) -> Source:
        """A source as it is in the last leg of a run."""
        token_set = _set_of(name, run, self._all_sets)
        return Source(name, token_set, self.order, run.legs, counts_only=True, number=number)


def _require_known(identity: Mapping[str, Any]) -> None:
    """ValueError if these are not the settings of a run's order."""
    is_right = (
        all(identity.get(key) in values for key, values in KNOWN.items())
        and type(identity.get("seed")) is int
        and identity.get(LONG_CHATS, "split") in LONG_DOCUMENTS
    )
    if not is_right:
        raise ValueError(f"expected the settings of a run in the position, found {dict(identity)}")


def _set_of(name: str, run: Run, sets: Sets) -> TokenSet:
    """The token set of a source of a run. ValueError if it is not among `sets`."""
    manifest = run.setting.sets[name].manifest
    candidates: list[TokenSet] = []
    if name in sets:
        candidates = [sets[name]]
    elif name == ONE_SET or ONE_SET in sets:
        candidates = list(sets.values())
    for token_set in candidates:
        if token_set.knows(manifest):
            return token_set
    what = f"source {name!r}" if name else "a token set"
    named = [f"{key} {token_set.display_name}".strip() for key, token_set in sets.items()]
    listed = ", ".join(named)
    raise ValueError(
        f"the run read {what} with manifest {manifest}, which none of these is: {listed}; name the "
        "set, or a mixture file that has it under this source's name"
    )
