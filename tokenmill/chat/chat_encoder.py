"""Conversations -> token ids and which of them are in the loss, a batch at a time.

    encoder = ChatEncoder(Encoder(tokenizer, "gigatoken"))
    batch = encoder.encode(rows)          rows are JSON, one of a conversation each

All texts of a batch are tokenized in one call. A token is in the loss if its first character is: of text that is
learned in part, as "assistant\n" and what follows it, the bytes that each token stands for say where it begins. A
tokenizer whose special tokens change the texts beside them, or that writes spaces otherwise where a text begins,
encodes each conversation as a whole, and its library says where tokens begin.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tokenmill.cached import cached_property
from tokenmill.chat import library_texts
from tokenmill.chat.conversations import (
    BrokenConversation,
    CannotMask,
    Conversation,
    Segment,
    TokenizedConversation,
    parse_row,
    read_conversation,
    texts_of,
)
from tokenmill.chat.nanochat_turns import nanochat_segments
from tokenmill.extras import naming_the_extra
from tokenmill.tokenize.encoder import Encoder
from tokenmill.tokenize.tokenizer import Tokenizer

PROVEN_ONE_IN = 512  # texts of a batch, its first one among them, which the reference encodes too


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
        self._renderer, self._spells_texts = Renderer(self.tokenizer), library_texts.spells_texts(self.tokenizer)

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
        segments = [one for some in rendered if isinstance(some, list) for one in some]
        tokens, mask, ends = self._encoded(segments)
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
        lengths = np.array([len(one) for one in all_tokens[1:]], np.int64)
        targets = np.array([np.count_nonzero(one) for one in all_masks[1:]], np.int64)
        counts = lengths, np.concatenate(all_masks), targets, np.array(text_bytes, np.int64)
        return ChatBatch(np.concatenate(all_tokens), *counts, kept, refused, broken)

    def _encoded(self, segments: list[Segment]) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """The tokens of all segments; whether each is in the loss; where those of each segment begin, and the end."""
        texts = [one.text for one in segments if not one.is_special]
        ids, counts, _ = self.encoder.encode_texts(pa.array(texts, pa.large_string()))
        self._prove(texts, ids, counts)
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

    def _prove(self, texts: list[str], ids: np.ndarray, counts: np.ndarray) -> None:
        ends = np.cumsum(counts)
        for number in range(0, 0 if self.encoder.is_reference else len(texts), PROVEN_ONE_IN):
            own = ids[ends[number] - counts[number] : ends[number]]
            if not np.array_equal(own, self.tokenizer.encode(texts[number])):
                raise ValueError(
                    f"{self.encoder.engine} and {self.tokenizer.library} differ in the text {texts[number][:80]!r}; "
                    "run again with --engine tiktoken, and please report it"
                )

    def _in_loss(self, segment: Segment, ids: np.ndarray) -> np.ndarray:
        """Which tokens of a text that is learned in part begin in what is learned: (num_tokens,) bool."""
        text, learned, begins = segment.text, segment.learned, self._begins(segment.text, ids)
        if begins is None:
            begins = library_texts.begins(self.tokenizer, text, ids)
        elif not text.isascii():
            learned = tuple((len(text[:a].encode()), len(text[:b].encode())) for a, b in learned)
        return _within(begins, learned)

    def _begins(self, text: str, ids: np.ndarray) -> np.ndarray | None:
        """The byte of the text that each token begins with; None if tokens do not stand for the text's own bytes."""
        data, sizes = text.encode(), self._sizes[ids]
        ends: np.ndarray = np.cumsum(sizes)
        is_spelled = (int(ends[-1]) if len(ids) else 0) == len(data)
        if is_spelled and not self._spells_texts:
            is_spelled = b"".join([self.tokenizer.tokens[id] for id in ids.tolist()]) == data
        return ends - sizes if is_spelled else None

    @cached_property
    def _sizes(self) -> np.ndarray:
        """Bytes that each id stands for: (vocab_size,) int64."""
        sizes = np.zeros(self.tokenizer.vocab_size, np.int64)
        sizes[list(self.tokenizer.tokens)] = list(map(len, self.tokenizer.tokens.values()))
        return sizes


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
            from tokenmill.chat.jinja_templates import JinjaTemplate
            from tokenmill.chat.marks import any_of
            from tokenmill.chat.turns import TurnFinder
        template, special = JinjaTemplate(rule.template, rule.variables), list(tokenizer.special_tokens)
        self._finder, self._special = TurnFinder(template, special, rule.loss), any_of(special)
        self._is_whole = library_texts.depends_on_neighbors(tokenizer)

    def render(self, found: Conversation | TokenizedConversation) -> list[Segment] | TokenizedConversation:
        """A conversation that begins with BOS. Raises BrokenConversation or CannotMask."""
        bos = self.tokenizer.bos_token
        if isinstance(found, TokenizedConversation):
            return self._framed(found)
        if self._rule.is_nanochat:
            segments = list(nanochat_segments(found, bos, self._rule.loss))
        else:
            text, learned, special = self._finder.find(found)
            if self._is_whole:
                return self._framed(self._as_a_whole(text, learned, len(special)))
            segments = list(_segments(text, learned, special))
            if not segments or not segments[0].is_special or segments[0].text != bos:
                segments = [Segment(bos, True, ()), *segments]
        self._require(sum(one.is_special and one.text == bos for one in segments), any(s.learned for s in segments[1:]))
        return [segments[0]._replace(learned=()), *segments[1:]]

    def _as_a_whole(self, text: str, learned: list[tuple[int, int]], special: int) -> TokenizedConversation:
        spelled = self._special.findall(text)
        if len(spelled) != special:
            raise CannotMask("a text spells a special token, which this tokenizer cannot tell from the template's")
        ids, begins = library_texts.encode_whole(self.tokenizer, text)
        return TokenizedConversation(ids, _within(begins, learned).tolist(), len(text.encode()) - len("".join(spelled)))

    def _framed(self, found: TokenizedConversation) -> TokenizedConversation:
        bos, size = self.tokenizer.bos_id, self.tokenizer.vocab_size
        if not all(0 <= id < size for id in found.ids):
            raise BrokenConversation(
                f"input_ids must be from 0 to {size - 1:,}, as tokenizer {self.tokenizer.name} has"
            )
        starts = found.ids[:1] == [bos]
        ids, in_loss = [bos, *found.ids[starts:]], [False, *found.in_loss[starts:]]
        self._require(ids.count(bos), any(in_loss))
        return found._replace(ids=ids, in_loss=in_loss)

    def _require(self, num_bos: int, is_learned: bool) -> None:
        if num_bos != 1:
            raise CannotMask(
                f"{self.tokenizer.bos_token} is within a conversation, where BOS only begins documents; name another "
                "special token by --bos-token"
            )
        if not is_learned:
            raise CannotMask("no token of it is in the loss")


def texts_of_row(row: str, column: str | None = None) -> list[str]:
    """The texts of a row's messages, to train a tokenizer on; none of a row that is no conversation."""
    try:
        return texts_of(read_conversation(parse_row(row), column))
    except BrokenConversation:
        return []


def _segments(text: str, learned: list[tuple[int, int]], special: list[tuple[int, int]]) -> Iterator[Segment]:
    """A rendering, cut at the special tokens that the template wrote."""
    done = 0
    for begin, end in [*special, (len(text), len(text))]:
        for a, b in ((done, begin), (begin, end)):
            if a < b:
                own = tuple((max(first, a) - a, min(last, b) - a) for first, last in learned if first < b and a < last)
                yield Segment(text[a:b], a == begin, own)
        done = end


def _within(begins: np.ndarray, learned: Sequence[tuple[int, int]]) -> np.ndarray:
    """Whether each token begins in one of these spans: (num_tokens,) bool."""
    found = np.zeros(len(begins), bool)
    for first, last in learned:
        found |= (begins >= first) & (begins < last)
    return found
