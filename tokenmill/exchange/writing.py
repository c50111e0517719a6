"""Writes a split in somebody's layout, a block at a time: `write(split, folder)` each (layouts.py tells the bytes)."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.exchange.headers import (
    DATATROVE_INDEX,
    DATATROVE_METADATA,
    LLMC_HEADERS,
    MEGATRON_HEADER,
    MEGATRON_LONGEST,
    MEGATRON_MAGIC,
    MEGATRON_TYPES,
)
from tokenmill.exchange.split_files import BLOCK_TOKENS, SplitFiles
from tokenmill.tokenize.tokenizer import Tokenizer

# nanoGPT's sample.py has GPT-2's tokenizer itself
GPT2_FINGERPRINT = "1bd489c3451db650cbb889f159c3743dab8096869899541dbc5c77cf60ee7617"


def write_nanogpt(split: SplitFiles, folder: Path) -> None:
    if split.dtype.itemsize != 2:
        raise ValueError("nanoGPT's files are uint16, and this token set's vocabulary is over 65,536; use llm.c or raw")
    _write_flat(folder / f"{split.name}.bin", split.blocks())


def write_raw(split: SplitFiles, folder: Path) -> None:
    for number, (_, blocks) in enumerate(split.files(), 1):
        _write_flat(folder / f"{split.dataset}_{split.name}_{number:06d}.bin", blocks)


def write_llmc(split: SplitFiles, folder: Path) -> None:
    for number, (count, blocks) in enumerate(split.files(), _first_number(split)):
        header = np.zeros(256, "<i4")
        (magic, version) = next(key for key, dtype in LLMC_HEADERS.items() if dtype == split.dtype)
        header[:3] = magic, version, count
        _write_flat(folder / f"{split.dataset}_{split.name}_{number:06d}.bin", blocks, header.tobytes())


def write_npy(split: SplitFiles, folder: Path) -> None:
    for number, (count, blocks) in enumerate(split.files(), _first_number(split)):
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
    if (longest := int(lengths.max())) > MEGATRON_LONGEST:
        raise ValueError(
            f"a document has {longest:,} tokens, and Megatron's index counts those of one in 32 bits, up to "
            f"{MEGATRON_LONGEST:,}; prepare with a lower --max-document-bytes, or write another layout"
        )
    code = next(code for code, known in MEGATRON_TYPES.items() if known == dtype)
    with open(folder / f"{split.name}.idx", "wb") as file:
        file.write(MEGATRON_HEADER.pack(MEGATRON_MAGIC, 1, code, len(lengths), len(lengths) + 1))
        file.write(lengths.astype("<i4").data)
        file.write(((np.cumsum(lengths) - lengths) * dtype.itemsize).astype("<i8").data)
        file.write(np.arange(len(lengths) + 1, dtype="<i8").data)


def write_parquet(split: SplitFiles, folder: Path) -> None:
    ids_type = pa.large_list(pa.uint16() if split.dtype.itemsize == 2 else pa.uint32())
    masked = {"labels": pa.large_list(pa.int32()), "assistant_masks": pa.large_list(pa.uint8())}
    is_chat = split.shards[0].mask() is not None
    schema = pa.schema({"input_ids": ids_type} | (masked if is_chat else {}))
    for number, shard in enumerate(split.shards):
        path = folder / f"{split.name}-{number:05d}-of-{len(split.shards):05d}.parquet"
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            mask = shard.mask()
            for first in range(0, len(shard.lengths), 1000):
                offsets = shard.offsets[first : first + 1001]
                ids, columns = shard.read(int(offsets[0]), int(offsets[-1])), list[np.ndarray]()
                if mask is not None:  # labels, not shifted, and assistant_masks
                    own = mask[offsets[0] : offsets[-1]]
                    columns = [np.where(own, ids.astype(np.int32), np.int32(-100)), own]
                rows = [pa.LargeListArray.from_arrays(offsets - offsets[0], column) for column in (ids, *columns)]
                writer.write_table(pa.table(rows, schema=schema))


def write_datatrove(split: SplitFiles, folder: Path) -> None:
    """A file a shard, as no document may continue in the next one."""
    (folder / split.name).mkdir()
    for number, shard in enumerate(split.shards):
        path = folder / split.name / f"{number:05d}_{split.name}.ds"
        _write_flat(path, shard.in_blocks(BLOCK_TOKENS))
        _write_flat(path.with_name(path.name + DATATROVE_INDEX), iter([np.cumsum(shard.lengths).astype("<u8")]))
        metadata = f"{split.tokenizer}|{split.dtype.itemsize}\n{shard.tokens}\n{shard.tokens:,} tokens"
        path.with_name(path.name + DATATROVE_METADATA).write_text(metadata)


def write_meta(folder: Path, tokenizer: Tokenizer) -> None:
    """nanoGPT's meta.pkl: what its train.py and sample.py ask of a vocabulary that is not GPT-2's.

    Its sample.py encodes a prompt character by character, so those that are one token each are what it may hold.
    """
    if tokenizer.fingerprint == GPT2_FINGERPRINT:
        return
    texts = {id: token.decode("utf-8", "replace") for id, token in tokenizer.tokens.items()}
    meta = {
        "vocab_size": tokenizer.vocab_size,
        "itos": {id: texts.get(id, "") for id in range(tokenizer.vocab_size)},
        "stoi": {text: id for id, text in texts.items() if len(text) == 1 and text != "\ufffd"},
    }
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def _first_number(split: SplitFiles) -> int:
    """build-nanogpt's first file of all validates."""
    return 1 if split.name == "train" else 0


def _write_flat(path: Path, blocks: Iterator[np.ndarray], header: bytes = b"") -> None:
    with open(path, "wb") as file:
        file.write(header)
        for block in blocks:
            file.write(np.ascontiguousarray(block).data)
