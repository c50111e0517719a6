"""Conversations -> token ids and which of them are in the loss, a batch at a time.

    encoder = ChatEncoder(Encoder(tokenizer, "gigatoken"))
    batch = encoder.encode(rows)          rows are JSON, one of a conversation each

The ids are those of the tokenizer's library for the whole rendering, as transformers gives it, but what a text spells
never becomes a special token. A byte-level tokenizer encodes the texts between special tokens alone, all of a batch in
one call. One whose special tokens change the texts beside them (lstrip, rstrip, single_word), or that changes texts,
encodes each conversation as a whole. A token is in the loss if it begins in what is learned.
"""

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tokenmill.chat.conversations import (
    BrokenConversation,
    CannotMask,
    Conversation,
    Tokenized,
    read_conversation,
)
from tokenmill.chat.nanochat_turns import Segment, nanochat_segments
from tokenmill.extras import naming_the_extra
from tokenmill.tokenize.encoder import Encoder
from tokenmill.tokenize.huggingface import FLAGS, HuggingFace
from tokenmill.tokenize.tokenizer import Tokenizer, naming_the_library

LIKE_SPECIAL = re.compile(r"<\|[\w.-]+\|>|<｜[^｜<>]+｜>|<(?:start|end)_of_turn>")
KEEP_TEXTS = {"Sequence", "ByteLevel", "Split", "Digits"}  # types of pre-tokenizers


class ChatBatch(NamedTuple):
    """Conversations as tokens: those that are kept, one after the other."""

    tokens: np.ndarray  # (num_tokens,)
    lengths: np.ndarray  # (kept,)
    mask: np.ndarray  # (num_tokens,) bool: whether a token is in the loss
    targets: np.ndarray  # (kept,) how many tokens are in the loss
    text_bytes: np.ndarray  # (kept,) bytes of text, special tokens left out
    kept: np.ndarray  # (conversations,) bool
    refused: list[tuple[int, str]]  # number and reason of conversations that cannot be masked
    broken: list[tuple[int, str]]  # and of rows that are no conversation


class ChatEncoder:
    """Encodes conversations by the chat rule of a tokenizer."""

    def __init__(self, encoder: Encoder, messages_column: str | None = None):
        self.encoder, self.tokenizer, self._column = encoder, encoder.tokenizer, messages_column
        self._renderer, self._sizes = Renderer(self.tokenizer), self.tokenizer.token_bytes()

    def encode(self, rows: pa.LargeStringArray) -> ChatBatch:
        """The tokens of some rows of JSON. Raises ValueError if the engine and the reference differ in a text."""
        kept, refused, broken = (
            np.zeros(len(rows), bool),
            list[tuple[int, str]](),
            list[tuple[int, str]](),
        )
        rendered = list[list[Segment]]()
        for number, row in enumerate(rows.to_pylist()):
            try:
                rendered.append(self._renderer.render(read_conversation(row, self._column)))
                kept[number] = True
            except (BrokenConversation, RecursionError, CannotMask) as error:
                (refused if isinstance(error, CannotMask) else broken).append((number, str(error)))
        segments = [one for some in rendered for one in some]
        tokens, mask, ends = self._encoded(segments)
        bounds = np.cumsum([0, *map(len, rendered)])
        targets = np.diff(np.append(0, np.cumsum(mask))[ends[bounds]])
        sizes = np.cumsum(
            [0, *(0 if one.is_special else len(one.text.encode()) for one in segments)]
        )[bounds]
        return ChatBatch(
            tokens, np.diff(ends[bounds]), mask, targets, np.diff(sizes), kept, refused, broken
        )

    def _encoded(self, segments: list[Segment]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The tokens of all segments; whether each is in the loss; where those of each segment begin, and the end."""
        is_text = np.array([not one.is_special and one.known is None for one in segments], bool)
        texts = [one.text for one, is_one in zip(segments, is_text.tolist(), strict=True) if is_one]
        ids, counts, _ = self.encoder.encode_texts(pa.array(texts, pa.large_string()))
        sizes = np.array(
            [1 if one.known is None else len(one.known.ids) for one in segments], np.int64
        )
        sizes[is_text] = counts
        of_text, special = np.repeat(is_text, sizes), self.tokenizer.special_tokens
        tokens = np.empty(len(of_text), ids.dtype)
        tokens[of_text] = ids
        others = (
            [special[one.text]] if one.is_special else one.known.ids if one.known else []
            for one in segments
        )
        tokens[~of_text] = list(itertools.chain.from_iterable(others))
        mask = np.repeat(np.array([bool(one.learned) for one in segments], bool), sizes)
        ends = np.append(0, np.cumsum(sizes))
        for one, begin, end in zip(segments, ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            if one.known is not None:
                mask[begin:end] = one.known.in_loss
            elif one.learned and not one.is_special and one.learned != ((0, len(one.text)),):
                mask[begin:end] = self._in_loss(one, tokens[begin:end])
        return tokens, mask, ends

    def _in_loss(self, segment: Segment, ids: np.ndarray) -> np.ndarray:
        """Which tokens of a text that is learned in part begin in what is learned: (num_tokens,) bool."""
        text, learned, sizes = segment.text, segment.learned, self._sizes[ids]
        if not text.isascii():
            learned = tuple((len(text[:a].encode()), len(text[:b].encode())) for a, b in learned)
        ends = np.cumsum(sizes)
        assert ends[-1] == len(text.encode()), f"the tokens of {text[:40]!r} are not its bytes"
        return _within(ends - sizes, learned)


class Renderer:
    """Renders conversations by a tokenizer's chat rule. Raises ValueError if the tokenizer lacks what it needs."""

    def __init__(self, tokenizer: Tokenizer):
        rule = tokenizer.chat
        assert rule is not None, "only a tokenizer of a chat set renders conversations"
        self.tokenizer, self._rule = tokenizer, rule
        if lacks := [token for token in rule.needs if token not in tokenizer.special_tokens]:
            raise ValueError(
                f"the chat template {rule.name} needs special tokens that tokenizer {tokenizer.name} does not have: "
                f"{', '.join(lacks)}; use --chat chatml, or a tokenizer that has them: --tokenizer train:N makes one"
            )
        if rule.is_nanochat:
            return
        with naming_the_extra("chat"):
            from tokenmill.chat.marks import any_of
            from tokenmill.chat.templates import JinjaTemplate
            from tokenmill.chat.turns import TurnFinder
        if (written := set(LIKE_SPECIAL.findall(rule.template))) and written.isdisjoint(
            tokenizer.special_tokens
        ):
            found = (
                f"{min(written)}, which tokenizer {tokenizer.name} does not have as a special token"
            )
            raise ValueError(
                f"the chat template {rule.name} writes {found}; name its own tokenizer by --tokenizer"
            )
        template, special = (
            JinjaTemplate(rule.template, rule.variables),
            list(tokenizer.special_tokens),
        )
        self._finder, self._special = TurnFinder(template, special, rule.loss), any_of(special)
        self._is_whole, self._normalized = False, str
        if isinstance(tokenizer, HuggingFace):
            self._is_whole, normalizer = changes_texts(tokenizer), tokenizer.decoding.normalizer
            self._normalized = normalizer.normalize_str if normalizer else str

    def render(self, found: Conversation | Tokenized) -> list[Segment]:
        """A conversation that begins with BOS. Raises BrokenConversation or CannotMask."""
        bos = self.tokenizer.bos_token
        if isinstance(found, Tokenized):
            return [self._framed(found)]
        if self._rule.is_nanochat:
            segments = list(nanochat_segments(found, bos, self._rule.loss))
        else:
            text, learned, special = self._finder.find(found)
            if self._is_whole or not (text.isascii() or self._normalized(text) == text):
                return [self._as_a_whole(text, learned, len(special))]
            segments = list(_segments(text, learned, special))
            if not segments or not segments[0].is_special or segments[0].text != bos:
                segments = [Segment(bos, True, ()), *segments]
        self._require(
            sum(one.is_special and one.text == bos for one in segments),
            any(s.learned for s in segments[1:]),
        )
        return [segments[0]._replace(learned=()), *segments[1:]]

    def _as_a_whole(self, text: str, learned: list[tuple[int, int]], special: int) -> Segment:
        assert isinstance(self.tokenizer, HuggingFace), "others encode texts alone"
        if len(self._special.findall(text)) != special:
            raise CannotMask(
                "a text spells a special token, which this tokenizer cannot tell from the template's"
            )
        with naming_the_library(self.tokenizer.library, self.tokenizer.name):
            found = self.tokenizer.decoding.encode(text, add_special_tokens=False)
        in_loss = _within(np.array([first for first, _ in found.offsets], np.int64), learned)
        return self._framed(
            Tokenized(found.ids, in_loss.tolist()), "".join(self._special.split(text))
        )

    def _framed(self, found: Tokenized, text: str = "") -> Segment:
        bos, size = self.tokenizer.bos_id, self.tokenizer.vocab_size
        if not all(0 <= id < size for id in found.ids):
            raise BrokenConversation(
                f"expected input_ids from 0 to {size - 1:,}, as {self.tokenizer.name} has"
            )
        starts = found.ids[:1] == [bos]
        ids, in_loss = [bos, *found.ids[starts:]], [False, *found.in_loss[starts:]]
        self._require(ids.count(bos), any(in_loss))
        return Segment(text, False, (), Tokenized(ids, in_loss))

    def _require(self, num_bos: int, is_learned: bool) -> None:
        if num_bos != 1:
            raise CannotMask(
                f"{self.tokenizer.bos_token} is within a conversation; name another BOS by --bos-token"
            )
        if not is_learned:
            raise CannotMask("no token of it is in the loss")


def changes_texts(tokenizer: HuggingFace) -> bool:
    """Whether the ids of a rendering are not those of its special tokens and of the texts between them, each alone."""
    whole = tokenizer.parts
    steps, normalizer = (json.dumps(whole.get(part)) for part in ("pre_tokenizer", "normalizer"))
    types, normalizers = (set(re.findall(r'"type": "(\w+)"', part)) for part in (steps, normalizer))
    has_all_bytes = len({one for one in tokenizer.tokens.values() if len(one) == 1}) >= 256
    is_by_byte = (
        has_all_bytes
        and types <= KEEP_TEXTS
        and "ByteLevel" in types
        and normalizers <= {"Sequence", "NFC"}
    )
    takes_away = '"add_prefix_space": true' in steps or '"behavior": "Removed"' in steps
    added = whole.get("added_tokens") or []
    takes_beside = any(token.get(flag) for token in added for flag in FLAGS)
    is_normalized = any(token.get("normalized") and token.get("special") for token in added)
    return not is_by_byte or takes_away or takes_beside or is_normalized


def _segments(
    text: str, learned: list[tuple[int, int]], special: list[tuple[int, int]]
) -> Iterator[Segment]:
    """A rendering, cut at the special tokens that the template wrote."""
    done = 0
    for begin, end in [*special, (len(text), len(text))]:
        for a, b in ((done, begin), (begin, end)):
            if a < b:
                own = tuple(
                    (max(first, a) - a, min(last, b) - a)
                    for first, last in learned
                    if first < b and a < last
                )
                yield Segment(text[a:b], a == begin, own)
        done = end


def _within(begins: np.ndarray, learned: Sequence[tuple[int, int]]) -> np.ndarray:
    """Whether each token begins in one of these spans: (num_tokens,) bool."""
    return np.any(
        [np.zeros(len(begins), bool), *((begins >= a) & (begins < b) for a, b in learned)], axis=0
    )
