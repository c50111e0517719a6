"""A conversation -> segments, by the chat rule of a tokenizer.

A byte-level tokenizer encodes the texts between special tokens alone. One whose special tokens
change the texts beside them (lstrip, rstrip, single_word), or that changes texts, encodes each
conversation as a whole.
"""

import contextlib
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tokenmill.chat.conversations import CannotMask, Conversation, Tokenized
from tokenmill.chat.message import BrokenConversation
from tokenmill.chat.nanochat_turns import nanochat_segments
from tokenmill.chat.segments import Segment, Span, cut_at_special
from tokenmill.extras import naming_the_extra
from tokenmill.tokenize.chat_rule import ChatRule
from tokenmill.tokenize.huggingface import FLAGS, HuggingFace
from tokenmill.tokenize.libraries import naming_the_library
from tokenmill.tokenize.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenmill.chat.templates import JinjaTemplate

LIKE_SPECIAL = re.compile(r"<\|[\w.-]+\|>|<｜[^｜<>]+｜>|<(?:start|end)_of_turn>")
# of a short conversation, that shows what a template writes; some have no place for the first
ROLES = ("system", "user", "assistant")
TYPE = re.compile(r'"type": "(\w+)"')
KEEP_TEXTS = {"Sequence", "ByteLevel", "Split", "Digits"}  # types of pre-tokenizers
KEEP_MOST = {"Sequence", "NFC"}  # types of normalizers: each text is looked at
NUM_BYTES = 256


class Renderer:
    """Renders conversations. Raises ValueError if the tokenizer lacks what its rule needs."""

    def __init__(self, tokenizer: Tokenizer):
        rule = tokenizer.chat
        assert rule is not None, "only a tokenizer of a chat set renders conversations"
        self.tokenizer = tokenizer
        self._rule = rule
        self.written: list[str] = []  # what looks like special tokens in what the template writes
        _require_needed_tokens(tokenizer, rule)
        if rule.is_nanochat:
            return
        with naming_the_extra("chat"):
            from tokenmill.chat.marks import any_of
            from tokenmill.chat.templates import JinjaTemplate
            from tokenmill.chat.turns import TurnFinder
        template = JinjaTemplate(rule.template, rule.variables)
        self.written = _written_tokens(template, rule)
        _require_written_tokens(tokenizer, rule, self.written)
        special = list(tokenizer.special_tokens)
        self._finder = TurnFinder(template, special, rule.loss)
        self._special = any_of(special)
        self._changes_texts = False
        self._normalizer = None
        if isinstance(tokenizer, HuggingFace):
            self._changes_texts = changes_texts(tokenizer)
            self._normalizer = tokenizer.decoding.normalizer

    def unlearned_end(self) -> str | None:
        """What ends the assistant's turns and is not in the loss: a model would never stop."""
        if self._rule.is_nanochat:
            return None
        from tokenmill.chat.turn_ends import unlearned_end

        return unlearned_end(self._finder.template, self._special)

    def render(self, conversation: Conversation | Tokenized) -> list[Segment]:
        """A conversation that begins with BOS. Raises BrokenConversation or CannotMask."""
        bos = self.tokenizer.bos_token
        if isinstance(conversation, Tokenized):
            return [self._known(conversation)]
        if self._rule.is_nanochat:
            segments = nanochat_segments(conversation, bos, self._rule.loss)
        else:
            text, in_loss, special = self._finder.find(conversation)
            if self._changes_texts or not self._is_normalized(text):
                return [self._encoded_as_a_whole(text, in_loss, len(special))]
            segments = list(cut_at_special(text, in_loss, special))
            if not segments or not segments[0].is_special or segments[0].text != bos:
                segments.insert(0, Segment(bos, is_special=True))
        num_bos = sum(segment.is_special and segment.text == bos for segment in segments)
        first, *later = segments
        self._require_maskable(num_bos, any(segment.in_loss for segment in later))
        return [first._replace(in_loss=()), *later]

    def _is_normalized(self, text: str) -> bool:
        if self._normalizer is None or text.isascii():
            return True
        return bool(self._normalizer.normalize_str(text) == text)

    def _encoded_as_a_whole(self, text: str, spans: Sequence[Span], num_special: int) -> Segment:
        """A rendering with `num_special` special tokens, of which these spans are in the loss."""
        assert isinstance(self.tokenizer, HuggingFace), "others encode texts alone"
        if len(self._special.findall(text)) != num_special:
            raise CannotMask(
                "a text spells a special token, which this tokenizer cannot tell from the "
                "template's"
            )
        with naming_the_library(self.tokenizer.library, self.tokenizer.name):
            encoded = self.tokenizer.decoding.encode(text, add_special_tokens=False)
        begins = np.array([begin for begin, _ in encoded.offsets], np.int64)
        tokenized = Tokenized(encoded.ids, are_within(begins, spans).tolist())
        texts = self._special.split(text)
        return self._known(tokenized, "".join(texts))

    def _known(self, tokenized: Tokenized, text: str = "") -> Segment:
        """A conversation whose ids are known, from BOS on."""
        bos_id = self.tokenizer.bos_id
        size = self.tokenizer.vocab_size
        ids, in_loss = tokenized
        if not all(0 <= id < size for id in ids):
            raise BrokenConversation(
                f"expected input_ids from 0 to {size - 1:,}, as {self.tokenizer.name} has"
            )
        if ids[:1] == [bos_id]:
            ids = ids[1:]
            in_loss = in_loss[1:]
        tokenized = Tokenized([bos_id, *ids], [False, *in_loss])
        self._require_maskable(tokenized.ids.count(bos_id), any(tokenized.in_loss))
        return Segment(text, known=tokenized)

    def _require_maskable(self, num_bos: int, has_loss: bool) -> None:
        if num_bos != 1:
            raise CannotMask(
                f"{self.tokenizer.bos_token} is within a conversation; name another BOS by "
                "--bos-token, which --add-tokens may add"
            )
        if not has_loss:
            raise CannotMask("no token of it is in the loss")


def _require_needed_tokens(tokenizer: Tokenizer, rule: ChatRule) -> None:
    missing = [token for token in rule.needs if token not in tokenizer.special_tokens]
    if missing:
        raise ValueError(
            f"the chat template {rule.name} needs special tokens that tokenizer {tokenizer.name} "
            f"does not have: {', '.join(missing)}; use --chat chatml, or a tokenizer that has "
            "them: --tokenizer train:N makes one"
        )


def _written_tokens(template: "JinjaTemplate", rule: ChatRule) -> list[str]:
    """What looks like special tokens in a template, and in what it writes of a conversation.

    A template may put them together, as `<|{{ role }}|>`.
    """
    texts = [rule.template]
    for roles in (ROLES, ROLES[1:]):
        with contextlib.suppress(CannotMask):
            text, _ = template.render([{"role": role, "content": role} for role in roles])
            texts.append(text)
            break
    return list(dict.fromkeys(LIKE_SPECIAL.findall("\n".join(texts))))


def _require_written_tokens(tokenizer: Tokenizer, rule: ChatRule, written: list[str]) -> None:
    """ValueError if a template writes what looks like special tokens, and has none of them."""
    if written and set(written).isdisjoint(tokenizer.special_tokens):
        raise ValueError(
            f"the chat template {rule.name} writes {min(written)}, which tokenizer "
            f"{tokenizer.name} does not have as a special token; name its own tokenizer by "
            "--tokenizer, or add the tokens that it writes by --add-tokens"
        )


def changes_texts(tokenizer: HuggingFace) -> bool:
    """Whether a rendering has other ids than its special tokens and the texts between, alone."""
    parts = tokenizer.parts
    splits = json.dumps(parts.get("pre_tokenizer"))
    types = set(TYPE.findall(splits))
    normalizers = set(TYPE.findall(json.dumps(parts.get("normalizer"))))
    byte_tokens = {token for token in tokenizer.tokens.values() if len(token) == 1}
    if len(byte_tokens) < NUM_BYTES or "ByteLevel" not in types:
        return True
    if not types <= KEEP_TEXTS or not normalizers <= KEEP_MOST:
        return True
    if '"add_prefix_space": true' in splits or '"behavior": "Removed"' in splits:
        return True
    for token in parts.get("added_tokens") or []:
        if any(token.get(flag) for flag in FLAGS):  # it takes what is beside it
            return True
        if token.get("normalized") and token.get("special"):
            return True
    return False


def are_within(begins: np.ndarray, spans: Sequence[Span]) -> np.ndarray:
    """Whether each token begins in one of these spans: (num_tokens,) bool."""
    inside = np.zeros(len(begins), bool)
    for begin, end in spans:
        inside |= (begins >= begin) & (begins < end)
    return inside
