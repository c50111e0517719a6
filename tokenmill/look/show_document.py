"""`show --document`: one document, what is known of it, and which rows of an epoch have it."""

import numpy as np

from tokenmill.feed.pieces import pieces_of
from tokenmill.look.documents import SourceLocator
from tokenmill.look.rows_with import rows_with
from tokenmill.look.steps import RunRows
from tokenmill.look.terminal import RowPrinter
from tokenmill.messages import counted, sanitize
from tokenmill.store.shards import ShardEntry
from tokenmill.store.token_sets import TokenSet

MOST_ROWS = 20  # that are listed
FEW = 3  # documents that a message names


def show_document(run: RunRows, source: str, number: int, epoch: int, printer: RowPrinter) -> None:
    """Prints a document of a source's split, and the rows of an epoch that have it."""
    token_set = run.sets[source]
    entry, document = find_document(number, token_set, run.order.split)
    shard = token_set.open(entry)
    begin, end = shard.bounds(document)
    (piece,) = pieces_of(shard, begin, end - begin)
    printer.piece(piece, 0, full=True)
    for column, value in SourceLocator(token_set).metadata(entry, document).items():
        printer.print(f"{column}: {sanitize(str(value))}")
    if run.order.packing.name == "nanochat":
        printer.print(
            "which rows have it cannot be told for packing nanochat, whose ranks have orders of "
            "their own"
        )
        return
    with printer.console.status("looking for it in the windows that may have it"):
        rows = list(rows_with(run, source, entry, document, epoch))
    summary = f"epoch {epoch}: {counted(len(rows), 'row')} with it"
    if token_set.view is not None and not token_set.repeats_of(entry)[document]:
        summary += ", as the view leaves it out"
    printer.print(summary)
    for row in rows[:MOST_ROWS]:
        note = " (only a copy, as filler)" if row.filler else ""
        printer.print(f"  {row.place}{note}")
    printer.print("  and more" if len(rows) > MOST_ROWS else "")


def find_where(run: RunRows, where: str) -> tuple[str, int]:
    """The source of the one document for which a rule is true, and its number in the split.

    ValueError if there is none, or there are several.
    """
    from tokenmill.views.documents import KNOWN, DocumentTables  # and DuckDB
    from tokenmill.views.rule import Evaluator, Rule

    places: list[tuple[str, int]] = []
    for source, token_set in run.sets.items():
        tables = DocumentTables(token_set)
        evaluator = Evaluator(Rule(where=where), [*KNOWN, *tables.columns])
        first = 0
        for _, rows in tables.batches(evaluator.columns, token_set.split(run.order.split)):
            times = evaluator.times(rows, token_set.display_name)
            places += [(source, first + number) for number in np.flatnonzero(times).tolist()]
            first += len(rows)
    if len(places) == 1:
        return places[0]
    documents = counted(len(places), "document")
    hint = "the other split may have it (--split)"
    if places:
        numbers = [f"{source}/{number}".lstrip("/") for source, number in places[:FEW]]
        hint = "show one by --document, as " + " or ".join(numbers)
    raise ValueError(f"--where {where}: {documents} of split {run.order.split!r}; {hint}")


def find_document(number: int, token_set: TokenSet, split: str) -> tuple[ShardEntry, int]:
    """The shard of the split's document with this number, and its number in the shard."""
    total = 0
    for entry in token_set.split(split):
        if number < total + entry.documents:
            return entry, number - total
        total += entry.documents
    last = total - 1
    raise ValueError(
        f"{token_set.display_name}: split {split!r} has {total:,} documents, 0 to {last:,}"
    )
