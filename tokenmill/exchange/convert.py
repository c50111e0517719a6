"""Converts token sets to other people's token files, and back, without tokenizing again.

    tokenmill convert out llm.c data/tokens/NAME FOLDER
    tokenmill convert out raw data/tokens/NAME FOLDER --eos
    tokenmill convert in llm.c fineweb10B/*.bin --tokenizer gpt2 --name fineweb10B

Ids and documents are read back and compared before the folder gets its name. Optional columns are named and left out,
but for the loss mask of a chat set, which parquet has a place for. What is taken in has its documents from the index
where the layout has one, else from the BOS (or EOT) tokens between them; a trailing one is no empty document.

    nanoGPT:     w w w E w w E w E w w       ->      B w w w | B w w | B w | B w w      B and E are one id
    llm.c:       E w w w E w w E w E w w     ->      the same
    out --eos:   B w w w | B w w             ->      w w w E w w E
"""

import contextlib
import hashlib
import os
import re
import shutil
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro

from tokenmill.addresses import is_address, named, require_folder
from tokenmill.checks import whole_number
from tokenmill.exchange.hub_files import fetched
from tokenmill.exchange.import_shards import Intake, names_of
from tokenmill.exchange.layouts import LAYOUTS
from tokenmill.exchange.reading import compare_masks, require_no_mask
from tokenmill.exchange.split_files import BLOCK_TOKENS, FILE_TOKENS, SplitFiles
from tokenmill.exchange.writing import write_meta
from tokenmill.humanize import counted
from tokenmill.remote.token_set import open_set
from tokenmill.store.columns import columns_of
from tokenmill.store.documents import documents_of
from tokenmill.store.files import TEMPORARY, remove_temporary_files
from tokenmill.store.locked import locked
from tokenmill.store.names import plain
from tokenmill.store.shards import SPLITS, Split, in_blocks
from tokenmill.store.token_sets import TokenSet, write_manifest, write_token_bytes
from tokenmill.tokenize.load import load_any
from tokenmill.tokenize.tokenizer import Tokenizer

Layout = Literal["nanogpt", "raw", "llm.c", "npy", "megatron", "parquet", "datatrove"]
EOT_TOKENS = ("<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|endoftext|>")
VAL_NAME = re.compile(r"(?<![a-z])val(id|idation)?(?![a-z])", re.IGNORECASE)  # and no retrieval


@dataclass(frozen=True)
class Out:
    """Writes a token set as token files of another program."""

    layout: tyro.conf.Positional[Layout]  # whose
    tokens: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TOKENS")]]  # the token set's folder or address
    folder: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FOLDER")]]  # a new folder
    # of raw, llm.c and npy, about so many a file; by default 100M. Files are of even size, at least two to train on
    file_tokens: int | None = None
    eos: bool = False  # documents end with EOS, and have no BOS; datatrove's always do
    eos_token: str | None = None  # --eos with another special token than the tokenizer's own end of text
    view: str | None = None  # only the documents of this view, each as often as it counts


@dataclass(frozen=True)
class In:
    """Makes a token set from token files of another program."""

    layout: tyro.conf.Positional[Layout]  # whose
    # token files, in name order, of megatron the .bin; or hf://datasets/OWNER/NAME/*.bin
    files: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE...")]]
    tokenizer: str  # theirs: a tiktoken encoding, a tokenizer.json, or nanochat's tokenizer.pkl
    name: str  # the data set's name in the token set's folder
    val_file: tuple[str, ...] = ()  # those that validate; by default those with `val` in their names
    val_fraction: float | None = None  # instead: the last documents validate, this fraction of the files; 0: none
    bos_token: str | None = None  # the special token between documents, where it cannot be told
    tokens_root: Path = Path("data/tokens")  # where the token set is written
    raw_dir: Path = Path("data/raw")  # where files from the hub are downloaded


# ---------------------------------------------------------------------------- out


def export(config: Out) -> Path:
    """Writes the files of every split into a new folder. FileExistsError if it exists, ValueError if it cannot be."""
    require_folder("the new folder", config.folder)
    token_set, folder = open_set(config.tokens).viewed(config.view), Path(config.folder)
    if folder.exists():
        raise FileExistsError(f"{folder}: is there already; name a new folder")
    layout, tokenizer = LAYOUTS[config.layout], Tokenizer.of_set(token_set)
    file_tokens, eos_id = _file_tokens(config), _eos_id(config, tokenizer)
    kept = layout.columns if eos_id is None else ()
    _say_what_is_left_out(token_set, config.layout if eos_id is None else f"{config.layout} with EOS", kept)
    unfinished = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}{TEMPORARY}")
    unfinished.mkdir(parents=True)
    try:
        for name in SPLITS:
            shards = documents_of(token_set, [entry for entry in token_set.split(name) if entry.tokens])
            if not shards:
                of_view = "" if config.view is None else f" of view {config.view!r}"
                raise ValueError(f"{token_set.display_name}: split {name!r}{of_view} has no token to write")
            prefix = _file_prefix(token_set)
            split = SplitFiles(
                name, prefix, token_set.numpy_dtype, shards, file_tokens, tokenizer.name, layout.most_tokens
            )
            split = split if eos_id is None else split.ended(eos_id)
            layout.write(split, unfinished)
            written = sorted(unfinished.glob(layout.pattern.format(split=name)))
            _compare(split, (layout.read(path, split.dtype) for path in written))
            if kept and token_set.is_chat:
                compare_masks(shards, written)
        if config.layout == "nanogpt":
            write_meta(unfinished, tokenizer)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _say_what_is_left_out(token_set: TokenSet, layout: str, kept: tuple[str, ...]) -> None:
    """Names the optional columns that the layout has no place for."""
    records = map(token_set.record, token_set.entries)
    optional = Counter(name for record in records for name, column in columns_of(record).items() if column.optional)
    for name, shards in sorted(optional.items()):
        if name in kept:
            continue
        left_out = f"column {name} of {counted(shards, 'shard')}"
        print(f"left out: {left_out}, as {layout} has no place for it", file=sys.stderr)


def _file_prefix(token_set: TokenSet) -> str:
    """How file names begin: with the data set's name, unless readers would find the name of a split in it."""
    name = str(token_set.manifest["dataset"])
    return "tokens" if any(split in name.lower() for split in SPLITS) else name


def _file_tokens(config: Out) -> int:
    if config.file_tokens is None:
        return FILE_TOKENS
    if not LAYOUTS[config.layout].is_cut:
        cut = ", ".join(name for name, layout in LAYOUTS.items() if layout.is_cut)
        raise ValueError(f"--file-tokens is for layouts of many files, {cut}; {config.layout} has its own")
    tokens, most = whole_number("--file-tokens", config.file_tokens, 1), LAYOUTS[config.layout].most_tokens
    if most is not None and tokens > most:
        raise ValueError(
            f"--file-tokens {tokens}: a file of {config.layout} counts its tokens in 32 bits; at most {most}"
        )
    return tokens


def _eos_id(config: Out, tokenizer: Tokenizer) -> int | None:
    """The id that documents end with; None if they begin with BOS."""
    if config.eos_token is None and not (config.eos or LAYOUTS[config.layout].ends):
        return None
    special = tokenizer.special_tokens
    # where it has none of its own, the token between documents is both BOS and EOS
    token = config.eos_token or next((token for token in EOT_TOKENS if token in special), tokenizer.bos_token)
    if token not in special:
        raise ValueError(f"--eos-token {token}: expected a special token of {tokenizer.name}, {', '.join(special)}")
    return special[token]


def _compare(split: SplitFiles, files: Iterator[tuple[np.ndarray, np.ndarray | None]]) -> None:
    """ValueError if the files that were written do not have the tokens and documents of the split."""
    lengths: list[np.ndarray] = []

    def blocks() -> Iterator[np.ndarray]:
        for tokens, documents in files:  # one at a time: there may be as many as shards
            if documents is not None:
                lengths.append(documents)
            yield from in_blocks(tokens, BLOCK_TOKENS)

    if _digest(blocks()) != _digest(split.blocks()):
        raise ValueError(f"{split.name}: what was written reads back as other tokens; is the disk in order?")
    if lengths and not np.array_equal(np.concatenate(lengths), np.concatenate([s.lengths for s in split.shards])):
        raise ValueError(f"{split.name}: what was written reads back as other documents; is the disk in order?")


def _digest(blocks: Iterator[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block.astype("<u4").data)
    return digest.hexdigest()


# ---------------------------------------------------------------------------- in


def take_in(config: In) -> Path:
    """The folder of the new token set. FileExistsError if it exists, ValueError if files are not of the layout."""
    for path in map(str, (*config.files, *config.val_file)):
        if is_address(path) and not _is_on_hub(path):
            raise ValueError(f"{path}: files come in from this disk, or from hf://datasets/OWNER/NAME/*.bin")
    plain("--name", config.name)
    tokenizer = load_any(config.tokenizer, config.bos_token)
    folder = Path(config.tokens_root) / f"{config.name}-{tokenizer.name}-{tokenizer.fingerprint[:8]}"
    if (folder / "manifest.json").exists():
        raise FileExistsError(f"{folder}: is there already; take it in under another --name")
    splits = _splits(config)
    for file in (file for files in splits.values() for file in files if LAYOUTS[config.layout].columns):
        require_no_mask(file)
    names = names_of([path for files in splits.values() for path in files])
    with locked(folder), _removing_what_failed(folder):
        remove_temporary_files(folder, folder / "shards")
        tokenizer.save(folder / "tokenizer.json")
        write_token_bytes(folder, tokenizer.token_bytes())
        shards: list[tuple[dict, Split]] = []
        for split, files in splits.items():
            intake = Intake(folder, tokenizer, config.layout, names, config.val_fraction or 0)
            shards += [(record, "val" if validates else split) for record, validates in intake.take(files)]
            intake.require_documents(files)
            _say_if_headless(intake, files[0])
        if config.val_fraction and not any(split == "val" and record["documents"] for record, split in shards):
            raise ValueError(
                f"{config.files[0]}: no document begins in the last {config.val_fraction:.2%} of the files; raise "
                "--val-fraction"
            )
        if not any(record["documents"] for record, _ in shards):
            raise ValueError(f"{config.files[0]}: expected documents, found none; check --tokenizer and --bos-token")
        write_manifest(folder, config.name, tokenizer.facts(), shards)
    return folder


def _say_if_headless(intake: Intake, path: Path) -> None:
    """Says that a split begins with the rest of a document, as train files do after a validation file that was cut."""
    if intake.headless:
        print(
            f"note: {path} begins within a document: the {intake.headless:,} tokens before its first "
            f"{intake.tokenizer.bos_token} are a document of their own here; the document begins in a file of another "
            "split, or in one that was not named",
            file=sys.stderr,
        )


@contextlib.contextmanager
def _removing_what_failed(folder: Path) -> Iterator[None]:
    """Removes the shards of files that were refused, as a later preparation would take them for its own."""
    before = set(folder.glob("shards/*"))
    try:
        yield
    except BaseException:
        for path in set(folder.glob("shards/*")) - before:
            path.unlink(missing_ok=True)
        raise


def _in_order(path: Path) -> tuple[list[tuple[int, str]], Path]:
    """By name, with numbers in it in order, 2 before 10, as a document may continue in the next file."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts], path


def _files(paths: Sequence[str | Path], raw_dir: Path) -> list[Path]:
    """Files on this disk. Those of the hub are fetched first, and checked by their hashes."""
    found = []
    for path in map(str, paths):
        found += fetched(path, raw_dir) if _is_on_hub(path) else [Path(os.path.abspath(path))]
    return found


def _is_on_hub(path: str) -> bool:
    return str(named(path)).startswith("hf://")


def _splits(config: In) -> dict[Split, list[Path]]:
    files, val_files = (_files(some, config.raw_dir) for some in (config.files, config.val_file))
    for path in (*files, *val_files):
        if not path.is_file():
            raise FileNotFoundError(f"{path}: {'a folder; name its files' if path.is_dir() else 'no such file'}")
        if (suffix := LAYOUTS[config.layout].suffix) and path.suffix != suffix:
            raise ValueError(f"{path}: of {config.layout} name the {suffix} files; what lies beside them is found")
    if not files:
        raise ValueError("expected files to take in, found none named")
    if config.val_fraction is not None:
        if val_files:
            raise ValueError("--val-fraction takes the last documents of all files, and --val-file names some; use one")
        if not 0 <= config.val_fraction < 1:
            raise ValueError(f"--val-fraction must be from 0 to less than 1, not {config.val_fraction}")
    same = {path: os.path.realpath(path) for path in (*files, *val_files)}  # whatever links lead there
    chosen = {same[path] for path in val_files}
    val = [path for path in files if same[path] in chosen or (not val_files and VAL_NAME.search(path.name))]
    val += [path for path in val_files if same[path] not in map(same.get, val)]
    train = [path for path in files if path not in val]
    if doubled := [path for path, many in Counter(map(same.get, (*train, *val))).items() if many > 1]:
        raise ValueError(f"{doubled[0]}: is named twice")
    if config.val_fraction is not None:
        return {"train": sorted((*train, *val), key=_in_order)}
    splits: dict[Split, list[Path]] = {"train": sorted(train, key=_in_order), "val": sorted(val, key=_in_order)}
    if not all(splits.values()):
        raise ValueError(
            f"{files[0]}: expected files to train on and one to validate on, with `val` in its name; "
            "name it by --val-file, or pass --val-fraction 0.005, or 0 for no validation"
        )
    return splits


# ---------------------------------------------------------------------------- the command


def main(arguments: list[str], prog: str) -> None:
    """Converts, and prints the new folder."""
    verbs: dict[str, Callable] = {"out": Out, "in": In}
    config = tyro.extras.subcommand_cli_from_dict(verbs, prog=prog, args=arguments, description=__doc__)
    print(export(config) if isinstance(config, Out) else take_in(config))
