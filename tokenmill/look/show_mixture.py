"""`tokenmill show mixture.toml`: the rows of a mixture's run, with their sources, and when a document was seen.

tokenmill show mixture.toml --step 12345 --batch-size 32 --world-size 8 --seq-len 2048
tokenmill show mixture.toml --step 12345 --since 12000 state.json
tokenmill show mixture.toml --row web/0:12:100
tokenmill show mixture.toml --document web/7 --until state.json
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from rich.console import Console

from tokenmill.batches.mixture import Mixture
from tokenmill.batches.pieces import pieces_of
from tokenmill.look.asked import Show, numbers_of, read_state, require_as_stated
from tokenmill.look.drawing import Drawing
from tokenmill.look.mixed_trace import MixedSighting, MixedTracer, of_one_length
from tokenmill.look.trace import TracedRow, find_document
from tokenmill.rows.segments import Line
from tokenmill.rows.skipped import by_source, format_by_source
from tokenmill.rows.stream import Place

SIGHTINGS = 20  # that are listed


def show_mixture(config: Show, console: Console) -> None:
    """Prints what was asked for. ValueError or FileNotFoundError where it is not there."""
    if config.manifest is not None:
        raise ValueError("--manifest is of one token set; a mixture's position says which each source had")
    state = None
    for flag, told in (("--since", config.since and config.since[1]), ("--until", config.until)):
        if told:
            state, config = _read_state(flag, str(told), config)
    known = state is not None and not config.skip_rows  # what is skipped is the state's to say
    tracer = MixedTracer(replace(config.loader, skip_rows=None) if known else config.loader, state)
    drawing = Drawing([source.token_set for source in tracer.feed.sources.values()], console, config.ids)
    if config.document is not None:
        _show_document(str(config.document), config, tracer, drawing)
        return
    with console.status("counting the rows that come before"):
        rows = list(rows_of(config, tracer))
    drawing.print(_settings(config))
    places = [row.place for _, row in rows if row.place is not None]
    gone = format_by_source(by_source(places, tracer.feed.mixture.names))
    drawing.print(f"to leave out what is shown: skip_rows={gone!r}")
    drawing.bars(rows)
    for rank, row in rows:
        drawing.row(rank, row, config.full or len(rows) == 1)


def rows_of(config: Show, tracer: MixedTracer) -> Iterator[tuple[int | None, TracedRow]]:
    """The rows that were asked for, each with the rank that got it where that was asked for."""
    if config.row is not None:
        source, slash, place = config.row.rpartition("/")
        if slash:
            yield None, tracer.row_at(_source(source, tracer), Place(*numbers_of("--row", place, (3,))))
        else:
            if not place.replace(",", "").isdecimal():
                example = f"{tracer.feed.mixture.names[0]}/0:12:100"
                raise ValueError(f"--row of a mixture must be a number, or a place as {example}, not {place!r}")
            (number,) = numbers_of("--row", place, (1,))
            yield None, next(tracer.rows(number, 1))
        return
    done = config.since[0] if config.since is not None else 0
    call = config.step if config.batch is None else config.batch
    assert call is not None, "a step or a batch was asked for"
    rows_a_call = config.batch_size * config.world_size
    for index, traced in enumerate(tracer.rows((call - done) * rows_a_call, rows_a_call)):
        rank = index // config.batch_size
        if config.batch is None or rank == config.rank:
            yield rank, traced


def when(document: str, config: Show, tracer: MixedTracer) -> Iterator[str]:
    """The segments of the run, a line each, and when a document of a source was seen in them."""
    source, number = _document(document, tracer)
    lines, tokens = list(tracer.standing.lines), tracer.standing.tokens_seen
    if config.until is None:
        lines, tokens = tracer.lines_of_epoch(source)
    for index, line in enumerate(lines):
        yield f"segment {index}, from {line.tokens:,} tokens on: rows of {line.seq_len:,} + 1, {_shares(line)}"
    seen = None
    entry, place = find_document(number, tracer.feed.sources[source].token_set, config.split)
    for seen in tracer.sightings(source, entry, place, lines, tokens):
        if config.until is None and seen.place.epoch:
            return  # the first epoch of the source is all that was asked for
        yield _seen(seen, source, config, of_one_length(lines))
    if seen is None:
        yield f"not seen in the first {tokens:,} tokens of the run"


def _show_document(document: str, config: Show, tracer: MixedTracer, drawing: Drawing) -> None:
    source, number = _document(document, tracer)
    token_set = tracer.feed.sources[source].token_set
    entry, place = find_document(number, token_set, config.split)
    shard = token_set.open(entry)
    begin, end = (int(shard.offsets[i]) for i in (place, place + 1))
    (piece,) = pieces_of(shard, begin, end - begin)
    with drawing.console.status("looking for it in each segment"):
        lines = list(islice(when(document, config, tracer), SIGHTINGS + 2))
    drawing.print(_settings(config))
    drawing.piece(piece, 0, full=True)
    for line in [*lines[: SIGHTINGS + 1], *["and more" for _ in lines[SIGHTINGS + 1 :]]]:
        drawing.print(line)


def _document(document: str, tracer: MixedTracer) -> tuple[str, int]:
    source, slash, number = document.rpartition("/")
    if not slash:
        raise ValueError(f"--document of a mixture must name its source, as {tracer.feed.mixture.names[0]}/{number}")
    return _source(source, tracer), int(number)


def _source(name: str, tracer: MixedTracer) -> str:
    if name not in tracer.feed.sources:
        raise ValueError(f"{name!r} is no source of the mixture, which has {', '.join(tracer.feed.sources)}")
    return name


def _seen(seen: MixedSighting, source: str, config: Show, steps: bool) -> str:
    place, only = ":".join(map(str, seen.place)), ", as filler" if seen.filler else ""
    told = f"seen in segment {seen.segment}, after {seen.tokens:,} tokens"
    if steps:
        step, row = divmod(seen.tokens // seen.seq_len, config.batch_size * config.world_size)
        rank, row = divmod(row, config.batch_size)
        told += f", step {step:,}, rank {rank}, row {row} of its batch"
    return f"{told}, at {source}/{place}{only}"


def _shares(line: Line) -> str:
    total = sum(line.weights.values())
    return ", ".join(f"{name} {weight / total:.2%}" for name, weight in line.weights.items())


def _read_state(flag: str, told: str, config: Show) -> tuple[dict[str, Any], Show]:
    """A loader's state from a file, and the settings that it has."""
    state, of_state = read_state(flag, told, "a state file of a mixture's loader")
    require_as_stated(config, flag, of_state)
    return state, replace(config, **of_state)


def _settings(config: Show) -> str:
    """What the rows follow from."""
    loader = config.loader
    assert isinstance(loader.tokens, Mixture), "it was asked of a mixture"
    ranks = f", {loader.batch_size} rows a rank, {loader.world_size} ranks" if config.row is None else ""
    return (
        f"{config.tokens}, {loader.split}: {loader.tokens!r}; rows of {loader.seq_len:,} + 1 tokens, {loader.packing}, "
        f"seed {loader.order['seed']}{ranks}"
    )
