"""The layouts of `tokenmill convert`, with the documents of a split in their order."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from tokenmill.exchange import flat_files as flat
from tokenmill.exchange import indexed_files as indexed
from tokenmill.exchange.flat_files import SplitFiles

Name = Literal["nanogpt", "raw", "llm.c", "npy", "megatron", "parquet", "datatrove"]
Readable = Literal["nanogpt", "raw", "llm.c", "npy", "megatron", "parquet"]


ReadFile = Callable[[Path, np.dtype], Iterator[flat.FilePart]]


class Layout(NamedTuple):
    """How a program's files are written and read."""

    write: Callable[[SplitFiles, Path], None]
    read: ReadFile | None  # None if it is written only
    is_cut: bool = False  # into files of even size
    ends: bool = False  # documents always end with EOS
    suffix: str = ""  # of the files that are named, if others lie beside them
    columns: tuple[str, ...] = ()  # optional ones that it has a place for


def _flat(header: flat.Header, suffix: str) -> Layout:
    write = partial(flat.write_cut, header, suffix)
    return Layout(write, partial(flat.read_flat, header), is_cut=True)


LAYOUTS: dict[str, Layout] = {
    "nanogpt": Layout(flat.write_one, partial(flat.read_flat, flat.UINT16)),
    "raw": _flat(flat.BARE, ".bin"),
    "llm.c": _flat(flat.LLMC, ".bin"),
    "npy": _flat(flat.NUMPY, ".npy"),
    "megatron": Layout(indexed.write_megatron, indexed.read_megatron, suffix=".bin"),
    "parquet": Layout(indexed.write_parquet, indexed.read_parquet, columns=("mask", "targets")),
    "datatrove": Layout(indexed.write_datatrove, None, ends=True),
}
