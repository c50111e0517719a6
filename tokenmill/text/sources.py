"""Files of documents -> units of work -> batches of documents, in whatever format (formats.py).

`split_files` puts the files that listing.py found in name order, and each in a split. `plan_units` cuts them
into units of work, one shard each, by `shard_text_bytes` of text, so the cut depends on the data and never on the
machine. `read_documents` streams a unit's text a few MB at a time; null and empty documents are left out and counted.
"""

import contextlib
import functools
import os
import re
from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

from tokenmill.addresses import has_scheme
from tokenmill.text.document_split import default_fraction, in_split, split_by_document
from tokenmill.text.file_groups import FileGroup, about_text_bytes
from tokenmill.text.formats import ReadOptions
from tokenmill.text.listing import local_files
from tokenmill.text.units import Documents, FilePart, SourceFile, Unit, naming_file

VALIDATES = re.compile(r"(^|[/_.-])(validation|valid|val|dev)([/_.-]|$)", re.IGNORECASE)  # web/validation/a.jsonl
SMALL_VAL = 1 << 20  # bytes; fewer are little to validate with
SMALL_FILE = 1 << 16  # bytes; a file that is not larger is read at once
_imported = functools.cache(import_module)


def plan_units(
    files: SourceFile | FileGroup, options: ReadOptions, shard_text_bytes: int, known_text_bytes: int | None = None
) -> list[Unit]:
    """Cuts a file into units of work, or makes one unit of small files that share a shard, without opening them.

    `known_text_bytes` is how much text a compressed file has, if an earlier plan found out. ValueError if a file is
    damaged or has no such text column.
    """
    group = (files,) if isinstance(files, SourceFile) else files
    if len(group) > 1:
        return [Unit(tuple(FilePart(file, options, None, about_text_bytes(file), {}) for file in group))]
    (file,) = group
    written = file.written  # before it is opened, so that no change after this goes unnoticed
    with naming_file(file), file.open() as raw:
        module = _code_of(file)
        cuts = module.plan(file, raw, options, shard_text_bytes, known_text_bytes)
        facts = {"file": file.name, **module.identify(file, raw), **file.facts(options)}
    span_of = "row_groups" if file.format.has_row_groups else "span"
    parts = [FilePart(file, options, span, size, facts | {span_of: list(span)}, written) for span, size in cuts]
    return [Unit((part,), number, len(parts)) for number, part in enumerate(parts)]


def _code_of(file: SourceFile) -> ModuleType:
    return _imported(file.format.module)


def identify(file: SourceFile, options: ReadOptions) -> dict:
    """What distinguishes a file from others, and how it is read. ValueError if it is damaged."""
    with naming_file(file), file.open() as raw:
        found = _code_of(file).identify(file, raw)
    return {"file": file.name, **found, **file.facts(options)}


def read_documents(unit: Unit, identities: list[dict] | None = None) -> Iterator[Documents]:
    """Streams the unit's documents in order, a few MB at a time. Appends the identity of each part to `identities`.

    ValueError if a file is damaged, or was written to or replaced since it was planned or while it is read.
    """
    for number, planned in enumerate(unit.parts):
        with _unchanged(planned) as part, naming_file(part.file):
            if identities is not None:
                identities.append(part.identity)
            for documents in _code_of(part.file).read(part):
                documents.part = number
                yield in_split(documents, part)


@contextlib.contextmanager
def _unchanged(part: FilePart) -> Iterator[FilePart]:
    """The part with its identity, compared with the plan before and after it is read.

    A small file is read at once, and compared once.
    """
    file = part.file
    if (file.bytes or SMALL_FILE) < SMALL_FILE and file.is_local:
        with naming_file(file):
            held = file.holding(memoryview(_whole(file.path)))
        yield part.of(held, _identity(part, held))
        return
    stamp = file.stamp
    if stamp is not None and part.written not in (None, stamp[2:]):
        raise _changed(file)
    yield part.of(file, _identity(part, file))
    if file.stamp != stamp:
        raise _changed(file)
    if stamp is None:
        _identity(part, file)


def _whole(path: str) -> bytes:
    """A small file's bytes, with as few system calls as there can be."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = block = os.read(descriptor, SMALL_FILE)
        while len(block) == SMALL_FILE:  # it has grown
            block = os.read(descriptor, SMALL_FILE)
            data += block
        return data
    finally:
        os.close(descriptor)


def _identity(part: FilePart, file: SourceFile) -> dict:
    """The part's identity, of the file as it is now. ValueError if it was planned with another."""
    now = identify(file, part.options)
    if any(part.identity[key] != value for key, value in now.items() if part.identity):
        raise _changed(file)
    return part.identity or now


def _changed(file: SourceFile) -> ValueError:
    return ValueError(
        f"{file.shown}: was written to or replaced while it was prepared; run again when nobody writes to it, "
        "or, where shards of it are there by now, put it back as it was or prepare under another --name"
    )


# ---------------------------------------------------------------------------- splits


def split_files(
    files: Mapping[str, str | Path],
    val_file: str | None = None,
    sizes: Mapping[str, int] | None = None,
    val_fraction: float | None = None,
) -> list[SourceFile]:
    """The files in name order, each in its split. `sizes` has the sizes in bytes that are known.

    - `val_file` names the file that validates: one of them, or any other file.
    - `val_fraction` of the documents of all files validate (document_split.py).
    - By default files named val, valid, validation or dev validate. If there are none, the last file does; if that is
      the only one, or too small, a fraction of the documents does.

    ValueError if nothing is left to train on, FileNotFoundError if val_file is no file.
    """
    names = {name: os.fspath(path) for name, path in files.items()}
    known = {name: _bytes(name, path, sizes or {}) for name, path in names.items()}
    named = for_validation(names) if val_file is None and val_fraction is None else set[str]()
    if val_file is None and val_fraction is None and not named and _is_too_small_to_validate(known):
        val_fraction = default_fraction(total_bytes(known))
    if val_fraction is not None:
        whole = [SourceFile(name, _absolute(path), "train", known[name]) for name, path in sorted(names.items())]
        found = split_by_document(whole, val_fraction)
        _check_stems(found)
        return found
    val_name = min(named) if named else _val_name(names, val_file)
    if val_name not in known:
        known[val_name] = _bytes(val_name, names[val_name], {})
    if len(names) == 1:
        raise ValueError(
            f"{names[val_name]}: found this one file, and --val-file says that it validates: nothing would be left to "
            "train on; leave --val-file out, or name another file"
        )
    found = [
        SourceFile(name, _absolute(path), "val" if name in (named or {val_name}) else "train", known[name])
        for name, path in sorted(names.items())
    ]
    _check_stems(found)
    return found


def for_validation(names: Collection[str]) -> set[str]:
    """The files whose names say that they validate, as data/validation-00000-of-00001.parquet; none if all say so."""
    found = {name for name in names if VALIDATES.search(name)}
    return found if len(found) < len(names) else set()


def _is_too_small_to_validate(sizes: Mapping[str, int | None]) -> bool:
    """Whether the last file is the only one, or has less than 1 MiB and 1% of the bytes."""
    total, last = total_bytes(sizes), sizes[max(sizes)]
    return len(sizes) == 1 or (total is not None and last is not None and last < min(SMALL_VAL, total // 100))


def total_bytes(sizes: Mapping[str, int | None]) -> int | None:
    """Bytes of all files; None if those of one are not known."""
    known = [size for size in sizes.values() if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _absolute(path: str) -> str:
    """The same for a worker on another machine."""
    return path if has_scheme(path) else os.path.join(os.getcwd(), path)


def _bytes(name: str, path: str, sizes: Mapping[str, int]) -> int | None:
    if name in sizes:
        return sizes[name]
    return os.path.getsize(path) if not has_scheme(path) and os.path.exists(path) else None


def _val_name(names: dict[str, str], val_file: str | None) -> str:
    """The name of the validation file; adds it to `names` if it is outside the source."""
    if val_file is None:
        return max(names)
    same_file = _names_of(val_file, names)
    inside = [name for name, path in names.items() if val_file in (name, path)] or same_file
    if inside and not same_file and not has_scheme(val_file) and os.path.exists(os.path.expanduser(val_file)):
        raise ValueError(
            f"--val-file {val_file}: the source has a file of this name, {names[inside[0]]}, and another file has this "
            f"path; name the first by its own path, or the second as ./{val_file}"
        )
    if inside:
        return inside[0]
    if not has_scheme(val_file) and not os.path.exists(os.path.expanduser(val_file)):
        raise FileNotFoundError(
            f"--val-file {val_file}: expected one of {', '.join(sorted(names))}, or another file's path"
        )
    ((name, path),) = local_files(val_file).items()
    while name in names:
        name = f"val/{name}"
    names[name] = path
    return name


def _names_of(file: str, names: dict[str, str]) -> list[str]:
    """The names that a file of this machine has among these."""
    file = os.path.expanduser(file)
    if not os.path.exists(file):
        return []
    local = {name: path for name, path in names.items() if not has_scheme(path) and os.path.exists(path)}
    return [name for name, path in local.items() if os.path.samefile(path, file)]


def _check_stems(files: list[SourceFile]) -> None:
    by_stem: dict[str, SourceFile] = {}
    for file in files:
        other = by_stem.setdefault(file.stem, file)
        if other is not file:
            raise ValueError(f"{file.shown} and {other.shown}: both would write shards named {file.stem}; rename one")
