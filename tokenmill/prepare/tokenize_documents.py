"""Documents of a unit -> tokens, and the columns beside them: of texts, or of conversations.

    tokenize = text_maker(encoder, unit)
    made = tokenize(unit, 0, gathered)      a batch of documents, the first of which is document 0 of the shard

`make_shard` writes what comes out, whatever the documents are. Conversations that cannot be used are left out here, and
counted: broken rows if the user asked for that, and those whose loss mask cannot be verified.
"""

from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from tokenmill.chat.chat_encoder import ChatBatch, ChatEncoder
from tokenmill.store.columns import MASK, TARGETS
from tokenmill.text.units import Documents, Unit
from tokenmill.text_arrays import mask_array
from tokenmill.tokenize.encoder import Encoder, sample


class Tokenized(NamedTuple):
    """A batch of documents as tokens."""

    tokens: np.ndarray  # (num_tokens,)
    lengths: np.ndarray  # (documents,)
    columns: dict[str, np.ndarray]
    documents: list[Documents]  # those that were tokenized, with the counts of what was left out
    referred: int  # documents, or texts, that the reference encoded


class TextMaker(Protocol):
    """Tokenizes batches of documents."""

    columns: tuple[str, ...]  # that it gives beside the tokens

    def __call__(self, unit: Unit, first: int, gathered: list[Documents]) -> Tokenized: ...

    def facts(self) -> dict[str, Any]:
        """What the shard's record says beside what others are made of."""


def text_maker(encoder: Encoder, unit: Unit) -> TextMaker:
    """What tokenizes this unit's documents."""
    if encoder.tokenizer.chat is None:
        return _Texts(encoder)
    return _Conversations(encoder, unit.parts[0].options.messages_column)


def concatenated(gathered: list[Documents]) -> pa.LargeStringArray:
    """The texts of several batches."""
    return pa.concat_arrays([documents.texts for documents in gathered])


class _Texts:
    """Each document is a text."""

    columns: tuple[str, ...] = ()

    def __init__(self, encoder: Encoder):
        self._encoder = encoder

    def __call__(self, unit: Unit, first: int, gathered: list[Documents]) -> Tokenized:
        texts = concatenated(gathered)
        tokens, lengths, referred = self._encoder.encode(texts)
        self._encoder.prove(texts, tokens, lengths, sample(unit.name, first, len(lengths)))
        return Tokenized(tokens, lengths, {}, gathered, referred)

    def facts(self) -> dict[str, Any]:
        return {}


class _Conversations:
    """Each document is a row of JSON with a conversation."""

    columns: tuple[str, ...] = (MASK.suffix, TARGETS.suffix)

    def __init__(self, encoder: Encoder, messages_column: str | None):
        self._encoder = ChatEncoder(encoder, messages_column)
        self._refused, self._broken = Counter[str](), 0

    def __call__(self, unit: Unit, first: int, gathered: list[Documents]) -> Tokenized:
        rows = concatenated(gathered)
        batch = self._encoder.encode(rows)
        if batch.broken:
            self._require_skipped(unit, gathered, *batch.broken[0])
        self._encoder.prove(rows, batch, sample(unit.name, first, len(batch.lengths)).tolist())
        self._refused += batch.refused
        self._broken += len(batch.broken)
        columns = {MASK.suffix: batch.mask, TARGETS.suffix: batch.targets}
        return Tokenized(batch.tokens, batch.lengths, columns, _kept(gathered, batch), batch.referred)

    def facts(self) -> dict[str, Any]:
        refused = {"refused": dict(sorted(self._refused.items()))} if self._refused else {}
        counts = {"broken_conversations": self._broken, "refused_conversations": self._refused.total()}
        return {name: count for name, count in counts.items() if count} | refused

    def _require_skipped(self, unit: Unit, gathered: list[Documents], number: int, reason: str) -> None:
        """ValueError that says where a row is that is no conversation, unless those are to be left out."""
        if unit.parts[0].options.skip_broken:
            return
        for documents in gathered:
            if number < len(documents.texts):
                file = unit.parts[documents.part].file
                place = f"{documents.locate(number)}: " if documents.locate else ""
                raise ValueError(f"{file.shown}: {place}{reason}; fix it, or leave such rows out by --skip-broken")
            number -= len(documents.texts)


def _kept(gathered: list[Documents], batch: ChatBatch) -> list[Documents]:
    """The documents that were tokenized, with the bytes of their texts in place of those of their JSON."""
    found, row, conversation = [], 0, 0
    for documents in gathered:
        kept = batch.kept[row : row + len(documents.texts)]
        count = int(kept.sum())
        columns = None if documents.kept is None else documents.kept.filter(mask_array(kept))
        text_bytes = int(batch.text_bytes[conversation : conversation + count].sum())
        texts = documents.texts.filter(mask_array(kept))
        found.append(replace(documents, texts=texts, text_bytes=text_bytes, kept=columns))
        row, conversation = row + len(documents.texts), conversation + count
    return found
