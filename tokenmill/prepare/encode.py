"""Documents of a unit -> tokens, and the columns beside them: of texts, or of conversations.

    encode = documents_encoder(encoder, options)
    encoded = encode(name, 0, documents)      a batch of documents, the first of which is document 0 of shard `name`

Conversations that cannot be used are left out here and counted: broken rows if the user asked for that, and those whose
loss mask cannot be verified.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tokenmill.chat.chat_encoder import ChatEncoder
from tokenmill.store.columns import MASK, TARGETS
from tokenmill.text.documents import Documents, text_lengths
from tokenmill.text.formats import ReadOptions
from tokenmill.tokenize.encoder import Encoder, sample


class Encoded(NamedTuple):
    """A batch of documents as tokens."""

    documents: list[Documents]  # those that were tokenized
    tokens: np.ndarray  # (num_tokens,)
    lengths: np.ndarray  # (documents,)
    text_bytes: int
    columns: dict[str, np.ndarray]
    broken: int = 0  # rows that are no conversation
    refused: Counter[str] = Counter()  # conversations that cannot be masked, by reason


Encode = Callable[[str, int, list[Documents]], Encoded]


def documents_encoder(encoder: Encoder, options: ReadOptions) -> Encode:
    """What tokenizes a unit's documents."""
    if encoder.tokenizer.chat is None:
        return lambda name, first, batch: _texts(encoder, name, first, batch)
    chat = ChatEncoder(encoder, options.messages_column)
    return lambda name, first, batch: _conversations(chat, options, name, first, batch)


def columns_of(encoder: Encoder, options: ReadOptions) -> list[str]:
    """The columns that a shard has beside tokens and offsets, without metadata."""
    return [] if encoder.tokenizer.chat is None else [MASK.suffix, TARGETS.suffix]


def _together(batch: list[Documents]) -> pa.LargeStringArray:
    return pa.concat_arrays([documents.texts for documents in batch])


def _texts(encoder: Encoder, name: str, first: int, batch: list[Documents]) -> Encoded:
    texts = _together(batch)
    tokens, lengths, _ = encoder.encode(texts)
    encoder.prove(texts, tokens, lengths, sample(name, first, len(lengths)))
    return Encoded(batch, tokens, lengths, int(text_lengths(texts).sum()), {})


def _conversations(chat: ChatEncoder, options: ReadOptions, name: str, first: int, batch: list[Documents]) -> Encoded:
    rows = _together(batch)
    found = chat.encode(rows)
    if found.broken and not options.skip_broken:
        _raise_broken(batch, *found.broken[0])
    chat.prove(rows, found, sample(name, first, len(found.lengths)).tolist())
    ends = np.cumsum([0, *(len(documents.texts) for documents in batch)]).tolist()
    kept = [one.chosen(found.kept[a:b]) for one, a, b in zip(batch, ends[:-1], ends[1:], strict=True)]
    columns: dict[str, Any] = {MASK.suffix: found.mask, TARGETS.suffix: found.targets}
    more = (columns, len(found.broken), found.refused)
    return Encoded(kept, found.tokens, found.lengths, int(found.text_bytes.sum()), *more)


def _raise_broken(batch: list[Documents], number: int, reason: str) -> None:
    """Raises the ValueError that says where a row is that is no conversation."""
    for documents in batch:
        if number < len(documents.texts):
            place = documents.place(number)
            raise ValueError(f"{place}: {reason}; fix it, or leave such rows out by --skip-broken")
        number -= len(documents.texts)
