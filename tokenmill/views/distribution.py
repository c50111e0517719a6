"""Documents and tokens by the values of each column, in the whole set and in a view of it.

    for column in distributions(token_set, view):
        column.name, column.lines        ("score", [Line("3 to 4", 1200, 900_000, 1800, 1_350_000), ...])

Texts and small whole numbers are listed by value, the most frequent ones first; other numbers in ranges. The fields of
a struct are columns of their own, as meta.domain. A column with too many values, as a URL or an id, is left out, and so
are lists and bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.store.shards import ShardEntry
from tokenmill.store.token_sets import TokenSet
from tokenmill.store.views import View
from tokenmill.views.documents import DocumentTables

MOST_VALUES = 1000  # of a column that is listed
LINES = 12  # of a column; the others are summed up
RANGES = 8


class Line(NamedTuple):
    """The documents with one value, or in one range: in the set, and as often as they count in the view."""

    label: str
    documents: int
    tokens: int
    copies: int
    view_tokens: int


@dataclass
class Distribution:
    """The lines of one column."""

    name: str
    lines: list[Line]


def distributions(
    token_set: TokenSet, view: View | None, entries: Sequence[ShardEntry] | None = None
) -> list[Distribution]:
    """The distribution of each column that has few values, in all shards or in these. Reads their metadata."""
    tables = DocumentTables(token_set)
    kept = [path for name, type_ in tables.columns.items() for path in _paths([name], type_)]
    paths = {".".join(path): path for path in [["tokens"], *kept, ["source_file"]]}
    names = list(dict.fromkeys(path[0] for path in paths.values()))
    tallies = {name: _Tally() for name in paths}
    for held, rows in tables.batches(names, entries):
        tokens = rows.column("tokens").to_numpy()
        ones = np.ones(len(tokens), np.int64)
        times = ones if view is None else np.concatenate([view.counts_of(entry) for entry in held])
        numbers = np.stack([ones, tokens, times, tokens * times.astype(np.int64)])
        for name in [name for name, tally in tallies.items() if not tally.is_over]:
            head, *fields = paths[name]
            column = rows.column(head)
            tallies[name].add(pc.struct_field(column, fields) if fields else column, numbers)
    return [Distribution(name, tally.lines()) for name, tally in tallies.items() if not tally.is_over]


def _paths(path: list[str], type_: pa.DataType) -> list[list[str]]:
    """A column, or the fields of a struct, as far as they can be listed."""
    if pa.types.is_struct(type_):
        return [found for field in type_ for found in _paths([*path, field.name], field.type)]
    value = type_.value_type if pa.types.is_dictionary(type_) else type_
    return [] if pa.types.is_nested(value) or pa.types.is_binary(value) else [path]


class _Tally:
    """The sums of one column: by value, or, of numbers with many values, by range."""

    def __init__(self) -> None:
        self._sums: dict[Any, np.ndarray] = {}
        self._edges: np.ndarray | None = None
        self.is_over = False  # there are too many values to list

    def add(self, column: pa.ChunkedArray, numbers: np.ndarray) -> None:
        """Adds documents with these values: `numbers` (4, documents) of each."""
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        if self._edges is None and is_number and pc.count_distinct(column).as_py() > LINES:
            self._begin_ranges(column)
        if self._edges is not None:
            self._add_ranges(column, numbers)
            return
        encoded = pc.dictionary_encode(column.cast(kind).combine_chunks(), null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        values = encoded.dictionary.to_pylist()
        self._add(values, np.asarray(encoded.indices.to_numpy(zero_copy_only=False)), numbers)
        self.is_over = len(self._sums) > MOST_VALUES

    def _begin_ranges(self, column: pa.ChunkedArray) -> None:
        """Chooses ranges that hold about as many of these documents each, and moves what was added before into them."""
        known = column.drop_null().cast(pa.float64()).to_numpy()
        edges = np.unique(np.quantile(known, np.linspace(0, 1, RANGES + 1)[1:-1]))
        self._edges = np.unique([float(f"{edge:.3g}") for edge in edges])
        before, self._sums = self._sums, {}
        for value, sums in before.items():
            place = None if value is None else int(np.searchsorted(self._edges, float(value), side="right"))
            self._sums[place] = self._sums.get(place, np.zeros(4, np.int64)) + sums

    def _add_ranges(self, column: pa.ChunkedArray, numbers: np.ndarray) -> None:
        assert self._edges is not None, "the ranges are chosen"
        values = column.cast(pa.float64()).to_numpy()
        place = np.searchsorted(self._edges, values, side="right")
        unknown = len(self._edges) + 1
        self._add([*range(unknown), None], np.where(np.isnan(values), unknown, place), numbers)

    def _add(self, values: Sequence[Any], index: np.ndarray, numbers: np.ndarray) -> None:
        sums = np.stack([np.bincount(index, weights=row, minlength=len(values)) for row in numbers]).astype(np.int64)
        for number, value in enumerate(values):
            if sums[0, number]:
                self._sums[value] = self._sums.get(value, np.zeros(4, np.int64)) + sums[:, number]

    def lines(self) -> list[Line]:
        if self._edges is not None:
            order = sorted((place for place in self._sums if place is not None), key=int)
            order += [None] * (None in self._sums)
        else:
            order = sorted(self._sums, key=lambda value: (-int(self._sums[value][1]), str(value)))
        shown = order if len(order) <= LINES else order[: LINES - 1]
        lines = [Line(self._label(value), *self._sums[value].tolist()) for value in shown]
        if rest := order[len(shown) :]:
            lines.append(Line(f"{len(rest):,} others", *np.sum([self._sums[v] for v in rest], axis=0).tolist()))
        return lines

    def _label(self, value: Any) -> str:
        if value is None:
            return "none"
        if self._edges is None:
            return str(value)
        low = f"{self._edges[value - 1]:,.6g}" if value else ""
        high = f"{self._edges[value]:,.6g}" if value < len(self._edges) else ""
        return f"{low} to {high}" if low and high else (f"below {high}" if high else f"from {low}")
