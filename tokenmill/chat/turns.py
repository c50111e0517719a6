r"""Which characters of a rendered conversation the assistant wrote, and which special tokens the template wrote.

Every text of a conversation is replaced with a mark, and the template renders the marks. What it renders is a frame:

    user: Hi, assistant: Hello      ->  <|im_start|>user\n(0)<|im_end|>\n<|im_start|>assistant\n(1)<|im_end|>\n

The real rendering must be this frame with the texts in place of the marks, as they are or as templates change them
(stripped, JSON-escaped); otherwise the conversation is refused. So special tokens of the frame are the template's, and
text that spells one is text. In the frame a turn of the assistant begins after its generation prompt, what the model
is given when it is to answer, and ends with the last special token before the next message. All of that is what the
model has to write: reasoning, tool calls, content, and the token that ends the turn. Where the template marks
{% generation %}, its blocks are the turns.

Conversations of one shape (the same roles, the same keys) have the same frame, so it is made once for all of them.

Source of the idea to find contents by marks: the masks of axolotl and TRL look for differences between renderings of a
conversation's beginnings, which fails where a template rewrites its history.
"""

import functools
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tokenmill.chat.conversations import Conversation
from tokenmill.chat.jinja_templates import REASONING, CannotRender, JinjaTemplate, with_reasoning
from tokenmill.chat.text_forms import ways_to_read

OPEN, CLOSE = "\ue0fe", "\ue0ff"  # private-use characters around the number of a mark
MARK = re.compile(f"{OPEN}([0-9]+){CLOSE}")
FRAMES_KEPT = 4096
TEXT_KEYS = ("content", "text", *REASONING, "arguments", "description")
CALL = "arguments"  # of a tool call
CALLS = "tool_calls"  # in which a `name` is text, too: a call may have no other
# what templates look for in contents: split('</think>'), startswith('<tool_response>'), '<think>' in content
LOOKED_FOR = re.compile(
    r"""(?:split|rsplit|startswith|endswith|find|partition|rpartition|replace)\(\s*(?:'([^'\n]+)'|"([^"\n]+)")"""
    r"""|(?:'([^'\n]+)'|"([^"\n]+)")\s+(?:not\s+)?in\s"""
)


class CannotMask(ValueError):
    """It cannot be verified which tokens the assistant wrote; the message is the reason, the same for all alike."""


class Stretch(NamedTuple):
    """A special token, or text that is tokenized as a whole. `learned` are (begin, end) of the characters that bear
    loss, ascending.
    """

    text: str
    is_special: bool
    learned: tuple[tuple[int, int], ...]


class Frame(NamedTuple):
    """A rendering of marks: literals[0], the text of marks[0], literals[1] ...

    `turns` are the learned turns as (begin, end), each a place in a literal: (number of the literal, offset in it).
    """

    literals: tuple[str, ...]
    marks: tuple[int, ...]
    turns: tuple[tuple[tuple[int, int], tuple[int, int]], ...]
    blocks: int  # how many generation blocks the template marks


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds each of these texts, the longest first; nothing if there are none."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)")


class TurnFinder:
    """Finds the turns in conversations that a template renders. `special` are the special tokens of the tokenizer."""

    def __init__(self, template: JinjaTemplate, special: Sequence[str], loss: str):
        self.template, self._loss = template, loss
        self._special = any_of(special)
        looked_for = {_unescaped(next(filter(None, found.groups()))) for found in LOOKED_FOR.finditer(template.source)}
        self._kept = any_of(one for one in looked_for if re.search(r"[^\w\s]", one) and not self._special.search(one))
        self._frames = functools.lru_cache(FRAMES_KEPT)(self._make_frame)
        self._end_of_turn = functools.cache(self._find_end_of_turn)

    def stretches(self, conversation: Conversation) -> list[Stretch]:
        """The rendered conversation. Raises CannotRender or CannotMask."""
        messages = with_reasoning(conversation.messages)
        texts: list[str] = []
        marked = json.dumps(self._marked([messages, conversation.tools], texts), ensure_ascii=False)
        if self._special.search(_without_marks(marked)):
            raise CannotMask("a role, a name or a key spells a special token")
        if marked.count(OPEN) != len(texts):
            raise CannotMask("a role, a name or a key has a character that marks texts here, U+E0FE")
        frame = self._frames(marked, self._learned(conversation))
        real, blocks = self.template.render_with_blocks(messages, conversation.tools)
        if len(blocks) != frame.blocks:
            raise CannotMask("it depends on a text whether the template marks it with {% generation %}")
        return self._stretches(frame, _match(frame, texts, real))

    def _learned(self, conversation: Conversation) -> tuple[int, ...]:
        """The messages that are learned."""
        found = [number for number, learned in enumerate(conversation.learned) if learned]
        last = max(i for i, message in enumerate(conversation.messages) if message["role"] == "assistant")
        return tuple(found if self._loss == "all" else [i for i in found if i == last])

    # ------------------------------------------------------------------------ marks

    def _marked(
        self, value: Any, texts: list[str], is_text: bool = False, in_call: bool = False, in_calls: bool = False
    ) -> Any:
        """A copy in which texts are marks; the texts are appended to `texts`.

        What the template looks for in contents stays as it is, and so does text without any letter or sign, as a
        template may leave out what is empty.
        """
        if isinstance(value, dict):
            return {
                key: self._marked(
                    one,
                    texts,
                    key in TEXT_KEYS or (in_calls and key == "name"),
                    in_call or key == CALL,
                    in_calls or key == CALLS,
                )
                for key, one in value.items()
            }
        if isinstance(value, list):
            return [self._marked(one, texts, is_text, in_call, in_calls) for one in value]
        is_text = is_text or in_call  # whatever the names of a call's arguments are
        if not (is_text and isinstance(value, str)):
            return value
        parts, at = [], 0
        for kept in [*self._kept.finditer(value), None]:
            text = value[at : kept.start() if kept else len(value)]
            if text.strip():
                texts.append(text)
                text = f"{OPEN}{len(texts) - 1}{CLOSE}"
            parts += [text, kept[0] if kept else ""]
            at = kept.end() if kept else at
        return "".join(parts)

    # ------------------------------------------------------------------------ frames

    def _make_frame(self, marked: str, learned: tuple[int, ...]) -> Frame:
        messages, tools = json.loads(marked)
        self._require_known(messages, tools)
        rendered, blocks = self.template.render_with_blocks(messages, tools)
        self._require_all_of_others(messages, rendered)
        owners = {
            int(m[1]): n for n, one in enumerate(messages) for m in MARK.finditer(json.dumps(one, ensure_ascii=False))
        }
        places = [(found.start(), found.end(), owners.get(int(found[1]), -1)) for found in MARK.finditer(rendered)]
        if self.template.has_blocks:
            turns = list(_of_blocks(blocks, places, learned, len(self._learnable(messages)) == len(learned)))
        else:
            turns = [self._turn(messages, tools, rendered, places, number) for number in learned]
        for begin, end in turns:
            if any(owner not in learned for a, b, owner in places if a < end and begin < b):
                raise CannotMask("the template writes others' texts into a turn of the assistant")
        literals = tuple(MARK.split(rendered)[::2])
        marks = tuple(int(found[1]) for found in MARK.finditer(rendered))
        placed = tuple((_place(rendered, a), _place(rendered, b)) for a, b in turns)
        return Frame(literals, marks, placed, len(blocks))

    def _require_known(self, messages: list[dict[str, Any]], tools: Any) -> None:
        """CannotMask if there is what the template never looks at."""
        keys = {CALLS: (CALLS,), "reasoning": REASONING}
        given = [what for what, names in keys.items() if any(one.get(name) for one in messages for name in names)]
        for what in [*given, *(["tools"] if tools else [])]:
            if not any(name in self.template.source for name in keys.get(what, (what,))):
                raise CannotMask(f"the template has no place for {what}")

    def _require_all_of_others(self, messages: list[dict[str, Any]], rendered: str) -> None:
        """CannotMask if the template leaves out a text that is not the assistant's."""
        there = set(MARK.findall(rendered))
        for message in messages:
            given = set(MARK.findall(json.dumps(message.get("content"), ensure_ascii=False)))
            if message["role"] != "assistant" and not given <= there:
                raise CannotMask(f"the template leaves out a text of the {message['role']}")

    def _learnable(self, messages: list[dict[str, Any]]) -> list[int]:
        return [number for number, message in enumerate(messages) if message["role"] == "assistant"]

    def _turn(
        self, messages: list[dict[str, Any]], tools: Any, rendered: str, places: list[tuple[int, int, int]], number: int
    ) -> tuple[int, int]:
        """(begin, end) of a message's turn. CannotMask if it has no text, or the template writes none of it."""
        if not MARK.search(json.dumps(messages[number], ensure_ascii=False)):
            raise CannotMask("a turn of the assistant that is to be learned has no text")
        own: dict[str, tuple[int, int]] = {}  # where each text of it is first: a tool's result may name the call again
        for begin, end, owner in places:
            if owner == number:
                own.setdefault(rendered[begin:end], (begin, end))
        if not own:
            raise CannotMask("the template leaves out a turn of the assistant that is to be learned")
        first, last = min(begin for begin, _ in own.values()), max(end for _, end in own.values())
        before = max((end for _, end, owner in places if end <= first and owner != number), default=0)
        begin = self._begin(messages, tools, rendered, number, before, first)
        after = min((a for a, _, owner in places if a >= last and owner != number), default=len(rendered))
        return begin, self._end(messages, tools, rendered, number, last, after)

    def _begin(
        self, messages: list[dict[str, Any]], tools: Any, rendered: str, number: int, before: int, first: int
    ) -> int:
        """Where a turn begins: after the prompt for it."""
        prompt = self._render(messages[:number], tools, True)
        if prompt is not None and rendered.startswith(prompt) and before <= len(prompt) <= first:
            return len(prompt)
        for some in (messages[:number], messages):
            plain, prompted = self._render(some, tools, False), self._render(some, tools, True)
            header = prompted[len(plain) :] if plain and prompted and prompted.startswith(plain) else ""
            if header.strip() and (begin := self._after_header(header, rendered, before, first)) is not None:
                return begin
        raise CannotMask("it cannot be told where a turn of the assistant begins")

    def _after_header(self, header: str, rendered: str, before: int, first: int) -> int | None:
        """Where the prompt for a turn ends between two places, or as much of it as earlier turns have.

        A prompt may continue with what only the last turn begins with, as "<think>". As much as both have, up to a
        special token or the end of a line, is what every turn begins with.
        """
        tokens = list(self._special.finditer(header))
        start = header[: tokens[0].end()] if tokens else header
        if (at := rendered.rfind(start, before, first)) < 0:
            return None
        common = os.path.commonprefix([header, rendered[at:first]])
        if common == header:
            return at + len(header)
        ends = [found.end() for found in tokens if found.end() <= len(common)]
        if ends and "\n" not in common[ends[-1] :] and len(common) > ends[-1]:
            return None  # a role that goes on otherwise than in the prompt, as with a name
        ends += [place + 1 for place, letter in enumerate(common) if letter == "\n"]
        has_all_tokens = not tokens or tokens[-1].end() <= len(common)
        return at + max(ends) if ends and has_all_tokens else None

    def _end(
        self, messages: list[dict[str, Any]], tools: Any, rendered: str, number: int, last: int, after: int
    ) -> int:
        """Where a turn ends: after the token that ends turns, or else after its last special token."""
        whole = rendered if number + 1 == len(messages) else self._render(messages[: number + 1], tools, False)
        is_known = whole is not None and rendered.startswith(whole) and last <= len(whole) <= after
        limit = len(whole) if whole is not None and is_known else after
        if (token := self._end_of_turn()) and (at := rendered.find(token, last, limit)) >= 0:
            return at + len(token)
        if is_known and (found := list(self._special.finditer(rendered, last, limit))):
            return found[-1].end()
        follows = self._special.match(rendered, last, limit)
        if follows is not None and not messages[number].get("tool_calls"):  # after calls there may be several
            return follows.end()
        raise CannotMask("the template writes no special token after a turn of the assistant, so it would never end")

    def _find_end_of_turn(self) -> str | None:
        """The special token that ends every turn of the assistant, the last one too; None if there is none."""
        marks = [f"{OPEN}{number}{CLOSE}" for number in range(4)]
        messages = [{"role": ("user", "assistant")[i % 2], "content": mark} for i, mark in enumerate(marks)]
        rendered = self._render(messages, None, False)
        if rendered is None or any(rendered.count(mark) != 1 for mark in marks):
            return None
        first, last = (rendered[rendered.index(mark) + len(mark) :] for mark in (marks[1], marks[3]))
        found = self._special.findall(os.path.commonprefix([first, last]))
        return found[-1] if found else None

    def _render(self, messages: list[dict[str, Any]], tools: Any, prompt: bool) -> str | None:
        try:
            return self.template.render(messages, tools, add_generation_prompt=prompt)
        except CannotRender:
            return None

    # ------------------------------------------------------------------------ stretches

    def _stretches(self, frame: Frame, texts: list[str]) -> list[Stretch]:
        """The frame with texts in place of its marks, cut at the special tokens of its literals."""
        parts, offsets, cuts, at = [], [], [], 0
        for literal, text in zip(frame.literals, [*texts, ""], strict=True):
            offsets.append(at)
            cuts += [(at + found.start(), at + found.end()) for found in self._special.finditer(literal)]
            parts += [literal, text]
            at += len(literal) + len(text)
        whole = "".join(parts)
        turns = [(offsets[a[0]] + a[1], offsets[b[0]] + b[1]) for a, b in frame.turns]
        found, done = [], 0
        for begin, end in [*cuts, (at, at)]:
            if done < begin:
                found.append(Stretch(whole[done:begin], False, tuple(_within(turns, done, begin))))
            if begin < end:
                found.append(Stretch(whole[begin:end], True, tuple(_within(turns, begin, end))))
            done = end
        return found


def _within(turns: list[tuple[int, int]], begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of turns in a stretch, from its beginning."""
    for first, last in turns:
        if first < end and begin < last:
            yield max(first, begin) - begin, min(last, end) - begin


def _of_blocks(
    blocks: list[tuple[int, int]], places: list[tuple[int, int, int]], learned: tuple[int, ...], learns_all: bool
) -> Iterator[tuple[int, int]]:
    """The generation blocks of the learned messages; a block belongs to the message whose text it has. CannotMask if
    some messages are learned and others not, and a block has no text.
    """
    for begin, end in blocks:
        inside = [owner for a, b, owner in places if begin <= a and b <= end]
        if begin < end and not (inside or learns_all):
            raise CannotMask("a generation block has no text, so it cannot be told whether it is to be learned")
        if begin < end and (learns_all or inside[0] in learned):
            yield begin, end


def _place(rendered: str, offset: int) -> tuple[int, int]:
    """A place in a frame's text as (number of the literal, offset in it)."""
    before = list(MARK.finditer(rendered, 0, offset))
    return len(before), offset - (before[-1].end() if before else 0)


def _match(frame: Frame, texts: list[str], real: str) -> list[str]:
    """The text of each mark in the real rendering. Raises CannotMask unless there is exactly one way to read it."""
    found = ways_to_read(real, frame.literals, [texts[mark] for mark in frame.marks])
    one = next(found, None)
    if one is None:
        raise CannotMask("the template changes texts in a way that is not known")
    if (other := next(found, None)) is not None and other != one:
        raise CannotMask("it cannot be told which spaces are the template's")
    return one


def _without_marks(text: str) -> str:
    return MARK.sub("", text)


def _unescaped(literal: str) -> str:
    return (
        literal.replace("\\n", "\n").replace("\\t", "\t").replace("\\'", "'").replace('\\"', '"').replace("\\\\", "\\")
    )
