"""What a user names becomes a list of files: a folder with its subfolders, a glob, one file; local or at a URL.

    corpus/a.parquet  corpus/web/b.parquet  corpus/link -> /mnt/more     ->   a.parquet  link/c.parquet  web/b.parquet

A folder is read as one format: the first of those in formats.py that it has files of. Links are followed, and a file
with several names is read once. Files that are not read are listed in `left_out`. A folder without permission, or a
link that leads nowhere, is an error. Names that are not UTF-8 are written with backslashes.
"""

import glob
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import fsspec

from tokenmill.addresses import has_scheme
from tokenmill.extras import pip_line
from tokenmill.store.names import is_shown
from tokenmill.text.formats import FORMATS, format_names, format_of


@dataclass(frozen=True)
class Listed:
    """Files by their names below the source, each a path or a URL; and what was left out, a sentence each."""

    files: dict[str, Path | str]
    left_out: list[str] = field(default_factory=list)
    bytes: dict[str, int] = field(default_factory=dict)  # of files at URLs, if known


def list_source(source: str) -> Listed:
    """The files that a user means by `source`.

    FileNotFoundError if there are none, or a link leads nowhere; ValueError if one file or a glob names an unknown
    format; OSError if a folder cannot be read; ConnectionError if a URL cannot be listed.
    """
    if has_scheme(source):
        return _of_url(source)
    path = Path(source).expanduser()
    if path.is_file():
        return Listed(_known({str(path): path}, source))
    if path.is_dir():
        return _of_folder({_printable(name): file for name, file in _walk(path)}, source)
    if glob.has_magic(source):
        return _of_glob(path, source)
    raise FileNotFoundError(
        f"{source}: no such file or folder; expected a folder, file or glob of {format_names()} files, "
        "a URL, a dataset repository on the Hugging Face hub (owner/name), or stdlib"
    )


def local_files(source: str) -> dict[str, Path | str]:
    """The files of `list_source` alone: name -> path."""
    return list_source(source).files


def of_one_kind(names: Iterable[str], source: str) -> tuple[list[str], list[str]]:
    """The file names in a folder that have its first format; and what is left out of it, a sentence each.

    FileNotFoundError if it has none of a known format.
    """
    by_kind: dict[str | None, list[str]] = {}
    for name in sorted(names):
        entry = format_of(name)
        hidden = any(part.startswith(".") for part in PurePosixPath(name).parts)
        by_kind.setdefault(("hidden" if hidden else entry.name) if entry else None, []).append(name)
    chosen = next((kind for kind in FORMATS if kind in by_kind), None)
    if chosen is None:
        raise FileNotFoundError(
            f"{source}: expected {format_names()} files in this folder, found "
            f"{_some(by_kind.get(None, ['none']))}; check --source"
        )
    others = {kind: files for kind, files in by_kind.items() if kind not in (chosen, None)}
    lines = [f"{len(files):,} {kind} {_files(files)} beside {chosen}: {_some(files)}" for kind, files in others.items()]
    if unknown := [name for name in by_kind.get(None, []) if not any(p[0] in "._" for p in PurePosixPath(name).parts)]:
        lines.append(f"{len(unknown):,} {_files(unknown)} of no known format: {_some(unknown)}")
    return by_kind[chosen], lines


# ---------------------------------------------------------------------------- this machine


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file below a folder, links followed: (name, path). OSError if a folder cannot be read."""
    for root, folders, files in os.walk(folder, followlinks=True, onerror=_refuse):
        folders.sort()
        if os.path.islink(root) and _leads_up(root):
            folders.clear()  # a link to a folder above it, whose files are found already
            continue
        for name in files:
            path = Path(root) / name
            if path.exists() or format_of(name):
                yield path.relative_to(folder).as_posix(), path


def _leads_up(folder: str) -> bool:
    """Whether a folder is a link to one above it."""
    real = os.path.realpath(folder)
    above = Path(folder).parents
    return any(os.path.realpath(parent) == real for parent in above)


def _refuse(error: OSError) -> None:
    raise OSError(
        f"{error.filename}: this folder of the source cannot be read ({error.strerror}); fix that, or take it out"
    )


def _of_folder(found: dict[str, Path], source: str) -> Listed:
    names, left_out = of_one_kind(found, source)
    return _once({name: found[name] for name in names}, left_out)


def _of_glob(pattern: Path, source: str) -> Listed:
    paths = {name: Path(name) for name in glob.glob(str(pattern), recursive=True)}
    folders = [name for name, path in paths.items() if path.is_dir()]
    files = _known({name: path for name, path in paths.items() if name not in folders}, source)
    lines = [f"{len(folders):,} folders that the pattern names: {_some(sorted(folders))}"] if folders else []
    return _once(files, lines)


def _once(files: dict[str, Path], left_out: list[str]) -> Listed:
    """Each file once, under a name that is no link if there is one. FileNotFoundError for links that lead nowhere."""
    for path in files.values():
        if not path.exists():
            raise FileNotFoundError(f"{path}: a link to {os.path.realpath(path)}, which is not there; fix or delete it")
    real = {name: os.path.realpath(path) for name, path in files.items()}
    owner: dict[str, str] = {}
    for name in sorted(files, key=lambda name: (real[name] != os.path.abspath(files[name]), name)):
        owner.setdefault(real[name], name)
    again = [name for name in sorted(files) if owner[real[name]] != name]
    lines = [f"{name}: the same file as {owner[real[name]]}" for name in again[:5]]
    lines += [f"{len(again) - 5:,} more that are other names of files"] if len(again) > 5 else []
    return Listed({name: path for name, path in files.items() if name not in set(again)}, left_out + lines)


# ---------------------------------------------------------------------------- URLs


def _of_url(source: str) -> Listed:
    try:
        files, root = fsspec.core.url_to_fs(source)
        if glob.has_magic(root):
            found = files.glob(root, detail=True)
        else:
            found = {root: files.info(root)} if files.isfile(root) else files.find(root, detail=True)
    except ImportError as error:
        raise ValueError(f"{source}: {error}; {pip_line('remote')}") from error
    except ValueError as error:
        raise ValueError(f"{source}: {error}; expected a URL that fsspec knows, as s3://bucket/folder") from error
    except Exception as error:  # each file system has its own
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ConnectionError(f"{source}: could not be listed ({reason}); check the address and your access") from error
    if glob.has_magic(root) or list(found) == [root]:
        names = _known({path: path for path in found if found[path].get("type") != "directory"}, source)
        left_out: list[str] = []
    else:
        below = {str(PurePosixPath(path).relative_to(root)): path for path in found}
        chosen, left_out = of_one_kind(below, source)
        names = {name: below[name] for name in chosen}
    sizes = {name: found[path]["size"] for name, path in names.items() if found[path].get("size") is not None}
    return Listed({name: files.unstrip_protocol(path) for name, path in names.items()}, left_out, sizes)


# ---------------------------------------------------------------------------- names


def _known(files: dict, source: str) -> dict:
    """The files of a glob, or one file, by their names below the folder they share."""
    if not files:
        raise FileNotFoundError(f"{source}: no file matches this pattern; check --source")
    if unknown := [path for path in files if not format_of(path)]:
        raise ValueError(f"{unknown[0]}: expected the name of a {format_names()} file; check --source")
    root = _common_folder([PurePosixPath(path) for path in files])
    return {_printable(str(PurePosixPath(path).relative_to(root))): where for path, where in files.items()}


def _common_folder(paths: list[PurePosixPath]) -> PurePosixPath:
    parents = [set(path.parents) for path in paths]
    return max(set.intersection(*parents), key=lambda folder: len(folder.parts))


def _printable(name: str) -> str:
    r"""A name that JSON can hold and people can see: Latin-1 becomes "caf\xe9.txt", and control characters "\x1b"."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(c if is_shown(c) else c.encode("unicode_escape").decode() for c in text)


def _files(names: list[str]) -> str:
    return "file" if len(names) == 1 else "files"


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
