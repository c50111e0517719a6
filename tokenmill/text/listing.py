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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tokenmill.addresses import display_address, has_scheme
from tokenmill.extras import pip_line
from tokenmill.humanize import counted, in_bytes
from tokenmill.sanitize import redact, sanitize_logs
from tokenmill.store.names import is_plain
from tokenmill.text.formats import format_names, format_of, stem_of
from tokenmill.text.hub import is_repository, list_hub
from tokenmill.text.source_file import SourceFile

LITTLE = 0.01  # of the bytes of a folder, which may be left out without asking
DESCRIBING = re.compile(r"(?:.*/)?(?:readme\.md|license\.md|license\.txt)", re.IGNORECASE)  # any number of bytes
# files of Hugging Face's `datasets` that are no text of their own
NO_TEXT = re.compile(r"(?:.*/)?(?:(?:dataset_infos?|dataset_dict|state)\.json|cache-[^/]*\.arrow)", re.IGNORECASE)
STDLIB = "stdlib"
TAGS = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "mtime", "Last-Modified")  # of fsspec's listings


class Listing(NamedTuple):
    """Files in the order of their names, and what was left out, a sentence each."""

    files: list[SourceFile]
    left_out: list[str]


def list_sources(
    sources: Sequence[str], raw_dir: Path = Path("data/raw"), revision: str = "main", commit: str | None = None
) -> Listing:
    """The files of all sources. `commit` is what the revision was when the set was begun.

    FileNotFoundError if there are none, ValueError for files of several formats or with one name, OSError for what
    cannot be read, ConnectionError for what cannot be listed.
    """
    found = [_list_source(source, raw_dir, revision, commit) for source in sources]
    if len(found) == 1:
        return found[0]
    names, merged, left_out = list(map(name_of_source, sources)), dict[str, SourceFile](), list[str]()
    paths: dict[str, str] = {}
    for source, name, listing in zip(sources, names, found, strict=True):
        left_out += [f"of {redact(source)}: {line}" for line in listing.left_out]
        is_file = [file.name for file in listing.files] == [source.partition("?")[0].rpartition("/")[2]]
        for file in listing.files:
            if file.hub is not None:
                raise ValueError(
                    f"{source}: a repository on the hub cannot be one of several sources, as its files are fetched; "
                    f"name it hf://datasets/{source}, which is read in place, or prepare two token sets and mix them"
                )
            full = file.name if is_file or len(set(names)) == 1 else f"{name}/{file.name}"
            if file.path in paths:
                same = f"of {redact(source)}: {file.name}: the same file as {paths[file.path]}"
                left_out += [same] if paths[file.path] != full else []
                continue
            paths[file.path] = full
            if full in merged:
                raise ValueError(
                    f"{merged[full].shown} and {file.shown}: both would be named {full} in the token set; rename one"
                )
            merged[full] = SourceFile(full, file.path, file.bytes, identity=file.identity, format=file.format)
    return Listing([merged[name] for name in sorted(merged)], left_out)


def name_of_source(source: str) -> str:
    """The name of a data set made of a source: its last part, or of a glob, the folder in which it looks."""
    path = source.removeprefix("file://")
    path = path.partition("?")[0] if has_scheme(path) else os.path.abspath(os.path.expanduser(path))
    path = path if os.path.exists(path) else _folder_of(path) if glob.has_magic(path) else path
    return stem_of(path.rstrip("/").rpartition("/")[2])


def _list_source(source: str, raw_dir: Path, revision: str, commit: str | None) -> Listing:
    path = os.path.expanduser(source.removeprefix("file://"))
    if has_scheme(path):
        return _of_url(source)
    if source == STDLIB and not os.path.exists(source):
        from tokenmill.text.stdlib import write_stdlib

        return _of_folder(str(write_stdlib(raw_dir)), source)
    if os.path.isdir(path):
        return _of_folder(path, source)
    if os.path.exists(path):
        return _named({os.path.basename(path): path}, source, [])
    if is_repository(source):
        files = list_hub(source, revision, commit, raw_dir)
        chosen, left_out = of_one_format({file.name: file.bytes for file in files}, source)
        return Listing([file for file in files if file.name in chosen], left_out)
    if not glob.has_magic(path):
        raise FileNotFoundError(
            f"{source}: no such file or folder; expected a folder, file or glob of {format_names()} files, a URL, a "
            f"dataset repository on the Hugging Face hub (owner/name), or {STDLIB}"
        )
    base = _folder_of(path)
    names = {os.path.relpath(p, base): p for p in glob.glob(path, recursive=True) if not os.path.isdir(p)}
    left_out = [f"{name}: no text of its own" for name in sorted(names) if NO_TEXT.fullmatch(name)]
    return _named({n: p for n, p in names.items() if not NO_TEXT.fullmatch(n)}, source, left_out)


def of_one_format(sizes: Mapping[str, int], source: str) -> tuple[set[str], list[str]]:
    """The names of a folder's files that have its main format; and what is left out, a sentence each.

    FileNotFoundError if no file has a known format, ValueError if several formats have more than 1% of the bytes.
    """
    by_format: dict[str, list[str]] = {}
    for name in sorted(sizes):
        entry = format_of(name)
        by_format.setdefault(
            "" if entry is None or _is_hidden(name) or NO_TEXT.fullmatch(name) else entry.name, []
        ).append(name)
    others = by_format.pop("", [])
    known = {f: sum(sizes[n] for n in names if not DESCRIBING.fullmatch(n)) for f, names in by_format.items()}
    if not by_format:
        raise FileNotFoundError(
            f"{redact(source)}: expected {format_names()} files in this folder, found {_some(others) or 'none'}; check "
            "--source"
        )
    chosen = max(known, key=lambda name: (known[name], name))
    many = [name for name in known if name == chosen or known[name] > LITTLE * sum(known.values())]
    if len(many) > 1:
        found = " and ".join(f"{counted(len(by_format[f]), f'{f} file')} of {in_bytes(known[f])}" for f in many)
        raise ValueError(
            f"{redact(source)}: expected files of one format, found {found}; name what to read, as --source "
            f"{_patterns(by_format[chosen], source)}"
        )
    lines = [f"{counted(len(n), f'{f} file')}: {_some(n)}" for f, n in by_format.items() if f != chosen]
    seen = [name for name in others if not _is_hidden(name)]
    return set(by_format[chosen]), lines + [f"{counted(len(seen), 'other file')}: {_some(seen)}"] * bool(seen)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or "/." in name


def _patterns(names: list[str], source: str) -> str:
    """Globs for files in a folder, in quotes."""
    ends = {name[len(stem_of(name)) :] for name in names}
    folder = redact(source) if has_scheme(source) else glob.escape(source)
    return " ".join(shlex.quote(f"{folder.rstrip('/')}/**/*{end}") for end in sorted(ends))


# ---------------------------------------------------------------------------- this machine


def _of_folder(folder: str, source: str) -> Listing:
    paths = {os.path.relpath(path, folder): path for path in _walk(folder)}
    names, left_out = of_one_format(
        {name: _size(path) for name, path in paths.items() if format_of(name)}
        | {name: 0 for name in paths if not format_of(name)},
        source,
    )
    return _named({name: paths[name] for name in names}, source, left_out)


def _walk(folder: str) -> Iterator[str]:
    """The files below a folder, through links too, each folder once. OSError if a folder cannot be read."""
    seen = set[tuple[int, int]]()
    for where, folders, names in os.walk(folder, onerror=_unreadable, followlinks=True):
        found = os.stat(where)
        if (found.st_dev, found.st_ino) in seen:
            folders[:] = []
            continue
        seen.add((found.st_dev, found.st_ino))
        is_token_set = {"shards", "manifests"} <= set(folders)
        folders[:] = [] if is_token_set else sorted(folders)
        names = [] if is_token_set else names
        yield from (os.path.join(where, name) for name in names)


def _unreadable(error: OSError) -> None:
    raise OSError(
        f"{error.filename}: this folder of the source cannot be read ({error.strerror}); fix that, or take it out"
    ) from error


def _size(path: str) -> int:
    """Bytes of a regular file. ValueError for a pipe, a device, or a link that leads nowhere."""
    if not os.path.isfile(path):
        raise ValueError(f"{path}: expected a regular file, found a broken link, a pipe or a device; take it out")
    return os.path.getsize(path)


def _named(paths: Mapping[str, str], source: str, left_out: list[str]) -> Listing:
    """Local files in the order of their names, each once, whatever links lead to it."""
    if not paths:
        raise FileNotFoundError(f"{redact(source)}: no file matches this pattern; check --source")
    _require_known(paths)
    files: dict[str, SourceFile] = {}
    for name in sorted(paths, key=lambda name: (os.path.realpath(paths[name]) != os.path.abspath(paths[name]), name)):
        file = SourceFile(name, os.path.realpath(paths[name]), _size(paths[name]))
        if (other := files.setdefault(file.path, file)) is not file:
            left_out.append(f"{name}: the same file as {other.name}")
    return Listing(sorted(files.values(), key=lambda file: file.name), left_out)


def _require_known(paths: Mapping[str, str]) -> None:
    """ValueError for a file of no known format, or whose name cannot be shown or written as UTF-8."""
    for name, path in paths.items():
        if not all(map(is_plain, name.replace("../", "").split("/"))):
            raise ValueError(f"{ascii(path)}: a name that is not UTF-8, too long, or cannot be shown; rename it")
        if format_of(name) is None:
            raise ValueError(f"{redact(path)}: expected the name of a {format_names()} file; check --source")


def _folder_of(pattern: str) -> str:
    """The folder before the first part of a pattern that has `*`, `?` or `[`; of another path, its folder."""
    parts = pattern.split("/")
    magic = [n for n, part in enumerate(parts) if glob.has_magic(part) and glob.escape(_unescaped(part)) != part]
    return _unescaped("/".join(parts[: min([*magic, len(parts) - 1])])) or ("/" if pattern.startswith("/") else ".")


def _unescaped(part: str) -> str:
    """A part of a pattern without glob.escape: "c[[]1]" -> "c[1]"."""
    return re.sub(r"\[([*?[])\]", r"\1", part)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


# ---------------------------------------------------------------------------- URLs


def _of_url(source: str) -> Listing:
    import fsspec  # takes a thirtieth of a second

    shown = display_address(source)
    try:
        fs, root = fsspec.core.url_to_fs(source)
        sanitize_logs()  # of the file system, which has its logger by now
        if glob.has_magic(root):
            found, base = fs.glob(root, detail=True), _folder_of(root)
        elif fs.isfile(root):
            found, base = {root: fs.info(root)}, root.rpartition("/")[0]
        else:
            found, base = fs.find(root, detail=True), root
    except ImportError as error:
        raise ValueError(f"{shown}: {error}; {pip_line('remote')}") from error
    except ValueError as error:
        raise ValueError(f"{shown}: {redact(str(error))}; expected a URL that fsspec knows, as s3://b/folder") from None
    except Exception as error:  # each file system has its own
        why = redact((str(error) or type(error).__name__).splitlines()[0])
        raise ConnectionError(f"{shown}: could not be listed ({why}); check the address and your access") from None
    facts = {path.removeprefix(base).lstrip("/"): (path, info) for path, info in found.items()}
    facts = {name.partition("?")[0]: one for name, one in facts.items() if one[1].get("type") != "directory"}
    if unsized := [name for name, (_, info) in facts.items() if info.get("size") is None and format_of(name)]:
        raise ValueError(f"{shown}: the server does not say how large {unsized[0]} is; fetch it first")
    if base == root:
        names, left_out = of_one_format({name: info.get("size") or 0 for name, (_, info) in facts.items()}, source)
    else:
        names, left_out = {name for name in facts if not NO_TEXT.fullmatch(name) and not _is_hidden(name)}, []
    if not names:
        raise FileNotFoundError(f"{shown}: found nothing there; check --source")
    _require_known({name: facts[name][0] for name in names})
    files = []
    for name in sorted(names):
        path, info = facts[name]
        tag = next((str(info[key]) for key in TAGS if info.get(key)), None)
        files.append(SourceFile(name, fs.unstrip_protocol(path), info["size"], identity=tag))
    return Listing(files, left_out)
