"""Parquet: units are consecutive row groups, planned from the footer alone and streamed a MiB at a time.

With row groups of 90, 90, 90 and 30 MiB of text and shards of 256 MiB:

    train-00.parquet -> train-00.000 (row groups 0 1), train-00.001 (2 3)
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.text.formats import Reading
from tokenmill.text.units import BATCH_BYTES, Documents, SourceFile, Unit, as_documents, reading, sha256

BATCH_DOCUMENTS = 256  # at most; short ones are many in BATCH_BYTES
# by default pyarrow fetches all of a row group before the first batch
STREAMING = {"buffer_size": 1 << 20, "pre_buffer": False}


def plan_row_groups(file: SourceFile, how: Reading, shard_text_bytes: int) -> list[Unit]:
    """Cuts the file into units of work. ValueError where it is damaged or has no such text column."""
    with reading(file), file.open() as raw, pq.ParquetFile(raw) as parquet:
        size = raw.size()
        column = _text_column(file, parquet.schema_arrow, parquet.schema, how.text_column)
        groups = [parquet.metadata.row_group(i) for i in range(parquet.metadata.num_row_groups)]
        sizes = [group.column(column).total_uncompressed_size for group in groups]
        digest = _footer_digest(raw)
    facts = {"file": file.name, "bytes": size, "footer_sha256": digest, "text_column": how.text_column}
    cuts = _cut(sizes, shard_text_bytes)
    return [
        Unit(
            file,
            number,
            len(cuts),
            how,
            row_groups,
            sum(sizes[i] for i in row_groups),
            facts | {"row_groups": list(row_groups)},
        )
        for number, row_groups in enumerate(cuts)
    ]


def read_row_groups(unit: Unit) -> Iterator[Documents]:
    """Streams the unit's documents in order, a few MB at a time. ValueError where damaged."""
    column = unit.reading.text_column
    with reading(unit.file), unit.file.open() as raw, pq.ParquetFile(raw, **STREAMING) as parquet:
        rows = sum(parquet.metadata.row_group(i).num_rows for i in unit.span)
        bytes_a_row = unit.text_bytes / max(1, rows)
        count = max(1, min(BATCH_DOCUMENTS, int(BATCH_BYTES / max(1, bytes_a_row))))
        for row_group in unit.span:
            for batch in parquet.iter_batches(count, row_groups=[row_group], columns=[column]):
                yield as_documents(batch.column(0), round(len(batch) * bytes_a_row), row_group=row_group)


def _cut(sizes: list[int], limit: int) -> list[tuple[int, ...]]:
    """Consecutive numbers whose sizes add up to at most limit, or one number alone; at least one cut."""
    cuts: list[list[int]] = [[]]
    total = 0
    for number, size in enumerate(sizes):
        if cuts[-1] and total + size > limit:
            cuts.append([])
            total = 0
        cuts[-1].append(number)
        total += size
    return [tuple(cut) for cut in cuts]


def _text_column(file: SourceFile, schema: pa.Schema, columns: pq.ParquetSchema, name: str) -> int:
    """The number of the column with the text. ValueError where there is none of that name, or no text in it."""
    if name not in schema.names:
        raise ValueError(
            f"{file.path}: expected a text column {name!r}, found columns {', '.join(schema.names)}; "
            "name the one with the text by --text-column"
        )
    kind = schema.field(name).type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value)):
        raise ValueError(
            f"{file.path}: expected text in column {name!r}, found {kind}; name the one with the text by --text-column"
        )
    return [columns.column(i).path for i in range(len(columns))].index(name)


def _footer_digest(raw: pa.NativeFile) -> str:
    """SHA-256 of the footer, which has every column chunk's place, size and statistics."""
    end = raw.size() - 8
    length = int.from_bytes(raw.read_at(4, end), "little")
    return sha256(raw.read_at(length, end - length))
