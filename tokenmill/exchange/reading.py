"""Reads a file of somebody's layout: (tokens, lengths of its documents, or None where only BOS tells them) each.

ValueError where a file is not of its layout. `dtype` is what the tokenizer's ids need, for files that do not say.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.exchange.headers import (
    DATATROVE_INDEX,
    LLMC_HEADER_BYTES,
    LLMC_HEADERS,
    MEGATRON_HEADER,
    MEGATRON_MAGIC,
    MEGATRON_TYPES,
)
from tokenmill.store.documents import ShardDocuments
from tokenmill.store.maps import map_file
from tokenmill.text.formats import MASK_COLUMNS


def read_nanogpt(path: Path, dtype: np.dtype) -> tuple[np.ndarray, None]:
    return read_raw(path, np.dtype("<u2"))


def read_raw(path: Path, dtype: np.dtype) -> tuple[np.ndarray, None]:
    size = path.stat().st_size
    if size % dtype.itemsize or not size:
        raise ValueError(f"{path}: expected {dtype.name} token ids, found {size:,} bytes; is it a file of this format?")
    if path.open("rb").read(6) == b"\x93NUMPY":
        raise ValueError(f"{path}: expected bare token ids, found an array of NumPy's with a header; take it in as npy")
    tokens = map_file(path, dtype)
    some = tokens[: 1 << 16]
    if dtype.itemsize == 2 and len(some) > 3 and some[::2].any() and not some[1::2].any():
        raise ValueError(
            f"{path}: expected {dtype.name} token ids, and every other one is 0: they look like uint32 ids"
        )
    return tokens, None


def read_llmc(path: Path, dtype: np.dtype) -> tuple[np.ndarray, None]:
    header = np.fromfile(path, "<i4", 256)
    found = tuple(header[:2].tolist())
    if len(header) < 256 or found not in LLMC_HEADERS:
        known = " or ".join(f"magic {magic}, version {version}" for magic, version in LLMC_HEADERS)
        raise ValueError(f"{path}: expected a header of 256 int32, {known}, found {found}; is it a file of llm.c's?")
    dtype, count = LLMC_HEADERS[found], int(header[2])
    _require_size(path, LLMC_HEADER_BYTES + count * dtype.itemsize)
    return _after(path, LLMC_HEADER_BYTES, dtype), None


def read_npy(path: Path, dtype: np.dtype) -> tuple[np.ndarray, None]:
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # whatever Python's own parser says of the header
        raise ValueError(f"{path}: expected an array of NumPy's, found damage ({error})") from error
    if tokens.ndim != 1 or tokens.dtype.kind not in "ui":
        raise ValueError(f"{path}: expected an array of ids, found {tokens.dtype} of shape {tokens.shape}")
    if isinstance(tokens, np.memmap) and tokens.flags.contiguous:  # which keeps a file descriptor
        tokens = _after(path, tokens.offset, tokens.dtype)
    return tokens, None


def read_megatron(path: Path, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """A document may be of several sequences."""
    if not path.with_suffix(".idx").is_file():
        raise ValueError(f"{path}: expected Megatron's {path.with_suffix('.idx').name} beside it, found none")
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
    pointers = np.frombuffer(index, "<i8", sequences, MEGATRON_HEADER.size + 4 * sequences)
    whole = len(ends) > 0 and ends[0] == 0 and ends[-1] == sequences and not (np.diff(ends) < 0).any()
    if (lengths < 0).any() or not whole or (pointers != sums[:-1] * MEGATRON_TYPES[code].itemsize).any():
        raise ValueError(
            f"{path.with_suffix('.idx')}: expected sequences one after the other, and documents that are all of them, "
            "found others; it is damaged"
        )
    tokens = map_file(path, MEGATRON_TYPES[code])
    return tokens, np.diff(sums[ends])


def read_parquet(path: Path, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    kind = dict(zip(pq.read_schema(path).names, pq.read_schema(path).types, strict=True)).get("input_ids")
    if kind is None or not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not _is_integer(kind):
        raise ValueError(f"{path}: expected a column input_ids, of lists of ids, found {kind or 'none'}")
    column = pq.read_table(path, columns=["input_ids"]).column(0).combine_chunks()
    if column.null_count or column.flatten().null_count:
        raise ValueError(f"{path}: expected ids in every row of input_ids, found nulls")
    return column.flatten().to_numpy(), np.diff(column.offsets.to_numpy().astype(np.int64))


def compare_masks(shards: Sequence[ShardDocuments], paths: Sequence[Path]) -> None:
    """ValueError if parquet files, one for each shard of a chat set, do not have its loss mask."""
    for shard, path in zip(shards, paths, strict=True):
        bits = shard.mask()
        assert bits is not None, "a chat set has a mask"
        done = 0
        for batch in pq.ParquetFile(path).iter_batches(1000, columns=["assistant_masks", "labels"]):
            found = {name: batch.column(name).flatten().to_numpy() for name in batch.schema.names}
            some = bits[done : (done := done + len(found["assistant_masks"]))]
            ids = shard.read(done - len(some), done).astype(np.int64)
            for name, expected in (("assistant_masks", some), ("labels", np.where(some, ids, -100))):
                if not np.array_equal(found[name], expected):
                    raise ValueError(
                        f"{path}: column {name} has not what was written; run it again, and check the disk"
                    )
        if done != len(bits):
            raise ValueError(f"{path}: expected a loss mask of {len(bits):,} tokens, found {done:,}; run it again")


def require_no_mask(path: Path) -> None:
    """ValueError if a parquet file has a loss mask beside its ids, which would be lost."""
    if masks := [name for name in pq.read_schema(path).names if name in MASK_COLUMNS]:
        raise ValueError(
            f"{path}: has {', '.join(masks)} beside input_ids, so its rows are conversations, and the mask would be "
            "lost here; take it in by `tokenmill prepare --chat`, which keeps ids and mask as they are (docs/chat.md)"
        )


def _is_integer(kind: pa.ListType) -> bool:
    return bool(pa.types.is_integer(kind.value_type))


def read_datatrove(path: Path, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    index = path.with_name(path.name + DATATROVE_INDEX)
    if not index.is_file():
        raise ValueError(f"{path}: expected datatrove's {index.name} beside it, with the ends of its documents")
    ends = np.fromfile(index, "<u8").astype(np.int64)
    lengths = np.diff(ends, prepend=0)
    if index.stat().st_size % 8 or (lengths < 0).any():
        raise ValueError(f"{index}: expected ascending uint64, the ends of documents, found others; it is damaged")
    size = path.stat().st_size
    sizes = {size // count for count in ends[-1:].tolist() if count and size % count == 0}  # bytes a token
    if sizes - {2, 4} or (size and not sizes):
        raise ValueError(
            f"{path}: expected {ends[-1:].sum():,} ids of 2 or 4 bytes, as its index says, found {size:,} bytes"
        )
    return (map_file(path, np.dtype(f"<u{sizes.pop()}")) if sizes else np.empty(0, dtype)), lengths


def _after(path: Path, offset: int, dtype: np.dtype) -> np.ndarray:
    """The numbers of a file behind its header."""
    return map_file(path, np.dtype(np.uint8))[offset:].view(dtype)


def _require_size(path: Path, expected: int) -> None:
    if (found := path.stat().st_size) != expected:
        raise ValueError(f"{path}: expected {expected:,} bytes, as its header says, found {found:,}; it is damaged")
