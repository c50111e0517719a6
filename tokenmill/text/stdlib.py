"""Text that every machine has: the Python standard library, in parquet files as FineWeb-Edu's.

A document is a function or class at the top level of a `.py` file, with the lines up to the next,
or the lines before the first. So lengths are like the web's: many short ones, and a long tail. They
are in the order of a hash of their places, so that each parquet file is a fair sample of the
library.
"""

import hashlib
import re
import sysconfig
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

DOCUMENTS = 3_000  # in a parquet file
DEFINITION = re.compile(r"^(?:@.*\n)*(?:async )?(?:def|class) ", re.MULTILINE)
NOT_OF_IT = {"site-packages", "dist-packages", "__pycache__"}


def write_stdlib(raw_dir: Path) -> Path:
    """Writes the library's source to raw_dir/stdlib in one rename, unless it exists.

    Returns that folder.
    """
    folder = raw_dir / "stdlib"
    if folder.exists():
        return folder
    library = Path(sysconfig.get_path("stdlib"))
    paths = [path.relative_to(library) for path in library.rglob("*.py")]
    names = [path.as_posix() for path in paths if NOT_OF_IT.isdisjoint(path.parts)]
    documents = []
    for name in names:
        text = (library / name).read_text("utf-8", "replace")
        documents += [(f"{name}:{line}", part) for line, part in _definitions(text)]
    documents.sort(key=lambda document: hashlib.sha256(document[0].encode()).hexdigest())
    raw_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".stdlib-", dir=raw_dir) as temporary:
        written = Path(temporary) / "stdlib"
        written.mkdir()
        for number, begin in enumerate(range(0, len(documents), DOCUMENTS)):
            places, texts = zip(*documents[begin : begin + DOCUMENTS], strict=True)
            table = pa.table({"path": places, "text": texts})
            path = written / f"shard_{number:05d}.parquet"
            pq.write_table(table, path, compression="zstd", row_group_size=64)
        written.rename(folder)
    return folder


def _definitions(text: str) -> Iterator[tuple[int, str]]:
    """(its first line, from 1, the document) of each document of a file."""
    begins = [match.start() for match in DEFINITION.finditer(text)]
    edges = [0, *begins, len(text)]
    line = 1
    for begin, end in pairwise(edges):
        if begin < end:
            yield line, text[begin:end]
        line += text.count("\n", begin, end)
