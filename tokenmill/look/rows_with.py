"""The rows of a run that hold a document, found by counts, without reading a token."""

from collections.abc import Iterator

import numpy as np

from tokenmill.feed.source import Source
from tokenmill.look.steps import RunRows, ShownRow
from tokenmill.rows.plan import Packing
from tokenmill.rows.windows import Window
from tokenmill.store.shards import ShardEntry


def rows_with(
    run: RunRows, name: str, entry: ShardEntry, document: int, epoch: int
) -> Iterator[ShownRow]:
    """The rows of an epoch that hold tokens of a document of a shard of a source.

    They are of the lengths at which they were dealt.
    """
    for leg in run.legs_of(name):
        if not leg.first.epoch <= epoch <= leg.end.epoch:
            continue
        source = run.source(leg.run, name)
        for row in _rows_of_source(source, run.order.packing, entry, document, epoch):
            if leg.first <= (row.epoch, row.window, row.row) < leg.end:
                yield row


def _rows_of_source(
    source: Source, packing: Packing, entry: ShardEntry, document: int, epoch: int
) -> Iterator[ShownRow]:
    """The rows of an epoch at a source's row length, window after window."""
    documents = source.documents(epoch)
    names = [shard.name for shard in documents.entries]
    if entry.name not in names:
        return
    begin, end = documents.token_set.open(entry).bounds(document)
    slices = documents.windows.slices
    may_have_it = _may_have(slices, packing, document, (begin, end), source.seq_len)
    may_have_it &= slices.shard == names.index(entry.name)
    windows = documents.windows.windows_of_slices()[may_have_it]
    for window in np.unique(windows).tolist():
        before = source.rows_of_window(epoch, window).start
        table = source.table(epoch, window)
        for row, filler in table.rows_with(entry.name, begin, end):
            yield ShownRow(
                name=source.name,
                epoch=epoch,
                window=window,
                row=before + row,
                pieces=table.pieces(row),
                filler=filler,
            )


def _may_have(
    slices: Window, packing: Packing, document: int, tokens: tuple[int, int], seq_len: int
) -> np.ndarray:
    """Whether rows of each slice may hold a document with these tokens, if it is of its shard.

    (num_slices,) bool.
    """
    begin, end = tokens
    if slices.copies is not None:  # of a view
        first, last, *_ = slices.copies
        return (first <= document) & (document < last)
    if packing.packs_documents:  # all of it is in the window in which it begins
        return (slices.begin <= begin) & (begin < slices.end)
    # rows that begin before the document may reach into it
    return (slices.begin < end) & (slices.end > begin - seq_len)
