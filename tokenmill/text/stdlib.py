"""Text that every machine has: the Python standard library, one document a `.py` file.

Written once as a small data set in the shape that FineWeb-Edu ships: parquet shards of row groups
of zstd-compressed text. The files are ordered by a hash of their path, so that every shard, the
validation shard too, is a fair sample of the library.
"""

import hashlib
import shutil
import sys
import sysconfig
import tokenize
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

DOCUMENTS_PER_FILE, DOCUMENTS_PER_ROW_GROUP = 300, 64
LEFT_OUT = {"site-packages", "dist-packages", "__pycache__"}


def write_stdlib(raw_dir: Path) -> Path:
    """Writes the library's source to raw_dir/stdlib in one rename, unless it exists. Returns that folder."""
    folder = raw_dir / "stdlib"
    if folder.exists():
        return folder
    library = Path(sysconfig.get_path("stdlib"))
    paths = [path for path in library.rglob("*.py") if not LEFT_OUT.intersection(path.relative_to(library).parts)]
    names = sorted((path.relative_to(library).as_posix() for path in paths), key=_shuffled)
    print(f"writing {len(names):,} files of {library} as parquet into {folder}", file=sys.stderr)
    temporary = raw_dir / f".stdlib-{uuid.uuid4().hex}"
    try:
        temporary.mkdir(parents=True)
        for number, first in enumerate(range(0, len(names), DOCUMENTS_PER_FILE)):
            chunk = names[first : first + DOCUMENTS_PER_FILE]
            table = pa.table({"path": chunk, "text": [_read(library / name) for name in chunk]})
            file = temporary / f"shard_{number:05d}.parquet"
            pq.write_table(table, file, compression="zstd", row_group_size=DOCUMENTS_PER_ROW_GROUP)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _shuffled(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _read(path: Path) -> str:
    """The text of a source file in the encoding it declares; a few of Python's tests declare a wrong one."""
    data = path.read_bytes()
    try:
        with open(path, "rb") as file:
            return data.decode(tokenize.detect_encoding(file.readline)[0])
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return data.decode("utf-8", "replace")
