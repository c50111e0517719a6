r"""A unit -> its documents. What all formats share is written here, once.

    Rows of a reader     texts [["Title", None, ""], ["a text", None, "x" * 10**8]]   two columns
    DocumentBatch        texts ["Title\n\na text"], is_val [False], one null, one oversized

Texts are joined; null, empty and over-long ones are left out and counted; invalid UTF-8 is replaced
and counted.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tokenmill.text.formats import ReadOptions, Rows
from tokenmill.text.kept_columns import as_table
from tokenmill.text.plan import Unit
from tokenmill.text.source_file import SourceFile, naming_file
from tokenmill.text.text_arrays import as_text, text_lengths, valid_utf8
from tokenmill.text.validation import is_val

JOINED_BY = b"\n\n"  # between the texts of several columns
# characters of white space in a row: tiktoken's regex engine gives up on a million
MOST_SPACES = 500_000
SPACES = re.compile(rf"\s{{{MOST_SPACES}}}")
# what has no document in a set, so that those after it have another number than in their file
LEFT_OUT = (
    "null_documents",
    "empty_documents",
    "oversized_documents",
    "broken_lines",
    "blank_lines",
    "left_out_conversations",
)


class DocumentBatch(NamedTuple):
    """Some documents of one file, in order."""

    texts: pa.LargeStringArray  # valid UTF-8, none of them null or empty
    is_val: np.ndarray  # (documents,) bool
    kept: pa.Table | None  # the columns to keep, a row for each document
    file: int  # of the unit's files
    row_group: int | None
    counts: Counter[str]  # what was left out or repaired
    bytes: int  # of the file that were read for them, for progress
    place: Callable[[int], str]  # where in the file a document is, for errors
    first_broken: str  # where the first line is that was left out, and what is wrong with it

    def chosen(self, mask: np.ndarray) -> "DocumentBatch":
        """Those of the documents for which the mask (documents,) is true."""
        if mask.all():
            return self
        numbers = np.flatnonzero(mask)
        place = self.place
        mask_array = pa.array(mask)
        return self._replace(
            texts=self.texts.filter(mask_array),
            is_val=self.is_val[mask],
            kept=None if self.kept is None else self.kept.filter(mask_array),
            place=lambda number: place(int(numbers[number])),
        )


def read_unit(unit: Unit, options: ReadOptions) -> Iterator[DocumentBatch]:
    """The documents of a unit, a few MB at a time.

    ValueError that names the file if it is damaged or has no text.
    """
    for number, file in enumerate(unit.files):
        with naming_file(file):
            for rows in file.format.read(file, unit.k, unit.n, options):
                yield _batch_of(rows, number, file, options)


def _batch_of(rows: Rows, number: int, file: SourceFile, options: ReadOptions) -> DocumentBatch:
    texts = _joined([as_text(column) for column in rows.texts])
    batch = DocumentBatch(
        texts=texts,
        is_val=np.zeros(len(texts), bool),
        kept=as_table(rows.kept, file.shown) if rows.kept else None,
        file=number,
        row_group=rows.row_group,
        counts=Counter(
            broken_lines=rows.broken, blank_lines=rows.blank, oversized_documents=rows.oversized
        ),
        bytes=rows.bytes,
        place=rows.place or _place_in_batch,
        first_broken=rows.first_broken,
    )
    counts = batch.counts
    lengths = text_lengths(texts)
    is_long = _are_too_long(texts, lengths, options.max_document_bytes)
    fits = (lengths > 0) & ~is_long
    if not fits.all():
        num_empty = int((lengths == 0).sum()) - texts.null_count
        counts["null_documents"] += texts.null_count
        counts["oversized_documents"] += int(is_long.sum())
        counts["empty_documents"] += num_empty
        batch = batch.chosen(fits)
    texts, repaired = valid_utf8(batch.texts)
    counts["repaired_documents"] += repaired
    return batch._replace(texts=texts, is_val=is_val(texts, file.val_share, options))


def _place_in_batch(number: int) -> str:
    return f"document {number:,} of those read together"


def _are_too_long(texts: pa.LargeStringArray, lengths: np.ndarray, most: int) -> np.ndarray:
    """Whether each text is over-long, or has too much white space in a row: (num_texts,) bool."""
    is_long = lengths > most
    for number in np.flatnonzero((lengths > MOST_SPACES) & ~is_long).tolist():
        data = texts[number : number + 1].cast(pa.large_binary())
        text = data[0].as_py().decode("utf-8", "replace")
        is_long[number] = SPACES.search(text) is not None
    return is_long


def _joined(columns: list[pa.LargeStringArray]) -> pa.LargeStringArray:
    """The texts of a row joined by blank lines, without null and empty ones; null if all are."""
    if len(columns) == 1:
        return columns[0]
    by_column = [column.cast(pa.large_binary()).to_pylist() for column in columns]
    joined = []
    for texts in zip(*by_column, strict=True):
        has_text = any(text is not None for text in texts)
        joined.append(JOINED_BY.join(filter(None, texts)) if has_text else None)
    return as_text(pa.array(joined, pa.large_binary()))
