"""Shows what the model saw: a row, a batch, a training step or a document of a token set, decoded.

    tokenmill show data/tokens/NAME --row 12
    tokenmill show data/tokens/NAME --step 12345 --batch-size 32 --world-size 8 --seq-len 2048
    tokenmill show data/tokens/NAME --document 7 --until 0:3:512 --batch-size 32 --world-size 8

Rows, batches and steps are counted from 0, from the beginning of training. A bar is a row; each stretch of
letters in one colour is a document, or the part of one that lies in this row, small letters a filler. What a
row is made of follows from the loader's settings, so give those of the training: they are printed first. Or name a file
with a loader's state_dict() as JSON where a place is asked for: the settings are then its own.

A document is shown with when it was seen: in which epoch, step and rank, up to a place; by default in epoch 0.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import tyro
from rich.console import Console

from tokenmill.batches.pieces import pieces_of
from tokenmill.batches.plans import WindowPlans
from tokenmill.look.asked import Show, numbers_of, read_state, require_as_stated
from tokenmill.look.drawing import Drawing
from tokenmill.look.show_mixture import show_mixture
from tokenmill.look.trace import Sighting, TracedRow, Tracer, find_document, trace_nanochat
from tokenmill.remote.sets import open_set
from tokenmill.rows.position import Position, identity_of, read_position
from tokenmill.rows.skipped import format_skipped, parse_skipped
from tokenmill.rows.stream import Place
from tokenmill.store.token_sets import TokenSet

SIGHTINGS = 20  # that are listed


# ---------------------------------------------------------------------------- which rows


def rows_of(config: Show, token_set: TokenSet) -> Iterator[tuple[int | None, TracedRow]]:
    """The rows that were asked for, each with the rank that got it where that was asked for."""
    if config.packing == "nanochat":
        return _nanochat_rows(config, token_set)
    if config.row is not None:
        return _row(config.row, _tracer(config, token_set, None))
    return _rows_of_a_call(config, token_set)


def _tracer(config: Show, token_set: TokenSet, position: Position | None) -> Tracer:
    loader = config.loader
    if config.manifest is not None:
        token_set = token_set.as_it_was(config.manifest, loader.split)
    plans = WindowPlans(token_set, loader.split, loader.seq_len + 1, packing=loader.packing, **loader.order)
    if position is not None:
        plans.former = (position.place["epoch"], token_set.as_it_was(position.manifest, loader.split))
        plans.pasts = dict(position.pasts)
        plans.began = None if position.began is None else (position.place["epoch"], position.began + 1)
    return Tracer(plans, parse_skipped(loader.skip_rows or ()))


def _row(row: str, tracer: Tracer) -> Iterator[tuple[None, TracedRow]]:
    place = numbers_of("--row", row, (1, 3))
    yield None, tracer.row_at(Place(*place)) if len(place) == 3 else next(tracer.rows(place[0], 1))


def _rows_of_a_call(config: Show, token_set: TokenSet) -> Iterator[tuple[int, TracedRow]]:
    done, start, position = 0, None, None
    if config.since is not None:
        done = config.since[0]
        start, position, config = _place("--since", config.since[1], config, token_set)
    rows_a_call = config.batch_size * config.world_size
    rows = _tracer(config, token_set, position).rows((_call(config) - done) * rows_a_call, rows_a_call, start)
    for index, traced in enumerate(rows):
        rank = index // config.batch_size
        if config.batch is None or rank == config.rank:
            yield rank, traced


def _nanochat_rows(config: Show, token_set: TokenSet) -> Iterator[tuple[int | None, TracedRow]]:
    ranks = range(config.world_size) if config.step is not None else [config.rank]
    for rank in ranks:
        if config.row is None:
            first, count = _call(config) * config.batch_size, config.batch_size
        else:
            (first,), count = numbers_of("--row", config.row, (1,)), 1
        where = {"rank": rank, "world_size": config.world_size, "first": first, "count": count}
        for traced in trace_nanochat(token_set, config.split, config.seq_len + 1, **where):
            yield rank, traced


def _call(config: Show) -> int:
    call = config.step if config.batch is None else config.batch
    assert call is not None, "a step or a batch was asked for"
    return call


def _place(flag: str, told: str, config: Show, token_set: TokenSet) -> tuple[Place, Position | None, Show]:
    """The place that a text or a state file tells, the position of the latter, and the settings then."""
    if not Path(told).exists() and not Path(told).suffix and "/" not in told:
        return Place(*numbers_of(flag, told, (3,))), None, config
    state, of_state = read_state(flag, told, "a place as 0:12:100, or a state file")
    require_as_stated(config, flag, of_state)
    config = replace(config, **of_state)
    identity = identity_of(token_set.tokenizer["fingerprint"], config.split, config.packing, config.loader.order)
    position = read_position(state, identity, Place._fields, token_set.told)
    return Place(**position.place), position, replace(config, skip_rows=tuple(state["skip_rows"]))


# ---------------------------------------------------------------------------- the command


def show(config: Show, console: Console) -> None:
    """Prints what was asked for. ValueError or FileNotFoundError where it is not there."""
    if os.fspath(config.tokens).endswith(".toml"):
        show_mixture(config, console)
        return
    token_set = open_set(config.tokens, config.loader.kept)
    if config.document is not None:
        _show_document(int(config.document), config, token_set, console)
        return
    with console.status("counting the rows that come before"):
        if (epochs := _epochs_before(config, token_set)) > 1:
            console.print(f"the rows before are counted, through about {epochs:,} epochs")
        rows = list(rows_of(config, token_set))
    drawing = Drawing([token_set], console, config.ids)
    drawing.print(_settings(_stated(config, token_set), token_set))
    for line in _of_a_later_epoch(config, rows):
        drawing.print(line)
    for line in _former_manifests(config, token_set):
        drawing.print(line)
    if places := format_skipped(parse_skipped(row.place for _, row in rows if row.place is not None)):
        drawing.print(f"to leave out what is shown: skip_rows={places!r}")
    drawing.bars(rows)
    for rank, row in rows:
        drawing.row(rank, row, config.full or len(rows) == 1)


def _epochs_before(config: Show, token_set: TokenSet) -> int:
    """Through about how many epochs the rows before those that are asked for by number are counted."""
    if config.packing == "nanochat" or config.since is not None or (config.row is not None and ":" in config.row):
        return 0
    rows_a_call = config.batch_size * config.world_size
    first = _call(config) * rows_a_call if config.row is None else numbers_of("--row", config.row, (1, 3))[0]
    return first * (config.seq_len + 1) // max(1, sum(entry.tokens for entry in token_set.split(config.split)))


def _of_a_later_epoch(config: Show, rows: list[tuple[int | None, TracedRow]]) -> list[str]:
    """That rows which were asked for by number are of an epoch after the first: who means this set may not know."""
    epoch = int(rows[0][1].place.partition(":")[0]) if rows and rows[0][1].place is not None else 0
    if not epoch or config.since is not None or (config.row is not None and ":" in config.row):
        return []
    times = "once" if epoch == 1 else f"{epoch:,} times"
    return [f"this is in epoch {epoch:,}: the set was gone through {times} before"]


def _stated(config: Show, token_set: TokenSet) -> Show:
    """The settings, those of a state file where one is named."""
    if config.since is None:
        return config
    _, position, config = _place("--since", config.since[1], config, token_set)
    return config if position is None else replace(config, manifest=position.manifest)


def _former_manifests(config: Show, token_set: TokenSet) -> list[str]:
    """That rows of before the set grew are others."""
    former = [digest for digest in token_set.digests() if digest != token_set.digest]
    if not former or config.manifest is not None or config.since is not None:
        return []
    return [f"this set has grown; for an epoch that began before, give --manifest {' or '.join(former)}"]


def _settings(config: Show, token_set: TokenSet) -> str:
    """What the rows follow from."""
    loader = config.loader
    order = f"seed {loader.order['seed']}" if loader.shuffle else "no shuffling"
    long = f", {loader.long_documents} long documents" if loader.packing == "best_fit" else ""
    ranks = f", {loader.batch_size} rows a rank, {loader.world_size} ranks" if config.row is None else ""
    return (
        f"{token_set.name}, {loader.split}: rows of {loader.seq_len:,} + 1 tokens, "
        f"{loader.packing}{long}, {order}{ranks}, manifest {config.manifest or token_set.digest}"
    )


def _show_document(number: int, config: Show, token_set: TokenSet, console: Console) -> None:
    entry, document = find_document(number, token_set, config.split)
    shard = token_set.open(entry)
    begin, end = (int(shard.offsets[i]) for i in (document, document + 1))
    (piece,) = pieces_of(shard, begin, end - begin)
    drawing = Drawing([token_set], console, config.ids)
    with console.status("looking for it in each epoch"):
        lines = list(islice(when(number, config, token_set), SIGHTINGS + 2))
    drawing.piece(piece, 0, full=True)
    for line in [*lines[: SIGHTINGS + 1], *["and more" for _ in lines[SIGHTINGS + 1 :]]]:
        drawing.print(line)


def when(number: int, config: Show, token_set: TokenSet) -> Iterator[str]:
    """What the rows follow from, and when a document of the split was seen, a line each."""
    if config.packing == "nanochat":
        yield "when it was seen is not told of packing nanochat, whose rows have no places"
        return
    until, position = Place(1, 0, 0), None
    if config.until is not None:
        until, position, config = _place("--until", config.until, config, token_set)
    if position is not None:  # what comes later is not looked at
        config = replace(config, manifest=position.manifest)
    yield _settings(config, token_set)
    yield from _former_manifests(config, token_set)
    tracer, seen = _tracer(config, token_set, position), None
    if position is not None:
        rows = tracer.count_before(until)
        if position.pasts or position.began or rows * config.seq_len != position.tokens_seen:
            yield (
                f"but the run saw {position.tokens_seen:,} tokens by then, and these {rows:,} rows hold "
                f"{rows * config.seq_len:,}: its rows were of another length, skipped, dropped at an epoch's end, or "
                "of another token set before, so what follows is not all that it saw, nor when"
            )
    for seen in tracer.sightings(*find_document(number, token_set, config.split), until):
        yield _seen(seen, config)
    if seen is None:
        yield f"not seen before {':'.join(map(str, until))}"


def _seen(sighting: Sighting, config: Show) -> str:
    place, only = ":".join(map(str, sighting.place)), ", as filler" if sighting.filler else ""
    epoch = f"seen in epoch {sighting.place.epoch}"
    if sighting.number is None:
        return f"{epoch}, at {place}, when rows were of {sighting.seq_len:,} + 1 tokens{only}"
    step, row = divmod(sighting.number, config.batch_size * config.world_size)
    rank, row = divmod(row, config.batch_size)
    return f"{epoch}, step {step:,}, rank {rank}, row {row} of its batch, at {place}{only}"


def main(arguments: list[str], prog: str) -> None:
    """Shows what the command line asks for."""
    show(
        tyro.cli(Show, prog=prog, args=arguments, description=__doc__),
        Console(soft_wrap=True, highlight=False, markup=False),
    )
