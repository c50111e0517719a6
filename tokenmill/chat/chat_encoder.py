"""Conversations -> token ids and which of them are in the loss, a batch at a time.

    encoder = ChatEncoder(Encoder(tokenizer, "gigatoken"))
    batch = encoder.encode(rows)          rows are JSON, one of a conversation each

All texts of a batch are tokenized in one call. A token is in the loss if its first character is: of text that is
learned in part, as "assistant\n" and what follows it, the bytes that each token stands for say where it begins.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tokenmill.cached import cached_property
from tokenmill.chat.conversations import (
    BrokenConversation,
    CannotMask,
    Segment,
    TokenizedConversation,
    parse_row,
    read_conversation,
)
from tokenmill.chat.renderer import Renderer, within
from tokenmill.tokenize.encoder import Encoder


class ChatBatch(NamedTuple):
    """Conversations as tokens: those that are kept, one after the other."""

    tokens: np.ndarray  # (num_tokens,)
    lengths: np.ndarray  # (kept,)
    mask: np.ndarray  # (num_tokens,) bool: whether a token is in the loss
    targets: np.ndarray  # (kept,) how many tokens are in the loss
    text_bytes: np.ndarray  # (kept,) bytes of text, special tokens left out
    kept: np.ndarray  # (conversations,) bool
    refused: Counter[str]  # how many conversations cannot be masked, by reason
    broken: list[tuple[int, str]]  # number and reason of rows that are no conversation


class ChatEncoder:
    """Encodes conversations by the chat rule of a tokenizer."""

    def __init__(self, encoder: Encoder, messages_column: str | None = None):
        self.encoder, self.tokenizer, self._column = encoder, encoder.tokenizer, messages_column
        self._renderer = Renderer(self.tokenizer)

    def encode(self, rows: pa.LargeStringArray) -> ChatBatch:
        """The tokens of some rows of JSON. Raises ValueError if the engine and the reference differ in a text."""
        kept, refused, broken = np.zeros(len(rows), bool), Counter[str](), list[tuple[int, str]]()
        rendered: list[list[Segment] | TokenizedConversation] = []
        for number, row in enumerate(rows.to_pylist()):
            try:
                rendered.append(self._renderer.render(read_conversation(parse_row(row), self._column)))
                kept[number] = True
            except BrokenConversation as error:
                broken.append((number, str(error)))
            except CannotMask as error:
                refused[str(error)] += 1
        tokens, mask, ends = self._encoded([one for some in rendered if isinstance(some, list) for one in some])
        all_tokens, all_masks, text_bytes, number = [tokens[:0]], [mask[:0]], list[int](), 0
        for some in rendered:
            if isinstance(some, TokenizedConversation):
                all_tokens.append(np.asarray(some.ids, tokens.dtype))
                all_masks.append(np.asarray(some.in_loss, bool))
                text_bytes.append(some.text_bytes)
            else:
                own, number = slice(ends[number], ends[number + len(some)]), number + len(some)
                all_tokens.append(tokens[own])
                all_masks.append(mask[own])
                text_bytes.append(sum(len(one.text.encode()) for one in some if not one.is_special))
        lengths, targets = (
            np.array([count(one) for one in some[1:]], np.int64)
            for count, some in ((len, all_tokens), (np.count_nonzero, all_masks))
        )
        whole = np.concatenate(all_tokens), lengths, np.concatenate(all_masks), targets
        return ChatBatch(*whole, np.array(text_bytes, np.int64), kept, refused, broken)

    def _encoded(self, segments: list[Segment]) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """The tokens of all segments; whether each is in the loss; where those of each segment begin, and the end."""
        texts = [one.text for one in segments if not one.is_special]
        ids, counts, _ = self.encoder.encode_texts(pa.array(texts, pa.large_string()))
        is_text, sizes = np.array([not one.is_special for one in segments], bool), np.ones(len(segments), np.int64)
        sizes[is_text] = counts
        of_text = np.repeat(is_text, sizes)
        tokens = np.empty(len(of_text), ids.dtype)
        tokens[of_text] = ids
        tokens[~of_text] = [self.tokenizer.special_tokens[one.text] for one in segments if one.is_special]
        mask = np.repeat(np.array([bool(one.learned) for one in segments], bool), sizes)
        ends = [0, *np.cumsum(sizes).tolist()]
        for one, begin, end in zip(segments, ends, ends[1:], strict=False):
            if one.learned and not one.is_special and one.learned != ((0, len(one.text)),):
                mask[begin:end] = self._in_loss(one, tokens[begin:end])
        return tokens, mask, ends

    def _in_loss(self, segment: Segment, ids: np.ndarray) -> np.ndarray:
        """Which tokens of a text that is learned in part begin in what is learned: (num_tokens,) bool."""
        text, learned, sizes = segment.text, segment.learned, self._sizes[ids]
        if not text.isascii():
            learned = tuple((len(text[:a].encode()), len(text[:b].encode())) for a, b in learned)
        ends = np.cumsum(sizes)
        assert ends[-1] == len(text.encode()), f"the tokens of {text[:40]!r} are not its bytes"
        return within(ends - sizes, learned)

    @cached_property
    def _sizes(self) -> np.ndarray:
        """Bytes that each id stands for: (vocab_size,) int64."""
        sizes = np.zeros(self.tokenizer.vocab_size, np.int64)
        sizes[list(self.tokenizer.tokens)] = list(map(len, self.tokenizer.tokens.values()))
        return sizes
