"""Marks around the texts of a conversation, by which they are found again in what a template renders.

    marker = Marker(special, messages, tools)
    marker.messages, marker.tools                     with marks: "Hi" is "Zq0aHiZq0z"
    marked = marker.read(text, blocks)                a rendering of these less the marks, and where the texts are

White space around a text is outside of its marks, so a template may strip it. Tags in a text, as <think>, are outside
too, as templates look for them, unless it has nothing else.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tokenmill.chat.conversations import REASONING, CannotMask

TAG = re.compile(r"(<[^<>\s]{1,40}>|\[/?[A-Z_]{2,30}\])")  # that templates may look for in texts
THOUGHT = re.compile("(?s)(.*?)(<think>.*?</think>)(.*)")
KEYS: dict[str, dict[str, str]] = {  # key: what is under it
    "message": {
        "content": "content",
        "refusal": "content",
        "tool_calls": "calls",
        "function_call": "calls",
    }
    | dict.fromkeys((*REASONING, "tool_plan"), "reasoning"),
    "calls": {"function": "calls", "name": "name of a call", "arguments": "arguments of a call"},
}


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

    Of each mark, `texts` is what is within, `owners` whose it is, a message's number, or -1, -2 ... of the tools, and
    `kinds` what of it (KEYS). Conversations of one `shape` differ in their texts only.
    """

    def __init__(
        self,
        special: re.Pattern[str],
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
    ):
        self._special = special
        for number in itertools.count():
            self._letters = f"Zq{number}x" if number else "Zq"
            self.texts, self.owners, self.kinds, self.shape = (
                list[str](),
                list[int](),
                list[str](),
                list[Any](),
            )
            self._reasoning: dict[tuple[int, str], str] = {}  # which is there under several names
            self.tools = (
                [self._marked(one, -1 - n, "tools") for n, one in enumerate(tools)]
                if tools is not None
                else None
            )
            self.shape.append("messages")
            self.messages = [self._marked(one, n, "message") for n, one in enumerate(messages)]
            if not any(self._letters in one for one in self.texts):
                break
        self._find = re.compile(self._letters + "([0-9]+)([az])")

    def read(self, text: str, blocks: list[tuple[int, int]]) -> Rendering:
        """A rendering of the marked messages."""
        pieces, places, cuts, opened, at, done = (
            list[str](),
            list[tuple[int, int, int]](),
            [],
            {},
            0,
            0,
        )
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
        shifted = [
            [at - sum(min(b, at) - a for a, b in cuts if a < at) for at in block]
            for block in blocks
        ]
        return Rendering(
            "".join([*pieces, text[at:]]), sorted(places), [(a, b) for a, b in shifted]
        )

    def special_in(self, marked: Rendering) -> Iterator[tuple[int, int]]:
        """(begin, end) of the special tokens that the template wrote: those that are not in texts."""
        at = 0
        for begin, end, _ in [*marked.places, (len(marked.text), len(marked.text), 0)]:
            yield from (
                one.span() for one in self._special.finditer(marked.text, at, max(begin, at))
            )
            at = max(at, end)

    def _marked(self, value: Any, owner: int, what: str, key: str = "") -> Any:
        """A message, or what is under a key of it, of a call or of a tool."""
        if isinstance(value, dict):
            self.shape.append(len(value))
            found = {}
            for name, one in value.items():
                inner = KEYS[what].get(name, "plain") if what in KEYS else what
                is_own = key in ("properties", "parameters") and not isinstance(
                    one, dict
                )  # names of a tool's own
                found[self._plain(name)] = self._marked(one, owner, inner, key if is_own else name)
            return found
        if isinstance(value, list):
            self.shape.append(len(value))
            return [self._marked(one, owner, what) for one in value]
        is_name = (what == "content" and key == "type") or (
            what == "tools" and key not in ("name", "description")
        )
        if is_name or not isinstance(value, str) or what in ("plain", *KEYS):
            return self._plain(value)
        if what == "reasoning":
            if (owner, value) not in self._reasoning:
                self._reasoning[owner, value] = self._text(owner, what, value)
            return self._reasoning[owner, value]
        thought = THOUGHT.fullmatch(value) if what == "content" else None
        parts = (
            zip((what, "reasoning", what), thought.groups(), strict=True)
            if thought
            else [(what, value)]
        )
        return "".join(self._text(owner, kind, part) for kind, part in parts)

    def _plain(self, value: Any) -> Any:
        """What is no text."""
        if isinstance(value, str) and self._special.search(value):
            raise CannotMask("a role, a name or a key spells a special token")
        self.shape.append(value)
        return value

    def _text(self, owner: int, what: str, text: str) -> str:
        """A text with marks around its pieces between tags."""
        found: list[str] = []
        has_tags = ("<" in text or "[" in text) and ("think>" in text or TAG.sub("", text).strip())
        for number, piece in enumerate(TAG.split(text) if has_tags else (text,)):
            core = piece.strip()
            if not core or (number % 2 and not self._special.search(core)):
                found.append(piece)
                self.shape.append(piece)
                continue
            at, name = piece.index(core), f"{self._letters}{len(self.texts)}"
            before, after = piece[:at], piece[at + len(core) :]
            self.owners.append(owner)
            self.kinds.append(what)
            self.texts.append(core)
            self.shape.append((before, after))
            found += (before, name, "a", core, name, "z", after)
        return "".join(found)
