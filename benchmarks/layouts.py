"""The same text as other files: a few large ones, many small ones, a compressed one.

    layouts = write_layouts(texts, Path("/tmp/layouts"), ["75 of 8 MB"])

`texts` yields documents. Each layout is a folder of jsonl or parquet files and takes as many of the first documents as
it has room for, so give it distinct text: a tokenizer's engine remembers the words that it has seen.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import orjson
import pyarrow as pa
import pyarrow.parquet as pq


class Layout(NamedTuple):
    """How many files, how much text in each, and in which format."""

    files: int
    text_bytes: int
    suffix: str = ".jsonl"


LAYOUTS = {
    "3 files of 200 MB": Layout(3, 200_000_000),
    "75 of 8 MB": Layout(75, 8_000_000),
    "5,000 of 100 kB": Layout(5_000, 100_000),
    "40,000 of 4 kB": Layout(40_000, 4_000),
    "one .jsonl.zst of 600 MB": Layout(1, 600_000_000, ".jsonl.zst"),
    "31 parquet files, 207 MB": Layout(31, 6_680_000, ".parquet"),
    "6 parquet files, 40 MB": Layout(6, 6_680_000, ".parquet"),
    "3 files of 1 kB": Layout(2, 1_000),
}


def write_layouts(texts: Iterable[str], root: Path, names: Iterable[str]) -> dict[str, Path]:
    """Writes these layouts, each into a folder of its own, if it is not there. The last file of each, which validates,
    is a small one beside the others.
    """
    documents = list(texts)
    return {name: _write(documents, root / _folder(name), LAYOUTS[name]) for name in names}


def _folder(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)


def _write(documents: list[str], folder: Path, layout: Layout) -> Path:
    if folder.exists():
        return folder
    folder.mkdir(parents=True)
    stream = _cut(documents, layout.text_bytes)
    for number in range(layout.files):
        _write_file(folder / f"{number:06d}{layout.suffix}", next(stream))
    _write_file(folder / f"z{layout.suffix}", [text[:1000] for text in documents[:3]])
    return folder


def _cut(documents: list[str], text_bytes: int) -> Iterator[list[str]]:
    """Documents for one file after the other; one that does not fit continues in the next file."""
    held: list[str] = []
    room = text_bytes
    for document in documents:
        while document:
            part, document = document[:room], document[room:]
            held.append(part)
            room -= len(part)
            if not room:
                yield held
                held, room = [], text_bytes
    raise ValueError("the source has too little text for this layout; name a larger one")


def _write_file(path: Path, documents: list[str]) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": documents}), path, row_group_size=1000, compression="zstd")
        return
    lines = b"".join(orjson.dumps({"text": text}, option=orjson.OPT_APPEND_NEWLINE) for text in documents)
    with pa.output_stream(str(path), compression="zstd" if path.suffix == ".zst" else None) as out:
        out.write(lines)
