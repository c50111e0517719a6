"""What a user names -> files, by name: a folder with its subfolders, a glob, one file, a URL, a repository on the hub.

    corpus/a.parquet  corpus/web/b.parquet              ->   a.parquet  web/b.parquet
    web/ (a.parquet) and books/a.jsonl                  ->   web/a.parquet  a.jsonl          two sources
    s3://bucket/web/*.jsonl.gz                          ->   a.jsonl.gz  b.jsonl.gz

Files are sorted by name, so every machine has the same order. A folder is read as one format, that of most of its
bytes; if more than 1% of them have another one, that is an error. What is left out is listed in `left_out`.
"""

import glob
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tokenmill.addresses import has_scheme
from tokenmill.extras import pip_line
from tokenmill.messages import counted, in_bytes, redact
from tokenmill.store.names import is_plain
from tokenmill.text.formats import FORMAT_NAMES, format_of, stem_of
from tokenmill.text.hub import is_repository, list_hub
from tokenmill.text.source_file import SourceFile

LITTLE = 0.01  # of the bytes of a folder, which may be left out without asking
DESCRIBING = re.compile(
    r"(?:.*/)?(?:readme\.md|license\.md|license\.txt)", re.IGNORECASE
)  # any number of bytes
# files of Hugging Face's `datasets` that are no text of their own
NO_TEXT = re.compile(
    r"(?:.*/)?(?:(?:dataset_infos?|dataset_dict|state)\.json|cache-[^/]*\.arrow)", re.IGNORECASE
)
HIDDEN = re.compile(r"(?:^|.*/)\..*")
STDLIB = "stdlib"
TAGS = (
    "ETag",
    "etag",
    "md5Hash",
    "LastModified",
    "last_modified",
    "mtime",
    "Last-Modified",
)  # of fsspec's listings
NO_SIZE = -1  # of what is no regular file, and where a server does not say it
SHOWN = 3

Found = dict[str, SourceFile]  # by name


class Listing(NamedTuple):
    """Files in the order of their names, and what was left out, a sentence each."""

    files: list[SourceFile]
    left_out: list[str]


def list_sources(
    sources: Sequence[str], raw_dir: Path = Path("data/raw"), revision: str = "main"
) -> Listing:
    """The files of all sources.

    FileNotFoundError if there are none, ValueError for files of several formats or with one name, OSError for what
    cannot be read, ConnectionError for what cannot be listed.
    """
    found = [_list_source(source, raw_dir, revision) for source in sources]
    if len(found) == 1:
        return found[0]
    names, merged, left_out = list(map(name_of_source, sources)), Found(), list[str]()
    by_path: dict[str, str] = {}
    for source, name, listing in zip(sources, names, found, strict=True):
        left_out += [f"of {redact(source)}: {line}" for line in listing.left_out]
        is_file = [file.name for file in listing.files] == [
            source.partition("?")[0].rpartition("/")[2]
        ]
        for file in listing.files:
            if file.hub is not None:
                raise ValueError(
                    f"{source}: a repository on the hub cannot be one of several sources, as its files are fetched; "
                    f"name it hf://datasets/{source}, which is read in place, or prepare two token sets and mix them"
                )
            full = file.name if is_file or len(set(names)) == 1 else f"{name}/{file.name}"
            if (other := by_path.setdefault(file.path, full)) != full:
                left_out.append(f"of {redact(source)}: {file.name}: the same file as {other}")
            elif merged.setdefault(full, replace(file, name=full)).path != file.path:
                raise ValueError(
                    f"{merged[full].shown} and {file.shown}: both would be named {full} in the token set; rename one"
                )
    return Listing([merged[name] for name in sorted(merged)], left_out)


def name_of_source(source: str) -> str:
    """The name of a data set made of a source: its last part, or of a glob, the folder in which it looks."""
    path = source.removeprefix("file://")
    path = path.partition("?")[0] if has_scheme(path) else os.path.abspath(os.path.expanduser(path))
    path = path if os.path.exists(path) else _folder_of(path) if glob.has_magic(path) else path
    return stem_of(path.rstrip("/").rpartition("/")[2])


def some(names: Sequence[str]) -> str:
    """The first names, for messages: "a, b, c and 12 more"."""
    return ", ".join(names[:SHOWN]) + (
        f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    )


# ---------------------------------------------------------------------------- what is there


def _list_source(source: str, raw_dir: Path, revision: str) -> Listing:
    path, is_folder = os.path.expanduser(source.removeprefix("file://")), False
    base, matched = (
        _folder_of(path),
        glob.glob(path, recursive=True) if glob.has_magic(path) else [],
    )
    if has_scheme(path):
        is_folder, found = _at_url(source)
    elif source == STDLIB and not os.path.exists(source):
        from tokenmill.text.stdlib import write_stdlib

        is_folder, found = True, _below(str(write_stdlib(raw_dir)))
    elif os.path.isdir(path):
        is_folder, found = True, _below(path)
    elif os.path.exists(path):
        found = {os.path.basename(path): _local(os.path.basename(path), path)}
    elif is_repository(source) and not matched:
        is_folder, found = True, {file.name: file for file in list_hub(source, revision, raw_dir)}
    elif glob.has_magic(path):
        names = {os.path.relpath(at, base): at for at in matched if not os.path.isdir(at)}
        found = {name: _local(name, at) for name, at in names.items()}
    else:
        raise FileNotFoundError(
            f"{source}: no such file or folder; expected a folder, file or glob of {FORMAT_NAMES} files, a URL, a "
            f"dataset repository on the Hugging Face hub (owner/name), or {STDLIB}"
        )
    return _chosen(found, is_folder, redact(source))


def _local(name: str, path: str) -> SourceFile:
    return SourceFile(
        name, os.path.realpath(path), os.path.getsize(path) if os.path.isfile(path) else NO_SIZE
    )


def _below(folder: str) -> Found:
    return {
        name: _local(name, path)
        for path in _walk(folder)
        for name in [os.path.relpath(path, folder)]
    }


def _walk(folder: str) -> Iterator[str]:
    """The files below a folder, through links too, each folder once. OSError if a folder cannot be read."""
    seen = set[tuple[int, int]]()
    for where, folders, names in os.walk(folder, onerror=_unreadable, followlinks=True):
        found = os.stat(where)
        folders.sort()
        if (found.st_dev, found.st_ino) in seen or (
            {"shards", "manifests"} <= {*folders} and "tokenizer.json" in names
        ):
            folders[:], names = [], []
        seen.add((found.st_dev, found.st_ino))
        yield from (os.path.join(where, name) for name in names)


def _unreadable(error: OSError) -> None:
    raise error


def _at_url(source: str) -> tuple[bool, Found]:
    """Whether a URL names a folder, and its files."""
    import fsspec  # takes a thirtieth of a second

    shown = redact(source)
    try:
        fs, root = fsspec.core.url_to_fs(source)
        is_folder = not glob.has_magic(root) and not fs.isfile(root)
        listed = fs.find(root, detail=True) if is_folder else {root: fs.info(root)}
        listed = fs.glob(root, detail=True) if glob.has_magic(root) else listed
    except ImportError as error:
        raise ValueError(f"{shown}: {error}; {pip_line('remote')}") from error
    except Exception as error:  # each file system has its own
        why = redact((str(error) or type(error).__name__).splitlines()[0])
        raise ConnectionError(
            f"{shown}: could not be listed ({why}); check the address and your access"
        ) from None
    base, found = root if is_folder else _folder_of(root), Found()
    for path, facts in listed.items():
        name = path.removeprefix(base).lstrip("/").partition("?")[0]
        size, tags = facts.get("size"), [str(facts[key]) for key in TAGS if facts.get(key)]
        if facts.get("type") != "directory":
            url = fs.unstrip_protocol(path)
            found[name] = SourceFile(
                name, url, NO_SIZE if size is None else size, identity=next(iter(tags), None)
            )
    return is_folder, found


def _folder_of(pattern: str) -> str:
    """The folder before the first part of a pattern that has `*`, `?` or `[`; of another path, its folder."""
    parts = pattern.split("/")
    magic = [number for number, part in enumerate(parts) if glob.has_magic(part)]
    return "/".join(parts[: min([*magic, len(parts) - 1])]) or (
        "/" if pattern.startswith("/") else "."
    )


# ---------------------------------------------------------------------------- what of it is read


def _chosen(found: Found, is_folder: bool, source: str) -> Listing:
    """The files to read, each once, in the order of their names. ValueError for one that cannot be."""
    if is_folder:
        names, left_out = _of_one_format(found, source)
    else:
        names = {name for name in found if not NO_TEXT.fullmatch(name)}
        left_out = [f"{name}: no text of its own" for name in sorted(found.keys() - names)]
    if not names:
        raise FileNotFoundError(f"{source}: found no file; check --source")
    files: dict[str, SourceFile] = {}  # by path
    for name in sorted(names):
        file = found[name]
        if not all(map(is_plain, name.replace("../", "").split("/"))):
            raise ValueError(
                f"{ascii(name)}: a name that is not UTF-8, too long, or cannot be shown; rename it"
            )
        if format_of(name) is None:
            raise ValueError(
                f"{file.shown}: expected the name of a {FORMAT_NAMES} file; check --source"
            )
        if file.bytes == NO_SIZE:
            raise ValueError(
                f"{source}: {name}: expected a regular file, found a broken link, a pipe or a device; take it out"
                if file.is_local
                else f"{source}: the server does not say how large {name} is; fetch it first"
            )
        if (other := files.setdefault(file.path, file)) is not file:
            left_out.append(f"{name}: the same file as {other.name}")
    return Listing(list(files.values()), left_out)


def _of_one_format(found: Found, source: str) -> tuple[set[str], list[str]]:
    """The names of a folder's files that have its main format; and what is left out, a sentence each.

    FileNotFoundError if no file has a known format, ValueError if several formats have more than 1% of the bytes.
    """
    by_format: dict[str, list[str]] = {}
    for name in sorted(found):
        entry = None if HIDDEN.fullmatch(name) or NO_TEXT.fullmatch(name) else format_of(name)
        by_format.setdefault("" if entry is None else entry.name, []).append(name)
    others = by_format.pop("", [])
    if not by_format:
        raise FileNotFoundError(
            f"{source}: expected {FORMAT_NAMES} files in this folder, found {some(others) or 'none'}; check --source"
        )
    known = {
        f: sum(found[n].bytes for n in names if not DESCRIBING.fullmatch(n))
        for f, names in by_format.items()
    }
    chosen = max(known, key=lambda name: (known[name], name))
    many = [name for name in known if name == chosen or known[name] > LITTLE * sum(known.values())]
    if len(many) > 1:
        formats = " and ".join(
            f"{counted(len(by_format[f]), f'{f} file')} of {in_bytes(known[f])}" for f in many
        )
        ends = sorted({name[len(stem_of(name)) :] for name in by_format[chosen]})
        folder = (source if has_scheme(source) else glob.escape(source)).rstrip("/")
        raise ValueError(
            f"{source}: expected files of one format, found {formats}; name what to read, as --source "
            f"{' '.join(shlex.quote(f'{folder}/**/*{end}') for end in ends)}"
        )
    lines = [
        f"{counted(len(n), f'{f} file')}: {some(n)}" for f, n in by_format.items() if f != chosen
    ]
    seen = [name for name in others if not HIDDEN.fullmatch(name)]
    return set(by_format[chosen]), lines + [
        f"{counted(len(seen), 'other file')}: {some(seen)}"
    ] * bool(seen)
