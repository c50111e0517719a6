"""Files with an index of their documents: Megatron-LM's (indexed_dataset.py), Hugging Face's parquet, and datatrove's
(DocumentTokenizer). docs/format.md has their bytes.

A reader returns tokens (num_tokens,) and the lengths of documents (num_documents,); ValueError if a file is not of its
layout.
"""

import os
import struct
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.exchange.flat_files import BLOCK_TOKENS, SplitFiles, require_size, write_flat
from tokenmill.messages import sanitize
from tokenmill.store.maps import map_file

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")  # magic, version, type, sequences, documents
LONGEST = (1 << 31) - 1  # tokens of a document
TYPES: dict[int, np.dtype] = {8: np.dtype("<u2"), 4: np.dtype("<i4")}
ROWS = 1000  # of parquet, written at a time
OF_THE_TOKENIZER = (
    "attention_mask",
    "token_type_ids",
)  # columns beside input_ids that say nothing of the loss


def write_megatron(split: SplitFiles, folder: Path) -> None:
    dtype = split.dtype if split.dtype.itemsize == 2 else np.dtype("<i4")
    (code,) = (code for code, known in TYPES.items() if known == dtype)
    lengths = split.lengths()
    if (longest := int(lengths.max())) > LONGEST:
        told = f"a document has {longest:,} tokens, and Megatron's index counts those of one in 32 bits"
        raise ValueError(
            f"{told}; prepare with a lower --max-document-bytes, or write another layout"
        )
    write_flat(
        folder / f"{split.name}.bin", (block.astype(dtype, copy=False) for block in split.blocks())
    )
    first = (np.cumsum(lengths) - lengths) * dtype.itemsize
    parts = [lengths.astype("<i4"), first.astype("<i8"), np.arange(len(lengths) + 1, dtype="<i8")]
    write_flat(
        folder / f"{split.name}.idx",
        parts,
        HEADER.pack(MAGIC, 1, code, len(lengths), len(lengths) + 1),
    )


def read_megatron(path: Path, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """A document may be of several sequences."""
    beside = path.with_suffix(".idx")
    if not beside.is_file():
        raise ValueError(f"{path}: expected Megatron's {beside.name} beside it, found none")
    index = beside.read_bytes()
    if len(index) < HEADER.size or index[:9] != MAGIC:
        raise ValueError(f"{beside}: expected Megatron's index, beginning with {MAGIC!r}")
    _, version, code, sequences, documents = HEADER.unpack_from(index)
    if version != 1 or code not in TYPES:
        raise ValueError(
            f"{path}: expected version 1 of uint16 or int32, found version {version}, type {code}"
        )
    require_size(beside, HEADER.size + 12 * sequences + 8 * documents)
    lengths = np.frombuffer(index, "<i4", sequences, HEADER.size).astype(np.int64)
    pointers = np.frombuffer(index, "<i8", sequences, HEADER.size + 4 * sequences)
    ends = np.frombuffer(index, "<i8", documents, HEADER.size + 12 * sequences)
    require_size(path, int(lengths.sum()) * TYPES[code].itemsize)
    sums = np.concatenate([[0], np.cumsum(lengths)])
    whole = (
        len(ends) > 0 and ends[0] == 0 and ends[-1] == sequences and not (np.diff(ends) < 0).any()
    )
    if (lengths < 0).any() or not whole or (pointers != sums[:-1] * TYPES[code].itemsize).any():
        raise ValueError(
            f"{beside}: expected sequences one after the other, in documents, found others; it is damaged"
        )
    return map_file(path, TYPES[code]), np.diff(sums[ends])


def write_parquet(split: SplitFiles, folder: Path) -> None:
    ids_type = pa.large_list(pa.uint16() if split.dtype.itemsize == 2 else pa.uint32())
    masked = {"labels": pa.large_list(pa.int32()), "assistant_masks": pa.large_list(pa.uint8())}
    is_chat = split.shards[0].mask() is not None
    schema = pa.schema({"input_ids": ids_type} | (masked if is_chat else {}))
    for number, shard in enumerate(split.shards):
        path, mask = (
            folder / f"{split.name}-{number:05d}-of-{len(split.shards):05d}.parquet",
            shard.mask(),
        )
        with open(path, "wb") as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for first in range(0, len(shard.lengths), ROWS):
                offsets = shard.offsets[first : first + ROWS + 1]
                columns = [shard.read(int(offsets[0]), int(offsets[-1]))]
                if mask is not None:  # labels, not shifted, and assistant_masks
                    own = mask[offsets[0] : offsets[-1]]
                    columns += [np.where(own, columns[0].astype(np.int32), np.int32(-100)), own]
                rows = [
                    pa.LargeListArray.from_arrays(offsets - offsets[0], column)
                    for column in columns
                ]
                writer.write_table(pa.table(rows, schema=schema))
            writer.close()
            file.flush()  # or what Python holds of it would be written after the sync
            os.fsync(file.fileno())


def read_parquet(path: Path, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    table = pq.ParquetFile(path)
    kinds = dict(zip(table.schema_arrow.names, table.schema_arrow.types, strict=True))
    is_list = {
        name: pa.types.is_list(kind) or pa.types.is_large_list(kind) for name, kind in kinds.items()
    }
    if not is_list.get("input_ids") or not pa.types.is_integer(kinds["input_ids"].value_type):
        raise ValueError(
            f"{path}: expected a column input_ids, of lists of ids, found {kinds.get('input_ids')}"
        )
    many = [
        name for name, kind in kinds.items() if pa.types.is_nested(kind) or "binary" in str(kind)
    ]
    if lost := [
        name for name in many if not is_list[name] or name not in ("input_ids", *OF_THE_TOKENIZER)
    ]:
        raise ValueError(
            f"{path}: has {', '.join(lost)} beside input_ids, which would be lost here, and all tokens learned; take "
            "conversations in by `tokenmill prepare --chat`, which keeps their mask (docs/chat.md), or leave it out"
        )
    if "attention_mask" in many and 0 in table.read(["attention_mask"])[
        0
    ].combine_chunks().flatten().to_numpy(False):
        raise ValueError(
            f"{path}: attention_mask has zeros, so input_ids has padding, no text; save it without"
        )
    if others := [name for name in kinds if name not in many]:
        print(sanitize(f"{path}: left out {', '.join(others)}"), file=sys.stderr)
    column = table.read(["input_ids"])[0].combine_chunks()
    if column.null_count or column.flatten().null_count:
        raise ValueError(f"{path}: expected ids in every row of input_ids, found nulls")
    return column.flatten().to_numpy(), np.diff(column.offsets.to_numpy().astype(np.int64))


def write_datatrove(split: SplitFiles, folder: Path) -> None:
    """A file a shard, as no document may continue in the next one."""
    (folder / split.name).mkdir()
    for number, shard in enumerate(split.shards):
        path = folder / split.name / f"{number:05d}_{split.name}.ds"
        write_flat(path, shard.in_blocks(BLOCK_TOKENS))
        write_flat(path.with_name(f"{path.name}.index"), [np.cumsum(shard.lengths).astype("<u8")])
        metadata = (
            f"{split.tokenizer}|{split.dtype.itemsize}\n{shard.tokens}\n{shard.tokens:,} tokens"
        )
        write_flat(path.with_name(f"{path.name}.metadata"), [], metadata.encode())
