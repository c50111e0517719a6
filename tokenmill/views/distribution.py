"""Documents and tokens by the values of each column, in the whole set and in a view of it.

    for name, lines in distributions(token_set, view):
        ("score", [Line("3 to 4", 1200, 900_000, 1800, 1_350_000), ...])

Columns with few values are listed by value, the one with the most tokens first; numbers with many, in ranges. A column
of too many values, as a URL, is left out, and so are lists and bytes.
"""

from collections.abc import Sequence
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


SUMS = Line._fields[1:]


def distributions(
    token_set: TokenSet, view: View | None, entries: Sequence[ShardEntry] | None = None
) -> list[tuple[str, list[Line]]]:
    """The lines of each column that has few values, of all shards or of these. Reads their metadata."""
    tables = DocumentTables(token_set)
    kept = [one for name, type_ in tables.columns.items() for one in _paths([name], type_)]
    paths = {".".join(path): path for path in [["tokens"], *kept, ["source_file"]]}
    edges, found = dict[str, Any](), dict[str, pa.Table]()
    for held, rows in tables.batches(list({path[0] for path in paths.values()}), entries):
        tokens = rows.column("tokens").to_numpy()
        ones = np.ones(len(tokens), int)
        times = ones if view is None else np.concatenate([view.counts_of(entry) for entry in held]).astype(int)
        numbers = dict(zip(SUMS, (ones, tokens, times, tokens * times), strict=True))
        for name, (head, *fields) in list(paths.items()):
            column = pc.struct_field(rows.column(head), fields) if fields else rows.column(head)
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            if name not in edges:
                edges[name] = _edges(column)
            value = column.cast(pa.string())
            if edges[name] is not None:
                given = column.cast(pa.float64()).to_numpy()
                value = pa.array(np.searchsorted(edges[name], given, side="right"), mask=np.isnan(given))
            parts = [*([found[name]] if name in found else []), pa.table({"value": value} | numbers)]
            summed = pa.concat_tables(parts).group_by("value").aggregate([(one, "sum") for one in SUMS])
            found[name] = summed.rename_columns(["value", *SUMS])
            if edges[name] is None and len(found[name]) > MOST_VALUES:
                del paths[name]
    return [(name, _lines(found[name], edges[name])) for name in paths if name in found]


def _paths(path: list[str], type_: pa.DataType) -> list[list[str]]:
    """A column, or the fields of a struct, as far as they can be listed."""
    if pa.types.is_struct(type_):
        return [found for field in type_ for found in _paths([*path, field.name], field.type)]
    value = type_.value_type if pa.types.is_dictionary(type_) else type_
    return [] if pa.types.is_nested(value) or pa.types.is_binary(value) else [path]


def _edges(column: pa.ChunkedArray) -> np.ndarray | None:
    """Where the ranges of a column of numbers end, with about as many of these documents each; None to list values."""
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    if not any(is_one(column.type) for is_one in kinds) or pc.count_distinct(column).as_py() <= LINES:
        return None
    known = column.drop_null().cast(pa.float64()).to_numpy()
    quantiles = np.nanquantile(known, np.linspace(0, 1, RANGES + 1)[1:-1])
    return np.unique([float(f"{edge:.3g}") for edge in quantiles])


def _lines(found: pa.Table, edges: np.ndarray | None) -> list[Line]:
    rows = [tuple(row.values()) for row in found.to_pylist()]
    labels: Any = {row[0]: row[0] for row in rows}
    rows.sort(key=lambda row: (-row[2], str(row[0])))
    if edges is not None:
        names = [f"{edge:,.6g}" for edge in edges]
        labels = [f"below {names[0]}", *map("{} to {}".format, names, names[1:]), f"from {names[-1]}"]
        rows.sort(key=lambda row: (row[0] is None, row[0]))
    lines = [Line("none" if row[0] is None else labels[row[0]], *row[1:]) for row in rows]
    rest = lines[LINES - 1 :]
    others = Line(f"{len(rest):,} others", *np.sum([line[1:] for line in rest], 0).tolist()) if len(rest) > 1 else None
    return [*lines[: LINES - 1], others] if others else lines
