"""A source by its name -> the files that are there, by name: in a folder, at a URL, on the hub.

corpus/                          a.parquet, web/b.parquet      through links too
corpus/*/b*                      web/b.parquet                 below corpus
s3://bucket/web/*.jsonl.gz       a.jsonl.gz, b.jsonl.gz
owner/name                       the files of a dataset repository on the hub
"""

import glob
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from tokenmill.addresses import has_scheme
from tokenmill.extras import pip_line
from tokenmill.messages import first_line, redact
from tokenmill.text.formats import FORMAT_NAMES
from tokenmill.text.hub import is_repository, list_hub
from tokenmill.text.source_file import SourceFile

STDLIB = "stdlib"
# of fsspec's listings
TAGS = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "mtime", "Last-Modified")
NO_SIZE = -1  # of what is no regular file, and where a server does not say it

Files = dict[str, SourceFile]  # by name


class Located(NamedTuple):
    """The files of a source."""

    files: Files
    is_folder: bool  # in which not every file has to be one of text


def locate(source: str, raw_dir: Path, revision: str) -> Located:
    """The files of a source. FileNotFoundError if there is no such source, and as in `list_hub`.

    OSError for a folder that cannot be read, ConnectionError for a URL that cannot be listed.
    """
    path = os.path.expanduser(source.removeprefix("file://"))
    if has_scheme(path):
        return _at_url(source)
    if source == STDLIB and not os.path.exists(source):
        from tokenmill.text.stdlib import write_stdlib

        return Located(_below(str(write_stdlib(raw_dir))), True)
    if os.path.isdir(path):
        return Located(_below(path), True)
    if os.path.exists(path):
        name = os.path.basename(path)
        return Located({name: _local(name, os.path.realpath(path))}, False)
    is_pattern = glob.has_magic(path)
    matches = glob.glob(path, recursive=True) if is_pattern else []
    if is_repository(source) and not matches:
        files = list_hub(source, revision, raw_dir)
        return Located({file.name: file for file in files}, True)
    if is_pattern:
        paths = [match for match in matches if not os.path.isdir(match)]
        return Located(_local_files(paths, folder_of(path)), False)
    raise FileNotFoundError(
        f"{source}: no such file or folder; expected a folder, file or glob of {FORMAT_NAMES} "
        "files, a URL, a dataset repository on the Hugging Face hub (owner/name), or "
        f"{STDLIB}"
    )


def folder_of(pattern: str) -> str:
    """The folder before the first part of a pattern that has `*`, `?` or `[`; or of a path."""
    *folders, _ = pattern.split("/")
    folder = "/".join(takewhile(lambda part: not glob.has_magic(part), folders))
    if folder:
        return folder
    return "/" if pattern.startswith("/") else "."


def _below(folder: str) -> Files:
    return _local_files(_walk(folder), folder)


def _local_files(paths: Iterator[str] | list[str], folder: str) -> Files:
    """Files by their names below a folder."""
    files = {}
    parents: dict[str, tuple[str, str]] = {}  # what there is of each folder
    for path in paths:
        parent, name = os.path.split(path)
        if parent not in parents:
            parents[parent] = os.path.relpath(parent or ".", folder), os.path.realpath(parent)
        below, real_parent = parents[parent]
        real_path = os.path.join(real_parent, name)
        if os.path.islink(path):
            real_path = os.path.realpath(path)
        if below != ".":
            name = os.path.join(below, name)
        files[name] = _local(name, real_path)
    return files


def _local(name: str, real_path: str) -> SourceFile:
    size = NO_SIZE
    with suppress(OSError):  # a broken link
        status = os.stat(real_path)
        if stat.S_ISREG(status.st_mode):
            size = status.st_size
    return SourceFile(name, real_path, size)


def _walk(folder: str) -> Iterator[str]:
    """The files below a folder, through links too, each folder once, and no token sets.

    OSError if a folder cannot be read.
    """
    seen = set()
    for path, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
        status = os.stat(path)
        identity = status.st_dev, status.st_ino
        is_token_set = {"shards", "manifests"}.issubset(folders) and "tokenizer.json" in names
        if identity in seen or is_token_set:
            folders.clear()
            continue
        seen.add(identity)
        folders.sort()
        for name in names:
            yield os.path.join(path, name)


def _raise(error: OSError) -> None:
    raise error


def _at_url(source: str) -> Located:
    import fsspec  # takes a thirtieth of a second

    shown = redact(source)
    try:
        fs, root = fsspec.core.url_to_fs(source)
        path = _without_query(root)
        is_pattern = glob.has_magic(path)
        is_folder = path == root and not is_pattern and not fs.isfile(root)
        if source.startswith(("http://", "https://")) and root.endswith("/"):
            raise ValueError("a folder of a web server, whose pages are no list; name its files")
        if is_folder:
            listed = fs.find(root, detail=True)
        elif is_pattern:
            listed = _with_sizes(fs, fs.glob(root, detail=True))
        else:
            listed = {root: fs.info(root)}
    except ImportError as error:
        raise ValueError(f"{shown}: {error}; {pip_line('remote')}") from error
    except Exception as error:  # each file system has its own
        why = redact(first_line(error))
        raise ConnectionError(
            f"{shown}: could not be listed ({why}); check the address and your access"
        ) from None
    base = root if is_folder else folder_of(root)
    files = {}
    for path, facts in listed.items():
        if facts.get("type") == "directory":
            continue
        name = path.removeprefix(base).lstrip("/").partition("?")[0]
        size = NO_SIZE if facts.get("size") is None else facts["size"]
        url = fs.unstrip_protocol(path)
        files[name] = SourceFile(name, url, size, identity=_tag_of(facts))
    return Located(files, is_folder)


def _with_sizes(fs: Any, listed: dict[str, Any]) -> dict[str, Any]:
    """A listing with the facts of each file, which a page of links does not have."""
    facts = {}
    for path, listed_facts in listed.items():
        facts[path] = fs.info(path) if listed_facts.get("size") is None else listed_facts
    return facts


def _without_query(root: str) -> str:
    """A path without what follows `?`, where that is no pattern."""
    if root.startswith(("http://", "https://")):
        return root.partition("?")[0]
    return root


def _tag_of(facts: dict[str, Any]) -> str | None:
    for tag in TAGS:
        if facts.get(tag):
            return str(facts[tag])
    return None
