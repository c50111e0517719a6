"""Which rows `tokenmill show` is asked for, and how to trace them: from the command line and a checkpoint.

    query = ShowQuery(Show("data/tokens/web", step=12345, checkpoint="ckpt.pt"))
    list(query.rows())                  (rank, row) of each row of the step
    query.steps()                       which rows of the run were whose

show_notes.py says what the rows depend on, and when_seen.py when a document was seen.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenmill.feed.mixture import ONE_SET
from tokenmill.look.checkpoint_files import position_of
from tokenmill.look.run_steps import RunSteps, rows_before
from tokenmill.look.show_config import Show, numbers_of, require_as_stated, settings_of
from tokenmill.look.trace import TracedRow, Tracer, rank_rows
from tokenmill.remote.sets import open_set
from tokenmill.rows.packings import find_packing
from tokenmill.rows.position import documents_of, upgrade
from tokenmill.rows.row_stream import Cursor
from tokenmill.rows.run_log import LogEntry, log_of
from tokenmill.rows.segments import SegmentStart

Ranked = tuple[int | None, TracedRow]  # the rank that got the row, if the query names a batch or step; the row


class ShowQuery:
    """What to show, with the settings of a state file if one was named, and how to trace it."""

    def __init__(self, config: Show):
        self.state: dict[str, Any] | None = None
        self.cursor: Cursor | None = None
        self.log: tuple[LogEntry, ...] = ()  # of the state
        for flag, named in (
            ("--since", config.since and config.since[1]),
            ("--until", config.until),
            ("--checkpoint", config.checkpoint),
        ):
            if named:
                config = self._read(flag, str(named), config)
        config.require_settings()
        self.config = config
        self.loader = loader = config.loader
        self.mixture = loader.mixture
        self.is_per_rank = find_packing(config.packing).per_rank
        if config.manifest is not None and not self.mixture.is_one_set:
            raise ValueError("--manifest is for one token set; a mixture's position has a manifest for each source")
        if self.is_per_rank:
            self.sets = {ONE_SET: open_set(self.mixture[ONE_SET], loader.kept)}
            return
        state_skips = self.state is not None and not config.skip_rows  # the state says which rows are skipped
        tracer = Tracer.of(replace(loader, skip_rows=None) if state_skips else loader, self.state)
        if config.manifest is not None:
            tracer = tracer.of_manifest(config.manifest)
        if self.state is not None:
            self.log = log_of(self.state, tracer.feed.renamed(self.state))  # of one set that is a source here
        self.tracer = tracer.at(self.cursor) if self.cursor is not None and config.since is not None else tracer
        self.sets = {name: source.token_set for name, source in self.tracer.feed.sources.items()}

    def _read(self, flag: str, named: str, config: Show) -> Show:
        """The config with the settings of a checkpoint, or unchanged if `named` is a place."""
        is_place = flag != "--checkpoint" and not Path(named).exists() and not Path(named).suffix and "/" not in named
        if is_place and config.loader.mixture.is_one_set:
            self.cursor = Cursor(*numbers_of(flag, named, (3,)))
            return config
        place = "a place as 0:12:100, or " if flag != "--checkpoint" and config.loader.mixture.is_one_set else ""
        expected = f"{place}a checkpoint with a loader's state_dict()"
        self.state = upgrade(position_of(flag, Path(named), config.split, expected))
        settings = settings_of(self.state)
        require_as_stated(config, flag, settings)
        if flag == "--checkpoint" and self._is_of_a_rank(settings):
            raise ValueError(
                f"--checkpoint: the position of a run with packing {settings['packing']} does not say which rows its "
                "calls had; pass the settings of the run instead"
            )
        self.log = log_of(self.state)
        settings |= self._stated_sizes(config, flag)
        if config.view is None and config.loader.mixture.is_one_set and not self._is_of_a_rank(settings):
            *_, documents = documents_of(self.state["sources"]["manifest"][0])
            settings |= {"view": documents.view or None}
        return replace(config, **settings)

    def _stated_sizes(self, config: Show, flag: str) -> dict[str, Any]:
        """The batch size and the number of ranks that the state says. A run may continue with others after --since."""
        if flag == "--since" or not self.log or not self.log[-1].rows:
            return {}
        stated = {"batch_size": self.log[-1].batch_size, "world_size": self.log[-1].world_size}
        require_as_stated(config, flag, stated)
        return stated

    @staticmethod
    def _is_of_a_rank(settings: dict[str, Any]) -> bool:
        return find_packing(settings["packing"]).per_rank

    @property
    def global_batch(self) -> int:
        assert self.loader.world_size is not None, "a config of `show` says how many ranks there are"
        return self.loader.batch_size * self.loader.world_size

    @property
    def has_sizes(self) -> bool:
        """Whether it is known which step a row belongs to."""
        return self.config.batch_size is not None and self.config.world_size is not None

    # ------------------------------------------------------------------------ which rows

    def rows(self) -> Iterator[Ranked]:
        """The rows to show."""
        if self.is_per_rank:
            return self._rank_rows()
        if self.config.row is not None:
            return self._row(self.config.row)
        if self.config.since is not None:
            return self._rows_since(self.config.since[0])
        return self._rows_of_a_call()

    def _row(self, row: str) -> Iterator[Ranked]:
        source, _, place = row.rpartition("/")
        if source or (self.mixture.is_one_set and ":" in place):
            cursor = Cursor(*numbers_of("--row", place, (1, 3) if self.mixture.is_one_set else (3,)))
            yield None, self.tracer.row_at(self.require_source(source), cursor)
            return
        if not self.mixture.is_one_set and not place.replace(",", "").isdecimal():
            example = f"{self.mixture.names[0]}/0:12:100"
            raise ValueError(f"--row of a mixture must be a number, or a place as {example}, not {place!r}")
        (number,) = numbers_of("--row", place, (1, 3) if self.mixture.is_one_set else (1,))
        for traced in self._rows_of_run(range(number, number + 1)):
            yield None, traced

    def _rows_since(self, done: int) -> Iterator[Ranked]:
        """The rows of a call, counted from the state, which is after `done` calls."""
        first = (call_of(self.config) - done) * self.global_batch
        for index, traced in enumerate(self.tracer.rows(first, self.global_batch)):
            rank = index // self.loader.batch_size
            if self.config.batch is None or rank == self.loader.rank:
                yield rank, traced

    def _rows_of_a_call(self) -> Iterator[Ranked]:
        """The rows of a call or step, counted from the beginning of the run."""
        config, steps = self.config, self.steps()
        numbers = steps.rows_of(call_of(config)) if config.batch is None else steps.rows_of_call(call_of(config))
        ranks = steps.sizes_at(numbers.start).world_size
        if config.batch is not None and (ranks > 1 if config.rank is None else config.rank >= ranks):
            found = "" if config.rank is None else f", found {config.rank}"
            raise ValueError(f"--batch {config.batch} needs --rank: it had {ranks:,} ranks, from 0 on{found}")
        for number, traced in zip(numbers, self._rows_of_run(numbers), strict=True):
            place = steps.place_of(number)
            if config.batch is None or (place is not None and place.rank == (config.rank or 0)):
                yield None if place is None else place.rank, traced

    def _rows_of_run(self, numbers: range) -> Iterator[TracedRow]:
        """Rows of the run by number: from before the state, and from after it, as the run will continue."""
        known = self.rows_before_state()
        past, coming = range(numbers.start, min(numbers.stop, known)), range(max(numbers.start, known), numbers.stop)
        if past:
            yield from self.tracer.past_rows(past.start, len(past), self.log)
        if coming and self.log and self.log[-1].epochs:
            raise ValueError(
                f"row {coming.start:,} of the run comes after the checkpoint, and because its loader has `epochs`, "
                "what came then is not known; use a later checkpoint"
            )
        rows = list(self.tracer.rows(coming.start - known, len(coming))) if coming else []
        if len(rows) < len(coming):
            raise ValueError(
                f"the run has no rows {coming.start:,} to {coming.stop - 1:,}: all sources of the mixture are used up "
                f"after {coming.start + len(rows):,} rows"
            )
        yield from (replace(row, number=number) for number, row in zip(coming, rows, strict=True))

    def rows_before_state(self) -> int:
        return 0 if self.state is None else sum(turns for _, turns in self.tracer.segments())

    def steps(self) -> RunSteps:
        """Which rows were whose, by the log of the state, or else by the flags.

        Raises ValueError if they contradict --global-batch-size.
        """
        config, unknown = self.config, LogEntry(0, 0, 1)
        sizes = [(rows_before(self._lines(), entry.tokens), entry) for entry in self.log]
        if not sizes and config.batch_size is not None and config.world_size is not None:
            sizes = [(0, LogEntry(0, config.batch_size, config.world_size))]
        if not sizes or sizes[0][0]:
            sizes.insert(0, (0, unknown))
        known, (row, last) = self.rows_before_state(), sizes[-1]
        is_short = bool(last.rows) and (known - row) % last.rows != 0
        if is_short and not self.log and self.state is not None:
            raise ValueError(
                f"the checkpoint is after {known:,} rows, which are no whole number of calls of {last.batch_size:,} "
                f"rows on each of {last.world_size:,} ranks, so these were not the sizes throughout; use --since"
            )
        return RunSteps(sizes, config.global_batch_size, known if is_short or last.epochs else None)

    @property
    def whole_log(self) -> tuple[LogEntry, ...]:
        """The log of the state, if it begins with the run; otherwise ()."""
        lines = () if self.state is None else self.tracer.mixture_state.segments
        is_whole = bool(self.log) and self.log[0].tokens == 0 and bool(lines) and lines[0].tokens == 0
        return self.log if is_whole else ()

    def _lines(self) -> list[SegmentStart]:
        return [line for line, _ in self.tracer.segments()]

    def _rank_rows(self) -> Iterator[Ranked]:
        config, loader = self.config, self.loader
        for rank in range(loader.world_size or 1) if config.step is not None else [loader.rank or 0]:
            if config.row is None:
                first, count = call_of(config) * loader.batch_size, loader.batch_size
            else:
                (first,), count = numbers_of("--row", config.row, (1,)), 1
            for traced in rank_rows(loader, rank, first, count):
                yield rank, traced

    def document(self) -> tuple[str, int]:
        """The source of the document to show, and its number there."""
        source, slash, number = str(self.config.document).rpartition("/")
        if not slash and not self.mixture.is_one_set:
            raise ValueError(f"--document of a mixture must name its source, as in {self.mixture.names[0]}/{number}")
        return self.require_source(source), int(number)

    def require_source(self, name: str) -> str:
        if name not in self.sets:
            raise ValueError(f"{name!r} is not a source of the mixture, which has {', '.join(self.sets)}")
        return name

    @property
    def is_bounded(self) -> bool:
        """Whether a document is searched up to a place or a state, instead of in its source's first epoch."""
        return self.config.until is not None or self.config.checkpoint is not None


def call_of(config: Show) -> int:
    """The step or batch that the command line names."""
    call = config.step if config.batch is None else config.batch
    assert call is not None, "the query names a step or a batch"
    return call
