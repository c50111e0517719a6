"""Conversations -> token ids and which of them bear loss, a batch at a time.

    encoder = ChatEncoder(Encoder(tokenizer, "gigatoken"))
    batch = encoder.encode(rows)          rows are JSON, one of a conversation each

All texts of a batch are tokenized in one call. A token bears loss if its first character does: of text that is learned
in part, as "assistant\n" and what follows it, the bytes that each token stands for say where it begins. Where a
tokenizer changes the text (a normalizer), its library says that.
"""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from tokenmill.cached import cached_property
from tokenmill.chat import others_texts
from tokenmill.chat.conversations import (
    BrokenConversation,
    Conversation,
    TokenizedConversation,
    read_conversation,
    texts_of,
)
from tokenmill.chat.jinja_templates import CannotRender, JinjaTemplate
from tokenmill.chat.nanochat_turns import nanochat_stretches
from tokenmill.chat.turns import CannotMask, Stretch, TurnFinder, any_of
from tokenmill.tokenize.encoder import Encoder
from tokenmill.tokenize.tokenizer import Tokenizer

# that Hugging Face's library strips: Unicode's white space, which has four control characters fewer than Python's
SPACES = "".join(char for char in map(chr, range(0x3001)) if char.isspace() and not "\x1c" <= char <= "\x1f")


class ChatBatch(NamedTuple):
    """Conversations as tokens: those that are kept, one after the other."""

    tokens: np.ndarray  # (num_tokens,)
    lengths: np.ndarray  # (kept,)
    mask: np.ndarray  # (num_tokens,) bool: whether a token bears loss
    targets: np.ndarray  # (kept,) how many tokens bear loss
    text_bytes: np.ndarray  # (kept,) bytes of text, special tokens left out
    kept: np.ndarray  # (conversations,) bool
    refused: Counter[str]  # how many conversations cannot be masked, by reason
    broken: list[tuple[int, str]]  # number and reason of rows that are no conversation
    referred: int  # texts that the reference encoded


class ChatEncoder:
    """Encodes conversations by the chat rule of a tokenizer."""

    def __init__(self, encoder: Encoder, messages_column: str | None = None):
        self.encoder, self.tokenizer = encoder, encoder.tokenizer
        self._column, self._spells_texts = messages_column, others_texts.spells_texts(self.tokenizer)
        self._conversations = Renderer(self.tokenizer)
        self._special = any_of(self.tokenizer.special_tokens)
        self._is_nanochat = self.tokenizer.chat is not None and self.tokenizer.chat.is_nanochat

    def encode(self, rows: pa.LargeStringArray) -> ChatBatch:
        """The tokens of some rows of JSON."""
        kept, refused, broken = np.zeros(len(rows), bool), Counter[str](), list[tuple[int, str]]()
        conversations: list[list[Stretch] | TokenizedConversation] = []
        for number, row in enumerate(rows.to_pylist()):
            try:
                found = read_conversation(_parsed(row), self._column)
                conversations.append(self._conversations.stretches(found))
                kept[number] = True
            except BrokenConversation as error:
                broken.append((number, str(error)))
            except (CannotMask, CannotRender) as error:
                refused[str(error)] += 1
        return self._joined(conversations, kept, refused, broken)

    def _joined(self, conversations: list[Any], kept: np.ndarray, refused: Counter[str], broken: list) -> ChatBatch:
        flat: list[Stretch | TokenizedConversation] = []
        owner: list[int] = []
        for number, one in enumerate(conversations):
            some = [one] if isinstance(one, TokenizedConversation) else one
            flat += some
            owner += [number] * len(some)
        texts = [one.text for one in flat if isinstance(one, Stretch) and not one.is_special]
        ids, counts, referred = self.encoder.encode_texts(pa.array(texts, pa.large_string()))
        size, is_text, full = np.ones(len(flat), np.int64), np.zeros(len(flat), bool), np.zeros(len(flat), bool)
        others: list[tuple[int, np.ndarray]] = []  # what is not text: (number, ids)
        partial: list[tuple[int, np.ndarray]] = []  # (number, bool of each token) where only some tokens bear loss
        text_number, text_first = 0, np.cumsum(counts) - counts
        text_bytes = np.zeros(len(conversations), np.int64)
        for number, one in enumerate(flat):
            if isinstance(one, TokenizedConversation):
                others.append((number, np.asarray(one.ids, ids.dtype)))
                partial.append((number, np.asarray(one.bears_loss, bool)))
                size[number] = len(one.ids)
            elif one.is_special:
                others.append((number, np.array([self.tokenizer.special_tokens[one.text]], ids.dtype)))
                full[number] = bool(one.learned)
            else:
                is_text[number] = True
                size[number] = count = counts[text_number]
                text_bytes[owner[number]] += len(one.text.encode())
                full[number] = one.learned == ((0, len(one.text)),)
                if one.learned and not full[number]:
                    own = ids[text_first[text_number] : text_first[text_number] + count]
                    partial.append((number, self._bears_loss(one, own)))
                text_number += 1
        first = np.cumsum(size) - size
        tokens, mask = np.empty(int(size.sum()), ids.dtype), np.repeat(full, size)
        tokens[np.repeat(is_text, size)] = ids
        for number, some_ids in others:
            tokens[first[number] : first[number] + size[number]] = some_ids
        for number, bears in partial:
            mask[first[number] : first[number] + size[number]] = bears
        lengths = np.bincount(np.asarray(owner, np.int64), weights=size, minlength=len(conversations)).astype(np.int64)
        targets = _sums(mask, lengths)
        return ChatBatch(tokens, lengths, mask, targets, text_bytes, kept, refused, broken, referred)

    def _bears_loss(self, stretch: Stretch, ids: np.ndarray) -> np.ndarray:
        """Which tokens of a text begin in what is learned: (num_tokens,) bool."""
        begins, learned = self._begins(stretch.text, ids), stretch.learned
        if not stretch.text.isascii() and begins is not None:
            learned = tuple((len(stretch.text[:a].encode()), len(stretch.text[:b].encode())) for a, b in learned)
        if begins is None:
            begins = others_texts.begins(self.tokenizer, stretch.text, ids)
        found = np.zeros(len(ids), bool)
        for first, last in learned:
            found |= (begins >= first) & (begins < last)
        return found

    def _begins(self, text: str, ids: np.ndarray) -> np.ndarray | None:
        """The byte of the text that each token begins with; None if tokens do not stand for the text's own bytes."""
        data = text.encode()
        sizes = self._sizes[ids]
        ends: np.ndarray = np.cumsum(sizes)
        is_spelled = (int(ends[-1]) if len(ids) else 0) == len(data)
        if is_spelled and not self._spells_texts:
            is_spelled = b"".join([self._spelling[id] for id in ids.tolist()]) == data
        return ends - sizes if is_spelled else None

    @cached_property
    def _spelling(self) -> dict[int, bytes]:
        return self.tokenizer.tokens

    @cached_property
    def _sizes(self) -> np.ndarray:
        """Bytes that each id stands for: (vocab_size,) int64."""
        sizes = np.zeros(self.tokenizer.vocab_size, np.int64)
        sizes[list(self._spelling)] = list(map(len, self._spelling.values()))
        return sizes

    def prove(self, rows: pa.LargeStringArray, batch: ChatBatch, numbers: Sequence[int]) -> None:
        """Encodes some of the kept conversations, by their numbers among these, with the reference: one text at a time,
        and as a whole where no text spells a special token. Raises ValueError if any of them differ.
        """
        ends, places = np.cumsum(batch.lengths), np.flatnonzero(batch.kept)
        for number in numbers:
            row = rows[int(places[number])].as_py()
            found = self._conversations.stretches(read_conversation(_parsed(row), self._column))
            if isinstance(found, TokenizedConversation):
                continue
            special, encode = self.tokenizer.special_tokens, self.tokenizer.encode
            parts = [np.array([special[one.text]]) if one.is_special else encode(one.text) for one in found]
            own = batch.tokens[ends[number] - batch.lengths[number] : ends[number]]
            if not np.array_equal(np.concatenate(parts), own):
                raise ValueError(
                    f"{self.encoder.engine} and {self.tokenizer.library} encode a conversation differently, which "
                    f"begins {row[:80]!r}; run again with --engine tiktoken, and please report it"
                )
            self._require_same_as_a_whole(found, own)

    def _require_same_as_a_whole(self, stretches: list[Stretch], ids: np.ndarray) -> None:
        """ValueError if a tokenizer gives other ids to a text that follows a special token than to the text alone."""
        text = "".join(one.text for one in stretches)
        written = sum(one.is_special for one in stretches)
        if self._is_nanochat or len(self._special.findall(text)) != written:
            return  # nanochat's texts are tokenized alone
        if others_texts.encode_spelled(self.tokenizer, text) not in (
            ids.tolist(),
            ids[1:].tolist(),
        ):  # whose BOS the template may have written
            raise ValueError(
                f"tokenizer {self.tokenizer.name} encodes a text differently where a special token comes before it, in "
                f"a conversation that begins {text[:80]!r}: it cannot be used for chat sets"
            )


class Renderer:
    """Renders conversations by a tokenizer's chat rule. Raises ValueError if the tokenizer lacks what it needs."""

    def __init__(self, tokenizer: Tokenizer):
        rule = tokenizer.chat
        assert rule is not None, "only a tokenizer of a chat set renders conversations"
        self.tokenizer, self._rule = tokenizer, rule
        lacks = [token for token in rule.needs if token not in tokenizer.special_tokens]
        if lacks:
            raise ValueError(
                f"the chat template {rule.name} needs special tokens that tokenizer {tokenizer.name} does not have: "
                f"{', '.join(lacks)}; use --chat chatml, or a tokenizer that has them: --tokenizer train:N makes one"
            )
        self._absorbing = others_texts.absorbing(tokenizer)
        self._finder: TurnFinder | None = None
        if not rule.is_nanochat:
            template = JinjaTemplate(rule.template, rule.variables)
            self._finder = TurnFinder(template, list(tokenizer.special_tokens), rule.loss)

    def stretches(self, found: Conversation | TokenizedConversation) -> list[Stretch] | TokenizedConversation:
        """A conversation that begins with BOS. Raises BrokenConversation, CannotRender or CannotMask."""
        bos = self.tokenizer.bos_token
        if isinstance(found, TokenizedConversation):
            return self._framed(found)
        if self._finder is None:
            stretches = nanochat_stretches(found, bos, self._rule.loss)
        else:
            stretches = self._absorbed(self._finder.stretches(found))
            if not stretches or stretches[0].text != bos or not stretches[0].is_special:
                stretches = [Stretch(bos, True, ()), *stretches]
        first, *others = stretches
        if any(one.is_special and one.text == bos for one in others):
            raise CannotMask(
                f"the template writes {bos} within a conversation, where BOS only begins documents; name another "
                "special token by --bos-token"
            )
        if not any(one.learned for one in others):
            raise CannotMask("no token of it bears loss")
        return [first._replace(learned=()), *others]

    def _framed(self, found: TokenizedConversation) -> TokenizedConversation:
        bos, size = self.tokenizer.bos_id, self.tokenizer.vocab_size
        ids, bears = list(found.ids), list(found.bears_loss)
        if not ids or ids[0] != bos:
            ids, bears = [bos, *ids], [False, *bears]
        bears[0] = False
        if bos in ids[1:]:
            raise BrokenConversation(f"input_ids have BOS ({bos}) within a conversation; name another by --bos-token")
        if not all(0 <= id < size for id in ids):
            raise BrokenConversation(
                f"input_ids must be from 0 to {size - 1:,}, as tokenizer {self.tokenizer.name} has"
            )
        if not any(bears):
            raise CannotMask("no token of it bears loss")
        return TokenizedConversation(ids, bears)

    def _absorbed(self, stretches: list[Stretch]) -> list[Stretch]:
        """Without the spaces that special tokens take into themselves, as some do in Hugging Face's library."""
        left, right = self._absorbing
        if not (left or right):
            return stretches
        found: list[Stretch] = []
        for number, one in enumerate(stretches):
            if one.is_special:
                found.append(one)
                continue
            follows_one = number > 0 and stretches[number - 1].text in right
            before = len(one.text) - len(one.text.lstrip(SPACES)) if follows_one else 0
            follows = stretches[number + 1].text if number + 1 < len(stretches) else None
            after = len(one.text.rstrip(SPACES)) if follows in left else len(one.text)
            if before < after:
                learned = ((max(a, before) - before, min(b, after) - before) for a, b in one.learned)
                found.append(Stretch(one.text[before:after], False, tuple((a, b) for a, b in learned if a < b)))
        return found


def texts_of_row(row: str, column: str | None = None) -> list[str]:
    """The texts of a row's messages, to train a tokenizer on; none of a row that is no conversation."""
    try:
        return texts_of(read_conversation(_parsed(row), column))
    except BrokenConversation:
        return []


def _parsed(row: str) -> Any:
    try:
        return orjson.loads(row)
    except ValueError:  # lone surrogates, which JSON can spell and UTF-8 cannot
        try:
            return _mended(json.loads(row))
        except (ValueError, RecursionError) as error:
            raise BrokenConversation(f"no JSON ({error})") from error


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_mended(key): _mended(one) for key, one in value.items()}
    return [_mended(one) for one in value] if isinstance(value, list) else value


def _sums(mask: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """How many tokens of each conversation bear loss."""
    done = np.concatenate([[0], np.cumsum(mask, dtype=np.int64)])
    ends = np.cumsum(lengths)
    found: np.ndarray = done[ends] - done[ends - lengths]
    return found
