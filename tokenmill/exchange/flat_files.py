"""Files of token ids one after the other, in which only BOS (or EOT) tells where a document begins: nanoGPT's, raw
ones, llm.c's and NumPy's (docs/format.md has their bytes). They differ in the header: see `Header`.

`SplitFiles` is what any layout writes: the tokens of a split's documents, some million at a time, cut into files.
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
FILE_TOKENS = (
    100_000_000  # about, of the layouts with several files: build-nanogpt's and llm.c's own size
)


class SplitFiles(NamedTuple):
    """What a layout writes: the documents of a split."""

    name: str  # "train" or "val"
    dataset: str
    dtype: np.dtype
    shards: list[ShardDocuments]
    file_tokens: int = FILE_TOKENS
    tokenizer: str = ""  # its name

    def lengths(self) -> np.ndarray:  # of its documents: (num_documents,)
        return np.concatenate([shard.lengths for shard in self.shards])

    def blocks(self) -> Iterator[np.ndarray]:
        """The tokens, some million at a time."""
        for shard in self.shards:
            yield from shard.in_blocks(BLOCK_TOKENS)

    def files(self) -> Iterator[tuple[int, Iterator[np.ndarray]]]:
        """The tokens in files of even size: of each how many, and their blocks."""
        blocks, rest = self.blocks(), np.empty(0)

        def take(count: int) -> Iterator[np.ndarray]:
            nonlocal rest
            while count:
                block = rest if len(rest) else next(blocks)
                yield block[:count]
                rest, count = block[count:], max(0, count - len(block))

        for count in file_sizes(self.lengths(), self.file_tokens, self.name == "train"):
            yield count, take(count)


def file_sizes(lengths: np.ndarray, most: int, trains: bool) -> list[int]:
    """How many tokens each file has, of documents of these lengths: about `most`.

    A short last file, and a single one, end other people's loaders: these go from file to file, and expect each to hold
    a batch of all ranks. What lies before a file's first BOS, or after its last EOS, some leave out: so a file ends
    where a document does, but where documents are so long that files would be uneven.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    number = max(-(-int(ends[-1]) // most), 2 if trains else 1)
    even = np.array([int(ends[-1]) * file // number for file in range(number + 1)])
    nearest = ends[np.minimum(np.searchsorted(ends, even[1:-1]), len(ends) - 1)]
    sizes = np.diff([0, *nearest, even[-1]])
    is_uneven = (sizes < np.diff(even) / 2).any() or (sizes > 1.5 * np.diff(even)).any()
    return [int(size) for size in (np.diff(even) if is_uneven else sizes)]


# llm.c's magic and version (its data_common.py)
LLMC_HEADERS: dict[tuple[int, ...], np.dtype] = {
    (20240520, 1): np.dtype("<u2"),
    (20240801, 7): np.dtype("<u4"),
}
LLMC_BYTES = 256 * 4
LLMC_MOST = (1 << 31) - 1  # tokens of a file, which its header counts


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
            "nanoGPT's files are uint16, and this token set's vocabulary is over 65,536; use llm.c or raw"
        )
    write_flat(folder / f"{split.name}.bin", split.blocks())


def write_cut(header: Header, suffix: str, split: SplitFiles, folder: Path) -> None:
    """Files of even size. build-nanogpt takes the first of all, number 0, to validate."""
    for number, (count, blocks) in enumerate(
        split.files(), int(split.name == "train" or header is BARE)
    ):
        path = folder / f"{split.dataset}_{split.name}_{number:06d}{suffix}"
        write_flat(path, blocks, header.write(split.dtype, count))


def read_flat(header: Header, path: Path, dtype: np.dtype) -> tuple[np.ndarray, None]:
    """The ids of a file, mapped: (num_tokens,). ValueError if it is not of this layout."""
    begin, dtype = header.read(path, dtype)
    size = path.stat().st_size - begin
    if size % dtype.itemsize or not size:
        raise ValueError(
            f"{path}: expected {dtype.name} token ids, found {size:,} bytes; is it a file of this format?"
        )
    tokens = map_file(path, np.dtype(np.uint8))[begin:].view(dtype)
    some = tokens[: 1 << 16]
    if dtype.itemsize == 2 and len(some) > 3 and some[::2].any() and not some[1::2].any():
        raise ValueError(
            f"{path}: expected uint16 token ids, and every other one is 0: they look like uint32 ids"
        )
    return tokens, None


def _read_bare(path: Path, dtype: np.dtype) -> tuple[int, np.dtype]:
    with open(path, "rb") as file:
        if file.read(6) == b"\x93NUMPY":
            raise ValueError(
                f"{path}: expected bare token ids, found an array of NumPy's with a header; use npy"
            )
    return 0, dtype


def _write_llmc(dtype: np.dtype, count: int) -> bytes:
    if count > LLMC_MOST:
        raise ValueError(
            f"a file of llm.c counts its tokens in 32 bits, and one would have {count:,}: --file-tokens"
        )
    (key,) = (key for key, known in LLMC_HEADERS.items() if known == dtype)
    return np.array([*key, count, *[0] * 253], "<i4").tobytes()


def _read_llmc(path: Path, dtype: np.dtype) -> tuple[int, np.dtype]:
    header = np.fromfile(path, "<i4", 256)
    found = tuple(header[:2].tolist())
    if len(header) < 256 or found not in LLMC_HEADERS:
        known = " or ".join(f"magic {magic}, version {version}" for magic, version in LLMC_HEADERS)
        raise ValueError(
            f"{path}: expected a header of 256 int32, {known}, found {found}; is it a file of llm.c's?"
        )
    dtype = LLMC_HEADERS[found]
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
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # whatever Python's own parser says of the header
        raise ValueError(
            f"{path}: expected an array of NumPy's, found another or a damaged file; check the layout"
        ) from error
    if array.ndim != 1 or array.dtype.kind not in "ui":
        raise ValueError(
            f"{path}: expected an array of ids, found {array.dtype} of shape {array.shape}"
        )
    return array.offset, array.dtype


def require_size(path: Path, expected: int) -> None:
    """ValueError if a file does not have as many bytes as its header says."""
    if (found := path.stat().st_size) != expected:
        raise ValueError(
            f"{path}: expected {expected:,} bytes, as its header says, found {found:,}; it is damaged"
        )


BARE = Header(lambda dtype, count: b"", _read_bare)
UINT16 = Header(BARE.write, lambda path, dtype: _read_bare(path, np.dtype("<u2")))
LLMC, NUMPY = Header(_write_llmc, _read_llmc), Header(_write_numpy, _read_numpy)
