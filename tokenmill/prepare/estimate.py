"""What a preparation will fetch and write, by the sizes of its files, before it starts.

46 files, 46 of them to fetch: 4.3 GB into data/raw
about 17.0 GB of text to tokenize, about 8.5 GB of token files in data/tokens; 310.2 GB are free there
"""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenmill.addresses import has_scheme
from tokenmill.humanize import counted, in_bytes
from tokenmill.prepare.config import PrepareConfig
from tokenmill.store.schema import dtype_name
from tokenmill.store.shards import DTYPES
from tokenmill.text.plan import Unit
from tokenmill.text.source_file import SourceFile

TEXT_IN_TOKEN = 4  # bytes of text that a token stands for, about


def estimate(
    config: PrepareConfig, files: Sequence[SourceFile], units: Sequence[Unit], vocab_size: int
) -> Iterator[str]:
    """What is ahead to make these units, in sentences. ValueError if it cannot be fetched or written."""
    to_fetch = dict.fromkeys(file for unit in units for file in unit.files if not file.is_there)
    fetched = sum(file.bytes for file in to_fetch)
    kept = fetched if config.keep_raw else 0
    raw, root = Path(config.raw_dir), None if has_scheme(config.tokens_root) else Path(config.tokens_root)
    for flag, folder in (("--tokens-root", root), ("--raw-dir", raw if to_fetch else None)):
        if folder is not None and not (there := _there(folder)).is_dir():
            raise ValueError(f"{folder}: cannot be made, as {there} is no folder; choose another {flag}")
    if kept > (free := free_bytes(raw)):
        raise ValueError(
            f"{raw}: {in_bytes(fetched)} are to be fetched, and {in_bytes(free)} are free there; make room, name "
            "another disk with --raw-dir, take fewer files with --num-shards, or give --no-keep-raw"
        )
    ahead = counted(len(files), "file")
    if to_fetch:
        ahead += f", {len(to_fetch):,} of them to fetch: {in_bytes(fetched)} into {raw}"
        ahead += "" if config.keep_raw else ", each deleted once its shards are made"
    if not units:
        yield f"{ahead}; all shards of this part are made"
        return
    yield ahead
    text = sum(unit.bytes * unit.files[0].text_bytes / max(1, unit.files[0].bytes) for unit in units)
    tokens = text / TEXT_IN_TOKEN * DTYPES[dtype_name(vocab_size)].itemsize
    said = f"about {in_bytes(text)} of text to tokenize, about {in_bytes(tokens)} of token files"
    yield said if root is None else f"{said} in {root}; {in_bytes(free_bytes(root))} are free there"
    if root is not None and tokens + (kept if _device(raw) == _device(root) else 0) > free_bytes(root):
        yield f"warning: {root}: this will probably not fit; if the disk fills up, what is done stays"


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk of a folder, which may not exist yet."""
    return shutil.disk_usage(_there(folder)).free


def _device(folder: Path) -> int:
    return _there(folder).stat().st_dev


def _there(folder: Path) -> Path:
    """The folder, or the nearest folder above it that exists."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())
