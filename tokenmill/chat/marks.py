"""Marks around the texts of a conversation, by which they are found in what a template renders.

    marker = Marker(special, messages, tools)
    marker.messages, marker.tools         with marks: "Hi" is "Zq0aHiZq0z"
    marked = marker.read(text, blocks)    a rendering of these less the marks, and where texts are

White space around a text is outside of its marks, so a template may strip it. Tags in a text, as
<think>, are outside too, as templates look for them, unless it has nothing else.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tokenmill.chat.conversations import CannotMask
from tokenmill.chat.message import REASONING, Message
from tokenmill.chat.segments import Span

TAG = re.compile(r"(<[^<>\s]{1,40}>|\[/?[A-Z_]{2,30}\])")  # that templates may look for in texts
THOUGHT = re.compile("(?s)(.*?)(<think>.*?</think>)(.*)")
PLAIN = "plain"  # a value that is no text
CALLS = ("tool_calls", "function_call")
KIND_IN_MESSAGE = {  # of the texts under a key
    "content": "content",
    "refusal": "content",
    **dict.fromkeys((*REASONING, "tool_plan"), "reasoning"),
}
KIND_IN_CALL = {"name": "name of a call", "arguments": "arguments of a call"}
NAMED_BY_TOOL = ("properties", "parameters")  # of a tool, under which names are its own
DESCRIBING = ("name", "description")  # of a tool: texts; others are names

Spans = list[Span]  # ascending


class Rendering(NamedTuple):
    """A rendering with marks, less the marks."""

    text: str
    places: list[tuple[int, int, int]]  # (begin, end, number of the mark) ascending
    blocks: Spans


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds each of these texts, the longest first; nothing if there are none."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


class Marker:
    """The messages and tools with marks around their texts.

    Of each mark, `texts` is what is within, `owners` whose it is, a message's number, or -1, -2 ...
    of the tools, and `kinds` what of it. Conversations of one `shape` differ in their texts
    only. Raises CannotMask if something else spells a special token.
    """

    def __init__(
        self,
        special: re.Pattern[str],
        messages: list[Message],
        tools: list[dict[str, Any]] | None,
    ):
        self._special = special
        for number in itertools.count():  # until no text has the letters of the marks
            self._letters = f"Zq{number}x" if number else "Zq"
            self._mark(messages, tools)
            if not any(self._letters in text for text in self.texts):
                break
        self._pattern = re.compile(self._letters + "([0-9]+)([az])")

    def _mark(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> None:
        self.texts: list[str] = []
        self.owners: list[int] = []
        self.kinds: list[str] = []
        self.shape: list[Any] = []
        self._reasoning: dict[tuple[int, str], str] = {}  # which is there under several names
        self.tools = None
        if tools is not None:
            self.tools = [self._walk(tool, -1 - n, "tools") for n, tool in enumerate(tools)]
        self.shape.append("messages")
        self.messages = [self._message(each, n) for n, each in enumerate(messages)]

    def read(self, text: str, blocks: Spans) -> Rendering:
        """A rendering of the marked messages."""
        pieces = []
        places = []
        marks: Spans = []
        begins: dict[str, int] = {}  # of the texts that have begun
        length = 0  # of the pieces
        at = 0
        for mark in self._pattern.finditer(text):
            number, side = mark.groups()
            pieces.append(text[at : mark.start()])
            length += mark.start() - at
            at = mark.end()
            marks.append(mark.span())
            if side == "a":
                begins[number] = length
            elif number in begins:
                places.append((begins.pop(number), length, int(number)))
        if begins:
            raise CannotMask("the template cuts a text")
        pieces.append(text[at:])
        moved = [(_less_marks(begin, marks), _less_marks(end, marks)) for begin, end in blocks]
        return Rendering("".join(pieces), sorted(places), moved)

    def special_in(self, marked: Rendering) -> Iterator[tuple[int, int]]:
        """(begin, end) of the special tokens that the template wrote: those outside of texts."""
        at = 0
        length = len(marked.text)
        for begin, end, _ in [*marked.places, (length, length, 0)]:
            for token in self._special.finditer(marked.text, at, max(begin, at)):
                yield token.span()
            at = max(at, end)

    def _message(self, message: Message, owner: int) -> Message:
        self.shape.append(len(message))
        marked = {}
        for key, value in message.items():
            if key in CALLS:
                inner = self._calls(value, owner)
            else:
                inner = self._walk(value, owner, KIND_IN_MESSAGE.get(key, PLAIN))
            marked[self._plain(key)] = inner
        return marked

    def _calls(self, value: Any, owner: int) -> Any:
        """Calls, a call, or the function of a call."""
        if not isinstance(value, list | dict):
            return self._plain(value)
        self.shape.append(len(value))
        if isinstance(value, list):
            return [self._calls(item, owner) for item in value]
        marked = {}
        for key, item in value.items():
            if key == "function":
                inner = self._calls(item, owner)
            else:
                inner = self._walk(item, owner, KIND_IN_CALL.get(key, PLAIN))
            marked[self._plain(key)] = inner
        return marked

    def _walk(self, value: Any, owner: int, kind: str, key: str = "") -> Any:
        """A value that is under a key, with the texts in it marked."""
        if isinstance(value, str):
            return self._marked(value, owner, kind, key)
        if not isinstance(value, list | dict):
            return self._plain(value)
        self.shape.append(len(value))
        if isinstance(value, list):
            return [self._walk(item, owner, kind) for item in value]
        marked = {}
        for name, item in value.items():
            inner_key = name
            if key in NAMED_BY_TOOL and not isinstance(item, dict):
                inner_key = key
            marked[self._plain(name)] = self._walk(item, owner, kind, inner_key)
        return marked

    def _marked(self, text: str, owner: int, kind: str, key: str) -> Any:
        is_name = kind == "tools" and key not in DESCRIBING
        is_type = kind == "content" and key == "type"
        if kind == PLAIN or is_name or is_type:
            return self._plain(text)
        if kind == "reasoning":
            if (owner, text) not in self._reasoning:
                self._reasoning[owner, text] = self._text(owner, kind, text)
            return self._reasoning[owner, text]
        thought = THOUGHT.fullmatch(text) if kind == "content" else None
        if thought is None:
            return self._text(owner, kind, text)
        before, thinking, after = thought.groups()
        marked = self._text(owner, kind, before)
        marked += self._text(owner, "reasoning", thinking)
        return marked + self._text(owner, kind, after)

    def _plain(self, value: Any) -> Any:
        """What is no text."""
        if isinstance(value, str) and self._special.search(value):
            raise CannotMask("a role, a name or a key spells a special token")
        self.shape.append(value)
        return value

    def _text(self, owner: int, kind: str, text: str) -> str:
        """A text with marks around its pieces between tags."""
        marked = ""
        pieces = TAG.split(text) if _has_tags(text) else [text]
        for number, piece in enumerate(pieces):
            core = piece.strip()
            is_tag = number % 2 == 1 and not self._special.search(core)
            if not core or is_tag:
                marked += piece
                self.shape.append(piece)
                continue
            mark = f"{self._letters}{len(self.texts)}"
            before, _, after = piece.partition(core)
            self.owners.append(owner)
            self.kinds.append(kind)
            self.texts.append(core)
            self.shape.append((before, after))
            marked += f"{before}{mark}a{core}{mark}z{after}"
        return marked


def _has_tags(text: str) -> bool:
    """Whether a text has tags, and more than these."""
    if "<" not in text and "[" not in text:
        return False
    return "think>" in text or bool(TAG.sub("", text).strip())


def _less_marks(at: int, marks: Spans) -> int:
    """Where a place in a text is when the marks are taken out."""
    removed = sum(min(end, at) - begin for begin, end in marks if begin < at)
    return at - removed
