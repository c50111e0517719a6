"""A token set -> other programs' files, in a folder that gets its name when all are on the disk."""

import contextlib
import pickle
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
from tokenmill.exchange.flat_files import BLOCK_TOKENS, FILE_TOKENS, SplitFiles, write_flat
from tokenmill.exchange.layouts import LAYOUTS, Name
from tokenmill.remote.token_set import open_set
from tokenmill.store.columns import columns_of
from tokenmill.store.documents import ShardDocuments, documents_of
from tokenmill.store.files import TEMPORARY
from tokenmill.store.shards import SPLITS
from tokenmill.store.token_sets import TokenSet
from tokenmill.tokenize.tokenizer import Tokenizer

EOT_TOKENS = ("<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|endoftext|>")
# nanoGPT's sample.py has GPT-2's tokenizer itself
GPT2_FINGERPRINT = "1bd489c3451db650cbb889f159c3743dab8096869899541dbc5c77cf60ee7617"


@dataclass(frozen=True)
class Out:
    """Writes a token set as token files of another program."""

    layout: tyro.conf.Positional[Name]  # the program that reads the files, or their format
    # the token set's folder or address
    tokens: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TOKENS")]]
    folder: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FOLDER")]]  # a new folder
    # of raw, llm.c and npy, about so many a file; by default 100M. Files are of even size, at least two to train on
    file_tokens: int | None = None
    eos: bool = False  # documents end with EOS, and have no BOS; datatrove's always do
    # --eos with another special token than the tokenizer's own end of text
    eos_token: str | None = None
    view: str | None = None  # only the documents of this view, each as often as it counts


def export(config: Out) -> Path:
    """Writes the files of every split into a new folder. FileExistsError if it exists, ValueError if it cannot be."""
    require_folder("the new folder", config.folder)
    token_set, layout = open_set(config.tokens).viewed(config.view), LAYOUTS[config.layout]
    tokenizer, file_tokens = Tokenizer.of_set(token_set), FILE_TOKENS
    if config.file_tokens is not None:
        file_tokens = whole_number("--file-tokens", config.file_tokens, 1)
        if not layout.is_cut:
            cut = ", ".join(name for name, other in LAYOUTS.items() if other.is_cut)
            raise ValueError(
                f"--file-tokens is for layouts of many files, {cut}; {config.layout} has its own"
            )
    eos_id = (
        _eos_id(tokenizer, config.eos_token)
        if config.eos or config.eos_token or layout.ends
        else None
    )
    kept = layout.columns if eos_id is None else ()
    _say_what_is_left_out(
        token_set, config.layout if eos_id is None else f"{config.layout} with EOS", kept
    )
    prefix = str(
        token_set.manifest["dataset"]
    )  # of file names, in which readers look for the name of a split
    prefix = "tokens" if any(split in prefix.lower() for split in SPLITS) else prefix
    with new_folder(Path(config.folder)) as unfinished:
        for name in SPLITS:
            shards = documents_of(
                token_set, [entry for entry in token_set.split(name) if entry.tokens]
            )
            if not shards:
                of = (
                    token_set.display_name
                    if config.view is None
                    else f"{token_set.display_name}, view {config.view!r}"
                )
                raise ValueError(f"{of}: split {name!r} has no token to write")
            if eos_id is not None:
                _require_no_eos(token_set, shards, eos_id)
                shards = [shard.ended(eos_id) for shard in shards]
            split = SplitFiles(
                name, prefix, token_set.numpy_dtype, shards, file_tokens, tokenizer.name
            )
            layout.write(split, unfinished)
        if config.layout == "nanogpt":
            write_meta(unfinished, tokenizer)
    return config.folder


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into, which gets its name at the end, or goes. FileExistsError if there is one."""
    if folder.exists():
        raise FileExistsError(f"{folder}: is there already; choose another name")
    unfinished = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}{TEMPORARY}")
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _say_what_is_left_out(token_set: TokenSet, where: str, kept: tuple[str, ...]) -> None:
    """Names the optional columns that the layout has no place for."""
    records = map(token_set.record, token_set.entries)
    optional = Counter(
        name for record in records for name, column in columns_of(record).items() if column.optional
    )
    for name, shards in sorted(optional.items()):
        if name not in kept:
            print(
                f"left out: column {name} of {shards:,} shards, as {where} has no place for it",
                file=sys.stderr,
            )


def _eos_id(tokenizer: Tokenizer, eos_token: str | None) -> int:
    """The id that documents end with. Where a tokenizer has none of its own, BOS stands between documents."""
    special = tokenizer.special_tokens
    token = eos_token or next(
        (token for token in EOT_TOKENS if token in special), tokenizer.bos_token
    )
    if token not in special:
        raise ValueError(
            f"--eos-token {token}: expected a special token of {tokenizer.name}, {', '.join(special)}"
        )
    return special[token]


def _require_no_eos(token_set: TokenSet, shards: list[ShardDocuments], eos_id: int) -> None:
    """ValueError if documents end with EOS already: with two, readers would find an empty document after each."""
    for shard in shards:
        ends = shard.offsets[1:][shard.lengths > 1] - 1
        for first in range(0, shard.tokens, BLOCK_TOKENS):
            ids = shard.read(first, first + BLOCK_TOKENS)
            here = ends[(first <= ends) & (ends < first + len(ids))]
            if (ids[here - first] == eos_id).any():
                raise ValueError(
                    f"{token_set.display_name}: documents end with token {eos_id} already, and would end with two; "
                    "leave out --eos, or convert a set that was prepared without --eot-token"
                )


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
    write_flat(folder / "meta.pkl", [], pickle.dumps(meta))
