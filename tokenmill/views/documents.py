"""What is known of each document of a token set, as tables of some shards at a time.

    for entries, rows in DocumentTables(token_set).batches(["score", "tokens"]):     shards, and a pyarrow.Table

Every document has `tokens` (its length, BOS included), `shard`, `source_file` and `split`. All other columns are those
that `prepare --keep-columns` kept. One that has a name of these four is called kept_tokens, and so on.

    for name, lines in distributions(token_set, view):
        ("score", [Line("3 to 4", 1200, 900_000, 1800, 1_350_000), ...])

Columns with few values are listed by value, the one with the most tokens first; numbers with many, in ranges. A column
of too many values, as a URL, is left out, and so are lists and bytes.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.store.columns import META
from tokenmill.store.shards import ShardEntry, sources_of
from tokenmill.store.tables import merged, metadata_of, read_schema
from tokenmill.store.token_sets import TokenSet
from tokenmill.store.views import View

KNOWN = ("tokens", "shard", "source_file", "split")
BATCH_DOCUMENTS = 1 << 20


class DocumentTables:
    """The tables of a token set. `columns` are the kept columns, by the name that they have here, with their types."""

    def __init__(self, token_set: TokenSet):
        self._token_set = token_set
        self.columns: dict[str, pa.DataType] = {}
        self._kept: dict[str, str] = {}  # the name in the files, by the name here
        some = next(
            (entry for entry in token_set.entries if META.suffix in token_set.record(entry)), None
        )
        for field in read_schema(token_set.column_path(some, META.suffix)) if some else ():
            name = field.name
            while name.lower() in KNOWN or name in self.columns:
                name = f"kept_{name}"
            self.columns[name], self._kept[name] = field.type, field.name

    def batches(
        self, columns: Sequence[str], entries: Sequence[ShardEntry] | None = None
    ) -> Iterator[tuple[list[ShardEntry], pa.Table]]:
        """The documents of all shards, in the order of the manifest, or of these, with these columns. ValueError if a
        shard lacks one.
        """
        held, some = list[ShardEntry](), self._token_set.entries if entries is None else entries
        lacking = [entry.name for entry in some if META.suffix not in self._token_set.record(entry)]
        if lacking and any(name in self._kept for name in columns):
            raise ValueError(
                f"{self._token_set.display_name}: expected metadata of all shards, found none of {len(lacking):,}, as "
                f"{', '.join(lacking[:3])}; prepare them again with --keep-columns"
            )
        for entry in [*some, None]:
            if held and (
                entry is None or sum(one.documents for one in [*held, entry]) > BATCH_DOCUMENTS
            ):
                yield held, merged([self._of_shard(one, columns) for one in held])
                held = []
            held += [entry] if entry else []

    def _of_shard(self, entry: ShardEntry, columns: Sequence[str]) -> pa.Table:
        found, names = (
            dict[str, Any](),
            {name: self._kept[name] for name in columns if name in self._kept},
        )
        if names:
            table = metadata_of(self._token_set, entry, list(names.values()))
            if missing := [name for name in names.values() if name not in table.column_names]:
                raise ValueError(
                    f"{self._token_set.display_name}: shard {entry.name} keeps no column {missing[0]!r}, as others do, "
                    f"but {', '.join(table.column_names)}; prepare the set again under another --name"
                )
            found = {name: table.column(own) for name, own in names.items()}
        if "tokens" in columns:
            found["tokens"] = pa.array(self._token_set.open(entry).lengths)
        if "source_file" in columns:
            sources = sources_of(self._token_set.record(entry))
            counts = (
                [one["documents"] for one in sources] if len(sources) > 1 else [entry.documents]
            )
            found["source_file"] = _repeated([one["file"] for one in sources], counts)
        for name, value in (("shard", entry.name), ("split", entry.split)):
            if name in columns:
                found[name] = _repeated([value], [entry.documents])
        return pa.table(found) if found else pa.table({"": pa.nulls(entry.documents)})


def _repeated(values: list[str], counts: list[int]) -> pa.DictionaryArray:
    """Each value so many times, stored once."""
    return pa.DictionaryArray.from_arrays(
        np.repeat(np.arange(len(values), dtype=np.int32), counts), pa.array(values)
    )


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
        times = (
            ones
            if view is None
            else np.concatenate([view.repeats_of(entry) for entry in held]).astype(int)
        )
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
                value = pa.array(
                    np.searchsorted(edges[name], given, side="right"), mask=np.isnan(given)
                )
            parts = [
                *([found[name]] if name in found else []),
                pa.table({"value": value} | numbers),
            ]
            summed = (
                pa.concat_tables(parts).group_by("value").aggregate([(one, "sum") for one in SUMS])
            )
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
    if (
        not any(is_one(column.type) for is_one in kinds)
        or pc.count_distinct(column).as_py() <= LINES
    ):
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
        labels = [
            f"below {names[0]}",
            *map("{} to {}".format, names, names[1:]),
            f"from {names[-1]}",
        ]
        rows.sort(key=lambda row: (row[0] is None, row[0]))
    lines = [Line("none" if row[0] is None else labels[row[0]], *row[1:]) for row in rows]
    rest = lines[LINES - 1 :]
    others = (
        Line(f"{len(rest):,} others", *np.sum([line[1:] for line in rest], 0).tolist())
        if len(rest) > 1
        else None
    )
    return [*lines[: LINES - 1], others] if others else lines
