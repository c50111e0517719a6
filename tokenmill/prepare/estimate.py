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
    fetched, ahead = sum(file.bytes for file in to_fetch), counted(len(files), "file")
    if to_fetch:
        ahead += f", {len(to_fetch):,} of them to fetch: {in_bytes(fetched)} into {config.raw_dir}"
        if config.keep_raw and fetched > (free := free_bytes("--raw-dir", config.raw_dir)):
            raise ValueError(
                f"{ahead}, where {in_bytes(free)} are free; make room, name another disk with --raw-dir, take fewer "
                "files with --num-shards, or give --no-keep-raw"
            )
    yield ahead if units else f"{ahead}; all shards of this part are made"
    text = sum(unit.bytes * unit.files[0].text_bytes / max(1, unit.files[0].bytes) for unit in units)
    tokens = text / TEXT_IN_TOKEN * DTYPES[dtype_name(vocab_size)].itemsize
    said = f"about {in_bytes(text)} of text to tokenize, about {in_bytes(tokens)} of token files"
    if not has_scheme(config.tokens_root):
        free = free_bytes("--tokens-root", config.tokens_root)
        said = f"{said} in {config.tokens_root}; {in_bytes(free)} are free there"
        said = said if tokens <= free else f"warning: {said}, and what is done stays if the disk fills up"
    if units:
        yield said


def free_bytes(flag: str, folder: str) -> int:
    """Free bytes on the disk of a folder, which may not exist yet. ValueError if it cannot be made."""
    whole = Path(folder).absolute()
    there = next(path for path in (whole, *whole.parents) if path.exists())
    if not there.is_dir():
        raise ValueError(f"{folder}: cannot be made, as {there} is no folder; choose another {flag}")
    return shutil.disk_usage(there).free
