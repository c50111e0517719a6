"""Where text comes from: parquet files -> units of work -> batches of documents.

`local_files` finds what the user named (hub.py fetches such files first, stdlib.py writes them), and
`split_files` puts them in name order, the last one for validation. `plan_units` cuts a file into units
of work, one shard each, from its footer alone: consecutive row groups up to `shard_text_bytes` of
text, so the cut depends on the data and never on the machine. With row groups of 90, 90, 90 and 30 MiB
and shards of 256 MiB:

    train-00.parquet -> train-00.000 (row groups 0 1), train-00.001 (2 3)

`read_documents` streams a unit's text a few hundred documents at a time; null and empty
documents are left out and counted.

Left out: jsonl, plain text and remote file systems.
"""

import contextlib
import glob
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

BATCH_DOCUMENTS, BATCH_BYTES = 256, 4 << 20  # of text in memory at a time, at most and about


@dataclass(frozen=True)
class SourceFile:
    """One parquet file of documents. `name` is its path below the source, the same on every machine."""

    name: str
    path: Path
    split: str

    @property
    def stem(self) -> str:
        """What its shards are called."""
        return str(PurePosixPath(self.name).with_suffix("")).replace("/", "--")


@dataclass(frozen=True)
class Unit:
    """One shard's worth of a source file: consecutive row groups."""

    file: SourceFile
    number: int
    text_column: str
    row_groups: tuple[int, ...]
    documents: int  # rows, null and empty ones included
    text_bytes: int  # uncompressed, as the footer has it: near enough to plan and to show progress
    file_bytes: int
    footer_sha256: str

    @property
    def name(self) -> str:
        return f"{self.file.stem}.{self.number:03d}"

    def source(self) -> dict:
        """What identifies the unit's text, for the shard's record."""
        return {
            "file": self.file.name,
            "bytes": self.file_bytes,
            "footer_sha256": self.footer_sha256,
            "text_column": self.text_column,
            "row_groups": list(self.row_groups),
        }


@dataclass(frozen=True)
class Documents:
    """A few documents of one row group, and what was left out or mended beside them."""

    row_group: int
    texts: pa.LargeStringArray  # valid UTF-8, none of them null or empty
    text_bytes: int
    null_documents: int
    empty_documents: int
    repaired_documents: int  # not valid UTF-8: the bad bytes became U+FFFD


# ---------------------------------------------------------------------------- finding files


def local_files(source: str) -> dict[str, Path]:
    """The parquet files of a folder (with its subfolders), of a glob, or one file: name -> path.

    FileNotFoundError where there are none.
    """
    path = Path(source).expanduser()
    if path.is_file():
        found = [path]
    elif path.is_dir():
        found = [file for file in path.rglob("*.parquet") if not _hidden(file.relative_to(path))]
        if not found:
            raise FileNotFoundError(f"{path}: expected parquet files in this folder, found none; check --source")
    elif glob.has_magic(source):
        found = [Path(file) for file in glob.glob(str(path), recursive=True) if file.endswith(".parquet")]
        if not found:
            raise FileNotFoundError(f"{source}: no parquet file matches this pattern; check --source")
    else:
        raise FileNotFoundError(
            f"{source}: no such file or folder; expected a folder, file or glob of parquet files, "
            "a dataset repository on the Hugging Face hub (owner/name), or stdlib"
        )
    root = _common_folder(found)
    return {file.relative_to(root).as_posix(): file for file in found}


def split_files(files: dict[str, Path], val_file: str | None = None) -> list[SourceFile]:
    """The files in name order, the last of them for validation, all others to train on.

    `val_file` names another for validation: one of them, or any other file. ValueError where
    nothing is left to train on, FileNotFoundError where val_file is no file.
    """
    names = dict(files)
    val_name = _val_name(names, val_file)
    if len(names) == 1:
        raise ValueError(
            f"{names[val_name]}: found this one file, and the last file is the validation split: nothing would be "
            "left to train on; add another file, or name a separate one with --val-file PATH"
        )
    found = [SourceFile(name, names[name], "val" if name == val_name else "train") for name in sorted(names)]
    _check_stems(found)
    return found


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _common_folder(paths: list[Path]) -> Path:
    parents = [set(path.parents) for path in paths]
    return max(set.intersection(*parents), key=lambda folder: len(folder.parts))


def _val_name(names: dict[str, Path], val_file: str | None) -> str:
    """The name of the validation file; adds it to `names` where it lies outside the source."""
    if val_file is None:
        return max(names)
    inside = [name for name, path in names.items() if val_file in (name, str(path)) or _same_file(path, val_file)]
    if inside:
        return inside[0]
    path = Path(val_file).expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            f"--val-file {val_file}: expected one of {', '.join(sorted(names))}, or another file's path"
        )
    name = path.name if path.name not in names else f"val/{path.name}"
    names[name] = path
    return name


def _same_file(path: Path, other: str) -> bool:
    other = Path(other).expanduser()
    return other.exists() and path.samefile(other)


def _check_stems(files: list[SourceFile]) -> None:
    by_stem = {}
    for file in files:
        other = by_stem.setdefault(file.stem, file)
        if other is not file:
            raise ValueError(f"{file.path} and {other.path}: both would write shards named {file.stem}; rename one")


# ---------------------------------------------------------------------------- planning and reading


def plan_units(file: SourceFile, text_column: str, shard_text_bytes: int) -> list[Unit]:
    """Cuts a parquet file into units of work. ValueError where it is damaged or has no such text column."""
    with _reading(file.path), pq.ParquetFile(file.path) as parquet:
        _check_text_column(file.path, parquet.schema_arrow, text_column)
        metadata = parquet.metadata
        column = [parquet.schema.column(i).path for i in range(len(parquet.schema))].index(text_column)
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        sizes = [(group.num_rows, group.column(column).total_uncompressed_size) for group in groups]
        digest = _footer_digest(file.path)
    units = []
    for row_groups in _cut([size for _, size in sizes], shard_text_bytes):
        documents = sum(sizes[i][0] for i in row_groups)
        text_bytes = sum(sizes[i][1] for i in row_groups)
        file_bytes = file.path.stat().st_size
        units.append(Unit(file, len(units), text_column, row_groups, documents, text_bytes, file_bytes, digest))
    return units


def read_documents(unit: Unit) -> Iterator[Documents]:
    """Streams the unit's documents in order, a few MB at a time. ValueError where damaged."""
    count = max(1, min(BATCH_DOCUMENTS, BATCH_BYTES * unit.documents // max(1, unit.text_bytes)))
    # a MiB of a row group at a time; by default pyarrow fetches all of it before the first batch
    streaming = {"buffer_size": 1 << 20, "pre_buffer": False}
    with _reading(unit.file.path), pq.ParquetFile(unit.file.path, **streaming) as parquet:
        for row_group in unit.row_groups:
            batches = parquet.iter_batches(count, row_groups=[row_group], columns=[unit.text_column])
            for batch in batches:
                yield _documents(row_group, batch.column(0))


def _cut(sizes: list[int], limit: int) -> list[tuple[int, ...]]:
    """Consecutive numbers whose sizes add up to at most limit, or one number alone; at least one cut."""
    cuts, total = [[]], 0
    for number, size in enumerate(sizes):
        if cuts[-1] and total + size > limit:
            cuts.append([])
            total = 0
        cuts[-1].append(number)
        total += size
    return [tuple(cut) for cut in cuts]


def _documents(row_group: int, column: pa.Array) -> Documents:
    column = column.cast(pa.large_string())  # from any type that _check_text_column lets in
    nulls, column = column.null_count, column.drop_null()
    text_bytes = pc.sum(pc.binary_length(column)).as_py() or 0
    column, repaired = _valid_utf8(column)
    kept = column.filter(pc.greater(pc.binary_length(column), 0))
    return Documents(row_group, kept, text_bytes, nulls, len(column) - len(kept), repaired)


def _valid_utf8(column: pa.LargeStringArray) -> tuple[pa.LargeStringArray, int]:
    """The texts, bad bytes as U+FFFD, and how many had any."""
    try:
        column.validate(full=True)
        return column, 0
    except pa.ArrowInvalid:
        raw = column.cast(pa.large_binary()).to_pylist()
        texts = [data.decode("utf-8", "replace") for data in raw]
        repaired = sum(text.encode() != data for text, data in zip(texts, raw, strict=True))
        return pa.array(texts, pa.large_string()), repaired


@contextlib.contextmanager
def _reading(path: Path):
    """Turns pyarrow's errors into one that names the file and says what to do."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"{path}: expected a whole parquet file, found damage ({reason}); "
            "fetch it again, or take it out of the source"
        ) from error


def _check_text_column(path: Path, schema: pa.Schema, name: str) -> None:
    if name not in schema.names:
        raise ValueError(
            f"{path}: expected a text column {name!r}, found columns {', '.join(schema.names)}; "
            "name the one with the text by --text-column"
        )
    kind = schema.field(name).type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value)):
        raise ValueError(
            f"{path}: expected text in column {name!r}, found {kind}; name the one with the text by --text-column"
        )


def _footer_digest(path: Path) -> str:
    """SHA-256 of the parquet footer, which has every column chunk's place, size and statistics."""
    with open(path, "rb") as file:
        file.seek(-8, 2)
        length = int.from_bytes(file.read(8)[:4], "little")
        file.seek(-8 - length, 2)
        return hashlib.sha256(file.read(length)).hexdigest()
