"""Other programs' token files -> a token set: which of them validate, and a shard of each one's
documents (found_documents.py).
"""

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from tokenmill.addresses import is_address, path_of
from tokenmill.exchange.convert_out import new_folder
from tokenmill.exchange.flat_files import BLOCK_TOKENS
from tokenmill.exchange.found_documents import FoundDocument, documents_in
from tokenmill.exchange.layouts import LAYOUTS, Readable
from tokenmill.store.manifests import write_manifest, write_token_bytes
from tokenmill.store.names import by_number, plain
from tokenmill.store.schema import dtype_name
from tokenmill.store.shard_writer import ShardWriter
from tokenmill.store.shards import TEXT_COUNTS, Split, shard_path
from tokenmill.tokenize.load import load_any
from tokenmill.tokenize.tokenizer import Tokenizer

VAL_NAME = re.compile(r"(?<![a-z])val(id|idation)?(?![a-z])", re.IGNORECASE)  # and no retrieval
SHOWN = 20  # tokens of the first document
Shards = list[tuple[dict[str, Any], Split]]  # records, and the split of each


@dataclass(frozen=True)
class In:
    """Makes a token set from token files of another program."""

    layout: tyro.conf.Positional[Readable]  # the program that wrote the files, or their format
    # token files on this disk, of megatron the .bin; a document may continue in the next one by
    # name, and a file that is named twice comes in once
    files: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE...")]]
    tokenizer: str  # theirs: a tiktoken encoding, a tokenizer.json, or nanochat's tokenizer.pkl
    name: str  # the data set's name in the token set's folder
    # those that validate; by default those with `val` in their names
    val_file: tuple[str, ...] = ()
    # instead: the last documents validate, this fraction of the files; 0: none
    val_fraction: float | None = None
    bos_token: str | None = None  # the special token between documents, where it cannot be told
    tokens_root: Path = Path("data/tokens")  # where the token set is written


def take_in(config: In) -> Path:
    """The folder of the new token set.

    FileExistsError if it exists, ValueError if files are not of the layout.
    """
    plain("--name", config.name)
    tokenizer = load_any(config.tokenizer, config.bos_token)
    splits = _splits(config)
    name = f"{config.name}-{tokenizer.name}-{tokenizer.fingerprint[:8]}"
    folder = path_of(config.tokens_root) / name
    with new_folder(folder) as unfinished:
        tokenizer.save(unfinished / "tokenizer.json")
        write_token_bytes(unfinished, tokenizer.token_bytes())
        shards = _make_shards(config, tokenizer, splits, unfinished)
        _require_documents(config, shards)
        first_record, *_ = [record for record, _ in shards if record["documents"]]
        first_path = shard_path(unfinished, first_record["name"], "bin")
        beginning = tokenizer.decode(np.fromfile(first_path, first_record["dtype"], SHOWN))
        print(f"the first document begins: {beginning!r}", file=sys.stderr)
        write_manifest(unfinished, config.name, tokenizer.facts(), shards)
    return folder


def _make_shards(
    config: In, tokenizer: Tokenizer, splits: dict[Split, list[Path]], folder: Path
) -> Shards:
    read = LAYOUTS[config.layout].read
    assert read is not None  # of Readable, each has one
    dtype = dtype_name(tokenizer.vocab_size)
    shards: Shards = []
    for split, paths in splits.items():
        documents = documents_in(paths, read, tokenizer, 1 - (config.val_fraction or 0))
        for (path, is_val), in_shard in groupby(documents, _shard_of):
            writer = ShardWriter(folder, f"{len(shards):05d}_{path.stem}.000", dtype)
            source = {"file": path.name, "bytes": path.stat().st_size, "layout": config.layout}
            record = _make_shard(writer, in_shard, tokenizer, source)
            shards.append((record, "val" if is_val else split))
    return shards


def _require_documents(config: In, shards: Shards) -> None:
    with_documents = {split for record, split in shards if record["documents"]}
    if "train" not in with_documents:
        raise ValueError(
            f"{config.files[0]}: expected documents, found none; check --tokenizer and --bos-token"
        )
    fraction = config.val_fraction
    if "val" in with_documents or fraction == 0:
        return
    if fraction is None:
        raise ValueError(
            "expected documents in the files that validate, found none; name others by --val-file, "
            "or pass --val-fraction 0 for no validation"
        )
    raise ValueError(f"no document begins in the last {fraction:.2%} of the files: --val-fraction")


# ---------------------------------------------------------------------------- which files


def _splits(config: In) -> dict[Split, list[Path]]:
    """The files of each split, in order."""
    files = (*config.files, *config.val_file)
    for path in map(str, files):
        _require_file(path, config.layout)
    fraction = config.val_fraction
    if fraction is not None and (config.val_file or not 0 <= fraction < 1):
        raise ValueError(
            "expected --val-fraction from 0 to below 1, and no --val-file beside it, found "
            f"{fraction}"
        )
    # by where links lead, so that a file that is named twice comes in once
    paths = {os.path.realpath(path): Path(os.path.abspath(path)) for path in files}
    # by number, as a document may continue in the next file
    if fraction is not None:
        return {"train": sorted(paths.values(), key=by_number)}
    named = {os.path.realpath(path) for path in config.val_file}
    if not named:
        named = {real for real, path in paths.items() if VAL_NAME.search(path.name)}
    val = [path for real, path in paths.items() if real in named]
    train = [path for path in paths.values() if path not in val]
    if not train or not val:
        raise ValueError(
            "expected files to train on and one to validate on, with `val` in its name; name it by "
            "--val-file, or pass --val-fraction 0.005, or 0 for no validation"
        )
    return {"train": sorted(train, key=by_number), "val": sorted(val, key=by_number)}


def _require_file(path: str, layout: str) -> None:
    """ValueError or FileNotFoundError if this is no file of the layout on this disk."""
    suffix = LAYOUTS[layout].suffix
    if is_address(path):
        raise ValueError(
            f"{path}: files come in from this disk; fetch them first, from the hub by `hf download`"
        )
    if os.path.isdir(path):
        raise FileNotFoundError(f"{path}: a folder; name its files")
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path}: no such file")
    plain(f"{ascii(path)}: the name of its shard", f"00000_{Path(path).name}")
    if suffix and Path(path).suffix != suffix:
        raise ValueError(
            f"{path}: of {layout} name the {suffix} files; what lies beside them is found"
        )


# ---------------------------------------------------------------------------- shards


def _shard_of(document: FoundDocument) -> tuple[Path, bool]:
    return document.path, document.is_val


def _make_shard(
    writer: ShardWriter, documents: Iterator[FoundDocument], tokenizer: Tokenizer, source: dict
) -> dict[str, Any]:
    """Writes documents, each with BOS; returns the record of the shard."""
    counts = dict.fromkeys(TEXT_COUNTS, 0)
    bos = np.array([tokenizer.bos_id])
    token_bytes = tokenizer.token_bytes()
    waiting: list[np.ndarray] = []
    num_waiting = 0  # tokens

    def write() -> None:
        tokens = np.concatenate([bos[:0], *waiting])
        counts["text_bytes"] += int(token_bytes[tokens].sum())
        writer.write(tokens, [len(document) for document in waiting])
        waiting.clear()

    with writer:
        for document in documents:
            tokens = document.tokens
            if tokens[0] != tokenizer.bos_id:
                tokens = np.concatenate([bos, tokens])
            if len(tokens) == 1:
                counts["empty_documents"] += 1
                continue
            waiting.append(tokens)
            num_waiting += len(tokens)
            if num_waiting > BLOCK_TOKENS:
                write()
                num_waiting = 0
        write()
        return writer.finish({**counts, "source": source, "fingerprint": tokenizer.fingerprint})
