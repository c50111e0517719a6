"""Other people's token files: the layouts that convert.py goes between. Numbers are little-endian.

    nanogpt     train.bin, val.bin: token ids, uint16, nothing else (nanoGPT's prepare.py); meta.pkl, a dict of
                vocab_size, itos and stoi, where the vocabulary is not GPT-2's
    raw         NAME_train_000001.bin ...: token ids, uint16 or uint32, nothing else (OLMo-core)
    llm.c       NAME_train_000001.bin ...: 256 int32 (magic 20240520, version 1, number of tokens, zeros), then uint16;
                with magic 20240801, version 7, uint32 (llm.c's data_common.py, modded-nanogpt)
    npy         NAME_train_000001.npy ...: NumPy's own (build-nanogpt's fineweb.py)
    megatron    train.bin: ids as in nanogpt, or int32; train.idx: 9 bytes "MMIDIDX", uint64 version 1, uint8 type (8:
                uint16, 4: int32), uint64 sequences, uint64 sequences + 1; then int32 lengths, int64 first bytes,
                int64 0 ... sequences, as a document is a sequence (Megatron-LM's indexed_dataset.py)
    parquet     train-00000-of-00002.parquet ...: a document a row, `input_ids` (a Hugging Face dataset's folder); of a
                chat set also `labels`, -100 where a token bears no loss, and `assistant_masks`
    datatrove   train/00000_train.ds ...:  ids, uint16 or uint32; .ds.index: uint64, where each document ends, in
                tokens; .ds.metadata: tokenizer and bytes a token, tokens (datatrove's DocumentTokenizer, nanotron)

raw, llm.c and npy are files of even size, at least two to train on; NAME is the data set's, or `tokens` where that has
"train" or "val" in it, by which readers choose their files. A layout writes the documents of a split in their
order: with BOS first as they are or, as datatrove's always, with EOS last.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tokenmill.exchange.headers import LLMC_MOST
from tokenmill.exchange.reading import (
    read_datatrove,
    read_llmc,
    read_megatron,
    read_nanogpt,
    read_npy,
    read_parquet,
    read_raw,
)
from tokenmill.exchange.split_files import SplitFiles
from tokenmill.exchange.writing import (
    write_datatrove,
    write_llmc,
    write_megatron,
    write_nanogpt,
    write_npy,
    write_parquet,
    write_raw,
)


class Files(NamedTuple):
    """A layout."""

    write: Callable[[SplitFiles, Path], None]
    read: Callable[[Path, np.dtype], tuple[np.ndarray, np.ndarray | None]]
    pattern: str  # of a split's files
    is_cut: bool = False  # into files of even size
    ends: bool = False  # documents always end with EOS
    is_flat: bool = False  # only BOS tells where a document begins
    begins: bool = False  # documents always begin with BOS
    suffix: str = ""  # of the files that are named, where others lie beside them
    columns: tuple[str, ...] = ()  # optional ones that it has a place for
    most_tokens: int | None = None  # that the header of a file can count


LAYOUTS = {
    "nanogpt": Files(write_nanogpt, read_nanogpt, "{split}.bin", is_flat=True),
    "raw": Files(write_raw, read_raw, "*_{split}_*.bin", is_cut=True, is_flat=True),
    "llm.c": Files(
        write_llmc, read_llmc, "*_{split}_*.bin", is_cut=True, is_flat=True, begins=True, most_tokens=LLMC_MOST
    ),
    "npy": Files(write_npy, read_npy, "*_{split}_*.npy", is_cut=True, is_flat=True, begins=True),
    "megatron": Files(write_megatron, read_megatron, "{split}.bin", suffix=".bin"),
    "parquet": Files(write_parquet, read_parquet, "{split}-*.parquet", columns=("mask", "targets")),
    "datatrove": Files(write_datatrove, read_datatrove, "{split}/*.ds", ends=True, suffix=".ds"),
}
