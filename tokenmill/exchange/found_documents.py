"""Finds documents in other programs' token files.

Documents are those of the index if the layout has one, and what is between the BOS (or EOT) tokens,
also across files: a document that continues in the next file stays one. The last token of a split's
files, or of a document of the index, may be an EOT that nothing follows; that is not an empty
document.

    B w w w B w w      w w w E w w E      ->      B w w w | B w w            B and E are one id
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tokenmill.exchange.flat_files import BLOCK_TOKENS
from tokenmill.exchange.layouts import ReadFile
from tokenmill.store.schema import dtype_name
from tokenmill.store.shards import in_blocks
from tokenmill.tokenize.tokenizer import Tokenizer


class FoundDocument(NamedTuple):
    """A document, and which shard it belongs to."""

    path: Path  # of the file that it begins in
    is_val: bool
    tokens: np.ndarray

    def with_more(self, tokens: np.ndarray) -> "FoundDocument":
        """The document that goes on with these tokens."""
        return self._replace(tokens=np.concatenate([self.tokens, tokens]))


class _Part(NamedTuple):
    """A part of a file, and where it is among the bytes of a split's files."""

    path: Path
    tokens: np.ndarray
    lengths: np.ndarray | None  # of documents, if the layout has an index
    begin: float
    bytes: float

    def place_of(self, token: int) -> float:
        """Where a token is among the bytes of a split's files, about."""
        return self.begin + self.bytes * token / len(self.tokens)


def documents_in(
    files: list[Path], read: ReadFile, tokenizer: Tokenizer, val_from: float
) -> Iterator[FoundDocument]:
    """The documents of a split's files, in order, with or without BOS; BOS alone is an empty one.

    Those that begin after the share `val_from` of the files' bytes validate. ValueError if BOS is
    in no file.
    """
    bos_id = tokenizer.bos_id
    val_begin = val_from * sum(path.stat().st_size for path in files)
    pending: FoundDocument | None = None  # it may go on in the next part
    has_bos = False
    for part in _parts(files, read, np.dtype(dtype_name(tokenizer.vocab_size))):
        begins = _begins(part.path, part.tokens, part.lengths, tokenizer)
        is_indexed = part.lengths is not None
        has_bos |= is_indexed or bool((part.tokens[begins] == bos_id).any())
        for is_new, document in _documents_of(part, begins, val_begin, bos_id):
            if pending is None:
                pending = document
            elif is_new:
                yield pending
                pending = document
            else:
                pending = pending.with_more(document.tokens)
    if not has_bos:
        raise ValueError(
            f"{files[0]}: expected {tokenizer.bos_token}, token {bos_id}, between documents, found "
            "none; name the tokenizer that made these ids as --tokenizer, or the token between "
            "documents as --bos-token"
        )
    if pending is not None and pending.tokens.tolist() != [bos_id]:  # an EOT that nothing follows
        yield pending


def _parts(files: list[Path], read: ReadFile, dtype: np.dtype[Any]) -> Iterator[_Part]:
    """The files, part after part."""
    file_begin = 0.0
    for path in files:
        size = path.stat().st_size
        begin = file_begin
        for tokens, lengths, share in read(path, dtype):
            yield _Part(path, tokens, lengths, begin, size * share)
            begin += size * share
        file_begin += size


def _documents_of(
    part: _Part, begins: np.ndarray, val_begin: float, bos_id: int
) -> Iterator[tuple[bool, FoundDocument]]:
    """A part's documents, and whether each begins in it: the first one may only go on."""
    edges = [*begins.tolist(), len(part.tokens)]
    if edges[0]:
        head = part.tokens[: edges[0]]
        yield False, FoundDocument(part.path, part.begin >= val_begin, head)
    for begin, end in pairwise(edges):
        tokens = part.tokens[begin:end]
        if part.lengths is not None:
            tokens = _without_eot(tokens, bos_id)
        is_val = part.place_of(begin) >= val_begin
        yield True, FoundDocument(part.path, is_val, tokens)


def _without_eot(tokens: np.ndarray, bos_id: int) -> np.ndarray:
    """A document of an index without the EOT at its end."""
    has_eot = len(tokens) > 1 and tokens[-1] == bos_id
    return tokens[:-1] if has_eot else tokens


def _begins(
    path: Path, tokens: np.ndarray, lengths: np.ndarray | None, tokenizer: Tokenizer
) -> np.ndarray:
    """Where documents begin in a file, ascending.

    ValueError if the tokenizer does not have one of the ids.
    """
    begins: list[np.ndarray] = []
    last_tokens = np.empty(0, np.int64)  # of documents of the index: an EOT there begins none
    if lengths is not None:
        ends = np.cumsum(lengths)
        begins.append(ends - lengths)
        last_tokens = ends[lengths > 1] - 1
    first = 0
    for block in in_blocks(tokens, BLOCK_TOKENS):
        _require_ids(path, block, first, tokenizer)
        bos = first + np.flatnonzero(block == tokenizer.bos_id)
        begins.append(bos[~np.isin(bos, last_tokens)])
        first += len(block)
    unique = np.unique(np.concatenate(begins)) if begins else np.empty(0, np.int64)
    return unique[unique < len(tokens)]


def _require_ids(path: Path, block: np.ndarray, first: int, tokenizer: Tokenizer) -> None:
    """ValueError if the tokenizer does not have an id; the block begins at token `first`."""
    wrong = np.flatnonzero((block >= tokenizer.vocab_size) | (block < 0))
    if not len(wrong):
        return
    place = first + int(wrong[0])
    token = int(block[wrong[0]])
    raise ValueError(
        f"{path}: token {place:,} is {token}, and {tokenizer.name} has {tokenizer.vocab_size:,}; "
        "check --tokenizer"
    )
