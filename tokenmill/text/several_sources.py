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
from tokenmill.text.listing import Listed, list_source


def name_of_source(source: str) -> str:
    """The name of a data set made of a source: its last part, or of a glob, the folder in which it looks."""
    path = Path(os.path.abspath(source.partition("?")[0] if has_scheme(source) else source))
    while path.name and set("*?[") & set(path.name):
        path = path.parent
    return stem_of(path.name)


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
            full, place = below + inner, path if has_scheme(path) else os.path.realpath(path)
            if (other := places.setdefault(place, full)) != full:
                merged.left_out.append(f"of {redact(source)}: {inner}: the same file as {other}")
            elif full in merged.files and merged.files[full] != path:
                raise ValueError(
                    f"{redact(merged.files[full])} and {redact(path)}: both would be named {full} in the token set; "
                    "rename one, or prepare two token sets and mix them"
                )
            else:
                merged.files[full] = path
                merged.bytes.update({full: listed.bytes[inner]} if inner in listed.bytes else {})
    return merged
