"""Files of documents -> units of work -> batches of documents, in whatever format (formats.py).

`split_files` puts the files that listing.py found in name order, the last one for validation. `plan_units` cuts them
into units of work, one shard each, by `shard_text_bytes` of text, so the cut depends on the data and never on the
machine. `read_documents` streams a unit's text a few MB at a time; null and empty documents are left out and counted.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from tokenmill.addresses import has_scheme
from tokenmill.text.file_groups import FileGroup, about_text_bytes
from tokenmill.text.formats import ReadOptions
from tokenmill.text.listing import local_files
from tokenmill.text.units import Documents, FilePart, SourceFile, Unit, naming_file

SMALL_FILE = 1 << 16  # bytes; a file that is not larger is read at once


def plan_units(
    files: SourceFile | FileGroup, options: ReadOptions, shard_text_bytes: int, known_text_bytes: int | None = None
) -> list[Unit]:
    """Cuts a file into units of work, or makes one unit of small files that share a shard.

    `known_text_bytes` is how much text a compressed file has, if an earlier plan found out. ValueError if a file is
    damaged or has no such text column.
    """
    group = (files,) if isinstance(files, SourceFile) else files
    if len(group) > 1:
        whole = [FilePart(file, options, None, about_text_bytes(file), identify(file, options)) for file in group]
        return [Unit(tuple(whole))]
    (file,) = group
    with naming_file(file), file.open() as raw:
        module = import_module(file.format.module)
        cuts = module.plan(file, raw, options, shard_text_bytes, known_text_bytes)
        facts = {"file": file.name, **module.identify(file, raw), **file.format.facts(options)}
    span_of = "row_groups" if file.format.has_row_groups else "span"
    parts = [FilePart(file, options, span, size, facts | {span_of: list(span)}) for span, size in cuts]
    return [Unit((part,), number, len(parts)) for number, part in enumerate(parts)]


def identify(file: SourceFile, options: ReadOptions) -> dict:
    """What distinguishes a file from others, and how it is read. ValueError if it is damaged."""
    with naming_file(file), file.open() as raw:
        found = import_module(file.format.module).identify(file, raw)
    return {"file": file.name, **found, **file.format.facts(options)}


def read_documents(unit: Unit) -> Iterator[Documents]:
    """Streams the unit's documents in order, a few MB at a time.

    ValueError if a file is damaged, or was written to or replaced since it was planned.
    """
    for number, planned in enumerate(unit.parts):
        with _unchanged(planned) as part, naming_file(part.file):
            for documents in import_module(part.file.format.module).read(part):
                yield replace(documents, part=number) if number else documents


@contextlib.contextmanager
def _unchanged(part: FilePart) -> Iterator[FilePart]:
    """Compares a file with the plan, before and after it is read. A small file is read at once, and compared once."""
    file = part.file
    if isinstance(file.path, Path) and (file.bytes or SMALL_FILE) < SMALL_FILE:
        with naming_file(file):
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


def _require_same(part: FilePart) -> None:
    now = identify(part.file, part.options)
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

    `val_file` names another for validation: one of them, or any other file. `sizes` has the sizes of files that are
    not on this machine. ValueError if nothing is left to train on, FileNotFoundError if val_file is no file.
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
    """The name of the validation file; adds it to `names` if it is outside the source."""
    if val_file is None:
        return max(names)
    inside = [name for name, path in names.items() if val_file in (name, str(path)) or _same_file(path, val_file)]
    if inside:
        return inside[0]
    if not has_scheme(val_file) and not Path(val_file).expanduser().is_file():
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
