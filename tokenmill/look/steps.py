"""What a run trained on: the rows of a step, of a place, and those that hold a document.

    run = RunRows.of_position(loader.state_dict(), {"web": TokenSet(...), "code": TokenSet(...)})
    for row in run.step(1100):
        print(row.rank, row.place, row.pieces)

The past is the future from an earlier point. The run goes back to where the leg of that step began (rows/run.py), and
the sources of that time walk on by counts, without reading a token. The order of rows is that of training because it
is the same function.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tokenmill.batches.resume import LONG_CHATS, identity_of, order_of, setting_of
from tokenmill.feed.config import LoaderConfig
from tokenmill.feed.mixed_rows import forward, next_batch, range_of_rank
from tokenmill.feed.mixture import ONE_SET
from tokenmill.feed.nanochat_rows import nanochat_rows
from tokenmill.feed.pieces import Piece
from tokenmill.feed.source import Order, Source
from tokenmill.feed.turns import batch_of
from tokenmill.rows.packing import LONG_DOCUMENTS
from tokenmill.rows.plan import PACKINGS, Packing
from tokenmill.rows.position import read_position
from tokenmill.rows.run import Cursor, Run
from tokenmill.store.shards import SPLITS, ShardEntry
from tokenmill.store.token_sets import TokenSet

Sets = Mapping[str, TokenSet]


class ShownRow(NamedTuple):
    """A row, and what it consists of. `row` counts the rows of its window, at whatever length they were dealt; with
    nanochat, the rows of the rank.
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
        return f"{self.name}/" * bool(self.name) + f"{self.epoch}:{self.window}:{self.row}"


class RunRows:
    """The rows of a run whose sources are `sets`, by name, and whose positions say `identity` (resume.py)."""

    def __init__(self, run: Run, identity: Mapping[str, Any], sets: Sets):
        self.run = run
        of_one = {
            "packing": PACKINGS,
            "long_documents": LONG_DOCUMENTS,
            "split": SPLITS,
            "shuffle": (True, False),
        }
        wrong = [key for key, values in of_one.items() if identity.get(key) not in values]
        if (
            wrong
            or type(identity.get("seed")) is not int
            or identity.get(LONG_CHATS, "split") not in LONG_DOCUMENTS
        ):
            raise ValueError(
                f"expected the settings of a run in the position, found {dict(identity)}"
            )
        packing = Packing(identity["packing"], identity["long_documents"], identity["shuffle"])
        self.order = Order(
            identity["split"], packing, identity["seed"], identity.get(LONG_CHATS, "split")
        )
        self.sets = {name: _set_of(name, run, sets) for name in run.setting.sets}
        self._all_sets = sets

    @classmethod
    def of_position(cls, state: Mapping[str, Any], sets: Sets) -> "RunRows":
        """The run of a position. ValueError if it is none, or is of other sets."""
        return cls(*read_position(state), sets)

    @classmethod
    def of_config(cls, config: LoaderConfig, sets: Sets) -> "RunRows":
        """The run that a loader with these settings begins."""
        order, setting = order_of(config, sets), setting_of(config, sets, config.world_size or 1)
        return cls(Run.start(setting), identity_of(config, setting, sets, order), sets)

    def step(self, step: int) -> list[ShownRow]:
        """The rows of a global batch, rank after rank. A step that the run has not made is shown as it will be."""
        leg = self.leg_of(step)
        if self.order.packing.name == "nanochat":
            return [
                row
                for rank in range(leg.setting.world_size)
                for row in self._of_rank(leg, step, rank)
            ]
        sources = self._sources(leg)
        turns, before = next_batch(sources, forward(sources, leg, step - leg.now.step))
        if (
            not turns and leg.setting.epochs
        ):  # an iteration ends there, and the step is in the next one
            turns, before = next_batch(sources, before.next_iteration())
        total = sum(some.last - some.first for some in turns)
        if not total:
            raise ValueError(f"the run has no step {step:,}: it ends after {before.now.step:,}")
        batch = batch_of(sources, turns, 0, total)
        rows = [(part, row) for part in batch.parts for row in range(part.first, part.last)]
        ends = [
            range_of_rank(total, rank, leg.setting)[1] for rank in range(leg.setting.world_size)
        ]
        found, names = [], [*sources]
        for place, n in enumerate(np.argsort(np.arange(total)[batch.places]).tolist()):
            (number, table, *_), row = rows[n]
            before_it, _ = sources[names[number]].count_window(*table.place)
            rank = int(np.searchsorted(ends, place, side="right"))
            epoch, window = table.place
            found.append(
                ShownRow(names[number], epoch, window, before_it + row, table.pieces(row), rank)
            )
        return found

    def leg_of(self, step: int) -> Run:
        """The run at the beginning of the leg of a step, or where it is now for one that is to come."""
        return self.run.back_to(step) if step < self.run.now.step else self.run

    def leg_at(self, name: str, epoch: int, window: int, row: int) -> Run:
        """The run at the beginning of the leg that dealt the row at a place, or will."""
        (run,) = [
            run for run, first, end in self._legs_of(name) if first <= (epoch, window, row) < end
        ]
        return run

    def at(self, name: str, epoch: int, window: int, row: int) -> ShownRow:
        """The row at a place, of the length at which it was dealt, or will be. ValueError if there is none."""
        source = self._source(self.leg_at(name, epoch, window, row), name)
        windows = source.count_windows(epoch)
        if window >= windows:
            raise ValueError(f"no such window: {window} of epoch {epoch}, which has {windows:,}")
        before, end = source.count_window(epoch, window)
        if not before <= row < end:
            raise ValueError(
                f"no such row: {row:,} of epoch {epoch}, window {window}, which has rows {before:,} to {end - 1:,} of "
                f"{source.seq_len:,} + 1 tokens"
            )
        return ShownRow(name, epoch, window, row, source.table(epoch, window).pieces(row - before))

    def with_document(
        self, name: str, entry: ShardEntry, document: int, epoch: int
    ) -> Iterator[ShownRow]:
        """The rows of an epoch that hold tokens of a document of a shard, of the lengths at which they were dealt."""
        for run, first, end in self._legs_of(name):
            if first.epoch <= epoch <= end.epoch:
                for row in self._with_document(self._source(run, name), entry, document, epoch):
                    if first <= row[1:4] < end:
                        yield row

    def _with_document(
        self, source: Source, entry: ShardEntry, document: int, epoch: int
    ) -> Iterator[ShownRow]:
        token_set, entries, _, order = source.documents(epoch)
        shards = [number for number, one in enumerate(entries) if one.name == entry.name]
        if not shards:
            return
        begin, end = (
            int(offset) for offset in token_set.open(entry).offsets[document : document + 2]
        )
        windows = order.windows_of_slices()
        shard, first, last, copies = order.slices
        if copies is not None:  # of a view
            has_it = (copies[0] <= document) & (document < copies[1])
        elif (
            self.order.packing.packs_documents
        ):  # a document is entirely in the window in which it begins
            has_it = (first <= begin) & (begin < last)
        else:  # rows that begin before the document may reach into it
            has_it = (first < end) & (last > begin - source.seq_len)
        for window in np.unique(windows[has_it & np.isin(shard, shards)]).tolist():
            before, table = source.count_window(epoch, window)[0], source.table(epoch, window)
            for row, filler in table.rows_with(entry.name, begin, end):
                yield ShownRow(
                    source.name, epoch, window, before + row, table.pieces(row), filler=filler
                )

    def _legs_of(self, name: str) -> Iterator[tuple[Run, Cursor, Cursor]]:
        """The run where each leg with a source begins, and the places that this leg dealt: the first, and the end.
        ValueError if epochs were begun anew.
        """
        if any(leg.restarts for leg in self.run.legs):
            raise ValueError(
                "set_epoch was called in this run, so rows cannot be found by place or document; use --step"
            )
        legs = [(n, leg.begin) for n, leg in enumerate(self.run.legs) if name in leg.setting.sets]
        for index, (number, begin) in enumerate(legs):
            first = begin.cursors[name] if index else Cursor()
            end = min(
                (later.cursors[name] for _, later in legs[index + 1 :]), default=Cursor(1 << 62)
            )
            yield Run(self.run.legs[: number + 1], begin), first, end

    def _of_rank(self, leg: Run, step: int, rank: int) -> Iterator[ShownRow]:
        ((name, (manifest, *_)),) = leg.setting.sets.items()
        rows = nanochat_rows(
            self.sets[name].as_it_was(manifest, self.order.split), self.order.split, leg, rank
        )
        for _ in range(step - leg.now.step):
            next(rows)
        batch, _, run = next(rows)
        first = run.now.cursors[name].row - leg.setting.batch_size
        for row in range(leg.setting.batch_size):
            yield ShownRow(name, 0, 0, first + row, batch.parts[0].table.pieces(row), rank)

    def _sources(self, run: Run) -> dict[str, Source]:
        return {
            name: self._source(run, name, number) for number, name in enumerate(run.setting.sets)
        }

    def _source(self, run: Run, name: str, number: int = 0) -> Source:
        token_set = _set_of(name, run, self._all_sets)
        return Source(name, token_set, self.order, run.legs, counts_only=True, number=number)


def _set_of(name: str, run: Run, sets: Sets) -> TokenSet:
    """The token set of a source of a run. ValueError if it is not among `sets`."""
    manifest = run.setting.sets[name].manifest
    same = (
        [sets[name]] if name in sets else [one for one in sets.values() if ONE_SET in (name, *sets)]
    )
    known = [one for one in same if one.knows(manifest)]
    if not known:
        what = f"source {name!r}" if name else "a token set"
        raise ValueError(
            f"the run read {what} with manifest {manifest}, which none of these is: "
            f"{', '.join(f'{key} {one.display_name}'.strip() for key, one in sets.items())}; name the set, or a "
            "mixture file that has it under this source's name"
        )
    return known[0]
