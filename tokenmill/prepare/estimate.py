"""What a preparation will fetch and write, by the sizes of its files, before it starts."""

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
    """What is ahead to make these units, in sentences."""
    to_fetch = dict.fromkeys(file for unit in units for file in unit.files if not file.is_there)
    fetched = sum(file.bytes for file in to_fetch)
    ahead = f", {len(to_fetch):,} of them to fetch: {in_bytes(fetched)}" if to_fetch else ""
    yield counted(len(files), "file") + (ahead if units else "; all shards are made")
    text = sum(unit.text_bytes for unit in units)
    tokens = text / TEXT_IN_TOKEN * DTYPES[dtype_name(vocab_size)].itemsize
    if units:
        yield f"about {in_bytes(text)} of text to tokenize, about {in_bytes(tokens)} of token files"
    for folder, needed in ((config.raw_dir, fetched * config.keep_raw), (config.tokens_root, tokens)):
        if needed and not has_scheme(folder):
            path = Path(folder).absolute()
            free = shutil.disk_usage(next(one for one in (path, *path.parents) if one.exists())).free
            if needed > free:
                yield f"warning: about {in_bytes(needed)} are written into {folder}, where {in_bytes(free)} are free"
