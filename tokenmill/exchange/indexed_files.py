"""Files with an index of their documents: Megatron-LM's, Hugging Face's parquet, and datatrove's.

docs/format.md has their bytes (Megatron's indexed_dataset.py, datatrove's DocumentTokenizer).

A reader yields tokens and the lengths of documents, some at a time; ValueError if a file is not of
its layout.
"""

import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.exchange.flat_files import (
    BLOCK_TOKENS,
    FilePart,
    SplitFiles,
    require_size,
    write_flat,
)
from tokenmill.messages import sanitize
from tokenmill.store.documents import ShardDocuments
from tokenmill.store.maps import map_file

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")  # magic, version, type, sequences, documents
LONGEST = (1 << 31) - 1  # tokens of a document
TYPES: dict[int, np.dtype] = {8: np.dtype("<u2"), 4: np.dtype("<i4")}
ROWS = 1000  # of parquet, written at a time
IDS = "input_ids"
PADDING_MASK = "attention_mask"
OF_THE_TOKENIZER = (PADDING_MASK, "token_type_ids")  # columns that say nothing of the loss
NOT_IN_LOSS = np.int32(-100)


def write_megatron(split: SplitFiles, folder: Path) -> None:
    dtype = split.dtype if split.dtype.itemsize == 2 else np.dtype("<i4")
    (code,) = [code for code, known in TYPES.items() if known == dtype]
    lengths = split.lengths()
    num_documents = len(lengths)
    longest = int(lengths.max())
    if longest > LONGEST:
        raise ValueError(
            f"a document has {longest:,} tokens, and Megatron's index counts those of one in 32 "
            "bits; prepare with a lower --max-document-bytes, or write another layout"
        )
    blocks = (block.astype(dtype, copy=False) for block in split.blocks())
    write_flat(folder / f"{split.name}.bin", blocks)
    pointers = (np.cumsum(lengths) - lengths) * dtype.itemsize
    ends = np.arange(num_documents + 1, dtype="<i8")  # each document is one sequence
    index = [lengths.astype("<i4"), pointers.astype("<i8"), ends]
    header = HEADER.pack(MAGIC, 1, code, num_documents, num_documents + 1)
    write_flat(folder / f"{split.name}.idx", index, header)


def read_megatron(path: Path, dtype: np.dtype) -> Iterator[FilePart]:
    """A document may be of several sequences."""
    index_path = path.with_suffix(".idx")
    if not index_path.is_file():
        raise ValueError(f"{path}: expected Megatron's {index_path.name} beside it, found none")
    index = index_path.read_bytes()
    if len(index) < HEADER.size or not index.startswith(MAGIC):
        raise ValueError(f"{index_path}: expected Megatron's index, beginning with {MAGIC!r}")
    _, version, code, num_sequences, num_ends = HEADER.unpack_from(index)
    if version != 1 or code not in TYPES:
        raise ValueError(
            f"{path}: expected version 1 of uint16 or int32, found version {version}, type {code}"
        )
    require_size(index_path, HEADER.size + 12 * num_sequences + 8 * num_ends)
    after_lengths = HEADER.size + 4 * num_sequences
    after_pointers = after_lengths + 8 * num_sequences
    lengths = np.frombuffer(index, "<i4", num_sequences, HEADER.size).astype(np.int64)
    pointers = np.frombuffer(index, "<i8", num_sequences, after_lengths)
    ends = np.frombuffer(index, "<i8", num_ends, after_pointers)  # of documents, in sequences
    itemsize = TYPES[code].itemsize
    require_size(path, int(lengths.sum()) * itemsize)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if not _is_whole(lengths, pointers, offsets[:-1] * itemsize, ends):
        raise ValueError(
            f"{index_path}: expected sequences one after the other, in documents, found others; it "
            "is damaged"
        )
    yield FilePart(map_file(path, TYPES[code]), np.diff(offsets[ends]))


def _is_whole(
    lengths: np.ndarray, pointers: np.ndarray, expected: np.ndarray, ends: np.ndarray
) -> bool:
    """Whether sequences follow each other, and documents are all of them."""
    if (lengths < 0).any() or (pointers != expected).any():
        return False
    if not len(ends) or ends[0] != 0 or ends[-1] != len(lengths):
        return False
    return not (np.diff(ends) < 0).any()


def write_parquet(split: SplitFiles, folder: Path) -> None:
    """A file a shard; of a chat set with labels, not shifted, and assistant_masks."""
    ids_type = pa.uint16() if split.dtype.itemsize == 2 else pa.uint32()
    fields = {IDS: pa.large_list(ids_type)}
    is_chat = split.shards[0].mask() is not None
    if is_chat:
        fields["labels"] = pa.large_list(pa.int32())
        fields["assistant_masks"] = pa.large_list(pa.uint8())
    schema = pa.schema(fields)
    num_shards = len(split.shards)
    for number, shard in enumerate(split.shards):
        path = folder / f"{split.name}-{number:05d}-of-{num_shards:05d}.parquet"
        with open(path, "wb") as file:
            with pq.ParquetWriter(file, schema, compression="zstd") as writer:
                for table in _tables(shard, schema):
                    writer.write_table(table)
            file.flush()  # or what Python holds of it would be written after the sync
            os.fsync(file.fileno())


def _tables(shard: ShardDocuments, schema: pa.Schema) -> Iterator[pa.Table]:
    """The documents of a shard, some at a time."""
    mask = shard.mask()
    for first in range(0, len(shard.lengths), ROWS):
        offsets = shard.offsets[first : first + ROWS + 1]
        ids = shard.read(int(offsets[0]), int(offsets[-1]))
        columns = [ids]
        if mask is not None:
            in_loss = mask[offsets[0] : offsets[-1]]
            labels = np.where(in_loss, ids.astype(np.int32), NOT_IN_LOSS)
            columns += [labels, in_loss]
        begins = offsets - offsets[0]
        arrays = [pa.LargeListArray.from_arrays(begins, column) for column in columns]
        yield pa.table(arrays, schema=schema)


def read_parquet(path: Path, dtype: np.dtype) -> Iterator[FilePart]:
    """A few million ids at a time, as a small file may hold more than the memory does."""
    try:
        yield from _parts(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path}: expected a parquet file, found damage ({error})") from error


def _parts(path: Path) -> Iterator[FilePart]:
    file = pq.ParquetFile(path)
    types = dict(zip(file.schema_arrow.names, file.schema_arrow.types, strict=True))
    ids_type: Any = types.get(IDS)
    if not _is_list(ids_type) or not pa.types.is_integer(ids_type.value_type):
        raise ValueError(f"{path}: expected a column {IDS}, of lists of ids, found {ids_type}")
    per_token = [name for name, kind in types.items() if _may_be_per_token(kind)]
    _require_nothing_lost(path, types, per_token)
    if PADDING_MASK in per_token and _has_zeros(file):
        raise ValueError(
            f"{path}: {PADDING_MASK} has zeros, so {IDS} has padding, no text; save it without"
        )
    left_out = [name for name in types if name not in per_token]
    if left_out:
        names = ", ".join(left_out)
        print(sanitize(f"{path}: left out {names}"), file=sys.stderr)
    num_ids = _count_ids(file)
    for column in _batches(file, IDS):
        tokens = column.flatten()
        if column.null_count or tokens.null_count:
            raise ValueError(f"{path}: expected ids in every row of {IDS}, found nulls")
        lengths = np.diff(column.offsets.to_numpy().astype(np.int64))
        yield FilePart(tokens.to_numpy(), lengths, len(tokens) / num_ids)


def _count_ids(file: pq.ParquetFile) -> int:
    """How many ids a file has, at least 1; an empty row counts as one."""
    footer = file.metadata
    count = 0
    for group in range(footer.num_row_groups):
        columns = [footer.row_group(group).column(n) for n in range(footer.num_columns)]
        count += sum(
            column.num_values for column in columns if column.path_in_schema.startswith(f"{IDS}.")
        )
    return max(1, count)


def _batches(file: pq.ParquetFile, name: str) -> Iterator[pa.Array]:
    """The lists of a column, so many together that they have some million values."""
    num_rows = file.metadata.num_rows * BLOCK_TOKENS // _count_ids(file)
    for batch in file.iter_batches(max(1, num_rows), columns=[name], use_threads=False):
        yield batch.column(0)


def _is_list(kind: pa.DataType | None) -> bool:
    return kind is not None and (pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _may_be_per_token(kind: pa.DataType) -> bool:
    """Whether a column may have a value for each token, as a mask."""
    return pa.types.is_nested(kind) or "binary" in str(kind)


def _require_nothing_lost(path: Path, types: dict[str, pa.DataType], per_token: list[str]) -> None:
    """ValueError if a column beside the ids may say what is in the loss."""
    known = (IDS, *OF_THE_TOKENIZER)
    lost = [name for name in per_token if name not in known or not _is_list(types[name])]
    if lost:
        names = ", ".join(lost)
        raise ValueError(
            f"{path}: has {names} beside {IDS}, which would be lost here, and all tokens learned; "
            "take conversations in by `tokenmill prepare --chat`, which keeps their mask "
            "(docs/chat.md), or leave it out"
        )


def _has_zeros(file: pq.ParquetFile) -> bool:
    return any(0 in mask.flatten().to_numpy(False) for mask in _batches(file, PADDING_MASK))


def write_datatrove(split: SplitFiles, folder: Path) -> None:
    """A file a shard, as no document may continue in the next one."""
    (folder / split.name).mkdir()
    itemsize = split.dtype.itemsize
    for number, shard in enumerate(split.shards):
        path = folder / split.name / f"{number:05d}_{split.name}.ds"
        write_flat(path, shard.in_blocks(BLOCK_TOKENS))
        write_flat(path.with_name(f"{path.name}.index"), [np.cumsum(shard.lengths).astype("<u8")])
        metadata = f"{split.tokenizer}|{itemsize}\n{shard.tokens}\n{shard.tokens:,} tokens"
        write_flat(path.with_name(f"{path.name}.metadata"), [], metadata.encode())
