"""A token set -> other programs' files, in a folder that gets its name when all are on the disk."""

import contextlib
import shutil
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tokenmill.addresses import require_folder
from tokenmill.checks import whole_number
from tokenmill.exchange.flat_files import BLOCK_TOKENS, FILE_TOKENS, SplitFiles
from tokenmill.exchange.layouts import LAYOUTS, Name
from tokenmill.remote.token_set import open_set
from tokenmill.store.columns import columns_of
from tokenmill.store.documents import ShardDocuments, documents_of
from tokenmill.store.files import TEMPORARY
from tokenmill.store.shards import SPLITS
from tokenmill.store.token_sets import TokenSet
from tokenmill.tokenize.tokenizer import Tokenizer

EOT_TOKENS = ("<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|endoftext|>")


@dataclass(frozen=True)
class Out:
    """Writes a token set as token files of another program."""

    layout: tyro.conf.Positional[Name]  # the program that reads the files, or their format
    # the token set's folder or address
    tokens: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TOKENS")]]
    folder: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FOLDER")]]  # a new folder
    # of raw, llm.c and npy, about so many a file; by default 100M. Files are of even size, at least
    # two to train on
    file_tokens: int | None = None
    eos: bool = False  # documents end with EOS, and have no BOS; datatrove's always do
    # --eos with another special token than the tokenizer's own end of text
    eos_token: str | None = None
    view: str | None = None  # only the documents of this view, each as often as it counts


def export(config: Out) -> Path:
    """Writes the files of every split into a new folder.

    FileExistsError if it exists, ValueError if it cannot be.
    """
    require_folder("the new folder", config.folder)
    token_set = open_set(config.tokens).viewed(config.view)
    layout = LAYOUTS[config.layout]
    tokenizer = Tokenizer.of_set(token_set)
    file_tokens = _file_tokens(config)
    eos_id = None
    if config.eos or config.eos_token or layout.ends:
        eos_id = _eos_id(tokenizer, config.eos_token)
    if eos_id is None:
        _print_what_is_left_out(token_set, config.layout, layout.columns)
    else:
        _print_what_is_left_out(token_set, f"{config.layout} with EOS", ())
    with new_folder(Path(config.folder)) as unfinished:
        for split in SPLITS:
            has_tokens = any(entry.tokens for entry in token_set.split(split))
            if split == "val" and not has_tokens:
                print("left out: split val, which has no tokens", file=sys.stderr)
                continue
            files = SplitFiles(
                name=split,
                dataset=_file_prefix(token_set),
                dtype=token_set.numpy_dtype,
                shards=_documents(token_set, split, config.view, eos_id),
                file_tokens=file_tokens,
                tokenizer=tokenizer.name,
            )
            layout.write(files, unfinished)
    return config.folder


def _file_tokens(config: Out) -> int:
    """About how many tokens a file has. ValueError if the layout does not take a number."""
    if config.file_tokens is None:
        return FILE_TOKENS
    file_tokens = whole_number("--file-tokens", config.file_tokens, 1)
    if not LAYOUTS[config.layout].is_cut:
        cut = ", ".join(name for name, layout in LAYOUTS.items() if layout.is_cut)
        raise ValueError(
            f"--file-tokens is for layouts of many files, {cut}; {config.layout} has its own"
        )
    return file_tokens


def _file_prefix(token_set: TokenSet) -> str:
    """The beginning of file names, in which readers look for the name of a split."""
    dataset = str(token_set.manifest["dataset"])
    names_a_split = any(split in dataset.lower() for split in SPLITS)
    return "tokens" if names_a_split else dataset


def _documents(
    token_set: TokenSet, split: str, view: str | None, eos_id: int | None
) -> list[ShardDocuments]:
    """The documents of a split, ending with EOS if there is an id. ValueError if there are none."""
    entries = [entry for entry in token_set.split(split) if entry.tokens]
    shards = documents_of(token_set, entries)
    if not shards:
        shown = token_set.display_name
        if view is not None:
            shown += f", view {view!r}"
        raise ValueError(f"{shown}: split {split!r} has no token to write")
    if eos_id is None:
        return shards
    _require_no_eos(token_set, shards, eos_id)
    return [shard.ended(eos_id) for shard in shards]


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into, which gets its name at the end, or goes.

    FileExistsError if there is one of this name.
    """
    if folder.exists():
        raise FileExistsError(f"{folder}: is there already; choose another name")
    unfinished = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}{TEMPORARY}")
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _print_what_is_left_out(token_set: TokenSet, layout: str, kept: tuple[str, ...]) -> None:
    """Names the optional columns that the layout has no place for."""
    optional: Counter[str] = Counter()
    for entry in token_set.entries:
        columns = columns_of(token_set.record(entry))
        optional.update(name for name, column in columns.items() if column.optional)
    for name, num_shards in sorted(optional.items()):
        if name not in kept:
            message = f"column {name} of {num_shards:,} shards, as {layout} has no place for it"
            print(f"left out: {message}", file=sys.stderr)


def _eos_id(tokenizer: Tokenizer, eos_token: str | None) -> int:
    """The id that documents end with.

    Where a tokenizer has none of its own, BOS stands between documents.
    """
    special = tokenizer.special_tokens
    known = [token for token in EOT_TOKENS if token in special]
    token = eos_token or [*known, tokenizer.bos_token][0]
    if token not in special:
        names = ", ".join(special)
        raise ValueError(
            f"--eos-token {token}: expected a special token of {tokenizer.name}, {names}"
        )
    return special[token]


def _require_no_eos(token_set: TokenSet, shards: list[ShardDocuments], eos_id: int) -> None:
    """ValueError if documents end with EOS already.

    With two, readers would find an empty document after each.
    """
    for shard in shards:
        ends = shard.offsets[1:][shard.lengths > 1] - 1
        for first in range(0, shard.tokens, BLOCK_TOKENS):
            block = shard.read(first, first + BLOCK_TOKENS)
            in_block = ends[(first <= ends) & (ends < first + len(block))]
            if (block[in_block - first] == eos_id).any():
                raise ValueError(
                    f"{token_set.display_name}: documents end with token {eos_id} already, and "
                    "would end with two; leave out --eos, or convert a set that was prepared "
                    "without --eot-token"
                )
