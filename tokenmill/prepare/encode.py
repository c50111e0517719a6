"""Documents of a unit -> tokens, and the columns beside them: of texts, or of conversations.

encoder, said = encoder_of(path, "auto")          of the set's tokenizer.json, once a process
encode = documents_encoder(encoder, options)
encoded = encode(name, 0, documents)      a batch of documents, the first of which is document 0 of shard `name`
"""

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tokenmill.chat.chat_encoder import ChatEncoder
from tokenmill.prepare.pool import ForAllError
from tokenmill.store.columns import MASK, TARGETS
from tokenmill.text.documents import DocumentBatch
from tokenmill.text.formats import ReadOptions
from tokenmill.text.text_arrays import text_lengths
from tokenmill.tokenize.encoder import Encoder, choose_encoder, sample
from tokenmill.tokenize.tokenizer import Tokenizer


class Encoded(NamedTuple):
    """A batch of documents as tokens."""

    documents: list[DocumentBatch]  # those that were tokenized
    tokens: np.ndarray  # (num_tokens,)
    lengths: np.ndarray  # (documents,)
    text_bytes: int
    columns: dict[str, np.ndarray]
    broken: int = 0  # rows that are no conversation
    refused: Sequence[
        tuple[str, DocumentBatch, int]
    ] = ()  # why conversations cannot be masked, and which they are


Encode = Callable[[str, int, list[DocumentBatch]], Encoded]


@functools.cache
def encoder_of(path: Path, engine: str) -> tuple[Encoder, str]:
    """What documents are encoded with, and what to say of it. ForAllError if the named engine cannot be used."""
    os.environ["TOKENIZERS_PARALLELISM"] = (
        "false"  # every core has its process, and threads do not survive a fork
    )
    try:
        encoder, why = choose_encoder(engine, Tokenizer.load(path))
    except ValueError as error:
        raise ForAllError(str(error)) from error
    slower = f", which is slower and gives the same ids: {why}" if why else ""
    return encoder, f"tokenizing with {encoder.engine}{slower}"


def documents_encoder(encoder: Encoder, options: ReadOptions) -> Encode:
    """What tokenizes a unit's documents."""
    if encoder.tokenizer.chat is None:
        return functools.partial(_texts, encoder)
    return functools.partial(_conversations, ChatEncoder(encoder, options.messages_column), options)


def _texts(encoder: Encoder, name: str, first: int, batch: list[DocumentBatch]) -> Encoded:
    texts = pa.concat_arrays([documents.texts for documents in batch])
    tokens, lengths, _ = encoder.encode(texts)
    encoder.prove(texts, tokens, lengths, sample(name, first, len(lengths)))
    return Encoded(batch, tokens, lengths, int(text_lengths(texts).sum()), {})


def _conversations(
    chat: ChatEncoder, options: ReadOptions, name: str, first: int, batch: list[DocumentBatch]
) -> Encoded:
    rows = pa.concat_arrays([documents.texts for documents in batch])
    ends = np.cumsum([0, *(len(documents.texts) for documents in batch)])
    found, places = (
        chat.encode(rows),
        [(one, number) for one in batch for number in range(len(one.texts))],
    )
    if found.broken and not options.skip_broken:
        number, reason = found.broken[0]
        documents, own = places[number]
        raise ValueError(
            f"{documents.place(own)}: {reason}; fix it, or leave such rows out by --skip-broken"
        )
    kept = [
        one.chosen(found.kept[a:b]) for one, a, b in zip(batch, ends[:-1], ends[1:], strict=True)
    ]
    columns: dict[str, Any] = {MASK.suffix: found.mask, TARGETS.suffix: found.targets}
    more = (
        columns,
        len(found.broken),
        [(reason, *places[number]) for number, reason in found.refused],
    )
    return Encoded(kept, found.tokens, found.lengths, int(found.text_bytes.sum()), *more)
