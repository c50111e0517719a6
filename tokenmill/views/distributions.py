"""How a view spreads over the values of each column that is known of documents.

    for name, lines in distributions(token_set, view):
        ("score", [Line("3 to 4", 1200, 900_000, 1800, 1_350_000), ...])

Columns with few values are listed by value, the one with the most tokens first; numbers with many,
in ranges. A column of too many values, as a URL, is left out, and so are lists and bytes.
"""

from collections.abc import Sequence
from itertools import pairwise
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
    """The documents with one value, or in one range: in the set, and as often as they count."""

    label: str
    documents: int
    tokens: int
    copies: int
    view_tokens: int


SUMS = Line._fields[1:]


def distributions(
    token_set: TokenSet, view: View | None, entries: Sequence[ShardEntry] | None = None
) -> list[tuple[str, list[Line]]]:
    """The lines of each column that has few values, of all shards or of these.

    Reads their metadata.
    """
    tables = DocumentTables(token_set)
    columns = _listable(tables)
    heads = list({path[0] for path in columns.values()})
    edges: dict[str, np.ndarray | None] = {}  # of ranges; None where values are listed
    sums: dict[str, pa.Table] = {}
    for shards, rows in tables.batches(heads, entries):
        numbers = _numbers(rows, view, shards)
        for name, path in list(columns.items()):
            column = _column(rows, path)
            if name not in edges:
                edges[name] = _edges(column)
            table = pa.table({"value": _labels_of(column, edges[name])} | numbers)
            if name in sums:
                table = pa.concat_tables([sums[name], table])
            by_value = table.group_by("value").aggregate([(number, "sum") for number in SUMS])
            sums[name] = by_value.rename_columns(["value", *SUMS])
            if edges[name] is None and len(sums[name]) > MOST_VALUES:
                del columns[name]
    return [(name, _lines(sums[name], edges[name])) for name in columns if name in sums]


def _listable(tables: DocumentTables) -> dict[str, list[str]]:
    """The columns whose values may be listed: their names, and the path of each in a struct."""
    paths = [["tokens"]]
    for name, kind in tables.columns.items():
        paths += _paths([name], kind)
    paths.append(["source_file"])
    return {".".join(path): path for path in paths}


def _paths(path: list[str], kind: pa.DataType) -> list[list[str]]:
    """A column, or the fields of a struct, as far as they can be listed."""
    if pa.types.is_struct(kind):
        paths = []
        for field in kind:
            paths += _paths([*path, field.name], field.type)
        return paths
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_nested(value) or pa.types.is_binary(value):
        return []
    return [path]


def _numbers(rows: pa.Table, view: View | None, shards: list[ShardEntry]) -> dict[str, np.ndarray]:
    """What is summed up, of each document."""
    tokens = rows.column("tokens").to_numpy()
    documents = np.ones(len(tokens), int)
    copies = documents
    if view is not None:
        copies = np.concatenate([view.repeats_of(entry) for entry in shards]).astype(int)
    return dict(zip(SUMS, (documents, tokens, copies, tokens * copies), strict=True))


def _column(rows: pa.Table, path: list[str]) -> pa.ChunkedArray:
    head, *fields = path
    column = rows.column(head)
    if fields:
        column = pc.struct_field(column, fields)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column


def _edges(column: pa.ChunkedArray) -> np.ndarray | None:
    """Where the ranges of a column of numbers end; None to list values.

    About as many of these documents are in each.
    """
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    is_number = any(is_kind(column.type) for is_kind in kinds)
    if not is_number or pc.count_distinct(column).as_py() <= LINES:
        return None
    numbers = column.drop_null().cast(pa.float64()).to_numpy()
    finite = numbers[np.isfinite(numbers)]
    quantiles = np.quantile(finite, np.linspace(0, 1, RANGES + 1)[1:-1])
    return np.unique([float(f"{edge:.3g}") for edge in quantiles])


def _labels_of(column: pa.ChunkedArray, edges: np.ndarray | None) -> Any:
    """The value of each document as text, or the number of its range."""
    if edges is None:
        return column.cast(pa.string())
    numbers = column.cast(pa.float64()).to_numpy()
    return pa.array(np.searchsorted(edges, numbers, side="right"), mask=np.isnan(numbers))


def _lines(sums: pa.Table, edges: np.ndarray | None) -> list[Line]:
    """Lines in order: ranges by number, values by their tokens; those of many values summed up."""
    rows = [Line(*row.values()) for row in sums.to_pylist()]
    if edges is None:
        rows.sort(key=lambda row: (-row.tokens, str(row.label)))
        names: dict[Any, str] = {row.label: row.label for row in rows}
    else:
        rows.sort(key=lambda row: (row.label is None, row.label))
        names = dict(enumerate(_range_names(edges)))
    names[None] = "none"
    lines = [row._replace(label=names[row.label]) for row in rows]
    tail = lines[LINES - 1 :]
    if len(tail) < 2:
        return lines
    totals = np.sum([line[1:] for line in tail], 0).tolist()
    return [*lines[: LINES - 1], Line(f"{len(tail):,} others", *totals)]


def _range_names(edges: np.ndarray) -> list[str]:
    names = [f"{edge:,.6g}" for edge in edges]
    between = [f"{begin} to {end}" for begin, end in pairwise(names)]
    return [f"below {names[0]}", *between, f"from {names[-1]}"]
