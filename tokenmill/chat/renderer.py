"""A conversation -> segments: special tokens, and the texts between them, each of which is tokenized as a whole.

    Renderer(tokenizer).render(conversation)          <|im_start|>  "assistant\\nHello", learned from 10 on  <|im_end|>

The ids are those of the library for the whole rendering, as transformers gives it, but what a text spells never becomes
a special token. For a byte-level tokenizer, texts can be tokenized alone. One whose special tokens change the texts
beside them (lstrip, rstrip, single_word), or that changes texts itself, tokenizes each conversation as a whole, and its
library says where tokens begin.
"""

import json
import re
from collections.abc import Iterator, Sequence

import numpy as np

from tokenmill.chat.conversations import (
    BrokenConversation,
    CannotMask,
    Conversation,
    Segment,
    TokenizedConversation,
)
from tokenmill.chat.nanochat_turns import nanochat_segments
from tokenmill.extras import naming_the_extra
from tokenmill.tokenize.huggingface import HuggingFace
from tokenmill.tokenize.library_errors import naming_the_library
from tokenmill.tokenize.tokenizer import Tokenizer

FLAGS = ("lstrip", "rstrip", "single_word")  # of an added token, by which it takes or needs what is beside it
KEEP_TEXTS = {"Sequence", "ByteLevel", "Split", "Digits"}  # types of pre-tokenizers


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
        self._is_whole, self._normalizer = False, None
        if isinstance(tokenizer, HuggingFace):
            self._is_whole, self._normalizer = changes_texts(tokenizer), tokenizer.decoding.normalizer

    def render(self, found: Conversation | TokenizedConversation) -> list[Segment] | TokenizedConversation:
        """A conversation that begins with BOS. Raises BrokenConversation or CannotMask."""
        bos = self.tokenizer.bos_token
        if isinstance(found, TokenizedConversation):
            return self._framed(found)
        if self._rule.is_nanochat:
            segments = list(nanochat_segments(found, bos, self._rule.loss))
        else:
            text, learned, special = self._finder.find(found)
            if self._is_whole or self._is_changed(text):
                return self._framed(self._as_a_whole(text, learned, len(special)))
            segments = list(_segments(text, learned, special))
            if not segments or not segments[0].is_special or segments[0].text != bos:
                segments = [Segment(bos, True, ()), *segments]
        self._require(sum(one.is_special and one.text == bos for one in segments), any(s.learned for s in segments[1:]))
        return [segments[0]._replace(learned=()), *segments[1:]]

    def _is_changed(self, text: str) -> bool:
        """Whether the tokenizer normalizes a text to another one."""
        return self._normalizer is not None and not text.isascii() and self._normalizer.normalize_str(text) != text

    def _as_a_whole(self, text: str, learned: list[tuple[int, int]], special: int) -> TokenizedConversation:
        assert isinstance(self.tokenizer, HuggingFace), "others encode texts alone"
        spelled = self._special.findall(text)
        if len(spelled) != special:
            raise CannotMask("a text spells a special token, which this tokenizer cannot tell from the template's")
        with naming_the_library(self.tokenizer.library, self.tokenizer.name):
            found = self.tokenizer.decoding.encode(text, add_special_tokens=False)
        in_loss = within(np.array([first for first, _ in found.offsets], np.int64), learned)
        return TokenizedConversation(found.ids, in_loss.tolist(), len(text.encode()) - len("".join(spelled)))

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


def changes_texts(tokenizer: HuggingFace) -> bool:
    """Whether the ids of a rendering are not those of its special tokens and of the texts between them, each alone."""
    whole = json.loads(tokenizer.whole)
    added, steps = whole.get("added_tokens") or [], json.dumps(whole.get("pre_tokenizer"))
    types, normalizers = (
        set(re.findall(r'"type": "(\w+)"', text)) for text in (steps, json.dumps(whole.get("normalizer")))
    )
    has_all_bytes = len({one for one in tokenizer.tokens.values() if len(one) == 1}) >= 256
    is_by_byte = has_all_bytes and types <= KEEP_TEXTS and "ByteLevel" in types
    takes_away = '"add_prefix_space": true' in steps or '"behavior": "Removed"' in steps
    has_flags = any(one.get(flag) for one in added for flag in FLAGS)
    is_normalized = any(one.get("normalized") and one.get("special") for one in added)
    return not is_by_byte or takes_away or not normalizers <= {"Sequence", "NFC"} or has_flags or is_normalized


def _segments(text: str, learned: list[tuple[int, int]], special: list[tuple[int, int]]) -> Iterator[Segment]:
    """A rendering, cut at the special tokens that the template wrote."""
    done = 0
    for begin, end in [*special, (len(text), len(text))]:
        for a, b in ((done, begin), (begin, end)):
            if a < b:
                own = tuple((max(first, a) - a, min(last, b) - a) for first, last in learned if first < b and a < last)
                yield Segment(text[a:b], a == begin, own)
        done = end


def within(begins: np.ndarray, learned: Sequence[tuple[int, int]]) -> np.ndarray:
    """Whether each token begins in one of these spans: (num_tokens,) bool."""
    found = np.zeros(len(begins), bool)
    for first, last in learned:
        found |= (begins >= first) & (begins < last)
    return found
