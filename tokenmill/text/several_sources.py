"""Several sources become one list of files, as if they were folders side by side: `--source web books/a.jsonl`.

    web (a.parquet, b.parquet), books/a.jsonl           ->   web/a.parquet  web/b.parquet  a.jsonl
    corpus/**/*.parquet, corpus/**/*.jsonl              ->   a.parquet  b.jsonl          both are of `corpus`

A source has a name, and its files are listed below it unless all sources have the same. A file that several sources
name is read once.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from tokenmill.addresses import has_scheme
from tokenmill.sanitize import redact
from tokenmill.text.formats import stem_of
from tokenmill.text.listing import Listed, is_literal, list_source, unescaped


def name_of_source(source: str) -> str:
    """The name of a data set made of a source: its last part, or of a glob, the folder in which it looks."""
    path = Path(os.path.abspath(source.partition("?")[0] if has_scheme(source) else source))
    if not path.exists():
        while path.name and not is_literal(path.name):
            path = path.parent
    return stem_of(unescaped(path.name))


def list_sources(sources: Sequence[str]) -> Listed:
    """The files of all sources. Raises what `list_source` does, and ValueError if two files would have one name."""
    found, names = [list_source(source) for source in sources], list(map(name_of_source, sources))
    merged = Listed({})
    places: dict[str, str] = {}  # where each file really is, and its name
    for source, name, listed in zip(sources, names, found, strict=True):
        merged.left_out.extend(f"of {redact(source)}: {line}" for line in listed.left_out)
        is_file = list(listed.files) == [Path(source.partition("?")[0]).name]
        below = "" if is_file or len(set(names)) == 1 else f"{name}/"
        for inner, path in listed.files.items():
            full, place = below + inner, _place(path)
            if place in places:
                if places[place] != full:
                    merged.left_out.append(f"of {redact(source)}: {inner}: the same file as {places[place]}")
                continue
            places[place] = full
            if full in merged.files:
                raise ValueError(
                    f"{redact(merged.files[full])} and {redact(path)}: both would be named {full} in the token set; "
                    "name both by one pattern, as --source 'FOLDER/*/web/*', rename one, or prepare two token sets and "
                    "mix them"
                )
            merged.files[full] = path
            merged.bytes.update({full: listed.bytes[inner]} if inner in listed.bytes else {})
    return merged


def _place(path: str) -> str:
    """Where a file really is: two names of one file have one place."""
    path = path.removeprefix("file://")
    return path if has_scheme(path) else os.path.realpath(path)
