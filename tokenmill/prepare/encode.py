"""Documents of a unit -> tokens, and the columns beside them: of texts, or of conversations.

encoder, sentence = encoder_of(path, fingerprint, "auto")   of the set's tokenizer.json, once
encode = batch_encoder(encoder, options)
encoded = encode("a.000", 0, batches)             the first of them is document 0 of shard a.000
"""

import functools
import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tokenmill.chat.chat_encoder import ChatEncoder
from tokenmill.prepare.failures import ForAllError
from tokenmill.store.columns import MASK, TARGETS
from tokenmill.text.documents import DocumentBatch
from tokenmill.text.formats import ReadOptions
from tokenmill.text.text_arrays import text_lengths
from tokenmill.tokenize.choose_encoder import choose_encoder
from tokenmill.tokenize.encoder import Encoder, proof_sample, reference
from tokenmill.tokenize.load import load_any
from tokenmill.tokenize.tokenizer import Tokenizer


class Refused(NamedTuple):
    """A conversation that is left out."""

    reason: str
    batch: DocumentBatch
    number: int  # of the document in the batch


class Encoded(NamedTuple):
    """Some documents as tokens."""

    batches: list[DocumentBatch]  # the documents that were tokenized
    tokens: np.ndarray  # (num_tokens,)
    lengths: np.ndarray  # (documents,)
    text_bytes: int
    columns: dict[str, np.ndarray]
    lost: tuple[str, int]  # the characters of text that the tokens lack, and of how many
    broken: Sequence[Refused] = ()  # rows that are no conversation
    refused: Sequence[Refused] = ()


# of a shard's name, the number of the first document in it, and the documents
EncodeBatches = Callable[[str, int, list[DocumentBatch]], Encoded]


_loaded_early: dict[str, Tokenizer] = {}  # by fingerprint, in the process that is forked


def load_early(spec: str, bos_token: str | None) -> None:
    """Loads what --tokenizer names, which is most often the set's, while the set is planned."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = load_any(spec, bos_token)
    # makes what encodes, which takes as long as loading, and imports what Arrow needs
    reference(tokenizer)(pa.array(["a"], pa.large_string()))
    _loaded_early[tokenizer.fingerprint] = tokenizer


def is_loaded(fingerprint: str) -> bool:
    """Whether `load_early` has loaded the tokenizer with this fingerprint."""
    return fingerprint in _loaded_early


@functools.cache
def encoder_of(path: Path, fingerprint: str, engine: str) -> tuple[Encoder, str]:
    """What documents are encoded with, and what to say of it. All that workers share is made.

    ForAllError if the named engine cannot be used.
    """
    # every core has its process, and threads do not survive a fork
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        tokenizer = _loaded_early.get(fingerprint) or Tokenizer.load(path)
        encoder, why = choose_encoder(engine, tokenizer)
        encoder.warm()
    except ValueError as error:
        raise ForAllError(str(error)) from error
    slower = f", which is slower and gives the same ids: {why}" if why else ""
    return encoder, f"tokenizing with {encoder.engine}{slower}"


def batch_encoder(encoder: Encoder, options: ReadOptions) -> EncodeBatches:
    """What tokenizes a unit's documents."""
    if encoder.tokenizer.chat is None:
        return functools.partial(_encode_texts, encoder)
    chat = ChatEncoder(encoder, options.messages_column)
    return functools.partial(_encode_conversations, chat, options.skip_broken)


def _encode_texts(
    encoder: Encoder, shard: str, first: int, batches: list[DocumentBatch]
) -> Encoded:
    texts = pa.concat_arrays([batch.texts for batch in batches])
    tokens, lengths, _ = encoder.encode(texts)
    encoder.prove(texts, tokens, lengths, proof_sample(shard, first, len(lengths)))
    lost = encoder.lost.among(text.as_py() for text in texts)
    return Encoded(batches, tokens, lengths, int(text_lengths(texts).sum()), {}, lost)


def _encode_conversations(
    chat: ChatEncoder, skip_broken: bool, shard: str, first: int, batches: list[DocumentBatch]
) -> Encoded:
    rows = pa.concat_arrays([batch.texts for batch in batches])
    encoded = chat.encode(rows)
    begins = np.cumsum([0, *(len(batch.texts) for batch in batches)])

    def located(row: int) -> tuple[DocumentBatch, int]:
        place = int(np.searchsorted(begins, row, "right")) - 1
        return batches[place], row - int(begins[place])

    if encoded.broken and not skip_broken:
        row, reason = encoded.broken[0]
        batch, number = located(row)
        raise ValueError(
            f"{batch.place(number)}: {reason}; fix it, or leave such rows out by --skip-broken"
        )
    kept = []
    for batch, (begin, end) in zip(batches, pairwise(begins), strict=True):
        kept.append(batch.chosen(encoded.kept[begin:end]))
    columns: dict[str, Any] = {MASK.suffix: encoded.mask, TARGETS.suffix: encoded.targets}
    return Encoded(
        batches=kept,
        tokens=encoded.tokens,
        lengths=encoded.lengths,
        text_bytes=int(encoded.text_bytes.sum()),
        columns=columns,
        lost=encoded.lost,
        broken=[Refused(reason, *located(row)) for row, reason in encoded.broken],
        refused=[Refused(reason, *located(row)) for row, reason in encoded.refused],
    )
