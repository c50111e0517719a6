"""Conversations -> token ids and which of them are in the loss, a batch at a time.

    encoder = ChatEncoder(Encoder(tokenizer, "gigatoken"))
    batch = encoder.encode(rows)          rows are JSON, one of a conversation each

The ids are those of the tokenizer's library for the whole rendering, as transformers gives it, but
what a text spells never becomes a special token. The texts of a batch are encoded in one call. A
token is in the loss if it begins in what is in the loss.
"""

from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tokenmill.chat.conversations import CannotMask, read_conversation
from tokenmill.chat.message import BrokenConversation
from tokenmill.chat.renderer import Renderer, are_within
from tokenmill.chat.segments import Segment
from tokenmill.tokenize.encoder import Encoder

Problem = tuple[int, str]  # the number of a row, and what is wrong with it


class ChatBatch(NamedTuple):
    """Conversations as tokens: those that are kept, one after the other."""

    tokens: np.ndarray  # (num_tokens,)
    lengths: np.ndarray  # (kept,)
    mask: np.ndarray  # (num_tokens,) bool: whether a token is in the loss
    targets: np.ndarray  # (kept,) how many tokens are in the loss
    text_bytes: np.ndarray  # (kept,) bytes of text, special tokens left out
    lost: tuple[str, int]  # the characters of text that the tokens lack, and of how many
    kept: np.ndarray  # (conversations,) bool
    refused: list[Problem]  # conversations that cannot be masked
    broken: list[Problem]  # rows that are no conversation


class ChatEncoder:
    """Encodes conversations by the chat rule of a tokenizer."""

    def __init__(self, encoder: Encoder, messages_column: str | None = None):
        self.encoder = encoder
        self.tokenizer = encoder.tokenizer
        self._column = messages_column
        self._renderer = Renderer(self.tokenizer)
        self._bytes_of_ids = self.tokenizer.token_bytes()

    def encode(self, rows: pa.LargeStringArray) -> ChatBatch:
        """The tokens of some rows of JSON.

        Raises ValueError if the engine and the reference differ in a text.
        """
        kept = np.zeros(len(rows), bool)
        refused: list[Problem] = []
        broken: list[Problem] = []
        rendered: list[list[Segment]] = []
        for number, row in enumerate(rows.to_pylist()):
            try:
                conversation = read_conversation(row, self._column)
                rendered.append(self._renderer.render(conversation))
                kept[number] = True
            except CannotMask as error:
                refused.append((number, str(error)))
            except (BrokenConversation, RecursionError) as error:
                broken.append((number, str(error)))
        segments = list(chain.from_iterable(rendered))
        tokens, mask, token_begins = self._encode(segments)
        text_sizes = [0 if each.is_special else len(each.text.encode()) for each in segments]
        begins = _cumulative([len(each) for each in rendered])  # of conversations, in segments
        bounds = token_begins[begins]
        texts = (segment.text for segment in segments if not segment.is_special)
        return ChatBatch(
            tokens=tokens,
            lengths=np.diff(bounds),
            mask=mask,
            targets=np.diff(_cumulative(mask)[bounds]),
            text_bytes=np.diff(_cumulative(text_sizes)[begins]),
            lost=self.encoder.lost.among(texts),
            kept=kept,
            refused=refused,
            broken=broken,
        )

    def _encode(self, segments: list[Segment]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The tokens of all segments, whether each is in the loss, and where each segment's begin.

        (num_tokens,), (num_tokens,) bool, (num_segments + 1,).
        """
        texts = [segment.text for segment in segments if segment.is_text]
        ids, counts, _ = self.encoder.encode_texts(pa.array(texts, pa.large_string()))
        special = self.tokenizer.special_tokens
        known_ids: list[int] = []
        sizes = np.ones(len(segments), np.int64)
        for number, segment in enumerate(segments):
            if segment.is_special:
                known_ids.append(special[segment.text])
            elif segment.known is not None:
                known_ids += segment.known.ids
                sizes[number] = len(segment.known.ids)
        is_text = np.array([segment.is_text for segment in segments], bool)
        sizes[is_text] = counts
        is_of_text = np.repeat(is_text, sizes)
        tokens = np.empty(len(is_of_text), ids.dtype)
        tokens[is_of_text] = ids
        tokens[~is_of_text] = known_ids
        begins = _cumulative(sizes)
        return tokens, self._mask(segments, tokens, begins), begins

    def _mask(self, segments: list[Segment], tokens: np.ndarray, begins: np.ndarray) -> np.ndarray:
        """Whether each token is in the loss: (num_tokens,) bool."""
        has_loss = np.array([bool(segment.in_loss) for segment in segments], bool)
        mask = np.repeat(has_loss, np.diff(begins))
        edges = begins.tolist()
        for segment, begin, end in zip(segments, edges[:-1], edges[1:], strict=True):
            if segment.known is not None:
                mask[begin:end] = segment.known.in_loss
            elif segment.is_text and segment.in_loss not in ((), ((0, len(segment.text)),)):
                mask[begin:end] = self._mask_of_text(segment, tokens[begin:end])
        return mask

    def _mask_of_text(self, segment: Segment, ids: np.ndarray) -> np.ndarray:
        """Which tokens of a text begin in what of it is in the loss: (num_tokens,) bool."""
        text = segment.text
        spans = segment.in_loss
        if not text.isascii():
            spans = tuple(
                (len(text[:begin].encode()), len(text[:end].encode())) for begin, end in spans
            )
        begins = _cumulative(self._bytes_of_ids[ids])
        assert begins[-1] == len(text.encode()), f"the tokens of {text[:40]!r} are not its bytes"
        return are_within(begins[:-1], spans)


def _cumulative(sizes: np.ndarray | list[int]) -> np.ndarray:
    """The sums of the first 0, 1 ... sizes, so where each of what has them begins: (count + 1,)."""
    sums = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=sums[1:])
    return sums
