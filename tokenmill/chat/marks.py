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

TAG = re.compile(r"(<[^<>\s]{1,40}>|\[/?[A-Z_]{2,30}\])")  # that templates may look for in texts
THOUGHT = re.compile("(?s)(.*?)(<think>.*?</think>)(.*)")
PLAIN = "plain"  # a value that is no text
CALLS = "calls"
KEYS: dict[str, dict[str, str]] = {  # key: what is under it
    "message": {
        "content": "content",
        "refusal": "content",
        "tool_calls": CALLS,
        "function_call": CALLS,
        **dict.fromkeys((*REASONING, "tool_plan"), "reasoning"),
    },
    CALLS: {"function": CALLS, "name": "name of a call", "arguments": "arguments of a call"},
}
NAMED_BY_TOOL = ("properties", "parameters")  # of a tool, under which names are its own
DESCRIBING = ("name", "description")  # of a tool: texts; others are names

Spans = list[tuple[int, int]]  # (begin, end) of characters, ascending


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
    of the tools, and `kinds` what of it (KEYS). Conversations of one `shape` differ in their texts
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
            self.tools = [self._marked(tool, -1 - n, "tools") for n, tool in enumerate(tools)]
        self.shape.append("messages")
        self.messages = [self._marked(each, n, "message") for n, each in enumerate(messages)]

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

    def _marked(self, value: Any, owner: int, what: str, key: str = "") -> Any:
        """A message, or what is under a key of it, of a call or of a tool."""
        if isinstance(value, dict):
            return self._marked_fields(value, owner, what, key)
        if isinstance(value, list):
            self.shape.append(len(value))
            return [self._marked(item, owner, what) for item in value]
        if not isinstance(value, str) or what == PLAIN or what in KEYS:
            return self._plain(value)
        if what == "content" and key == "type":
            return self._plain(value)
        if what == "tools" and key not in DESCRIBING:
            return self._plain(value)
        if what == "reasoning":
            if (owner, value) not in self._reasoning:
                self._reasoning[owner, value] = self._text(owner, what, value)
            return self._reasoning[owner, value]
        thought = THOUGHT.fullmatch(value) if what == "content" else None
        if thought is None:
            return self._text(owner, what, value)
        before, thinking, after = thought.groups()
        marked = self._text(owner, what, before)
        marked += self._text(owner, "reasoning", thinking)
        return marked + self._text(owner, what, after)

    def _marked_fields(
        self, fields: dict[str, Any], owner: int, what: str, key: str
    ) -> dict[str, Any]:
        self.shape.append(len(fields))
        marked = {}
        for name, value in fields.items():
            kind = KEYS[what].get(name, PLAIN) if what in KEYS else what
            is_named_by_tool = key in NAMED_BY_TOOL and not isinstance(value, dict)
            inner = self._marked(value, owner, kind, key if is_named_by_tool else name)
            marked[self._plain(name)] = inner
        return marked

    def _plain(self, value: Any) -> Any:
        """What is no text."""
        if isinstance(value, str) and self._special.search(value):
            raise CannotMask("a role, a name or a key spells a special token")
        self.shape.append(value)
        return value

    def _text(self, owner: int, what: str, text: str) -> str:
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
            self.kinds.append(what)
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
