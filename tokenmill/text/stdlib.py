"""Text that every machine has: the Python standard library, a document a `.py` file, in parquet files as FineWeb-Edu's.

The files are in the order of a hash of their paths, so that each parquet file is a fair sample of the library.
"""

import hashlib
import sysconfig
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

DOCUMENTS = 300  # in a parquet file
LEFT_OUT = {"site-packages", "dist-packages", "__pycache__"}


def write_stdlib(raw_dir: Path) -> Path:
    """Writes the library's source to raw_dir/stdlib in one rename, unless it exists. Returns that folder."""
    folder, library = raw_dir / "stdlib", Path(sysconfig.get_path("stdlib"))
    if folder.exists():
        return folder
    paths = [path.relative_to(library) for path in library.rglob("*.py")]
    names = [path.as_posix() for path in paths if not LEFT_OUT.intersection(path.parts)]
    names.sort(key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    raw_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".stdlib-", dir=raw_dir) as temporary:
        (written := Path(temporary) / "stdlib").mkdir()
        for number in range(-(-len(names) // DOCUMENTS)):
            chunk = names[number * DOCUMENTS : (number + 1) * DOCUMENTS]
            table = pa.table(
                {
                    "path": chunk,
                    "text": [(library / name).read_text("utf-8", "replace") for name in chunk],
                }
            )
            pq.write_table(
                table,
                written / f"shard_{number:05d}.parquet",
                compression="zstd",
                row_group_size=64,
            )
        written.rename(folder)
    return folder
