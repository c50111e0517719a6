"""Shows what the model saw: a row, a batch, a training step or a document, decoded.

    tokenmill show data/tokens/NAME --row 12 --seq-len 2048
    tokenmill show data/tokens/NAME --step 12345 --batch-size 32 --world-size 8 --seq-len 2048
    tokenmill show data/tokens/NAME --step 12345 --checkpoint ckpt.pt
    tokenmill show mixture.toml --document web/7 --checkpoint ckpt.pt

Rows, batches and steps are counted from 0, from the beginning of training. Each bar is a row. Each stretch of letters
in one color is a document, or the part of it that is in this row; lowercase letters are filler.

The content of a row depends on the loader's settings. A checkpoint of the run says all of them, and each change of
batch size, ranks, row length and mixture before it. It is a file of torch.save, pickle or JSON, or a folder of
torch.distributed.checkpoint, that contains a loader's state_dict() or that of get_batch. Without a checkpoint, pass the
settings of the run. The command prints them first, and never guesses those that decide which rows you asked for.

For a document, the command also prints when it was seen: in which epoch, step and rank, up to a place. By default it
searches epoch 0 of the document's source.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from tokenmill.feed.mixture import ONE_SET
from tokenmill.feed.pieces import pieces_of
from tokenmill.humanize import counted
from tokenmill.look.checkpoint_files import position_of
from tokenmill.look.metadata_table import metadata_table
from tokenmill.look.run_steps import RunSteps, StepPlace, rows_before
from tokenmill.look.show_config import Show, numbers_of, require_as_stated, settings_of
from tokenmill.look.source_places import SourceLocator
from tokenmill.look.terminal import RowPrinter
from tokenmill.look.trace import (
    Sighting,
    TracedRow,
    Tracer,
    find_document,
    named_place,
    of_one_length,
    rank_rows,
)
from tokenmill.remote.sets import open_set
from tokenmill.rows.packings import find_packing
from tokenmill.rows.position import documents_of, upgrade
from tokenmill.rows.row_stream import Cursor
from tokenmill.rows.run_log import LogEntry, log_of
from tokenmill.rows.segments import SegmentStart
from tokenmill.rows.skip_rows import by_source, format_by_source
from tokenmill.sanitize import sanitize
from tokenmill.store.token_sets import TokenSet

SIGHTINGS = 20  # how many are listed
Ranked = tuple[int | None, TracedRow]  # the rank that got the row, if the query names a batch or step; the row


class ShowQuery:
    """What to show, with the settings of a state file if one was named, and how to trace it."""

    def __init__(self, config: Show):
        self.state: dict[str, Any] | None = None
        self.cursor: Cursor | None = None
        self._log: tuple[LogEntry, ...] = ()  # of the state
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
            self._log = log_of(self.state, tracer.feed.renamed(self.state))  # of one set that is a source here
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
        self._log = log_of(self.state)
        settings |= self._stated_sizes(config, flag)
        if config.view is None and config.loader.mixture.is_one_set and not self._is_of_a_rank(settings):
            *_, documents = documents_of(self.state["sources"]["manifest"][0])
            settings |= {"view": documents.view or None}
        return replace(config, **settings)

    def _stated_sizes(self, config: Show, flag: str) -> dict[str, Any]:
        """The batch size and the number of ranks that the state says. A run may continue with others after --since."""
        if flag == "--since" or not self._log or not self._log[-1].rows:
            return {}
        stated = {"batch_size": self._log[-1].batch_size, "world_size": self._log[-1].world_size}
        require_as_stated(config, flag, stated)
        return stated

    @staticmethod
    def _is_of_a_rank(settings: dict[str, Any]) -> bool:
        return find_packing(settings["packing"]).per_rank

    @property
    def _global_batch(self) -> int:
        assert self.loader.world_size is not None, "a config of `show` says how many ranks there are"
        return self.loader.batch_size * self.loader.world_size

    @property
    def _has_sizes(self) -> bool:
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
            yield None, self.tracer.row_at(self._source(source), cursor)
            return
        if not self.mixture.is_one_set and not place.replace(",", "").isdecimal():
            example = f"{self.mixture.names[0]}/0:12:100"
            raise ValueError(f"--row of a mixture must be a number, or a place as {example}, not {place!r}")
        (number,) = numbers_of("--row", place, (1, 3) if self.mixture.is_one_set else (1,))
        for traced in self._rows_of_run(range(number, number + 1)):
            yield None, traced

    def _rows_since(self, done: int) -> Iterator[Ranked]:
        """The rows of a call, counted from the state, which is after `done` calls."""
        first = (_call(self.config) - done) * self._global_batch
        for index, traced in enumerate(self.tracer.rows(first, self._global_batch)):
            rank = index // self.loader.batch_size
            if self.config.batch is None or rank == self.loader.rank:
                yield rank, traced

    def _rows_of_a_call(self) -> Iterator[Ranked]:
        """The rows of a call or step, counted from the beginning of the run."""
        config, steps = self.config, self._steps()
        numbers = steps.rows_of(_call(config)) if config.batch is None else steps.rows_of_call(_call(config))
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
        known = self._rows_before_state()
        past, coming = range(numbers.start, min(numbers.stop, known)), range(max(numbers.start, known), numbers.stop)
        if past:
            yield from self.tracer.past_rows(past.start, len(past), self._log)
        if coming and self._log and self._log[-1].epochs:
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

    def _rows_before_state(self) -> int:
        return 0 if self.state is None else sum(turns for _, turns in self.tracer.segments())

    def _steps(self) -> RunSteps:
        """Which rows were whose, by the log of the state, or else by the flags.

        Raises ValueError if they contradict --global-batch-size.
        """
        config, unknown = self.config, LogEntry(0, 0, 1)
        sizes = [(rows_before(self._lines(), entry.tokens), entry) for entry in self._log]
        if not sizes and config.batch_size is not None and config.world_size is not None:
            sizes = [(0, LogEntry(0, config.batch_size, config.world_size))]
        if not sizes or sizes[0][0]:
            sizes.insert(0, (0, unknown))
        known, (row, last) = self._rows_before_state(), sizes[-1]
        is_short = bool(last.rows) and (known - row) % last.rows != 0
        if is_short and not self._log and self.state is not None:
            raise ValueError(
                f"the checkpoint is after {known:,} rows, which are no whole number of calls of {last.batch_size:,} "
                f"rows on each of {last.world_size:,} ranks, so these were not the sizes throughout; use --since"
            )
        return RunSteps(sizes, config.global_batch_size, known if is_short or last.epochs else None)

    @property
    def _whole_log(self) -> tuple[LogEntry, ...]:
        """The log of the state, if it begins with the run; otherwise ()."""
        lines = () if self.state is None else self.tracer.mixture_state.segments
        is_whole = bool(self._log) and self._log[0].tokens == 0 and bool(lines) and lines[0].tokens == 0
        return self._log if is_whole else ()

    def _lines(self) -> list[SegmentStart]:
        return [line for line, _ in self.tracer.segments()]

    def _rank_rows(self) -> Iterator[Ranked]:
        config, loader = self.config, self.loader
        for rank in range(loader.world_size or 1) if config.step is not None else [loader.rank or 0]:
            if config.row is None:
                first, count = _call(config) * loader.batch_size, loader.batch_size
            else:
                (first,), count = numbers_of("--row", config.row, (1,)), 1
            for traced in rank_rows(loader, rank, first, count):
                yield rank, traced

    # ------------------------------------------------------------------------ when a document was seen

    def document(self) -> tuple[str, int]:
        """The source of the document to show, and its number there."""
        source, slash, number = str(self.config.document).rpartition("/")
        if not slash and not self.mixture.is_one_set:
            raise ValueError(f"--document of a mixture must name its source, as in {self.mixture.names[0]}/{number}")
        return self._source(source), int(number)

    def _source(self, name: str) -> str:
        if name not in self.sets:
            raise ValueError(f"{name!r} is not a source of the mixture, which has {', '.join(self.sets)}")
        return name

    def when(self) -> Iterator[str]:
        """Lines that say what the rows depend on, and when the document was seen."""
        if self.config.seq_len is None:
            yield "when it was seen depends on the length of rows: pass --seq-len, as in training"
            return
        yield self.settings()
        if self.is_per_rank:
            yield f"packing {self.config.packing} does not record when a document is seen: its rows have no places"
            return
        source, number = self.document()
        yield from self.former_manifests()
        until = self.cursor if self.config.until is not None else None
        lines, tokens = self.tracer.history(source, until, of_state=self._is_bounded)
        if len(lines) > 1 or not self.mixture.is_one_set:
            for index, line in enumerate(lines):
                yield f"segment {index}, from {line.tokens:,} tokens on: rows of {line.seq_len:,} + 1{_shares(line)}"
        yield from self._unknown_history(source, lines)
        yield from self._sightings(source, number, lines, tokens)

    def _sightings(self, source: str, number: int, lines: list[SegmentStart], tokens: int) -> Iterator[str]:
        entry, document = find_document(number, self.sets[source], self.config.split)
        seen, steps = None, self._steps() if (self._log or self._has_sizes) and lines[0].tokens == 0 else None
        for seen in self.tracer.sightings(source, entry, document, lines, tokens, self._whole_log):
            if not self._is_bounded and seen.place.epoch:
                return  # only the first epoch of the source is searched
            of_step = None if steps is None else steps.place_of(rows_before(lines, seen.tokens))
            yield self._seen(seen, source, of_step)
        if seen is None:
            before = f"in the first {tokens:,} tokens of the run"
            yield f"not seen {before if self.cursor is None else 'before ' + ':'.join(map(str, self.cursor))}"

    @property
    def _is_bounded(self) -> bool:
        """Whether a document is searched up to a place or a state, instead of in its source's first epoch."""
        return self.config.until is not None or self.config.checkpoint is not None

    def _seen(self, seen: Sighting, source: str, of_step: StepPlace | None) -> str:
        where = f"segment {seen.segment}, after {seen.tokens:,} tokens"
        line = f"seen in {f'epoch {seen.place.epoch}' if self.mixture.is_one_set else where}"
        if of_step is not None:
            line += f", step {of_step.step:,}, rank {of_step.rank}, row {of_step.row} of its batch"
        place = named_place(source, ":".join(map(str, seen.place)))
        length = "" if seen.seq_len == self.loader.seq_len else f", when rows were of {seen.seq_len:,} + 1 tokens"
        return f"{line}, at {place}{length}{', as filler' if seen.filler else ''}"

    def _unknown_history(self, source: str, lines: list[SegmentStart]) -> Iterator[str]:
        """Says so if a position from an older tokenmill does not contain the whole history of the run."""
        if self.state is None or self._whole_log:
            return
        split, served = self.tracer.feed.sources[source], self.tracer.mixture_state.sources[source]
        if served.place.epoch and len(split.token_set.digests()) > 1:
            yield "this set has grown: if that was during this run, its earlier epochs had fewer shards than shown here"
        if served.place.epoch and split.token_set.view_stems():
            yield (
                "this set has views: if an earlier epoch of this run went over another view than its present epoch, "
                "that epoch is not shown as it was"
            )
        if not of_one_length(lines):
            yield "rows had several lengths: rows that were skipped before the length changed may be listed as seen"
        if lines[0].tokens:
            yield f"the position does not say which rows the first {lines[0].tokens:,} tokens of the run were"
        elif not self.tracer.mixture_state.segments:
            rows = self.tracer.count_before(source, served.place)
            if split.pasts or split.began or rows * self.loader.seq_len != served.tokens:
                yield (
                    f"but the run saw {served.tokens:,} tokens by then, and these {rows:,} rows hold "
                    f"{rows * self.loader.seq_len:,}: some rows had another length, were skipped, were dropped at the "
                    "end of an epoch, or were of another token set, so what follows may be incomplete or at other steps"
                )

    # ------------------------------------------------------------------------ the lines before the rows

    def settings(self) -> str:
        """What the rows depend on."""
        loader, packing = self.loader, find_packing(self.config.packing)
        order = f"seed {loader.order['seed']}" if loader.shuffle else "no shuffling"
        is_chat = any(token_set.is_chat for token_set in self.sets.values())
        says_how = len(packing.labels) > 1 and not (is_chat and loader.long_documents == "split")
        long = f", {loader.long_documents} long documents" if says_how else ""
        says_sizes = self._has_sizes and self.config.checkpoint is None  # else they are those of its end
        ranks = f", {loader.batch_size} rows a rank, {loader.world_size} ranks" if says_sizes else ""
        rows = f"rows of {loader.seq_len:,} + 1 tokens, {loader.packing}{long}, {order}{ranks}"
        if not self.mixture.is_one_set:
            return f"{self.config.tokens}, {loader.split}: {self.mixture!r}; {rows}"
        token_set = self.sets[ONE_SET]
        view = "" if token_set.view is None else f", view {token_set.view.name}"
        return f"{token_set.name}{view}, {loader.split}: {rows}, manifest {self._manifest(token_set)}"

    def _manifest(self, token_set: TokenSet) -> str:
        if self.config.manifest is not None or self.state is None:
            return self.config.manifest or token_set.digest
        return ", then ".join(part.manifest for part in documents_of(self.state["sources"]["manifest"][0]))

    def of_run(self, rows: list[TracedRow]) -> list[str]:
        """When these rows were used, or will be, and what the checkpoint says of the run at that time."""
        if self.config.checkpoint is None or self.is_per_rank or not rows or rows[0].number is None:
            return []
        first, known = rows[0].number, self._rows_before_state()
        last = first + len(rows) - 1
        which = f"row {first:,}" if last == first else f"rows {first:,} to {last:,}"
        segments, before = self.tracer.segments(), 0
        when = f"after the checkpoint, which is after {known:,} rows; these are the rows if the run continues as it is"
        for number, (line, turns) in enumerate(segments if first < known else []):
            if first < before + turns:
                tokens = line.tokens + (first - before) * line.seq_len
                when = f"after {tokens:,} tokens, with rows of {line.seq_len:,} + 1{_shares(line)}"
                when = f"in segment {number}, {when}" if len(segments) > 1 else when
                break
            before += turns
        sizes = self._steps().sizes_at(first)
        each = f"; batches of {sizes.batch_size:,} rows on {counted(sizes.world_size, 'rank')}" if sizes.rows else ""
        return [f"{which} of the run, {when}{each}"]

    def since_mismatch(self) -> list[str]:
        """A hint, if --since names a step that the state file is not of."""
        if self.state is None or self.config.since is None:
            return []
        step = self.config.since[0]
        rows = sum(self.state["sources"]["rows"])
        expected = step * self._global_batch
        if rows == expected:
            return []
        return [
            f"the state file is after {rows:,} rows, but {step:,} steps of this batch size have {expected:,}: check "
            "--since, --batch-size and --world-size, unless the batch size or the number of ranks changed before"
        ]

    def former_manifests(self) -> list[str]:
        """A hint, if the set has grown, that rows from before are others."""
        if self.state is not None and self.config.manifest is None:
            return [self._grown_since_state(name) for name in self.tracer.grown_at_epoch_start()]
        if not self.mixture.is_one_set or self.config.manifest is not None:
            return []
        token_set = self.sets[ONE_SET]
        former = [digest for digest in token_set.digests() if digest != token_set.digest]
        if not former or token_set.view is not None:
            return []
        return [f"this set has grown; for an epoch that began before, pass --manifest {' or '.join(former)}"]

    def _grown_since_state(self, name: str) -> str:
        token_set, epoch = self.sets[name], self.tracer.mixture_state.sources[name].place.epoch
        other = f"; for a run that resumed after that, pass --manifest {token_set.digest}" if name == ONE_SET else ""
        return (
            f"{token_set.display_name} has grown since this state, which is at the first row of epoch {epoch:,}; that "
            f"epoch is shown as the set was then{other}"
        )

    def epochs_before(self) -> int:
        """About how many epochs of one set have to be counted before the first row."""
        config = self.config
        from_start = self.cursor is None and self.state is None and ":" not in (config.row or "")
        if self.is_per_rank or not self.mixture.is_one_set or not from_start:
            return 0
        first = (
            numbers_of("--row", config.row, (1, 3))[0]
            if config.row is not None
            else self._steps().rows_of(_call(config)).start
        )
        token_set = self.sets[ONE_SET]
        tokens = sum(entry.tokens for entry in token_set.split(config.split))
        if token_set.view is not None:
            tokens = token_set.view.tokens(config.split)
        return first * (self.loader.seq_len + 1) // max(1, tokens)

    def of_a_later_epoch(self, rows: list[Ranked]) -> list[str]:
        """A hint if rows requested by number are in a later epoch, which the user may not expect."""
        place = rows[0][1].place if rows else None
        epoch = int(place.partition(":")[0]) if place is not None and self.mixture.is_one_set else 0
        if not epoch or self.state is not None or self.cursor is not None or ":" in (self.config.row or ""):
            return []
        passes = "1 pass" if epoch == 1 else f"{epoch:,} passes"
        return [f"this is in epoch {epoch:,}, after {passes} over the set"]


def show(config: Show, console: Console) -> None:
    """Prints what the config asks for. Raises ValueError or FileNotFoundError if it does not exist."""
    try:
        query = ShowQuery(config)
        if config.document is not None:
            _show_document(query, console)
        else:
            _show_rows(query, console)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        file = config.checkpoint or config.until or (config.since and config.since[1])
        if not file:
            raise
        raise ValueError(
            f"{file}: the position in it is not as state_dict made it ({type(error).__name__}: {error}); use another "
            "checkpoint"
        ) from error


def _show_rows(query: ShowQuery, console: Console) -> None:
    with console.status("counting the rows that come before"):
        if (epochs := query.epochs_before()) > 1:
            console.print(f"counting the rows of about {epochs:,} epochs that come before")
        rows = list(query.rows())
    printer = RowPrinter(list(query.sets.values()), console, query.config.ids)
    of_run = query.of_run([row for _, row in rows])
    for line in [
        query.settings(),
        *of_run,
        *query.since_mismatch(),
        *query.of_a_later_epoch(rows),
        *query.former_manifests(),
    ]:
        printer.print(line)
    if places := [row.place for _, row in rows if row.place is not None]:
        printer.print(f"to leave these rows out: skip_rows={format_by_source(by_source(places, query.sets))!r}")
    printer.bars(rows)
    for rank, row in rows:
        printer.row(rank, row, query.config.full or len(rows) == 1)
    if query.config.columns is not None:
        console.print(metadata_table([row for _, row in rows], printer.locator, query.config.columns))


def _show_document(query: ShowQuery, console: Console) -> None:
    source, number = query.document()
    entry, document = find_document(number, query.sets[source], query.config.split)
    shard = query.sets[source].open(entry)
    begin, end = (int(shard.offsets[i]) for i in (document, document + 1))
    (piece,) = pieces_of(shard, begin, end - begin)
    printer = RowPrinter(list(query.sets.values()), console, query.config.ids)
    with console.status("looking for it in each segment"):
        lines = list(islice(query.when(), SIGHTINGS + 2))
    printer.piece(piece, 0, full=True)
    for name, value in SourceLocator(query.sets[source]).metadata(entry, document).items():
        printer.print(f"{name}: {sanitize(str(value))}")
    if (view := query.sets[source].view) is not None:
        printer.print(f"counts {counted(int(view.counts_of(entry)[document]), 'time')} in view {view.name}")
    for line in [*lines[: SIGHTINGS + 1], *["and more" for _ in lines[SIGHTINGS + 1 :]]]:
        printer.print(line)


def _call(config: Show) -> int:
    call = config.step if config.batch is None else config.batch
    assert call is not None, "the query names a step or a batch"
    return call


def _shares(line: SegmentStart) -> str:
    total = sum(line.weights.values())
    return "".join(f", {name} {weight / total:.2%}" for name, weight in line.weights.items() if name)


def main(arguments: list[str], prog: str) -> None:
    """Shows what these command-line arguments ask for."""
    show(
        tyro.cli(Show, prog=prog, args=arguments, description=__doc__),
        Console(soft_wrap=True, highlight=False, markup=False),
    )
