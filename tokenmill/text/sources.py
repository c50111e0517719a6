"""Where text comes from: files of documents -> units of work -> batches of documents.

`split_files` puts the files that listing.py found in name order, the last one for validation. `plan_units` cuts them
into units of work, one shard each, by `shard_text_bytes` of text, so the cut depends on the data and never on the
machine. `read_documents` streams a unit's text some MB at a time; null and empty documents are left out and counted.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from tokenmill.text.formats import Reading
from tokenmill.text.lines import END_BYTES, facts_of_ends, plan_lines, read_lines
from tokenmill.text.listing import is_url, local_files
from tokenmill.text.lots import Lot, about_text_bytes
from tokenmill.text.parquet import facts_of_footer, plan_row_groups, read_row_groups
from tokenmill.text.units import Documents, Part, SourceFile, Unit, reading


def plan_units(files: SourceFile | Lot, how: Reading, shard_text_bytes: int, known: int | None = None) -> list[Unit]:
    """Cuts a file into units of work, or makes one of small files that share a shard.

    `known` is how many bytes of text a compressed file has, where an earlier plan told. ValueError where a file is
    damaged or has no such text column.
    """
    if isinstance(files, SourceFile) or len(files) == 1:
        (file,) = (files,) if isinstance(files, SourceFile) else files
        if file.format == "parquet":
            parts = plan_row_groups(file, how, shard_text_bytes)
        else:
            parts = plan_lines(file, how, shard_text_bytes, known)
        return [Unit((part,), number, len(parts)) for number, part in enumerate(parts)]
    whole = [Part(file, how, None, about_text_bytes(file), facts_of(file, how)) for file in files]
    return [Unit(tuple(whole))]


def facts_of(file: SourceFile, how: Reading) -> dict:
    """What tells a file from another, and how it is read. ValueError where it is damaged."""
    with reading(file):
        if file.format != "parquet":
            return facts_of_ends(file) | how.facts(file.format)
        with file.open() as raw:
            return facts_of_footer(file, raw) | how.facts("parquet")


def read_documents(unit: Unit) -> Iterator[Documents]:
    """Streams the unit's documents in order, a few MB at a time.

    ValueError where a file is damaged, or was written to or replaced since it was planned.
    """
    for number, planned in enumerate(unit.parts):
        with _unchanged(planned) as part:
            for documents in read_row_groups(part) if part.file.format == "parquet" else read_lines(part):
                yield replace(documents, part=number) if number else documents


@contextlib.contextmanager
def _unchanged(part: Part) -> Iterator[Part]:
    """Compares a file with what was planned, before it is read and after; a small one is read at once, and compared."""
    file = part.file
    if isinstance(file.path, Path) and file.format != "parquet" and (file.bytes or END_BYTES) < END_BYTES:
        with reading(file):
            part = replace(part, file=replace(file, held=memoryview(file.path.read_bytes())))
        _require_same(part)
        yield part
        return
    stamp = file.stamp
    _require_same(part)
    yield part
    if file.stamp != stamp:
        raise _changed(file)
    if stamp is None:
        _require_same(part)


def _require_same(part: Part) -> None:
    now = facts_of(part.file, part.reading)
    if any(part.identity[key] != value for key, value in now.items()):
        raise _changed(part.file)


def _changed(file: SourceFile) -> ValueError:
    return ValueError(
        f"{file.path}: was written to or replaced while it was prepared; run again when nobody writes to it, "
        "or, where shards of it are there by now, put it back as it was or prepare under another --name"
    )


# ---------------------------------------------------------------------------- splits


def split_files(
    files: Mapping[str, Path | str], val_file: str | None = None, sizes: Mapping[str, int] | None = None
) -> list[SourceFile]:
    """The files in name order, the last of them for validation, all others to train on.

    `val_file` names another for validation: one of them, or any other file; `sizes` are those of files that are not
    on this machine. ValueError where nothing is left to train on, FileNotFoundError where val_file is no file.
    """
    names = dict(files)
    val_name = _val_name(names, val_file)
    if len(names) == 1:
        raise ValueError(
            f"{names[val_name]}: found this one file, and the last file is the validation split: nothing would be "
            "left to train on; add another file, or name a separate one with --val-file PATH"
        )
    found = [
        SourceFile(name, _absolute(path), "val" if name == val_name else "train", _bytes(name, path, sizes or {}))
        for name, path in sorted(names.items())
    ]
    _check_stems(found)
    return found


def _absolute(path: Path | str) -> Path | str:
    """The same for a worker on another machine."""
    return path.absolute() if isinstance(path, Path) else path


def _bytes(name: str, path: Path | str, sizes: Mapping[str, int]) -> int | None:
    if name in sizes:
        return sizes[name]
    return path.stat().st_size if isinstance(path, Path) and path.exists() else None


def _val_name(names: dict[str, Path | str], val_file: str | None) -> str:
    """The name of the validation file; adds it to `names` where it lies outside the source."""
    if val_file is None:
        return max(names)
    inside = [name for name, path in names.items() if val_file in (name, str(path)) or _same_file(path, val_file)]
    if inside:
        return inside[0]
    if not is_url(val_file) and not Path(val_file).expanduser().is_file():
        raise FileNotFoundError(
            f"--val-file {val_file}: expected one of {', '.join(sorted(names))}, or another file's path"
        )
    ((name, path),) = local_files(val_file).items()
    while name in names:
        name = f"val/{name}"
    names[name] = path
    return name


def _same_file(path: Path | str, other: str) -> bool:
    there = Path(other).expanduser()
    return isinstance(path, Path) and path.exists() and there.exists() and path.samefile(there)


def _check_stems(files: list[SourceFile]) -> None:
    by_stem: dict[str, SourceFile] = {}
    for file in files:
        other = by_stem.setdefault(file.stem, file)
        if other is not file:
            raise ValueError(f"{file.path} and {other.path}: both would write shards named {file.stem}; rename one")
