"""Text that every machine has: the Python standard library, in parquet files as FineWeb-Edu's.

A document is a `.py` file. They are in the order of a hash of their paths, so that each parquet
file is a fair sample of the library.
"""

import hashlib
import sysconfig
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

DOCUMENTS = 300  # in a parquet file
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
    names.sort(key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    raw_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".stdlib-", dir=raw_dir) as temporary:
        written = Path(temporary) / "stdlib"
        written.mkdir()
        for number, begin in enumerate(range(0, len(names), DOCUMENTS)):
            chunk = names[begin : begin + DOCUMENTS]
            texts = [(library / name).read_text("utf-8", "replace") for name in chunk]
            table = pa.table({"path": chunk, "text": texts})
            path = written / f"shard_{number:05d}.parquet"
            pq.write_table(table, path, compression="zstd", row_group_size=64)
        written.rename(folder)
    return folder
