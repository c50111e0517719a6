"""The headers of other people's token files: numbers that stand in their readers and writers. Little-endian, all."""

import struct

import numpy as np

# llm.c, by magic and version: 256 int32, then ids (data_common.py)
LLMC_HEADERS: dict[tuple[int, ...], np.dtype] = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}
LLMC_HEADER_BYTES = 256 * 4
LLMC_MOST = (1 << 31) - 1  # tokens of a file, which its header counts

# Megatron-LM's index (indexed_dataset.py)
MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
MEGATRON_HEADER = struct.Struct("<9sQBQQ")  # magic, version, type, sequences, documents
MEGATRON_LONGEST = (1 << 31) - 1  # tokens of a document
MEGATRON_TYPES: dict[int, np.dtype] = {8: np.dtype("<u2"), 4: np.dtype("<i4")}

# datatrove's, beside FILE.ds (tokens/tokenizer.py)
DATATROVE_INDEX, DATATROVE_METADATA = ".index", ".metadata"
