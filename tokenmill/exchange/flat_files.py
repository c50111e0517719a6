"""Files of token ids one after the other: nanoGPT's, raw ones, llm.c's and NumPy's.

Only BOS (or EOT) tells where a document begins. docs/format.md has their bytes; they differ in the
header, see `Header`.

`SplitFiles` is what any layout writes: the tokens of a split's documents, some million at a time,
cut into files.
"""

import io
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tokenmill.store.documents import ShardDocuments
from tokenmill.store.maps import map_file

BLOCK_TOKENS = 1 << 22
# about, of the layouts with several files: build-nanogpt's and llm.c's own size
FILE_TOKENS = 100_000_000
SAMPLED = 1 << 16  # ids of a file that are looked at


class SplitFiles(NamedTuple):
    """What a layout writes: the documents of a split."""

    name: str  # "train" or "val"
    dataset: str
    dtype: np.dtype
    shards: list[ShardDocuments]
    file_tokens: int = FILE_TOKENS
    tokenizer: str = ""  # its name

    def lengths(self) -> np.ndarray:
        """Tokens of each document: (num_documents,)."""
        return np.concatenate([shard.lengths for shard in self.shards])

    def blocks(self) -> Iterator[np.ndarray]:
        """The tokens, some million at a time."""
        for shard in self.shards:
            yield from shard.in_blocks(BLOCK_TOKENS)

    def files(self) -> Iterator[tuple[int, Iterator[np.ndarray]]]:
        """The tokens in files of even size: of each how many, and their blocks."""
        blocks = self.blocks()
        block = np.empty(0)  # what is left of one

        def next_tokens(count: int) -> Iterator[np.ndarray]:
            nonlocal block
            while count:
                if not len(block):
                    block = next(blocks)
                tokens = block[:count]
                yield tokens
                block = block[count:]
                count -= len(tokens)

        for count in file_sizes(self.lengths(), self.file_tokens, self.name == "train"):
            yield count, next_tokens(count)


def file_sizes(lengths: np.ndarray, most: int, is_train: bool) -> list[int]:
    """How many tokens each file has, of documents of these lengths: about `most`.

    A short last file, and a single one, end other people's loaders: these go from file to file, and
    expect each to hold a batch of all ranks. What lies before a file's first BOS, or after its last
    EOS, some leave out: so a file ends where a document does, but where documents are so long that
    files would be uneven.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1])
    num_files = max(-(-total // most), 2 if is_train else 1)
    even_edges = np.array([total * file // num_files for file in range(num_files + 1)])
    even = np.diff(even_edges)
    nearest = ends[np.minimum(np.searchsorted(ends, even_edges[1:-1]), len(ends) - 1)]
    sizes = np.diff([0, *nearest, total])
    is_uneven = (sizes < even / 2).any() or (sizes > 1.5 * even).any()
    chosen: list[int] = (even if is_uneven else sizes).tolist()
    return chosen


# llm.c's magic and version (its data_common.py)
LLMC_HEADERS: dict[tuple[int, ...], np.dtype] = {
    (20240520, 1): np.dtype("<u2"),
    (20240801, 7): np.dtype("<u4"),
}
LLMC_NUMBERS = 256  # int32 of a header
LLMC_BYTES = 4 * LLMC_NUMBERS
LLMC_MOST = (1 << 31) - 1  # bytes of a file, in which llm.c's reader seeks by an int


class Header(NamedTuple):
    """What stands before the ids of a file."""

    write: Callable[[np.dtype, int], bytes]  # of a file of so many ids
    # its bytes, and what follows; `dtype` if it does not say
    read: Callable[[Path, np.dtype], tuple[int, np.dtype]]


def write_flat(path: Path, blocks: Iterable[np.ndarray], header: bytes = b"") -> None:
    """Writes a file, and waits until it is on the disk."""
    with open(path, "wb") as file:
        file.write(header)
        for block in blocks:
            file.write(np.ascontiguousarray(block).data)
        file.flush()
        os.fsync(file.fileno())


def write_one(split: SplitFiles, folder: Path) -> None:
    """nanoGPT's only file of a split."""
    if split.dtype.itemsize != 2:
        raise ValueError(
            "nanoGPT's files are uint16, and this token set's vocabulary is over 65,536; use llm.c "
            "or raw"
        )
    write_flat(folder / f"{split.name}.bin", split.blocks())


def write_cut(header: Header, suffix: str, split: SplitFiles, folder: Path) -> None:
    """Files of even size. build-nanogpt takes the first of all, number 0, to validate."""
    first_number = 1 if split.name == "train" or header is BARE else 0
    for number, (count, blocks) in enumerate(split.files(), first_number):
        path = folder / f"{split.dataset}_{split.name}_{number:06d}{suffix}"
        write_flat(path, blocks, header.write(split.dtype, count))


class FilePart(NamedTuple):
    """Some ids of a file of another program; documents of an index are in one part."""

    tokens: np.ndarray  # (num_tokens,)
    lengths: np.ndarray | None = None  # (num_documents,); None if only BOS tells documents
    share: float = 1.0  # of the file's ids


def read_flat(header: Header, path: Path, dtype: np.dtype) -> Iterator[FilePart]:
    """The ids of a file, mapped. ValueError if it is not of this layout."""
    begin, dtype = header.read(path, dtype)
    size = path.stat().st_size - begin
    if size % dtype.itemsize or not size:
        raise ValueError(
            f"{path}: expected {dtype.name} token ids, found {size:,} bytes; is it a file of this "
            "format?"
        )
    tokens = map_file(path, np.dtype(np.uint8))[begin:].view(dtype)
    if dtype.itemsize == 2 and _looks_like_uint32(tokens[:SAMPLED]):
        raise ValueError(
            f"{path}: expected uint16 token ids, and every other one is 0: they look like uint32 "
            "ids"
        )
    yield FilePart(tokens)


def _looks_like_uint32(tokens: np.ndarray) -> bool:
    """Whether every other of these 16-bit numbers is 0."""
    return len(tokens) > 3 and bool(tokens[::2].any()) and not tokens[1::2].any()


def _read_bare(path: Path, dtype: np.dtype) -> tuple[int, np.dtype]:
    with open(path, "rb") as file:
        if file.read(6) == b"\x93NUMPY":
            raise ValueError(
                f"{path}: expected bare token ids, found an array of NumPy's with a header; use npy"
            )
    return 0, dtype


def _write_llmc(dtype: np.dtype, count: int) -> bytes:
    size = LLMC_BYTES + count * dtype.itemsize
    if size > LLMC_MOST:
        raise ValueError(
            f"llm.c's reader seeks by 32 bits, and a file would have {size:,} bytes: give a "
            "smaller --file-tokens"
        )
    header = np.zeros(LLMC_NUMBERS, "<i4")
    (magic_and_version,) = [key for key, known in LLMC_HEADERS.items() if known == dtype]
    header[:2] = magic_and_version
    header[2] = count
    return header.tobytes()


def _read_llmc(path: Path, dtype: np.dtype) -> tuple[int, np.dtype]:
    header = np.fromfile(path, "<i4", LLMC_NUMBERS)
    magic_and_version = tuple(header[:2].tolist())
    if len(header) < LLMC_NUMBERS or magic_and_version not in LLMC_HEADERS:
        known = " or ".join(f"magic {magic}, version {version}" for magic, version in LLMC_HEADERS)
        raise ValueError(
            f"{path}: expected a header of {LLMC_NUMBERS} int32, {known}, found "
            f"{magic_and_version}; is it a file of llm.c's?"
        )
    dtype = LLMC_HEADERS[magic_and_version]
    require_size(path, LLMC_BYTES + int(header[2]) * dtype.itemsize)
    return LLMC_BYTES, dtype


def _write_numpy(dtype: np.dtype, count: int) -> bytes:
    file = io.BytesIO()
    facts = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": (count,),
    }
    np.lib.format.write_array_header_1_0(file, facts)
    return file.getvalue()


def _read_numpy(path: Path, dtype: np.dtype) -> tuple[int, np.dtype]:
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # whatever Python's own parser says of the header
        raise ValueError(
            f"{path}: expected an array of NumPy's, found another or a damaged file; check the "
            "layout"
        ) from error
    if array.ndim != 1 or array.dtype.kind not in "ui":
        raise ValueError(
            f"{path}: expected an array of ids, found {array.dtype} of shape {array.shape}"
        )
    return array.offset, array.dtype


def require_size(path: Path, expected: int) -> None:
    """ValueError if a file does not have as many bytes as its header says."""
    actual = path.stat().st_size
    if actual != expected:
        raise ValueError(
            f"{path}: expected {expected:,} bytes, as its header says, found {actual:,}; it is "
            "damaged"
        )


BARE = Header(lambda dtype, count: b"", _read_bare)
UINT16 = Header(BARE.write, lambda path, dtype: _read_bare(path, np.dtype("<u2")))
LLMC = Header(_write_llmc, _read_llmc)
NUMPY = Header(_write_numpy, _read_numpy)
