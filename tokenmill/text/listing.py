"""What a user names becomes a list of files: a folder with its subfolders, a glob, one file; local or at a URL.

    corpus/a.parquet  corpus/web/b.parquet  corpus/link -> /mnt/more     ->   a.parquet  link/c.parquet  web/b.parquet

A folder is read as one format, that of most of its bytes. If more than 1% of them have other formats, it is an
error that says how to name the files. Links are followed, and a file with several names is read once. Files that are
not read are listed in `left_out`. A folder without permission, a link that leads nowhere, and a pipe or a device are
errors. Names that are not UTF-8 are written with backslashes.
"""

import glob
import itertools
import os
import re
import shlex
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeVar

from tokenmill.addresses import display_address, has_scheme
from tokenmill.extras import pip_line
from tokenmill.humanize import counted, in_bytes
from tokenmill.sanitize import redact, sanitize_logs
from tokenmill.store.names import is_shown
from tokenmill.text.formats import FORMATS, format_names, format_of

File = TypeVar("File")

ESCAPED = re.compile(r"\[([*?[])\]")  # as glob.escape writes it
LITTLE = 0.01  # of the bytes of a folder, that may be left out without asking
# of these, any number of bytes
DESCRIBING = re.compile(r"(?:.*/)?(?:readme\.md|license\.md|license\.txt)", re.IGNORECASE)
# files of Hugging Face's `datasets` that are no text of their own
NO_TEXT = {
    "metadata": re.compile(r"(?:.*/)?(?:dataset_infos?|dataset_dict|state)\.json", re.IGNORECASE),
    "cached": re.compile(r"(?:.*/)?cache-[^/]*\.arrow", re.IGNORECASE),
}


@dataclass(frozen=True)
class Listed:
    """Files by their names below the source, each a path or a URL; and what was left out, a sentence each."""

    files: dict[str, str]
    left_out: list[str] = field(default_factory=list)
    bytes: dict[str, int] = field(default_factory=dict)  # if known


def list_source(source: str) -> Listed:
    """The files that a user means by `source`.

    FileNotFoundError if there are none, or a link leads nowhere; ValueError if one file or a glob names an unknown
    format, or something that is no regular file; OSError if a folder cannot be read; ConnectionError if a URL cannot be
    listed.
    """
    if has_scheme(source):
        return _of_url(source)
    path = Path(source).expanduser()
    if path.is_dir():
        return _of_folder(path, source)
    if path.exists():
        files = _known({str(path): str(path)}, PurePosixPath(path.parent), source)
        return _once({name: _found(one) for name, one in files.items()}, [])
    if glob.has_magic(source):
        return _of_glob(str(path), source)
    raise FileNotFoundError(
        f"{redact(source)}: no such file or folder; expected a folder, file or glob of {format_names()} files, "
        "a URL, a dataset repository on the Hugging Face hub (owner/name), or stdlib"
    )


def local_files(source: str) -> dict[str, str]:
    """The files of `list_source` alone: name -> path."""
    return list_source(source).files


def of_one_kind(sizes: Mapping[str, int | None], source: str) -> tuple[list[str], list[str]]:
    """The file names in a folder that have its main format; and what is left out of it, a sentence each.

    `sizes` has the bytes of each file, as far as they are known. FileNotFoundError if no file has a known format,
    ValueError if several formats have more than 1% of the bytes.
    """
    by_kind: dict[str | None, list[str]] = {}
    for name in sorted(sizes):
        by_kind.setdefault(_kind_of(name), []).append(name)
    kinds = [kind for kind in FORMATS if kind in by_kind]
    known = {kind: sum(sizes[name] or 0 for name in by_kind[kind] if not DESCRIBING.fullmatch(name)) for kind in kinds}
    chosen = max(kinds, key=lambda kind: known[kind], default=None)
    if chosen is not None:
        _require_little_else(known, chosen, by_kind, source)
    if chosen is None:
        raise FileNotFoundError(
            f"{redact(source)}: expected {format_names()} files in this folder, found "
            f"{_some(by_kind.get(None, ['none']))}; check --source"
        )
    others = {kind: files for kind, files in by_kind.items() if kind not in (chosen, None)}
    lines = [f"{len(files):,} {kind} {_files(files)} beside {chosen}: {_some(files)}" for kind, files in others.items()]
    if unknown := [name for name in by_kind.get(None, []) if not any(p[0] in "._" for p in PurePosixPath(name).parts)]:
        lines.append(f"{len(unknown):,} {_files(unknown)} of no known format: {_some(unknown)}")
    return by_kind[chosen], lines


def _kind_of(name: str) -> str | None:
    """The format of a file in a folder; "hidden", "metadata" or "cached" if it is not read; None if it has none."""
    entry = format_of(name)
    if entry is None:
        return None
    if name.startswith(".") or "/." in name:
        return "hidden"
    return next((kind for kind, pattern in NO_TEXT.items() if pattern.fullmatch(name)), entry.name)


def _require_little_else(
    sizes: Mapping[str, int], chosen: str, by_kind: Mapping[str | None, list[str]], source: str
) -> None:
    """ValueError if formats other than the chosen one have more than a little of the bytes."""
    many = [kind for kind, size in sizes.items() if kind == chosen or size > LITTLE * sum(sizes.values())]
    if len(many) == 1:
        return
    found = [f"{counted(len(by_kind[kind]), f'{kind} file')} of {in_bytes(sizes[kind])}" for kind in many]
    patterns = {kind: _patterns(by_kind[kind], source) for kind in many}
    raise ValueError(
        f"{redact(source)}: expected files of one format, found {' and '.join(found)}; name what to read, as "
        f"--source {patterns[chosen]}, or all of it: --source {' '.join(patterns.values())}"
    )


def _patterns(names: list[str], source: str) -> str:
    """Globs for files in a folder, in quotes."""
    ends = {name[len(entry.stem(name)) :] for name in names if (entry := format_of(name)) is not None}
    folder = redact(source) if has_scheme(source) else glob.escape(source)
    return " ".join(shlex.quote(f"{folder.rstrip('/')}/**/*{end}") for end in sorted(ends))


# ---------------------------------------------------------------------------- this machine


class _Found(NamedTuple):
    """A file below a folder."""

    path: str
    real: str  # where it is, all links followed
    by_link: bool  # whether one leads to it from within the source
    bytes: int


def _walk(folder: Path, left_out: list[str]) -> Iterator[tuple[str, _Found]]:
    """Every file below a folder, links followed, by its name. Adds links that are not followed to `left_out`.

    OSError if a folder cannot be read, ValueError if a name of a known format is no regular file, FileNotFoundError if
    it is a link that leads nowhere.
    """
    root = os.path.realpath(folder)
    above, seen = set(map(str, Path(root).parents)), set[str]()
    waiting = deque([(str(folder), "", root, False)])  # real folders at its left end, which come first
    while waiting:
        path, prefix, real, linked = waiting.popleft()
        follows = real not in seen  # the links in a folder are followed once, or folders that link each other never end
        seen.add(real)
        for entry in _entries(path):
            name, is_link = prefix + entry.name, entry.is_symlink()
            leads_to = os.path.realpath(entry.path) if is_link else os.path.join(real, entry.name)
            by_link = linked or is_link
            if _is_folder(entry):
                if not is_link:
                    waiting.appendleft((entry.path, f"{name}/", leads_to, by_link))
                elif leads_to in above:
                    left_out.append(f"{_printable(name)}: a link to a folder that the source is in")
                elif follows and not f"{real}/".startswith(f"{leads_to}/"):  # whose files are found already
                    waiting.append((entry.path, f"{name}/", leads_to, by_link))
            elif format_of(name):
                yield name, _Found(entry.path, leads_to, by_link, _size_of_regular(entry.path))
            elif not is_link or os.path.exists(leads_to):
                yield name, _Found(entry.path, leads_to, by_link, 0)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise OSError(
            f"{folder}: this folder of the source cannot be read ({error.strerror}); fix that, or take it out"
        ) from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _size_of_regular(path: str) -> int:
    """Bytes of a file. FileNotFoundError for a link that leads nowhere, ValueError for what is no regular file."""
    try:
        found = os.stat(path)
    except PermissionError as error:
        raise OSError(f"{path}: cannot be read ({error.strerror}); give access, or take it out") from error
    except OSError as error:
        raise FileNotFoundError(
            f"{path}: a link to {os.path.realpath(path)}, which is not there; fix or delete it"
        ) from error
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path}: expected a regular file, found {_kind(found.st_mode)}; take it out of the source")
    return found.st_size


def _kind(mode: int) -> str:
    kinds = {stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}
    return next((kind for is_kind, kind in kinds.items() if is_kind(mode)), "a device")


def _of_folder(folder: Path, source: str) -> Listed:
    links: list[str] = []
    found = _by_printable_name(_walk(folder, links), lambda file: file.path)
    names, left_out = of_one_kind({name: file.bytes for name, file in found.items()}, source)
    return _once({name: found[name] for name in names}, left_out + links)


def _of_glob(pattern: str, source: str) -> Listed:
    paths = glob.glob(pattern, recursive=True)
    folders = sorted(path for path in paths if os.path.isdir(path))
    files, left_out = _without_no_text({path: path for path in paths if path not in set(folders)})
    found = {name: _found(path) for name, path in _known(files, _folder_of(pattern), source).items()}
    lines = [f"{len(folders):,} folders that the pattern names: {_some(folders)}"] if folders else []
    return _once(found, lines + left_out)


def _without_no_text(files: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """The files of a pattern that are text of their own; and what is left out, a sentence each."""
    kinds = {path: next((kind for kind, pattern in NO_TEXT.items() if pattern.fullmatch(path)), None) for path in files}
    lines = [
        f"{len(some):,} {kind} {_files(some)} that the pattern names: {_some(some)}"
        for kind in NO_TEXT
        if (some := sorted(path for path in files if kinds[path] == kind))
    ]
    return {path: where for path, where in files.items() if kinds[path] is None}, lines


def _found(path: str) -> _Found:
    real = os.path.realpath(path)
    return _Found(path, real, real != os.path.abspath(path), _size_of_regular(path))


def _once(found: dict[str, _Found], left_out: list[str]) -> Listed:
    """Each file once, under a name that is no link if there is one."""
    owner: dict[str, str] = {}
    for name in sorted(found, key=lambda name: (found[name].by_link, name)):
        owner.setdefault(found[name].real, name)
    again = [name for name in sorted(found) if owner[found[name].real] != name]
    lines = [f"{name}: the same file as {owner[found[name].real]}" for name in again[:5]]
    lines += [f"{len(again) - 5:,} more that are other names of files"] if len(again) > 5 else []
    kept = found.keys() - set(again)
    paths = {name: one.path for name, one in found.items() if name in kept}
    return Listed(paths, left_out + lines, {name: found[name].bytes for name in paths})


# ---------------------------------------------------------------------------- URLs


def _of_url(source: str) -> Listed:
    import fsspec  # takes a tenth of a second

    shown = display_address(source)
    try:
        files, root = fsspec.core.url_to_fs(source)
        sanitize_logs()  # of the file system, which has its logger by now
        if glob.has_magic(root):
            found = files.glob(root, detail=True)
        else:
            found = {root: files.info(root)} if files.isfile(root) else files.find(root, detail=True)
    except ImportError as error:
        raise ValueError(f"{shown}: {error}; {pip_line('remote')}") from error
    except ValueError as error:
        why = redact(str(error))
        raise ValueError(f"{shown}: {why}; expected a URL that fsspec knows, as s3://bucket/folder") from None
    except Exception as error:  # each file system has its own
        why = redact((str(error) or type(error).__name__).splitlines()[0])
        raise ConnectionError(f"{shown}: could not be listed ({why}); check the address and your access") from None
    if glob.has_magic(root) or list(found) == [root]:
        paths = {path: path for path in found if found[path].get("type") != "directory"}
        left_out: list[str] = []
        if glob.has_magic(root):
            paths, left_out = _without_no_text(paths)
        names = _known(paths, _folder_of(root) if glob.has_magic(root) else PurePosixPath(root).parent, source)
    else:
        below = {str(PurePosixPath(path).relative_to(root)): path for path in found}
        chosen, left_out = of_one_kind({name: found[path].get("size") for name, path in below.items()}, source)
        names = {name: below[name] for name in chosen}
    sizes = {name: found[path]["size"] for name, path in names.items() if found[path].get("size") is not None}
    return Listed({name: files.unstrip_protocol(path) for name, path in names.items()}, left_out, sizes)


# ---------------------------------------------------------------------------- names


def _known(files: dict, folder: PurePosixPath, source: str) -> dict:
    """The files of a glob, or one file, by their names below a folder."""
    if not files:
        raise FileNotFoundError(f"{redact(source)}: no file matches this pattern; check --source")
    if unknown := [path for path in files if not format_of(path)]:
        raise ValueError(f"{unknown[0]}: expected the name of a {format_names()} file; check --source")
    named = ((str(PurePosixPath(path).relative_to(folder)), where) for path, where in files.items())
    return _by_printable_name(named, lambda path: path)


def _folder_of(pattern: str) -> PurePosixPath:
    """The folder before the first part of a pattern that has `*`, `?` or `[`; of a path without one, its folder."""
    folders = PurePosixPath(pattern).parts[:-1]
    return PurePosixPath(*map(unescaped, itertools.takewhile(is_literal, folders)))


def is_literal(part: str) -> bool:
    """Whether a part of a pattern stands for itself alone: `c[[]1]` for the folder `c[1]`."""
    return glob.escape(unescaped(part)) == part or not glob.has_magic(part)


def unescaped(part: str) -> str:
    """A part of a pattern without glob.escape."""
    return ESCAPED.sub(r"\1", part)


def _by_printable_name(found: Iterable[tuple[str, File]], path_of: Callable[[File], str]) -> dict[str, File]:
    """Files by names that people can see. ValueError if two would have the same."""
    named: dict[str, File] = {}
    for name, file in found:
        shown = _printable(name)
        if (other := named.setdefault(shown, file)) is not file:
            both = sorted(repr(path_of(one)) for one in (file, other))
            raise ValueError(f"{both[0]} and {both[1]}: both are named {shown} in a token set; rename one")
    return named


def _printable(name: str) -> str:
    r"""A name that JSON can hold and people can see: Latin-1 becomes "caf\xe9.txt", and control characters "\x1b"."""
    if name.isascii() and name.isprintable():
        return name
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(c if is_shown(c) else c.encode("unicode_escape").decode() for c in text)


def _files(names: list[str]) -> str:
    return "file" if len(names) == 1 else "files"


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
