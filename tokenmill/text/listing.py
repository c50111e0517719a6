"""What a user names as sources -> files, by name. Where they are is found by locate.py.

    corpus/a.parquet  corpus/web/b.parquet       ->   a.parquet  web/b.parquet
    web/ (a.parquet) and books/a.jsonl           ->   web/a.parquet  a.jsonl       two sources
    s3://bucket/web/*.jsonl.gz                   ->   a.jsonl.gz  b.jsonl.gz

Files are sorted by name, so every machine has the same order. A folder is read as one format, that
of most of its bytes; if more than 1% of them have another one, that is an error. What is left out
is listed in `left_out`.
"""

import glob
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tokenmill.addresses import has_scheme
from tokenmill.messages import counted, in_bytes, redact
from tokenmill.store.names import is_plain
from tokenmill.text.formats import FORMAT_NAMES, format_of, stem_of
from tokenmill.text.locate import NO_SIZE, Files, folder_of, locate
from tokenmill.text.source_file import SourceFile

LITTLE = 0.01  # of the bytes of a folder, which may be left out without asking
# of any number of bytes
DESCRIBING = re.compile(r"(?:.*/)?(?:readme\.md|license\.md|license\.txt)", re.IGNORECASE)
# files of Hugging Face's `datasets` that are no text of their own
NO_TEXT = re.compile(
    r"(?:.*/)?(?:(?:dataset_infos?|dataset_dict|state)\.json|cache-[^/]*\.arrow)", re.IGNORECASE
)
HIDDEN = re.compile(r"(?:^|.*/)\..*")
SHOWN = 3


class Listing(NamedTuple):
    """Files in the order of their names, and what was left out, a sentence each."""

    files: list[SourceFile]
    left_out: list[str]


def list_sources(
    sources: Sequence[str], raw_dir: Path = Path("data/raw"), revision: str = "main"
) -> Listing:
    """The files of all sources.

    FileNotFoundError if there are none, ValueError for files of several formats or with one name,
    OSError for what cannot be read, ConnectionError for what cannot be listed.
    """
    listings = [_list_source(source, raw_dir, revision) for source in sources]
    if len(listings) == 1:
        return listings[0]
    set_names = [name_of_source(source) for source in sources]
    have_one_name = len(set(set_names)) == 1
    files: Files = {}
    left_out: list[str] = []
    first_names: dict[str, str] = {}  # of each path
    for source, set_name, listing in zip(sources, set_names, listings, strict=True):
        left_out += [f"of {redact(source)}: {line}" for line in listing.left_out]
        has_prefix = not have_one_name and not _is_one_file(source, listing)
        for file in listing.files:
            if file.hub is not None:
                raise ValueError(
                    f"{source}: a repository on the hub cannot be one of several sources, as its "
                    f"files are fetched; name it hf://datasets/{source}, which is read in place, "
                    "or prepare two token sets and mix them"
                )
            name = f"{set_name}/{file.name}" if has_prefix else file.name
            first_name = first_names.setdefault(file.path, name)
            if first_name != name:
                left_out.append(f"of {redact(source)}: {file.name}: the same file as {first_name}")
                continue
            namesake = files.setdefault(name, replace(file, name=name))
            if namesake.path != file.path:
                raise ValueError(
                    f"{namesake.shown} and {file.shown}: both would be named {name} in the token "
                    "set; rename one"
                )
    return Listing([files[name] for name in sorted(files)], left_out)


def _is_one_file(source: str, listing: Listing) -> bool:
    last_part = source.partition("?")[0].rpartition("/")[2]
    return [file.name for file in listing.files] == [last_part]


def name_of_source(source: str) -> str:
    """The name of a data set made of a source: its last part, or that of the folder of a glob."""
    path = source.removeprefix("file://")
    is_url = has_scheme(path)
    path = path.partition("?")[0] if is_url else os.path.abspath(os.path.expanduser(path))
    if not os.path.exists(path) and glob.has_magic(path):
        path = folder_of(path)
    return stem_of(path.rstrip("/").rpartition("/")[2])


def abridged(names: Sequence[str]) -> str:
    """The first names, for messages: "a, b, c and 12 more"."""
    shown = ", ".join(names[:SHOWN])
    num_more = len(names) - SHOWN
    return f"{shown} and {num_more:,} more" if num_more > 0 else shown


def _list_source(source: str, raw_dir: Path, revision: str) -> Listing:
    """The files to read, each once, in the order of names. ValueError for one that cannot be."""
    there, is_folder = locate(source, raw_dir, revision)
    shown = redact(source)
    if is_folder:
        names, left_out = _of_one_format(there, shown)
    else:
        names = {name for name in there if not NO_TEXT.fullmatch(name)}
        left_out = [f"{name}: no text of its own" for name in sorted(there.keys() - names)]
    if not names:
        raise FileNotFoundError(f"{shown}: found no file; check --source")
    by_path: dict[str, SourceFile] = {}
    links = {name for name in names if not there[name].path.endswith(name)}
    for name in [*sorted(names - links), *sorted(links)]:
        file = there[name]
        _require_readable(file, shown)
        first = by_path.setdefault(file.path, file)
        if first is not file:
            left_out.append(f"{name}: the same file as {first.name}")
    return Listing(sorted(by_path.values(), key=lambda file: file.name), left_out)


def _require_readable(file: SourceFile, source: str) -> None:
    name = file.name
    if not all(map(is_plain, name.replace("../", "").split("/"))):
        raise ValueError(
            f"{ascii(name)}: a name that is not UTF-8, too long, or cannot be shown; rename it"
        )
    if format_of(name) is None:
        raise ValueError(
            f"{file.shown}: expected the name of a {FORMAT_NAMES} file; check --source"
        )
    if file.bytes != NO_SIZE:
        return
    if file.is_local:
        raise ValueError(
            f"{source}: {name}: expected a regular file, found a broken link, a pipe or a device; "
            "take it out"
        )
    raise ValueError(f"{source}: the server does not say how large {name} is; fetch it first")


def _of_one_format(there: Files, source: str) -> tuple[set[str], list[str]]:
    """The names of a folder's files that have its main format; and what is left out, in sentences.

    FileNotFoundError if no file has a known format, ValueError if several formats have more than 1%
    of the bytes.
    """
    by_format: dict[str, list[str]] = {}
    unknown = []
    for name in sorted(there):
        text_format = format_of(name)
        if text_format is None or HIDDEN.fullmatch(name) or NO_TEXT.fullmatch(name):
            unknown.append(name)
        else:
            by_format.setdefault(text_format.name, []).append(name)
    if not by_format:
        strangers = abridged(unknown) or "none"
        raise FileNotFoundError(
            f"{source}: expected {FORMAT_NAMES} files in this folder, found {strangers}; check "
            "--source"
        )
    sizes = {}
    for kind, names in by_format.items():
        sizes[kind] = sum(there[name].bytes for name in names if not DESCRIBING.fullmatch(name))
    main = max(sizes, key=lambda kind: (sizes[kind], kind))
    little = LITTLE * sum(sizes.values())
    if any(size > little for kind, size in sizes.items() if kind != main):
        kinds = [kind for kind in sizes if kind == main or sizes[kind] > little]
        raise _several_formats(source, {kind: by_format[kind] for kind in kinds}, sizes, main)
    left_out = []
    for kind, names in by_format.items():
        if kind != main:
            count = counted(len(names), f"{kind} file")
            left_out.append(f"{count}: {abridged(names)}")
    seen = [name for name in unknown if not HIDDEN.fullmatch(name)]
    if seen:
        left_out.append(f"{counted(len(seen), 'other file')}: {abridged(seen)}")
    return set(by_format[main]), left_out


def _several_formats(
    source: str, by_format: dict[str, list[str]], sizes: dict[str, int], main: str
) -> ValueError:
    """The error for a folder whose files have several formats."""
    parts = []
    for kind, names in by_format.items():
        count = counted(len(names), f"{kind} file")
        parts.append(f"{count} of {in_bytes(sizes[kind])}")
    formats = " and ".join(parts)
    suffixes = {name[len(stem_of(name)) :] for name in by_format[main]}
    folder = (source if has_scheme(source) else glob.escape(source)).rstrip("/")
    patterns = " ".join(shlex.quote(f"{folder}/**/*{suffix}") for suffix in sorted(suffixes))
    return ValueError(
        f"{source}: expected files of one format, found {formats}; name what to read, as "
        f"--source {patterns}"
    )
