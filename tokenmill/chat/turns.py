r"""Which characters of a rendered conversation the assistant wrote, and which special tokens the template wrote.

A conversation is rendered as it is, and once more with marks around its texts, letters and digits that no text has:

    <|im_start|>user\nZq0aHiZq0z<|im_end|>\n<|im_start|>assistant\nZq1aHelloZq1z<|im_end|>\n

The second, less the marks, has to be the first. So every text is found where the template put it, whatever was done to
it, and special tokens outside of texts are the template's. A learned turn begins where the prompt for it ends: what the
template writes after the last text before it, when asked for an answer. It ends with the special tokens after its last
text that follow an answer both before a question and at the conversation's end, cut before the token that opens
messages. Where a template has {% generation %} blocks, they are the turns. Every text that the assistant wrote in a
learned turn must be there, and all others' texts; otherwise the conversation is refused. (The masks of axolotl and TRL
compare the renderings of a conversation's beginnings, which fails where a template rewrites its history.)
"""

import functools
import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tokenmill.chat.conversations import CannotMask, Conversation
from tokenmill.chat.jinja_templates import JinjaTemplate
from tokenmill.chat.marks import Marker, Rendering, any_of

FRAMES_KEPT = 4096
Spans = list[tuple[int, int]]  # (begin, end) of characters, ascending
Masked = tuple[str, Spans, Spans]  # a rendered conversation, what of it is learned, and the template's special tokens
TEXTS = [f"Z{number}aqZ{number}z" for number in range(4)]  # of two questions and their answers
TOOL = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
PRINTED = re.compile(r"""['"]text['"]: ['"](\\\w+|\s)*$""")  # before a text of a list that is printed as Python's


class Frame(NamedTuple):
    """A conversation with its turns, for others of its shape: they differ in the texts at its places only."""

    marked: Rendering
    learned: Spans
    special: Spans

    def filled(self, texts: list[str], rendered: str, blocks: Spans) -> Masked | None:
        """A conversation of this shape with these texts; None if that is not what was rendered."""
        pieces, ends, shifts, done = list[str](), list[int](), [0], 0
        for begin, end, mark in self.marked.places:
            pieces += (self.marked.text[done:begin], texts[mark])
            shifts.append(shifts[-1] + len(texts[mark]) - (end - begin))
            ends.append(done := end)
        if "".join([*pieces, self.marked.text[done:]]) != rendered:
            return None

        def moved(spans: Spans) -> Spans:
            return [(a + shifts[bisect_right(ends, a)], b + shifts[bisect_right(ends, b)]) for a, b in spans]

        return (rendered, moved(self.learned), moved(self.special)) if moved(self.marked.blocks) == blocks else None


class Ends(NamedTuple):
    """The special tokens that end a turn before a user's message, and the last one; and those that open messages."""

    earlier: list[str]
    last: list[str]
    openers: set[str]


class TurnFinder:
    """Finds the turns in conversations that a template renders. `special` are the special tokens of the tokenizer."""

    def __init__(self, template: JinjaTemplate, special: Sequence[str], loss: str):
        self.template, self._loss, self._special = template, loss, any_of(special)
        self._frames: dict[Any, Frame] = {}
        self._ends = functools.cache(functools.partial(_find_ends, template, self._special))

    def find(self, conversation: Conversation) -> Masked:
        """The rendered conversation and its learned turns. Raises CannotMask."""
        messages, tools, learned = conversation
        if self._loss == "last":
            last = max(number for number, message in enumerate(messages) if message["role"] == "assistant")
            learned = tuple(number for number in learned if number == last)
        if not learned:
            raise CannotMask("no token of it is in the loss")
        for number in learned:
            content, reasoning = json.dumps(messages[number].get("content")), messages[number].get("reasoning_content")
            rest = re.sub("<think>.*?</think>", "", content, count=1)
            if "<think>" in rest or "</think>" in rest or (rest != content and reasoning):
                raise CannotMask("the thinking of a learned turn does not balance")
        marker = Marker(self._special, messages, tools)
        text, blocks = self.template.render(messages, tools)
        frame = self._frames.get(key := (learned, *marker.shape))
        if frame is not None and (found := frame.filled(marker.texts, text, blocks)):
            return found
        marked = marker.read(*self.template.render(marker.messages, marker.tools))
        if marked.text != text or marked.blocks != blocks:
            raise CannotMask("the template changes texts by what is in them, so they cannot be found by marks")
        _require_all(marker, marked, learned)
        special = list(marker.special_in(marked))
        if self.template.has_blocks:
            turns = list(self._blocks(marker, marked, learned))
        else:
            turns = [self._turn(marker, marked, special, number) for number in learned]
        others = [(begin, end) for begin, end, mark in marked.places if marker.owners[mark] not in learned]
        if any(a < end and begin < b for a, b in others for begin, end in turns):
            raise CannotMask("the template writes others' texts into a turn of the assistant")
        if len(self._frames) < FRAMES_KEPT:
            self._frames[key] = Frame(marked, turns, special)
        return text, turns, special

    def _blocks(self, marker: Marker, marked: Rendering, learned: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        """The generation blocks of learned turns."""
        learns_all = len(learned) == sum(message["role"] == "assistant" for message in marker.messages)
        outside = {mark for _, _, mark in marked.places if marker.owners[mark] in learned}
        for begin, end in marked.blocks:
            inside = [mark for a, b, mark in marked.places if begin <= a and b <= end]
            outside.difference_update(inside)
            if begin < end and not (inside or learns_all):
                raise CannotMask("a generation block has no text, so it cannot be told whose it is")
            if begin < end and (learns_all or marker.owners[inside[0]] in learned):
                yield begin, end
        if outside:
            raise CannotMask("a text of a learned turn is outside of the template's generation blocks")

    def _turn(self, marker: Marker, marked: Rendering, special: Spans, number: int) -> tuple[int, int]:
        """(begin, end) of a message's turn."""
        places = [(begin, end, mark, marker.owners[mark] == number) for begin, end, mark in marked.places]
        # where each text of it is first: a tool's result may name the call again
        own = {mark: (begin, end) for begin, end, mark, is_own in reversed(places) if is_own}
        if not own:
            raise CannotMask("a turn of the assistant that is to be learned has no text")
        is_silent = any(one["role"] == "tool" and n not in marker.owners for n, one in enumerate(marker.messages))
        if is_silent and sorted(own) != sorted(own, key=own.__getitem__):
            raise CannotMask("a tool's result without text may be within a turn, whose texts are in another order")
        first, last = min(own.values())[0], max(end for _, end in own.values())
        before = max((end for _, end, _, is_own in places if end <= first and not is_own), default=0)
        after = min((at for at, _, _, is_own in places if at >= last and not is_own), default=len(marked.text))
        ends = self._ends(isinstance(marker.messages[number].get("content"), list), bool(marker.tools))
        begin = before + self._begin(marker, ends, number, marked.text[before:first])
        found = [(a, b) for a, b in special if last <= a and b <= after]
        return begin, self._end(marker, ends, marked, found, number, last)

    def _begin(self, marker: Marker, ends: Ends, number: int, gap: str) -> int:
        """The length of the prompt for a turn in `gap`, which is between the turn's first text and the one before it.

        Where the prompt and the history differ, a turn begins after what both share, at a token's or a line's end.
        """
        history = marker.read(*self.template.render(marker.messages[:number], marker.tools, prompt=True))
        prompt = history.text[max((end for _, end, _ in history.places), default=0) :]
        common = os.path.commonprefix([prompt, gap])
        if common == prompt:
            return len(prompt)
        line = common.rfind("\n", len(common) - len(common.lstrip())) + 1  # not of white space after a text
        cut = max([line, *(one.end() for one in self._special.finditer(common))])
        opens = not ends.openers.isdisjoint(self._special.findall(prompt[cut:]))
        in_a_name = any(one[cut : cut + 1].isalnum() or one[cut : cut + 1] == " " for one in (prompt, gap))
        again = os.path.commonprefix([prompt[cut:][::-1], gap[cut:][::-1]])[::-1]
        is_silent = number - 1 not in marker.owners  # then the prompt's end may be far from the turn
        if not cut or is_silent or opens or self._special.search(again) or (common[cut - 1] != "\n" and in_a_name):
            raise CannotMask("it cannot be told where a turn of the assistant begins")
        return cut

    def _end(self, marker: Marker, ends: Ends, marked: Rendering, found: Spans, number: int, last: int) -> int:
        """Where a turn ends whose last text ends at `last`, before the others' texts, with special tokens `found`."""
        names = [marked.text[begin:end] for begin, end in found]
        expected = ends.last if number + 1 == len(marker.messages) else ends.earlier
        if names[: len(expected)] == expected:
            return found[len(expected) - 1][1]
        if not marker.messages[number].get("tool_calls"):
            raise CannotMask("a turn of the assistant does not end as the template's turns do")
        for (_, end), name in zip(found, names, strict=True):
            if name in ends.openers:
                break
            if name == expected[-1]:
                return end
        alone = marker.read(*self.template.render(marker.messages[: number + 1], marker.tools))
        tail = alone.text[max((end for _, end, _ in alone.places), default=0) :]
        tokens = [one.end() for one in self._special.finditer(tail)]
        if not tokens or not marked.text.startswith(tail[: tokens[-1]], last):
            raise CannotMask("it cannot be told where a turn of the assistant with calls ends")
        return last + tokens[-1]


def _require_all(marker: Marker, marked: Rendering, learned: tuple[int, ...]) -> None:
    """CannotMask if the template leaves a text out. Reasoning before the last question may be gone."""
    messages, there = marker.messages, {mark for _, _, mark in marked.places}
    last_user = max((number for number, one in enumerate(messages) if one["role"] == "user"), default=-1)
    for number, (owner, what) in enumerate(zip(marker.owners, marker.kinds, strict=True)):
        if number in there or owner < 0:
            continue
        if messages[owner]["role"] != "assistant":
            raise CannotMask(f"the template leaves out a text of the {messages[owner]['role']}")
        if owner in learned and not (what == "reasoning" and owner < last_user):
            remedy = "; take it out of the data, or name a template that renders it" if what == "reasoning" else ""
            raise CannotMask(f"the template leaves out the {what} in a learned turn{remedy}")
    for begin, _, number in marked.places:
        is_part = marker.kinds[number] == "content" and isinstance(messages[marker.owners[number]].get("content"), list)
        if is_part and PRINTED.search(marked.text, max(0, begin - 40), begin):
            raise CannotMask("the template prints a list of parts as Python does")
    shown = {marker.owners[number] for number in there}
    if not all(-1 - number in shown for number in range(len(marker.tools or ()))):
        raise CannotMask("the template leaves out a tool")


def _find_ends(template: JinjaTemplate, special: re.Pattern[str], are_parts: bool, has_tools: bool) -> Ends:
    """How turns end, from a conversation of two questions and two answers."""
    contents = [[{"type": "text", "text": one}] if are_parts else one for one in TEXTS]
    asked = [{"role": ("user", "assistant")[n % 2], "content": one} for n, one in enumerate(contents)]
    text, _ = template.render(asked, [{"type": "function", "function": TOOL}] if has_tools else None)
    if any(text.count(one) != 1 for one in TEXTS):
        raise CannotMask("the template does not write plain turns as they are")
    before, asks, earlier, answer, last = re.split("|".join(TEXTS), text)
    after_user, one, two = (special.findall(gap) for gap in (asks, earlier, last))
    if not two:
        raise CannotMask("the template ends no last turn, so it would never end; use a template for training")
    first = special.match(text.removeprefix(template.variables.get("bos_token", "")))
    opens = {first[0]} if first else set()  # what a rendering begins with, BOS aside, ends nothing
    common: list[str] = list(os.path.commonprefix([one, two]))
    common = common[: next((n for n, name in enumerate(common) if name in opens), len(common))]
    ends: tuple[list[str], list[str]] = (common, common) if common else (one[:1], two[:1])
    if not ends[0] or {ends[0][0], ends[1][0]} & opens:
        raise CannotMask("no special token ends a turn of the assistant that is not the beginning of a message")
    rest = earlier[earlier.find(ends[0][-1]) + len(ends[0][-1]) :]
    if not special.search(rest) and before.endswith(ends[0][-1] + rest):
        raise CannotMask("the token after a turn of the assistant begins the user's message")
    openers = {*one[len(ends[0]) : len(ends[0]) + 1], *after_user[1:2]} - {*ends[0], *ends[1]}
    return Ends(*ends, openers)
