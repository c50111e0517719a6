"""Other programs' token files -> a token set: finds where documents begin, and makes a shard of each file.

Documents are those of the index if the layout has one, else what is between the BOS (or EOT) tokens, also across files:
a document that continues in the next file stays one. The last token of a split's files, or of a document of the index,
may be an EOT that nothing follows; that is not an empty document.

    B w w w B w w      w w w E w w E      ->      B w w w | B w w            B and E are one id
"""

import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import tyro

from tokenmill.addresses import is_address
from tokenmill.exchange.convert_out import new_folder
from tokenmill.exchange.flat_files import BLOCK_TOKENS
from tokenmill.exchange.layouts import LAYOUTS, Readable
from tokenmill.store.names import plain
from tokenmill.store.schema import dtype_name
from tokenmill.store.shard_writer import ShardWriter
from tokenmill.store.shards import TEXT_COUNTS, Split, in_blocks
from tokenmill.store.token_sets import write_manifest, write_token_bytes
from tokenmill.tokenize.load import load_any
from tokenmill.tokenize.tokenizer import Tokenizer

VAL_NAME = re.compile(r"(?<![a-z])val(id|idation)?(?![a-z])", re.IGNORECASE)  # and no retrieval
SHOWN = 20  # tokens of the first document


@dataclass(frozen=True)
class In:
    """Makes a token set from token files of another program."""

    layout: tyro.conf.Positional[Readable]  # the program that wrote the files, or their format
    # token files on this disk, of megatron the .bin; a document may continue in the next one by name
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
    """The folder of the new token set. FileExistsError if it exists, ValueError if files are not of the layout."""
    plain("--name", config.name)
    if (read := LAYOUTS[config.layout].read) is None:
        raise ValueError(
            f"{config.layout}: is written only; prepare the text, or take in another layout"
        )
    tokenizer, splits = load_any(config.tokenizer, config.bos_token), _splits(config)
    folder = (
        Path(config.tokens_root) / f"{config.name}-{tokenizer.name}-{tokenizer.fingerprint[:8]}"
    )
    shards: list[tuple[dict, Split]] = []
    with new_folder(folder) as unfinished:
        tokenizer.save(unfinished / "tokenizer.json")
        write_token_bytes(unfinished, tokenizer.token_bytes())
        for split, paths in splits.items():
            pieces = pieces_of(paths, read, tokenizer, 1 - (config.val_fraction or 0))
            for (path, validates), some in groupby(pieces, lambda piece: piece[:2]):
                name, dtype = f"{len(shards):05d}_{path.stem}.000", dtype_name(tokenizer.vocab_size)
                source = {"file": path.name, "bytes": path.stat().st_size, "layout": config.layout}
                record = _make_shard(ShardWriter(unfinished, name, dtype), some, tokenizer, source)
                shards.append((record, "val" if validates else split))
        if not any(record["documents"] for record, _ in shards):
            raise ValueError(
                f"{config.files[0]}: expected documents, found none; check --tokenizer and --bos-token"
            )
        if config.val_fraction and "val" not in (split for _, split in shards):
            raise ValueError(
                f"no document begins in the last {config.val_fraction:.2%} of the files: --val-fraction"
            )
        first = np.fromfile(
            unfinished / f"shards/{shards[0][0]['name']}.bin", shards[0][0]["dtype"], SHOWN
        )
        print(f"the first document begins: {tokenizer.decode(first)!r}", file=sys.stderr)
        write_manifest(unfinished, config.name, tokenizer.facts(), shards)
    return folder


# ---------------------------------------------------------------------------- which files


def _splits(config: In) -> dict[Split, list[Path]]:
    suffix, fraction = LAYOUTS[config.layout].suffix, config.val_fraction
    for path in map(str, (*config.files, *config.val_file)):
        if is_address(path):
            raise ValueError(
                f"{path}: files come in from this disk; fetch them first, from the hub by `hf download`"
            )
        if not os.path.isfile(path):
            raise FileNotFoundError(
                f"{path}: {'a folder; name its files' if os.path.isdir(path) else 'no such file'}"
            )
        if suffix and Path(path).suffix != suffix:
            raise ValueError(
                f"{path}: of {config.layout} name the {suffix} files; what lies beside them is found"
            )
    if fraction is not None and (config.val_file or not 0 <= fraction < 1):
        raise ValueError(
            f"expected --val-fraction from 0 to below 1, and no --val-file beside it, found {fraction}"
        )
    # by where links lead, so that a file that is named twice comes in once
    paths = {
        os.path.realpath(path): Path(os.path.abspath(path))
        for path in (*config.files, *config.val_file)
    }
    named = {os.path.realpath(path) for path in config.val_file}
    val = [
        path
        for real, path in paths.items()
        if real in named or (not named and VAL_NAME.search(path.name))
    ]
    train = [path for path in paths.values() if path not in val]
    if fraction is not None:
        return {"train": sorted(paths.values(), key=_in_order)}
    if not train or not val:
        expected = "expected files to train on and one to validate on, with `val` in its name"
        raise ValueError(
            f"{expected}; name it by --val-file, or pass --val-fraction 0.005, or 0 for no validation"
        )
    return {"train": sorted(train, key=_in_order), "val": sorted(val, key=_in_order)}


def _in_order(path: Path) -> tuple[list[tuple[int, str]], Path]:
    """By path, with numbers in it in order, 2 before 10, as a document may continue in the next file of the folder."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts], path


# ---------------------------------------------------------------------------- what is in them


class Piece(NamedTuple):
    """A document, and which shard it belongs to."""

    path: Path  # of the file that it begins in
    validates: bool
    tokens: np.ndarray


def pieces_of(
    files: list[Path], read: Callable, tokenizer: Tokenizer, val_from: float
) -> Iterator[Piece]:
    """The documents of a split's files, in order, with or without BOS; BOS alone is an empty one. Those that begin
    after this share of the files' bytes validate.
    """
    sizes, before, has_bos = [path.stat().st_size for path in files], 0, False
    rest: Piece | None = None  # a document that may go on in the next file
    for path, size in zip(files, sizes, strict=True):
        tokens, lengths = read(path, np.dtype(dtype_name(tokenizer.vocab_size)))
        begins, is_indexed = _begins(path, tokens, lengths, tokenizer), lengths is not None
        has_bos |= is_indexed or bool((tokens[begins] == tokenizer.bos_id).any())
        edges = [*begins.tolist(), len(tokens)]
        if head := edges[
            0
        ]:  # tokens before the first BOS go on with a document, or are one of their own
            rest = rest or Piece(path, before >= val_from * sum(sizes), tokens[:0])
            rest = rest._replace(tokens=np.concatenate([rest.tokens, tokens[:head]]))
        for begin, end in pairwise(edges):
            if rest is not None:
                yield rest
            is_ended = (
                is_indexed and end - begin > 1 and tokens[end - 1] == tokenizer.bos_id
            )  # by an EOT
            validates = before + size * begin / len(tokens) >= val_from * sum(sizes)
            rest = Piece(path, validates, tokens[begin : end - is_ended])
        before += size
    if not has_bos:
        between = f"{tokenizer.bos_token}, token {tokenizer.bos_id}, between documents"
        hint = "name the tokenizer that made these ids as --tokenizer, or the token between documents as --bos-token"
        raise ValueError(f"{files[0]}: expected {between}, found none; {hint}")
    if rest is not None and rest.tokens.tolist() != [
        tokenizer.bos_id
    ]:  # an EOT that nothing follows
        yield rest


def _begins(
    path: Path, tokens: np.ndarray, lengths: np.ndarray | None, tokenizer: Tokenizer
) -> np.ndarray:
    """Where documents begin in a file, ascending. ValueError if the tokenizer does not have one of the ids."""
    ends = np.cumsum(lengths if lengths is not None else np.empty(0, np.int64))
    starts, last = (
        [ends - lengths if lengths is not None else ends],
        ends[np.diff(ends, prepend=0) > 1] - 1,
    )
    for first, block in zip(
        range(0, len(tokens), BLOCK_TOKENS), in_blocks(tokens, BLOCK_TOKENS), strict=True
    ):
        if len(wrong := np.flatnonzero((block >= tokenizer.vocab_size) | (block < 0))):
            found = f"token {first + int(wrong[0]):,} is {int(block[wrong[0]])}"
            raise ValueError(
                f"{path}: {found}, and {tokenizer.name} has {tokenizer.vocab_size:,}; check --tokenizer"
            )
        bos = first + np.flatnonzero(block == tokenizer.bos_id)
        starts.append(bos[~np.isin(bos, last)])
    begins = np.unique(np.concatenate(starts))
    return begins[begins < len(tokens)]


def _make_shard(
    writer: ShardWriter, pieces: Iterator[Piece], tokenizer: Tokenizer, source: dict
) -> dict[str, Any]:
    """Writes documents, each with BOS; returns the record of the shard."""
    counts, bos, token_bytes = (
        dict.fromkeys(TEXT_COUNTS, 0),
        np.array([tokenizer.bos_id]),
        tokenizer.token_bytes(),
    )
    waiting: list[np.ndarray] = []

    def write() -> None:
        tokens = np.concatenate([bos[:0], *waiting])
        counts["text_bytes"] += int(token_bytes[tokens].sum())
        writer.write(tokens, [len(document) for document in waiting])
        waiting.clear()

    with writer:
        size = 0
        for _, _, tokens in pieces:
            document = tokens if tokens[0] == bos[0] else np.concatenate([bos, tokens])
            if len(document) == 1:
                counts["empty_documents"] += 1
                continue
            waiting.append(document)
            if (size := size + len(document)) > BLOCK_TOKENS:
                write()
                size = 0
        write()
        return writer.finish({**counts, "source": source, "fingerprint": tokenizer.fingerprint})
