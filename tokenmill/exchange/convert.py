"""Token sets to other people's token files, and back, without tokenizing again.

    tokenmill convert out llm.c data/tokens/NAME FOLDER
    tokenmill convert in llm.c fineweb10B/*.bin --tokenizer gpt2 --name fineweb10B

What is written is read back and compared before the folder gets its name. What is
taken in has its documents from the index where the layout has one, else from the BOS (or EOT) tokens between them,
also across files: a document that goes on in the next file stays one.

    nanoGPT:     w w w E w w E w E w w       ->      B w w w | B w w | B w | B w w      B and E are one id
    llm.c:       E w w w E w w E w E w w     ->      the same
"""

import hashlib
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import tyro

from tokenmill.exchange.layouts import BLOCK_TOKENS, LAYOUTS, SplitFiles
from tokenmill.store.files import TEMPORARY, locked, remove_temporary_files
from tokenmill.store.shards import SPLITS, TEXT_COUNTS, ShardWriter, Split, dtype_name, in_blocks
from tokenmill.store.token_sets import TokenSet, write_manifest
from tokenmill.tokenize.foreign import is_foreign, load_foreign
from tokenmill.tokenize.tokenizer import Tokenizer, load_tokenizer

Layout = Literal["nanogpt", "llm.c", "npy", "megatron", "parquet"]


@dataclass(frozen=True)
class Out:
    """Writes a token set as other people's token files."""

    layout: tyro.conf.Positional[Layout]  # whose
    tokens: tyro.conf.Positional[Path]  # the token set's folder
    folder: tyro.conf.Positional[Path]  # a new folder


@dataclass(frozen=True)
class In:
    """Makes a token set of other people's token files."""

    layout: tyro.conf.Positional[Layout]  # whose
    files: tyro.conf.Positional[tuple[Path, ...]]  # token files, in name order; of megatron the .bin
    tokenizer: str  # theirs: a tiktoken encoding, a tokenizer.json, or nanochat's tokenizer.pkl
    name: str  # the data set's name in the token set's folder
    val_file: tuple[Path, ...] = ()  # those that validate; by default those with `val` in their names
    bos_token: str | None = None  # the special token between documents, where it cannot be told
    tokens_root: Path = Path("data/tokens")  # where the token set is written


# ---------------------------------------------------------------------------- out


def export(config: Out) -> Path:
    """The folder, with every split's files. FileExistsError where it is there, ValueError where it cannot be."""
    token_set, folder = TokenSet(config.tokens), Path(config.folder)
    if folder.exists():
        raise FileExistsError(f"{folder}: is there already; name a new folder")
    write, read, pattern = LAYOUTS[config.layout]
    unfinished = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}{TEMPORARY}")
    unfinished.mkdir(parents=True)
    try:
        for name in SPLITS:
            shards = [token_set.open(entry) for entry in token_set.split(name) if entry.tokens]
            split = SplitFiles(name, token_set.manifest["dataset"], token_set.numpy_dtype, shards)
            write(split, unfinished)
            _compare(split, [read(path) for path in sorted(unfinished.glob(pattern.format(split=name)))])
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _compare(split: SplitFiles, files: list) -> None:
    """ValueError where the files that were written do not have the split's tokens and documents."""
    written = _digest(block for tokens, _ in files for block in in_blocks(tokens, BLOCK_TOKENS))
    if written != _digest(split.blocks()):
        raise ValueError(f"{split.name}: what was written reads back as other tokens; is the disk in order?")
    lengths = [lengths for _, lengths in files if lengths is not None]
    if lengths and not np.array_equal(np.concatenate(lengths), np.concatenate([s.lengths for s in split.shards])):
        raise ValueError(f"{split.name}: what was written reads back as other documents; is the disk in order?")


def _digest(blocks: Iterator[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block.astype("<u4").data)
    return digest.hexdigest()


# ---------------------------------------------------------------------------- in


def take_in(config: In) -> Path:
    """The new token set's folder. FileExistsError where it is there, ValueError where files are not of the layout."""
    tokenizer = _tokenizer(config)
    folder = Path(config.tokens_root) / f"{config.name}-{tokenizer.name}-{tokenizer.fingerprint[:8]}"
    if (folder / "manifest.json").exists():
        raise FileExistsError(f"{folder}: is there already; take it in under another --name")
    splits = _splits(config)
    with locked(folder):
        remove_temporary_files(folder, folder / "shards")
        tokenizer.save(folder / "tokenizer.json")
        np.save(folder / "token_bytes.npy", tokenizer.token_bytes())
        shards: list[tuple[dict, Split]] = []
        for split, files in splits.items():
            records = _Intake(folder, tokenizer, config.layout).take(files)
            shards += [(record, split) for record in records]
        if not any(record["documents"] for record, _ in shards):
            raise ValueError(f"{config.files[0]}: expected documents, found none; check --tokenizer and --bos-token")
        write_manifest(folder, config.name, tokenizer.facts(), shards)
    return folder


def _tokenizer(config: In) -> Tokenizer:
    if is_foreign(Path(config.tokenizer)):
        return load_foreign(Path(config.tokenizer), config.bos_token, [])
    return load_tokenizer(config.tokenizer)


def _splits(config: In) -> dict[Split, list[Path]]:
    files = sorted(map(Path, config.files), key=lambda path: path.name)
    if missing := [path for path in (*files, *map(Path, config.val_file)) if not path.is_file()]:
        raise FileNotFoundError(f"{missing[0]}: no such file")
    val = set(map(Path, config.val_file)) or {path for path in files if "val" in path.name}
    splits: dict[Split, list[Path]] = {"train": [path for path in files if path not in val], "val": sorted(val)}
    if not all(splits.values()):
        raise ValueError(
            f"{files[0]}: expected files to train on and one to validate on, with `val` in its name; "
            "name it by --val-file"
        )
    return splits


class _Intake:
    """Files of a split, in order, to shards: one a file, of the documents that begin in it."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, layout: str):
        self.folder, self.tokenizer, self.layout = folder, tokenizer, layout
        self.records: list[dict] = []
        self._shard: _Shard | None = None  # at hand
        self._open: list[np.ndarray] | None = None  # its last document, which may go on in the next file

    def take(self, files: list[Path]) -> list[dict]:
        """The shards' records."""
        try:
            for path in files:
                self._take_file(path)
            self._end_shard()
        finally:
            if self._shard is not None:
                self._shard.writer.discard()
        return self.records

    def _take_file(self, path: Path) -> None:
        tokens, lengths = LAYOUTS[self.layout][1](path)
        begins = self._begins(path, tokens, lengths)
        head, indexed = tokens[: begins[0] if len(begins) else len(tokens)], lengths is not None
        if self._open is not None and not indexed:
            self._open.append(head)
            head = head[:0]
        if len(begins) or len(head) or self._shard is None:
            self._end_shard()
            self._shard = _Shard(self.folder, self.tokenizer, path, self.layout)
        if len(head):
            self._open = [head]
        for begin, end in zip(begins, np.append(begins, len(tokens))[1:], strict=True):
            self._end_document()
            self._open = [tokens[begin:end]]
        if indexed:
            self._end_document()

    def _begins(self, path: Path, tokens: np.ndarray, lengths: np.ndarray | None) -> np.ndarray:
        """Where documents begin in a file, ascending; ValueError where an id is none of the tokenizer's."""
        found = [np.cumsum(lengths) - lengths] if lengths is not None else []
        for first, block in zip(range(0, len(tokens), BLOCK_TOKENS), in_blocks(tokens, BLOCK_TOKENS), strict=True):
            if len(wrong := np.flatnonzero((block >= self.tokenizer.vocab_size) | (block < 0))):
                raise ValueError(
                    f"{path}: token {first + int(wrong[0]):,} is {int(block[wrong[0]])}, and tokenizer "
                    f"{self.tokenizer.name} has {self.tokenizer.vocab_size:,}; check --tokenizer"
                )
            found.append(first + np.flatnonzero(block == self.tokenizer.bos_id))
        begins = np.unique(np.concatenate([np.empty(0, np.int64), *found]))
        return begins[begins < len(tokens)]

    def _end_document(self) -> None:
        if self._open is not None and self._shard is not None:
            self._shard.add(np.concatenate(self._open))
            self._open = None

    def _end_shard(self) -> None:
        self._end_document()
        if self._shard is not None:
            self.records.append(self._shard.finish())
            self._shard = None


class _Shard:
    """A shard that is being made of a file's documents."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, path: Path, layout: str):
        self._tokenizer, self._token_bytes = tokenizer, tokenizer.token_bytes()
        self._source = {"file": path.name, "bytes": path.stat().st_size, "layout": layout}
        self._counts = dict.fromkeys(TEXT_COUNTS, 0)
        self.writer = ShardWriter(folder, f"{path.stem}.000", dtype_name(tokenizer.vocab_size))
        self._waiting: list[np.ndarray] = []
        self._size = 0

    def add(self, document: np.ndarray) -> None:
        """A document, with BOS or without; BOS alone is an empty one."""
        if document[0] != self._tokenizer.bos_id:
            document = np.concatenate([[self._tokenizer.bos_id], document])
        if len(document) == 1:
            self._counts["empty_documents"] += 1
            return
        self._waiting.append(document)
        self._size += len(document)
        if self._size >= BLOCK_TOKENS:
            self._write()

    def _write(self) -> None:
        if self._waiting:
            tokens = np.concatenate(self._waiting)
            self._counts["text_bytes"] += int(self._token_bytes[tokens].sum())
            self.writer.write(tokens, [len(document) for document in self._waiting])
            self._waiting, self._size = [], 0

    def finish(self) -> dict:
        self._write()
        facts = {"source": self._source, "fingerprint": self._tokenizer.fingerprint}
        return self.writer.finish(self._counts | facts)


# ---------------------------------------------------------------------------- the command


def main(arguments: list[str], prog: str) -> None:
    """Converts as the command line says, and prints the new folder."""
    verbs: dict[str, Callable] = {"out": Out, "in": In}
    config = tyro.extras.subcommand_cli_from_dict(verbs, prog=prog, args=arguments, description=__doc__)
    print(export(config) if isinstance(config, Out) else take_in(config))
