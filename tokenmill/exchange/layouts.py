"""Other people's token files, written and read a block at a time: the layouts that convert.py goes between.

    nanogpt     train.bin, val.bin: token ids, little-endian uint16, nothing else (nanoGPT's prepare.py)
    llm.c       NAME_train_000001.bin ...: 256 int32 (magic 20240520, version 1, number of tokens, zeros), then uint16;
                with magic 20240801, version 7, uint32 (llm.c's data_common.py, modded-nanogpt); 100M tokens a file
    npy         NAME_train_000001.npy ...: NumPy's own, 100M tokens a file (build-nanogpt's fineweb.py)
    megatron    train.bin: ids as in nanogpt, or int32; train.idx: 9 bytes "MMIDIDX", uint64 version 1, uint8 type (8:
                uint16, 4: int32), uint64 sequences, uint64 sequences + 1; then int32 lengths, int64 first bytes,
                int64 0 ... sequences, as a document is a sequence (Megatron-LM's indexed_dataset.py)
    parquet     train-00000-of-00002.parquet ...: a document a row, `input_ids` (a Hugging Face dataset's folder)

A layout writes the documents of a split in their order, BOS first as they are, and reads (tokens, lengths or None).
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.store.shards import in_blocks

BLOCK_TOKENS = 1 << 22
SHARD_TOKENS = 100_000_000  # of llm.c's and build-nanogpt's files
# by magic and version
LLMC_HEADERS: dict[tuple[int, ...], np.dtype] = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}
LLMC_HEADER_BYTES = 256 * 4
MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
MEGATRON_HEADER = struct.Struct("<9sQBQQ")  # magic, version, type, sequences, documents
MEGATRON_TYPES: dict[int, np.dtype] = {8: np.dtype("<u2"), 4: np.dtype("<i4")}


class SplitFiles(NamedTuple):
    """What a layout writes: the documents of a split."""

    name: str  # "train" or "val"
    dataset: str
    dtype: np.dtype
    shards: list  # with `tokens` and `lengths`, memory-mapped

    def blocks(self) -> Iterator[np.ndarray]:
        """The tokens, some million at a time."""
        for shard in self.shards:
            yield from in_blocks(shard.tokens, BLOCK_TOKENS)

    def files_of(self, size: int) -> Iterator[tuple[int, Iterator[np.ndarray]]]:
        """The tokens in runs of `size`, the last shorter: how many, and their blocks."""
        left = sum(len(shard.tokens) for shard in self.shards)
        rest: Iterator[np.ndarray] = iter(())
        blocks = self.blocks()

        def take(count: int) -> Iterator[np.ndarray]:
            nonlocal rest
            while count:
                block = next(rest, None)
                block = next(blocks) if block is None else block
                yield block[:count]
                rest, count = iter([block[count:]] if len(block) > count else []), max(0, count - len(block))

        while left:
            yield min(size, left), take(min(size, left))
            left -= min(size, left)


# ---------------------------------------------------------------------------- writing


def write_nanogpt(split: SplitFiles, folder: Path) -> None:
    if split.dtype.itemsize != 2:
        raise ValueError("nanoGPT's files are uint16, and this token set's vocabulary is over 65,536; use llm.c's")
    _write_flat(folder / f"{split.name}.bin", split.blocks())


def write_llmc(split: SplitFiles, folder: Path) -> None:
    for number, (count, blocks) in enumerate(split.files_of(SHARD_TOKENS), _first_number(split)):
        header = np.zeros(256, "<i4")
        (magic, version) = next(key for key, dtype in LLMC_HEADERS.items() if dtype == split.dtype)
        header[:3] = magic, version, count
        _write_flat(folder / f"{split.dataset}_{split.name}_{number:06d}.bin", blocks, header.tobytes())


def write_npy(split: SplitFiles, folder: Path) -> None:
    for number, (count, blocks) in enumerate(split.files_of(SHARD_TOKENS), _first_number(split)):
        path = folder / f"{split.dataset}_{split.name}_{number:06d}.npy"
        out, at = np.lib.format.open_memmap(path, "w+", split.dtype, (count,)), 0
        for block in blocks:
            out[at : at + len(block)] = block
            at += len(block)
        out.flush()


def write_megatron(split: SplitFiles, folder: Path) -> None:
    dtype = split.dtype if split.dtype.itemsize == 2 else np.dtype("<i4")
    _write_flat(folder / f"{split.name}.bin", (block.astype(dtype, copy=False) for block in split.blocks()))
    lengths = np.concatenate([shard.lengths for shard in split.shards])
    code = next(code for code, known in MEGATRON_TYPES.items() if known == dtype)
    with open(folder / f"{split.name}.idx", "wb") as file:
        file.write(MEGATRON_HEADER.pack(MEGATRON_MAGIC, 1, code, len(lengths), len(lengths) + 1))
        file.write(lengths.astype("<i4").data)
        file.write(((np.cumsum(lengths) - lengths) * dtype.itemsize).astype("<i8").data)
        file.write(np.arange(len(lengths) + 1, dtype="<i8").data)


def write_parquet(split: SplitFiles, folder: Path) -> None:
    schema = pa.schema({"input_ids": pa.large_list(pa.uint16() if split.dtype.itemsize == 2 else pa.uint32())})
    for number, shard in enumerate(split.shards):
        path = folder / f"{split.name}-{number:05d}-of-{len(split.shards):05d}.parquet"
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            for first in range(0, len(shard.lengths), 1000):
                offsets = shard.offsets[first : first + 1001].astype(np.int64)
                ids = np.asarray(shard.tokens[offsets[0] : offsets[-1]])
                rows = pa.LargeListArray.from_arrays(offsets - offsets[0], ids)
                writer.write_table(pa.table([rows], schema=schema))


def _first_number(split: SplitFiles) -> int:
    """build-nanogpt's first file of all validates."""
    return 1 if split.name == "train" else 0


def _write_flat(path: Path, blocks: Iterator[np.ndarray], header: bytes = b"") -> None:
    with open(path, "wb") as file:
        file.write(header)
        for block in blocks:
            file.write(np.ascontiguousarray(block).data)


# ---------------------------------------------------------------------------- reading


def read_nanogpt(path: Path) -> tuple[np.ndarray, None]:
    """(tokens, None), as every reader; ValueError where the file is not of its layout."""
    size = path.stat().st_size
    if size % 2 or not size:
        raise ValueError(f"{path}: expected uint16 token ids, found {size:,} bytes; is it a file of this format?")
    return np.memmap(path, "<u2", mode="r"), None


def read_llmc(path: Path) -> tuple[np.ndarray, None]:
    header = np.fromfile(path, "<i4", 256)
    found = tuple(header[:2].tolist())
    if len(header) < 256 or found not in LLMC_HEADERS:
        known = " or ".join(f"magic {magic}, version {version}" for magic, version in LLMC_HEADERS)
        raise ValueError(f"{path}: expected a header of 256 int32, {known}, found {found}; is it a file of llm.c's?")
    dtype, count = LLMC_HEADERS[found], int(header[2])
    _require_size(path, LLMC_HEADER_BYTES + count * dtype.itemsize)
    return np.memmap(path, dtype, mode="r", offset=LLMC_HEADER_BYTES, shape=(count,)), None


def read_npy(path: Path) -> tuple[np.ndarray, None]:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False), None
    except ValueError as error:
        raise ValueError(f"{path}: expected an array of NumPy's, found damage ({error})") from error


def read_megatron(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, lengths of the documents), which may be of several sequences."""
    index = path.with_suffix(".idx").read_bytes()
    if len(index) < MEGATRON_HEADER.size or index[:9] != MEGATRON_MAGIC:
        raise ValueError(f"{path.with_suffix('.idx')}: expected Megatron's index, beginning with {MEGATRON_MAGIC!r}")
    _, version, code, sequences, documents = MEGATRON_HEADER.unpack_from(index)
    if version != 1 or code not in MEGATRON_TYPES:
        raise ValueError(f"{path}: expected version 1 of uint16 or int32, found version {version}, type {code}")
    _require_size(path.with_suffix(".idx"), MEGATRON_HEADER.size + 12 * sequences + 8 * documents)
    lengths = np.frombuffer(index, "<i4", sequences, MEGATRON_HEADER.size).astype(np.int64)
    ends = np.frombuffer(index, "<i8", documents, MEGATRON_HEADER.size + 12 * sequences)
    _require_size(path, int(lengths.sum()) * MEGATRON_TYPES[code].itemsize)
    sums = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.memmap(path, MEGATRON_TYPES[code], mode="r") if sums[-1] else np.empty(0, MEGATRON_TYPES[code])
    return tokens, np.diff(sums[ends])


def read_parquet(path: Path) -> tuple[np.ndarray, np.ndarray]:
    column = pq.read_table(path, columns=["input_ids"]).column(0).combine_chunks()
    return column.flatten().to_numpy(), np.diff(column.offsets.to_numpy().astype(np.int64))


def _require_size(path: Path, expected: int) -> None:
    if (found := path.stat().st_size) != expected:
        raise ValueError(f"{path}: expected {expected:,} bytes, as its header says, found {found:,}; it is damaged")


LAYOUTS = {  # name -> writer, reader, and the pattern of a split's files
    "nanogpt": (write_nanogpt, read_nanogpt, "{split}.bin"),
    "llm.c": (write_llmc, read_llmc, "*_{split}_*.bin"),
    "npy": (write_npy, read_npy, "*_{split}_*.npy"),
    "megatron": (write_megatron, read_megatron, "{split}.bin"),
    "parquet": (write_parquet, read_parquet, "{split}-*.parquet"),
}
