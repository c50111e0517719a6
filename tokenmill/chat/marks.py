"""Marks around the texts of a conversation, by which they are found again in what a template renders.

    marker = Marker(special, messages, tools)
    marker.messages, marker.tools                     with marks: "Hi" is "Zq0aHiZq0z"
    marked = marker.read(text, blocks)                a rendering of these less the marks, and where the texts are

White space around a text is outside of its marks, so a template may strip it. Tags in a text, as <think>, are outside
too, as templates look for them.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tokenmill.chat.conversations import REASONING, CannotMask
from tokenmill.chat.jinja_templates import with_reasoning

TAG = re.compile(r"(<[^<>\s]{1,40}>|\[/?[A-Z_]{2,30}\])")  # that templates may look for in texts
THINK = "</think>"


class Mark(NamedTuple):
    """Whose text it is: a message's number, or -1, -2 ... of the tools; and what of it."""

    owner: int
    what: str  # content, reasoning, name, arguments, tools


class Rendering(NamedTuple):
    """A rendering with marks, less the marks."""

    text: str
    places: list[tuple[int, int, int]]  # (begin, end, number of the mark) ascending
    blocks: list[tuple[int, int]]


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds each of these texts, the longest first; nothing if there are none."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)")


class Marker:
    """The messages and tools with marks around their texts. Raises CannotMask if something else spells a special token.

    `texts` are what is within marks, `marks` whose they are. `shape` is what conversations have in common that differ
    in their texts only.
    """

    def __init__(self, special: re.Pattern[str], messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None):
        self._special, messages = special, with_reasoning(messages)
        for number in itertools.count():
            self._letters = f"Zq{number}x" if number else "Zq"
            self.marks, self.texts, self.shape = list[Mark](), list[str](), list[Any]()
            self.tools = [self._tool(-1 - n, one) for n, one in enumerate(tools)] if tools else None
            self.shape.append("messages")
            self.messages = [self._message(n, one) for n, one in enumerate(messages)]
            if not any(self._letters in one for one in self.texts):
                break
        self._find = re.compile(self._letters + "([0-9]+)([az])")

    def read(self, text: str, blocks: list[tuple[int, int]]) -> Rendering:
        """A rendering of the marked messages."""
        pieces, places, cuts, opened, at, done = list[str](), list[tuple[int, int, int]](), [], {}, 0, 0
        for found in self._find.finditer(text):
            pieces.append(text[at : found.start()])
            done += found.start() - at
            at = found.end()
            cuts.append((found.start(), at))
            if found[2] == "a":
                opened[found[1]] = done
            elif found[1] in opened:
                places.append((opened.pop(found[1]), done, int(found[1])))
        if opened:
            raise CannotMask("the template cuts a text")
        shifted = [[at - sum(min(b, at) - a for a, b in cuts if a < at) for at in block] for block in blocks]
        return Rendering("".join([*pieces, text[at:]]), sorted(places), [(a, b) for a, b in shifted])

    def special_in(self, marked: Rendering) -> Iterator[tuple[int, int]]:
        """(begin, end) of the special tokens that the template wrote: those that are not in texts."""
        at = 0
        for begin, end, _ in [*marked.places, (len(marked.text), len(marked.text), 0)]:
            yield from (one.span() for one in self._special.finditer(marked.text, at, max(begin, at)))
            at = max(at, end)

    def _message(self, number: int, message: dict[str, Any]) -> dict[str, Any]:
        found, reasoning = {}, ""
        for key, value in message.items():
            if key == "content":
                found[key] = self._content(number, key, value)
            elif key in REASONING and value == message["reasoning_content"]:
                reasoning = found[key] = reasoning or self._text(Mark(number, "reasoning"), value)
            elif key in ("tool_calls", "function_call"):
                calls = [self._call(number, one) for one in (value if isinstance(value, list) else [value])]
                found[key] = calls if isinstance(value, list) else calls[0]
            else:
                found[key] = self._plain(value)
            self.shape.append(key)
        return found

    def _content(self, number: int, key: str, value: Any) -> Any:
        if isinstance(value, list):
            return [self._content(number, "", part) for part in value]
        if isinstance(value, dict):
            return {key: self._content(number, key, one) for key, one in value.items()}
        if not isinstance(value, str) or key == "type":
            return self._plain(value)
        opens, closes = value.find("<think>"), value.find(THINK)
        cut = closes + len(THINK) if 0 <= opens < closes else 0
        thought = self._text(Mark(number, "reasoning"), value[:cut]) if cut else ""
        return thought + self._text(Mark(number, "content"), value[cut:])

    def _call(self, number: int, call: Any) -> Any:
        if not isinstance(call, dict):
            return self._plain(call)
        found = {}
        for key, value in call.items():
            if key == "function":
                found[key] = self._call(number, value)
            elif key == "arguments":
                found[key] = self._values(Mark(number, "arguments"), value)
            elif key == "name" and isinstance(value, str):
                found[key] = self._text(Mark(number, "name"), value)
            else:
                found[key] = self._plain(value)
            self.shape.append(key)
        return found

    def _values(self, mark: Mark, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(mark, value)
        if isinstance(value, dict):
            return {self._plain(key): self._values(mark, one) for key, one in value.items()}
        return [self._values(mark, one) for one in value] if isinstance(value, list) else self._plain(value)

    def _tool(self, number: int, value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            is_schema = key in ("properties", "parameters")  # whose keys are the tool's own names
            return {
                self._plain(name): self._tool(number, one, key if is_schema and not isinstance(one, dict) else name)
                for name, one in value.items()
            }
        if isinstance(value, list):
            return [self._tool(number, one) for one in value]
        is_text = key in ("name", "description") and isinstance(value, str)
        return self._text(Mark(number, "tools"), value) if is_text else self._plain(value)

    def _plain(self, value: Any) -> Any:
        """What is no text."""
        spelled = value if isinstance(value, str) else repr(value)
        if self._special.search(spelled) or (value is not spelled and self._special.search(json.dumps(value))):
            raise CannotMask("a role, a name or a key spells a special token")
        self.shape.append(spelled)
        return value

    def _text(self, mark: Mark, text: str) -> str:
        """A text with marks around its pieces between tags."""
        found: list[str] = []
        for number, piece in enumerate(TAG.split(text) if "<" in text or "[" in text else (text,)):
            core = piece.strip()
            if not core or (number % 2 and not self._special.search(core)):
                found.append(piece)
                self.shape.append(piece)
                continue
            at, name = piece.index(core), f"{self._letters}{len(self.marks)}"
            before, after = piece[:at], piece[at + len(core) :]
            self.marks.append(mark)
            self.texts.append(core)
            self.shape.append((before, after))
            found += (before, name, "a", core, name, "z", after)
        return "".join(found)
