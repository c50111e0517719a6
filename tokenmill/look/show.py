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

from itertools import islice

import tyro
from rich.console import Console

from tokenmill.feed.pieces import pieces_of
from tokenmill.humanize import counted
from tokenmill.look.metadata_table import metadata_table
from tokenmill.look.show_config import Show
from tokenmill.look.show_notes import (
    epochs_before,
    former_manifests,
    of_a_later_epoch,
    of_run,
    of_step,
    settings,
    since_mismatch,
)
from tokenmill.look.show_query import ShowQuery
from tokenmill.look.source_places import SourceLocator
from tokenmill.look.terminal import RowPrinter
from tokenmill.look.trace import find_document
from tokenmill.look.when_seen import when
from tokenmill.rows.skip_rows import by_source, format_by_source
from tokenmill.sanitize import sanitize

SIGHTINGS = 20  # how many are listed


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
        if (epochs := epochs_before(query)) > 1:
            console.print(f"counting the rows of about {epochs:,} epochs that come before")
        rows = list(query.rows())
    printer = RowPrinter(list(query.sets.values()), console, query.config.ids)
    about_run = of_run(query, [row for _, row in rows])
    for line in [
        settings(query),
        *of_step(query),
        *about_run,
        *since_mismatch(query),
        *of_a_later_epoch(query, rows),
        *former_manifests(query),
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
        lines = list(islice(when(query), SIGHTINGS + 2))
    printer.piece(piece, 0, full=True)
    for name, value in SourceLocator(query.sets[source]).metadata(entry, document).items():
        printer.print(f"{name}: {sanitize(str(value))}")
    if (view := query.sets[source].view) is not None:
        printer.print(f"counts {counted(int(view.counts_of(entry)[document]), 'time')} in view {view.name}")
    for line in [*lines[: SIGHTINGS + 1], *["and more" for _ in lines[SIGHTINGS + 1 :]]]:
        printer.print(line)


def main(arguments: list[str], prog: str) -> None:
    """Shows what these command-line arguments ask for."""
    show(
        tyro.cli(Show, prog=prog, args=arguments, description=__doc__),
        Console(soft_wrap=True, highlight=False, markup=False),
    )
