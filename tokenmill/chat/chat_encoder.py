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
        """The tokens of some rows of JSON."""
        kept, refused, broken = np.zeros(len(rows), bool), Counter[str](), list[tuple[int, str]]()
        conversations: list[list[Segment] | TokenizedConversation] = []
        for number, row in enumerate(rows.to_pylist()):
            try:
                conversations.append(self._rendered(row))
                kept[number] = True
            except BrokenConversation as error:
                broken.append((number, str(error)))
            except CannotMask as error:
                refused[str(error)] += 1
        return self._joined(conversations)._replace(kept=kept, refused=refused, broken=broken)

    def _rendered(self, row: str) -> list[Segment] | TokenizedConversation:
        return self._renderer.render(read_conversation(parse_row(row), self._column))

    def _joined(self, conversations: list[list[Segment] | TokenizedConversation]) -> ChatBatch:
        flat = [one for some in conversations if isinstance(some, list) for one in some]
        texts = pa.array([one.text for one in flat if not one.is_special], pa.large_string())
        ids, counts, _ = self.encoder.encode_texts(texts)
        is_text, sizes = np.array([not one.is_special for one in flat], bool), np.ones(len(flat), np.int64)
        sizes[is_text] = counts
        special = [self.tokenizer.special_tokens[one.text] for one in flat if one.is_special]
        tokens = np.empty(int(sizes.sum()), ids.dtype)
        of_text = np.repeat(is_text, sizes)
        tokens[of_text], tokens[~of_text] = ids, special
        mask = np.repeat(np.array([bool(one.learned) for one in flat], bool), sizes)
        ends, at, text_bytes = np.cumsum(sizes).tolist(), 0, 0
        for one, end in zip(flat, ends, strict=True):
            if one.learned and not one.is_special and one.learned != ((0, len(one.text)),):
                mask[at:end] = self._in_loss(one, tokens[at:end])
            at = end
        # cut into conversations
        found, number = list[tuple[np.ndarray, np.ndarray, int]](), 0
        for some in conversations:
            if isinstance(some, TokenizedConversation):
                found.append((np.asarray(some.ids, ids.dtype), np.asarray(some.in_loss, bool), some.text_bytes))
                continue
            first, number = (ends[number - 1] if number else 0), number + len(some)
            text_bytes = sum(len(one.text.encode()) for one in some if not one.is_special)
            found.append((tokens[first : ends[number - 1]], mask[first : ends[number - 1]], text_bytes))
        lengths = np.array([len(own) for own, _, _ in found], np.int64)
        targets = np.array([np.count_nonzero(own) for _, own, _ in found], np.int64)
        tokens = np.concatenate([tokens[:0], *(own for own, _, _ in found)])
        mask = np.concatenate([mask[:0], *(own for _, own, _ in found)])
        sizes = np.array([size for _, _, size in found], np.int64)
        nothing = np.zeros(0, bool), Counter[str](), list[tuple[int, str]]()
        return ChatBatch(tokens, lengths, mask, targets, sizes, *nothing)

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

    def prove(self, rows: pa.LargeStringArray, batch: ChatBatch, numbers: Sequence[int]) -> None:
        """Encodes some of the kept conversations, by their numbers among these, with the reference, one text at a time.

        Raises ValueError if any of them differ.
        """
        ends, places = np.cumsum(batch.lengths), np.flatnonzero(batch.kept)
        for number in numbers:
            row = rows[int(places[number])].as_py()
            found = self._rendered(row)
            if isinstance(found, TokenizedConversation):
                continue
            special, encode = self.tokenizer.special_tokens, self.tokenizer.encode
            parts = [np.array([special[one.text]]) if one.is_special else encode(one.text) for one in found]
            if not np.array_equal(
                np.concatenate(parts), batch.tokens[ends[number] - batch.lengths[number] : ends[number]]
            ):
                raise ValueError(
                    f"{self.encoder.engine} and {self.tokenizer.library} encode a conversation differently, which "
                    f"begins {row[:80]!r}; run again with --engine tiktoken, and please report it"
                )


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
